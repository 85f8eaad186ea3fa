"""NVIDIA's multi-process service, by which the kernels of several processes run on a GPU at the same time."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from edbl.engine import environment

MPS = "nvidia-cuda-mps-control"
PATIENCE = 60  # seconds for it to start, and to end


@contextmanager
def shared_gpu(part: int = 100, wanted: bool = True) -> Iterator[str]:
    """Let the processes that are started meanwhile run on the GPU side by side, if the driver's service is there.

    Each may use ``part`` percent of its multiprocessors. It gives the reason why they take turns, if they do.
    """
    control = shutil.which(MPS)
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:  # one that is running is used as it is
        yield ""
        return
    if control is None or not wanted:
        yield f"{MPS} is not there" if wanted else f"{MPS} let no run have the GPU"
        return
    with tempfile.TemporaryDirectory(prefix="edbl-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        # Without the service, processes still share the GPU, by turns.
        if why := _started(control, places):
            yield why
            return
        settings = places | ({environment.PART: str(part)} if part < 100 else {})
        given = {name: value for name, value in settings.items() if name not in os.environ}
        os.environ.update(given)
        try:
            yield ""
        finally:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([control], input=b"quit\n", capture_output=True, check=False, timeout=PATIENCE)
            for name in given:
                del os.environ[name]


def _started(control: str, places: Mapping[str, str]) -> str:
    """Start the service; return why that failed, if it did."""
    try:
        start = subprocess.run(
            [control, "-d"], env=os.environ | places, input=b"", capture_output=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{MPS} did not start: {error}"
    return f"{MPS} did not start: it ended with code {start.returncode}" if start.returncode else ""
