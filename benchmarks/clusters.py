"""A list of runs on digits: by one process, two on one machine, two Ray nodes. The figures of docs/clusters.md.

    OMP_NUM_THREADS=1 python benchmarks/clusters.py --runs 50

Every run is the same work, with a seed of its own. The rate is that of runs that end once eight have: whatever was to
be started is, by then. The efficiency is that rate over the one process's, for each of two cores.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from edbl import Recipe
from edbl.engine.progress import Progress
from edbl.fleet.cluster import ray_module, stay_here
from edbl.fleet.jobs import Job, make
from edbl.fleet.many import Where, run_many

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


def rate(way: str, jobs: list[Job]) -> float:
    """Make runs, and return how many end in a minute once that has started."""
    ends: list[float] = []

    def done(_: Job) -> None:
        ends.append(time.monotonic())

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
    return 60 * (len(ends) - STARTED) / (ends[-1] - ends[STARTED - 1])


def main() -> None:
    """Measure each way in turn, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| way | runs a minute | efficiency | load of the machine |\n|---|---|---|---|", flush=True)
    for _ in range(given.rounds):
        alone = 0.0
        for way, cores in (("one process", 1), ("two processes", 2), ("two Ray nodes", 2)):
            with tempfile.TemporaryDirectory() as out:
                jobs = [Job(recipe(k, given.epochs), Path(out) / f"run{k:03}") for k in range(given.runs)]
                found = rate(way, jobs)
            alone = alone or found
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            print(f"| {way} | {found:.1f} | {found / cores / alone:.2f} | {load:.1f} |", flush=True)


if __name__ == "__main__":
    main()
