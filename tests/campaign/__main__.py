"""Take cases that are not done, and print one table: ``python -m tests.campaign --help``."""

import argparse
import json
import os
import platform
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Taker = Callable[[int, int], list[dict[str, Any]]]  # takes the case of a number and a seed

# Cases of each kind.
GOALS = {"inputs": 1000, "kills": 2000, "Ctrl-C": 500, "surroundings": 500, "writers": 200, "servers": 100}
COLUMNS = "{:>7} {:>7} {:>6}  {}"


def ready(out: Path) -> Mapping[str, Taker]:
    """Import and make everything that cases need, and return how those of each kind are taken."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a process with threads cannot be forked
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background ignores
    import matplotlib.font_manager  # which else makes a cache in the home of each case
    import torch

    import edbl.app.edit  # as the next ones, for those that are forked from here
    import edbl.app.estimator
    import edbl.app.export
    import edbl.app.learn
    import edbl.app.predict
    import edbl.app.show
    import edbl.cli
    import edbl.fleet.many
    import edbl.serve.server
    import edbl.serve.taught
    import edbl.tuning.results
    from edbl.logs import logs
    from edbl.tuning.storage import optuna
    from tests.campaign import bases, inputs, moments, server

    torch.set_num_threads(1)
    assert all((matplotlib.font_manager, edbl.fleet.many, edbl.serve.server, edbl.serve.taught, edbl.tuning.results))
    assert all((optuna(), logs(["tensorboard"])))
    (out / "bases").mkdir(parents=True, exist_ok=True)
    bases.prepare(out / "bases")
    wanted = moments.Wanted(out)

    def one(take: Callable[[int, int, Path, moments.Wanted], dict[str, Any]]) -> Callable[[int, int], Any]:
        return lambda number, seed: [{"case": number, **take(number, seed, out, wanted)}]

    return {
        "inputs": lambda number, seed: inputs.batch(number, seed, out),
        "kills": one(moments.kill),
        "Ctrl-C": one(moments.ctrl_c),
        "surroundings": one(moments.surroundings),
        "writers": one(moments.writers),
        "servers": one(server.kill),
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of what were taken, and what was wrong with them."""
    kinds = Counter(one["kind"] for one in found)
    bad = Counter(one["kind"] for one in found if one["wrong"])
    lines = [COLUMNS.format("taken", "wrong", "", "what")]
    lines += [COLUMNS.format(f"{kinds[kind]:,}", f"{bad[kind]:,}", "", kind) for kind in sorted(kinds)]
    slow = max((one.get("seconds", 0) for one in found), default=0)
    large = max((one.get("MB", 0) for one in found), default=0)
    lines.append(f"longest input: {slow:.1f} s of a processor; most memory for one: {large} MB")
    faults = Counter((one["kind"], one["what"], fault) for one in found for fault in one["wrong"])
    lines += [COLUMNS.format("", "", count, f"{', '.join(fault)}") for fault, count in sorted(faults.items())]
    return "\n".join(lines)


def main() -> None:
    """Take cases that are not done, in turn of all kinds, and print what came of all of them."""
    parser = argparse.ArgumentParser(prog="tests.campaign", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"), help="where bases, cases and logs are kept")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long; the same command goes on")
    parser.add_argument("--take", nargs="*", default=[], metavar="KIND=N", help=f"other numbers than {GOALS}")
    parser.add_argument("--table", action="store_true", help="take nothing, and print the table")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "CASE"), help="take one case again, and print all of it")
    given = parser.parse_args()
    out = given.out.resolve()
    goals = {key: int(number) for key, _, number in (one.partition("=") for one in given.take)} or GOALS
    takers = {} if given.table else ready(out)
    if given.again:
        print(json.dumps(takers[given.again[0]](int(given.again[1]), given.seed), indent=1))
        return
    logs = {kind: out / f"{kind}-{given.seed}.jsonl" for kind in goals}
    done = {kind: _done(log) for kind, log in logs.items()}
    until = time.monotonic() + 60 * given.minutes
    while takers and time.monotonic() < until:
        kind = min(goals, key=lambda kind: (done[kind] + 1) / max(goals[kind], 1e-9))
        if done[kind] >= goals[kind]:
            break
        lines = [json.dumps(one) for one in takers[kind](done[kind], given.seed)]
        with logs[kind].open("a") as log:
            log.write("\n".join(lines) + "\n")
        done[kind] += 1
    found = [json.loads(line) for log in sorted(out.glob("*.jsonl")) for line in log.read_text().splitlines()]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(table(found))
    sys.exit(any(one["wrong"] for one in found))


def _done(log: Path) -> int:
    """Return how many cases a log has: the number of its last one, and one."""
    lines = log.read_text().splitlines() if log.exists() else []
    return json.loads(lines[-1])["case"] + 1 if lines else 0


if __name__ == "__main__":
    main()
