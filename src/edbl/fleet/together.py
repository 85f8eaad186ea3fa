"""One run by several processes of this machine: the same command once for each, and what becomes of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from edbl.engine.environment import cores
from edbl.errors import EdblError
from edbl.group import STARTED

LOCAL = "127.0.0.1"
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
LOOK = 0.1  # seconds between two looks at the processes
GRACE = 5.0  # seconds that the others have once one has ended


def together(count: int, words: Sequence[str]) -> int:
    """Make ``edbl`` with these words in so many processes that work together; return how it ended."""
    usual = {**LOOPBACK, "OMP_NUM_THREADS": str(max(1, cores() // count))}
    shared = {STARTED: "1", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    shared |= {"MASTER_ADDR": LOCAL, "MASTER_PORT": str(_free_port())}
    processes = [
        # What they read tells them that this process is there.
        subprocess.Popen(
            [sys.executable, "-m", "edbl", *words],
            env={**usual, **os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)},
            stdin=subprocess.PIPE,
        )
        for number in range(count)
    ]
    try:
        return _end_of(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOCAL, 0))
        return int(free.getsockname()[1])


def _end_of(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Wait for processes, and end those that stay where another has failed; who failed by itself has said why."""
    until = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if until == float("inf") and any(process.returncode for process in processes):
            until = time.monotonic() + GRACE
        time.sleep(LOOK)
    codes = [process.poll() for process in processes]
    if told := [code for code in codes if code is not None and code > 0]:
        return told[0]
    if killed := [(number, -code) for number, code in enumerate(codes) if code]:
        number, by = killed[0]
        raise EdblError(
            f"process {number + 1} of {len(processes)} was killed by {signal.Signals(by).name}; if it was for want of "
            "memory, end other programs\nthe same command continues from the last checkpoint"
        )
    return 0
