"""NVIDIA's multi-process service, by which the kernels of several processes run on a GPU at the same time."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from edbl.engine import environment

MPS = "nvidia-cuda-mps-control"


@contextmanager
def shared_gpu(part: int = 100) -> Iterator[None]:
    """Let the processes that are started meanwhile run on the GPU side by side, if the driver's service is there.

    Each may use ``part`` percent of its multiprocessors.
    """
    control = shutil.which(MPS)
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="edbl-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        # Without the service, processes still share the GPU, by turns.
        start = subprocess.run([control, "-d"], env=os.environ | places, input=b"", capture_output=True, check=False)
        if start.returncode:
            yield
            return
        wanted = places | ({environment.PART: str(part)} if part < 100 else {})
        given = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(given)
        try:
            yield
        finally:
            subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
            for name in given:
                del os.environ[name]
