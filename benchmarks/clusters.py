"""A list of runs on digits: by one process, two on one machine, two Ray nodes. The figures of docs/clusters.md.

    OMP_NUM_THREADS=1 python benchmarks/clusters.py --runs 50

Every run is the same work, with a seed of its own. What is measured is of the runs that end once eight have: whatever
has to start has started by then. Of each way: runs a minute, and the processor time of a run, all processes counted,
Ray's own too; other work on the machine changes the first far more than the second.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from edbl import Recipe
from edbl.engine.progress import Progress
from edbl.fleet.cluster import ray_module, stay_here
from edbl.fleet.jobs import Job, make
from edbl.fleet.many import Where, run_many

WAYS = ("one process", "two processes", "two Ray nodes")
STARTED = 8  # runs after which all that has to start has started
STORE = 200 * 2**20  # bytes of a node's store


def recipe(seed: int, epochs: int) -> Recipe:
    """Return the recipe of a run."""
    small = {"schedule.epochs": epochs, "net.backbone": "mlp"}
    return Recipe.build("rkd", data="digits", preset="quick", seed=seed, **small)


@contextmanager
def nodes() -> Iterator[str]:
    """Start two Ray nodes of one core each, and give their address."""
    ray_module()
    stay_here()
    from ray.cluster_utils import Cluster

    place: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": STORE}
    cluster: Any = Cluster(True, head_node_args={**place, "include_dashboard": False})
    cluster.add_node(**place)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


class Meter:
    """Processor time of this process and all below it, those that ended included."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {os.getpid(): 0.0}

    def look(self) -> float:
        """Return the seconds so far."""
        parents, seconds = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                parents[int(path.parent.name)] = int(fields[1])
                seconds[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for pid in sorted(parents):
            if pid in self._seen or parents[pid] in self._seen:
                self._seen[pid] = seconds[pid]
        return sum(self._seen.values())


def measure(way: str, jobs: list[Job]) -> tuple[float, float]:
    """Make runs; return how many end in a minute once all has started, and the processor seconds of each."""
    meter, over, ends = Meter(), threading.Event(), []

    def watch() -> None:
        while not over.wait(0.25):
            meter.look()

    def done(_: Job) -> None:
        ends.append((time.monotonic(), meter.look()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    quiet = Console(quiet=True)
    if way == "one process":
        for job in jobs:
            make(job, None, Progress())
            done(job)
    elif way == "two processes":
        run_many(jobs, 2, quiet, done=done)
    else:
        with nodes() as address:
            run_many(jobs, len(jobs), quiet, done=done, where=Where(address))
    over.set()
    watcher.join()
    (began, before), (ended, after) = ends[STARTED - 1], ends[-1]
    made = len(ends) - STARTED
    return 60 * made / (ended - began), (after - before) / made


def main() -> None:
    """Measure ways in turn, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--ways", nargs="+", default=WAYS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| way | runs a minute | processor time of a run, s | load for each core |\n|---|---|---|---|", flush=True)
    for way in given.ways:
        with tempfile.TemporaryDirectory() as out:
            jobs = [Job(recipe(k, given.epochs), Path(out) / f"run{k:03}") for k in range(given.runs)]
            rate, seconds = measure(way, jobs)
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        print(f"| {way} | {rate:.1f} | {seconds:.2f} | {load:.1f} |", flush=True)


if __name__ == "__main__":
    main()
