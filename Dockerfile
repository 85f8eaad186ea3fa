# docker build -t edbl . && docker run --rm edbl              the demo, on a CPU
# docker build -t edbl --build-arg BASE=pytorch/pytorch:2.11.0-cuda13.0-cudnn9-runtime .   with CUDA: PyTorch is the image's
# docker run --rm -v "$PWD:/data" -w /data edbl edbl learn pets photos/january
# docker run --rm -p 127.0.0.1:8000:8000 -v "$PWD/models:/data" edbl edbl serve /data --several --host 0.0.0.0
ARG BASE=python:3.11-slim
FROM ${BASE}
WORKDIR /opt/edbl
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Where the image has PyTorch, it stays; elsewhere the pinned one comes, with all that is pinned beside it.
RUN python -c "import torch" 2>/dev/null \
    && python -m pip install --no-cache-dir --break-system-packages '.[photos,export,serve]' \
    || python -m pip install --no-cache-dir -c constraints.txt '.[photos,export,serve]'
RUN useradd --create-home edbl
USER edbl
WORKDIR /home/edbl
EXPOSE 8000
# Of `edbl serve`; whatever else runs here has ended before the first check.
HEALTHCHECK --start-period=30s CMD python -c "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"
CMD ["edbl", "demo"]
