"""Digests of everything that a refactoring must leave as it is: run it before and after, and compare.

``python -m tests.digests FILE`` writes SHA-256 of the final tensors and confusion matrices of every method, with both
protocols and two networks, and of every recipe's values. ``--against OTHER`` lists what differs from another file;
``--methods A B`` looks at some methods only.
Bits depend on the processor and on the versions of libraries, so both files must be made on one machine.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from pathlib import Path

import torch

from edbl import Recipe, run
from edbl.data.datasets import DATASETS
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints
from edbl.methods import methods

STREAMS = (("base0", 3, "total=25"), ("base-half", 2, "per_class=3"))
PRESETS = ("default", "tuned", "paper", "quick")
PHASES = (2, 5, 10)
MEMORIES = ("total=200", "total=1000", "total=2000", "per_class=20")
VARIANTS: tuple[tuple[str, Mapping[str, object]], ...] = (
    *(("edbl", {"options.reading": reading}) for reading in ("epoch", "concat")),
    *(("edbl", {"options.max_rounds": 0, "options.reading": reading}) for reading in ("batch", "epoch")),
    *((method, {"options.clean_norm": True}) for method in ("vanilla-mkd", "re-mkd", "edbl")),
    *((method, {"options.kd_growth": 1.0}) for method in ("rkd", "iib-kd", "edbl")),
    *((method, {"options.detach": detach}) for method, detach in (("edbl", False), ("iib-kd", True), ("ib", True))),
    *((method, {"options.balance_layers": "head", "options.balance_norm": "eval"}) for method in ("iib", "edbl")),
    ("edbl", {"options.clean_norm": True, "options.norm_share": "classes"}),
    ("edbl", {"options.counts": "raw", "options.weight_sum": "one", "options.factor_over": "all"}),
    ("edbl", {"options.first_task": "plain", "options.ratio_per": "sample"}),
    ("edbl", {"options.min_old": 2, "options.beta": 0.5, "options.kd_scale": "none"}),
    ("iib-kd", {"options.alpha": 1.0, "options.balance_kd_weight": 0.0}),
    ("iib", {"options.balance_kd_weight": 0.5}),
)


def short(method: str, backbone: str, stream: tuple[str, int, str], options: Mapping[str, object]) -> Recipe:
    """Return a recipe on digits that takes a second, with every phase that the method has."""
    protocol, phases, memory = stream
    given: dict[str, object] = {"stream.protocol": protocol, "stream.tasks": phases, "memory": memory, **options}
    for key in Recipe.keys(method):
        if key.endswith("epochs") and key != "first.task_epochs":
            given[key] = 2
    return Recipe.build(method, "digits", preset="quick", **{"net.backbone": backbone, **given})


def of_runs(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield a digest of the last state and matrices of each run of some methods."""
    plain: list[tuple[str, Mapping[str, object]]] = [(method, {}) for method in sorted(methods())]
    wanted = [one for one in (*plain, *VARIANTS) if one[0] in names]
    for (method, options), backbone, stream in product(wanted, ("mlp", "small"), STREAMS):
        with tempfile.TemporaryDirectory() as folder:
            record = run(short(method, backbone, stream, options), Path(folder, "run"))
            saved = Checkpoints(Path(folder, "run", CHECKPOINTS)).load(f"task-{len(record.task_sizes) - 1}")
        assert saved is not None
        digest = hashlib.sha256()
        for name, tensor in sorted(saved.tensors.items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        for readout, matrices in sorted(record.confusions.items()):
            digest.update(readout.encode() + b"".join(matrix.tobytes() for matrix in matrices))
        yield " ".join(["run", method, backbone, stream[0], *map(str, options.items())]), digest.hexdigest()


def of_recipes(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield all values of each recipe that some methods, data, presets and streams give."""
    every = product(sorted(names), [*DATASETS, "."], PRESETS, ("base0", "base-half"), PHASES, MEMORIES)
    for method, data, preset, protocol, phases, memory in every:
        given: dict[str, object] = {"stream.protocol": protocol, "stream.tasks": phases, "memory": memory}
        values = Recipe.build(method, data, preset=preset, **given).values()
        name = f"recipe {method} {data} {preset} {protocol} {phases} {memory}"
        yield name, json.dumps(values, sort_keys=True, default=list)


def main() -> int:
    """Write the digests, or tell what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", choices=("runs", "recipes"))
    parser.add_argument("--methods", nargs="*", default=sorted(methods()))
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    if given.only != "recipes":
        found |= dict(of_runs(given.methods))
    if given.only != "runs":
        found |= dict(of_recipes(given.methods))
    given.file.write_text(json.dumps(found, indent=0))
    if given.against is None:
        return 0
    other = json.loads(given.against.read_text())
    both = found.keys() & other.keys()
    differ = sorted(name for name in both if found[name] != other[name])
    for name in differ:
        print("differs:", name, _changes(other[name], found[name]))
    print(f"{len(both)} compared, {len(differ)} differ, {len(found.keys() ^ other.keys())} are in one file only")
    return bool(differ)


def _changes(before: str, after: str) -> str:
    """Return the keys of two recipes whose values differ; digests of runs say no more."""
    if not before.startswith("{"):
        return ""
    was, now = json.loads(before), json.loads(after)
    keys = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
    return ", ".join(f"{key}: {was.get(key)} -> {now.get(key)}" for key in keys)


if __name__ == "__main__":
    sys.exit(main())
