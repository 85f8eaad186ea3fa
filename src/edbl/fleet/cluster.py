"""A Ray cluster: what is there, which of its nodes may make runs of a list, and where data sets are in its store."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from edbl.data import datasets
from edbl.errors import EdblError
from edbl.fleet.afar import Arrived
from edbl.fleet.jobs import SHARING, Job
from edbl.fleet.parcels import as_arrays
from edbl.text import count

LOCAL = "local"
PATIENCE = 5  # seconds for a cluster to answer
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
CURRENT = Path("/tmp/ray/ray_current_cluster")  # where `ray start` leaves the address that `auto` means
NODE = "ray.io/node-id"  # the label of each node that tells it from others
KIND = "accelerator_type:"  # what the name of a node's GPU follows among its resources
SHARE = int(10_000 / SHARING) / 10_000  # of a GPU; Ray rounds to four digits, and all have to fit
SETTINGS = {  # of Ray: no reports, no warning of what will change, and patience with slow machines
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


@dataclass
class Cluster:
    """A Ray cluster that this process is connected to."""

    ray: Any
    mixed: bool  # nodes may be unlike each other
    say: Callable[[str], None]
    refused: dict[str, str] = field(default_factory=dict)  # nodes, and why
    _data: dict[tuple[str, int, bool], Any] = field(default_factory=dict)  # where it is in Ray's store

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def total(self, resource: str) -> float:
        """Return how much of something all nodes have."""
        return float(sum(node["Resources"].get(resource, 0.0) for node in self.nodes()))

    def __str__(self) -> str:
        """Return what there is, for people."""
        parts = count(len(self.nodes()), "node"), f"{self.total('CPU'):g} CPUs", f"{self.total('GPU'):g} GPUs"
        return f"Ray cluster of {', '.join(parts)}"

    def demand(self, device: str) -> dict[str, float]:
        """Return what a run takes: the share of a GPU that it would have beside others on one machine, or one CPU."""
        gpu = device.startswith("cuda") or (device == "auto" and self.total("GPU") > 0)
        return {"num_cpus": 1, "num_gpus": SHARE if gpu else 0}

    def room(self, device: str) -> int:
        """Return how many runs there is room for at a time, now and by what Ray counts; at least one."""
        cpus, share = self.total("CPU"), self.demand(device)["num_gpus"]
        return max(1, int(min(cpus, self.total("GPU") / share) if share else cpus))

    def unlike(self) -> dict[str, str]:
        """Return the nodes whose GPU is of another kind than most, and of which."""
        nodes = self.nodes()
        usual = usual_kind([node["Resources"] for node in nodes])
        kinds = {node["NodeID"]: kind_of(node["Resources"]) for node in nodes}
        return {node: f"a GPU of kind {kind}, not {usual}" for node, kind in kinds.items() if kind not in ("", usual)}

    def refuse(self, arrived: Arrived) -> str:
        """Return why a node may make no runs of the list, or nothing."""
        odd = ", ".join(filter(None, [arrived.odd, self.unlike().get(arrived.node, "")]))
        if not odd or self.mixed:
            return ""
        if arrived.node not in self.refused:
            self.refused[arrived.node] = odd
            self.say(f"node {arrived.host} is refused, for it has {odd}")
        self.check_left()
        return odd

    def check_left(self) -> None:
        """Refuse to wait for nodes of which all that could make runs are refused; others may have died meanwhile."""
        nodes = self.nodes()
        if not nodes:
            raise EdblError("no node is left: all of the cluster are gone\nstart one; the same command continues there")
        if self.refused and not any(n["Resources"].get("CPU") for n in nodes if n["NodeID"] not in self.refused):
            odd = list(self.refused.values())[-1]
            raise EdblError(f"no node is left: the last one has {odd}\nmake them alike, or set cluster.mixed")

    def options(self, device: str) -> dict[str, Any]:
        """Return how Ray is to place a run: with what it takes, and on no node that is refused."""
        allowed = {"label_selector": {NODE: f"!in({','.join(sorted(self.refused))})"}} if self.refused else {}
        return {**self.demand(device), **allowed, "max_retries": 0, "num_returns": "streaming"}

    def waits_for(self, options: Mapping[str, Any]) -> str:
        """Return what a run waits for that Ray has not placed yet."""
        nodes = [node["Resources"] for node in self.nodes() if node["NodeID"] not in self.refused]
        if options["num_gpus"]:
            if not any(node.get("GPU", 0) for node in nodes):
                return "for a node with a GPU; there is none"
            return f"for 1/{SHARING} of a GPU to be free"
        return "for a CPU to be free" if any(node.get("CPU", 0) for node in nodes) else "for a node with a CPU"

    def data(self, job: Job, data_dir: Path | None) -> Any:
        """Return where the data set of a run is in Ray's store, from where each node gets it once."""
        data = job.recipe.data
        key = data.name, data.image_size, data.skip_bad
        if key not in self._data:
            found = datasets.load(data.name, data_dir, image_size=data.image_size, skip_bad=data.skip_bad)
            self._data[key] = self.ray.put(as_arrays(found))
        return self._data[key]


def kind_of(resources: Mapping[str, float]) -> str:
    """Return the kind of a node's GPUs, as Ray names it."""
    return next((name.removeprefix(KIND) for name in sorted(resources) if name.startswith(KIND)), "")


def usual_kind(nodes: Sequence[Mapping[str, float]]) -> str:
    """Return the kind of which there are most GPUs; of equals, the first by name."""
    kinds: dict[str, float] = {}
    for resources in nodes:
        if kind := kind_of(resources):
            kinds[kind] = kinds.get(kind, 0.0) + resources.get("GPU", 0.0)
    return min(kinds, key=lambda kind: (-kinds[kind], kind), default="")


def ray_module() -> Any:
    """Return Ray, which reports nothing to anybody."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("ray")
    except ImportError as error:
        raise EdblError("runs on a cluster need Ray: run `pip install 'edbl[ray]'`") from error


def stay_here() -> None:
    """Let Ray use 127.0.0.1 as this machine's address; it would take another one, which others can reach."""
    import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]


@contextmanager
def connected(address: str, mixed: bool, say: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to a cluster meanwhile, or start one on this machine, which nobody else can reach."""
    host, _, port = address.rpartition(":")
    if address not in ("auto", LOCAL) and (not host or "/" in host or not port.isdecimal()):
        raise EdblError(f"cluster.address = {address}: give auto, local, or HOST:PORT of a cluster with this machine")
    ray = ray_module()
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "error"}
    if address == LOCAL:
        options["include_dashboard"] = False
    if address == LOCAL or _is_here(address):
        stay_here()
        options["_node_ip_address"] = "127.0.0.1"
    try:
        if host:  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        with _own_signals():
            ray.init(**options)
    except (ray.exceptions.RayError, RuntimeError, ValueError, OverflowError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        raise EdblError(f"no Ray cluster at {address}: {first}\nstart one, or let cluster.address be local") from error
    try:
        cluster = Cluster(ray, mixed, say)
        say(str(cluster))
        yield cluster
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep what the command does when it is ended, in place of which Ray has a way of its own."""
    usual = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # only that one may say so
            signal.signal(signal.SIGTERM, usual)


def _is_here(address: str) -> bool:
    """Tell whether a cluster is on this machine alone."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        with suppress(OSError):
            address = address or CURRENT.read_text()
    return address.strip().rpartition(":")[0] in LOOPBACK
