"""An exported model is served without PyTorch: little to install, soon there, small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edbl
from edbl.serve.run import Wanted
from tests.fruit import write_fruit
from tests.serving import Caller

SECONDS, MEGABYTES = 2.0, 300  # of processor time until the first answer, and of memory
SLIM = ("fastapi", "numpy", "onnxruntime", "pillow", "python-multipart", "rich", "typer", "uvicorn")
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("slim")
    model = edbl.open(place / "fruit", device="cpu")
    model.learn({kind: write_fruit(place, kind, range(3)) for kind in ("apple", "lemon")})
    Wanted(place / "fruit").model("fruit", place / "fruit").export(place / "fruit.onnx")  # type: ignore[attr-defined]
    return place / "fruit.onnx"


def test_it_is_served_without_pytorch_soon_and_small(exported: Path, tmp_path: Path) -> None:
    for name in ("torch", "torchvision", "sklearn", "scipy", "matplotlib", "safetensors", "jinja2"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not here')\n")
    source = Path(edbl.__file__).parents[1]
    command = [sys.executable, "-m", "edbl", "serve", str(exported), "--port", "0"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            assert process.stdout
            told = process.stdout.readline()
            found = re.search(r"http://\S+(?=/;)", told)
            assert found, told
            call = Caller(found[0])
            data = write_fruit(tmp_path, "apple", range(7, 8))[0].read_bytes()
            answer = call.form("/v1/models/fruit/predict", [("a.jpg", data)])
            assert answer.json["predictions"][0]["classes"][0]["name"] == "apple", answer.body
            used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            seconds = (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")
            memory = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        finally:
            process.terminate()
            out = process.communicate(timeout=30)[0]
    assert "Traceback" not in out
    print(f"{seconds:.2f} s of a processor, {memory:.0f} MB")
    assert seconds < SECONDS
    assert memory < MEGABYTES


def test_the_page_says_what_is_needed() -> None:
    line = f"pip install {' '.join(SLIM)}"
    assert line in PAGE.read_text()
