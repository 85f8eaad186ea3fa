"""Runs by several processes at once, for tests: ``python -m tests.together FOLDER`` is one of them.

Each line of ``FOLDER/runs.json`` is the name of a run's folder and the values of its recipe.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def environment(size: int, **more: str) -> dict[str, str]:
    """Return what the processes of a group find in their environment, but for their rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "EDBL_PATIENCE": "60"}
    return {**os.environ, **shared, **more}


def together(size: int, folder: Path, runs: Mapping[str, Mapping[str, object]]) -> None:
    """Make runs below a folder, each by so many processes; they end together."""
    folder.mkdir()
    (folder / "runs.json").write_text(json.dumps(runs))
    shared = environment(size)
    command = [sys.executable, "-m", "tests.together", str(folder)]
    processes = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}, cwd=ROOT) for rank in range(size)]
    assert [process.wait(240) for process in processes] == [0] * size


def main() -> None:
    """Be one of the processes."""
    from edbl import Recipe, group, run

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with group.joined("cpu"):
        for name, values in json.loads((folder / "runs.json").read_text()).items():
            run(Recipe.of(values), folder / name)


if __name__ == "__main__":
    main()
