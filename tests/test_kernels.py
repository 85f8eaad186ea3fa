"""A slice of what `make kernels` compiles: that kernels compile without a GPU, and what would be too much is seen."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.kernels import Needs, faults

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="Triton comes for Linux only")


def test_kernels_compile_without_a_gpu(tmp_path: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    slice_ = ["pool", "forward IN=3 OUT=16", "weight IN=16 OUT=32"]
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels", "--only", *slice_, "--arch", "75", "90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pool OUT=64 RELU=True: ") == 2
    assert done.stdout.endswith("3 kernels for 2 architectures, 0 wrong\n")


def test_what_is_too_much_is_seen() -> None:
    assert not list(faults(Needs(255, 400, 64 * 1024), 75, "pool"))
    assert list(faults(Needs(255, 0, 64 * 1024 + 1), 75, "pool")) == ["65537 bytes of shared memory, of 65536"]
    assert not list(faults(Needs(255, 0, 64 * 1024 + 1), 90, "pool"))
    assert list(faults(Needs(255, 401, 0), 90, "forward IN=3 OUT=16")) == ["401 bytes spilled, of 400"]
    assert list(faults(Needs(255, 401, 0), 75, "product")) == ["401 bytes spilled, of 400"]
    assert not list(faults(Needs(255, 8656, 0), 75, "forward IN=16 OUT=16")), "no network runs there in bf16"
