"""What runs show, in a sentence for each classifier, and how sure it is."""

import math
from collections.abc import Sequence

from edbl import metrics
from edbl.metrics import Difference
from edbl.report.tables import TASK_AWARE, Group, readout_name
from edbl.text import count


def findings(found: Sequence[Group]) -> list[str]:
    """Return a sentence for each classifier: who is right most often after the last task, by how much, how sure."""
    complete = [group for group in found if group.complete and group.readouts]
    if not complete:
        return []
    shared = [one for one in complete[0].readouts if all(one in group.readouts for group in complete)]
    return [_finding(complete, readout) for readout in shared if readout != TASK_AWARE]


def _finding(complete: Sequence[Group], readout: str) -> str:
    last = {group.label: group.metric(readout, "last_accuracy").mean for group in complete}
    first, *others = sorted(complete, key=lambda group: -last[group.label])
    seen = count(first.seen[-1], "class")
    told = f"With {readout_name(readout)}, after {seen}, {first.label} gets {100 * last[first.label]:.1f}% right"
    if not others:
        return f"{told} ({_seeds(first)})."
    second = others[0]
    told += f", {second.label} {100 * last[second.label]:.1f}%"
    if len(others) > 1:
        told += f", the next best of {len(complete)}"
    return f"{told}. {_sure(first, second, readout)}"


def _sure(one: Group, other: Group, readout: str) -> str:
    """Say how far a difference can be trusted: by pairs of the same seed, else by what one image weighs."""
    sides = [{record.seed: record for record in group.records} for group in (one, other)]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    pairs = [[metrics.last_accuracy(side[seed].confusions[readout]) for seed in seeds] for side in sides]
    if len(seeds) > 1:
        difference = Difference.of(*pairs)
        low, high = (100 * (difference.mean + sign * difference.half) for sign in (-1, 1))
        verdict = "" if difference.sign else ", so the two cannot be told apart"
        return (
            f"Over {len(seeds)} pairs of the same seed the difference is {100 * difference.mean:.1f} points "
            f"(95% interval {low:.1f} to {high:.1f}){verdict}."
        )
    weight = 100 * one_image(one)
    return f"One seed each, so chance is not measured; one test image weighs {weight:.2f} points."


def _seeds(group: Group) -> str:
    return f"mean of {len(group.records)} seeds" if len(group.records) > 1 else "one seed"


def one_image(group: Group) -> float:
    """Return the share of the last task's test images that a single one is."""
    images = next((int(group.first.confusions[one][-1].sum()) for one in group.readouts), 0)
    return 1 / images if images else math.inf
