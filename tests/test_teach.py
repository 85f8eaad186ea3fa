"""The table of classifiers in docs/models.md, and what is said of it, are those of results/teach.jsonl."""

import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TEACH: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "teach.py"))
Row = tuple[str, int | str]
Lines = list[dict[str, Any]]


def read(name: str) -> Lines:
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


LINES, LITE2 = read("teach.jsonl"), read("teach-lite2.jsonl")
EQUAL, UNEQUAL = [10, 30, 100], [TEACH["UNEQUAL"]]
REGRESSION = "logistic regression"


def means(method: str, updates: int = 1, lines: Lines = LINES) -> dict[Row, float]:
    """Return the mean accuracy of a column by row, where all draws are there."""
    found: dict[Row, list[float]] = {}
    for line in lines:
        if (line["method"], line["updates"]) == (method, updates):
            found.setdefault((line["data"], line["photos"]), []).append(line["accuracy"])
    return {row: fmean(values) for row, values in found.items() if len(values) == 3}


def ahead(one: dict[Row, float], other: dict[Row, float], photos: Sequence[int | str]) -> list[float]:
    """Return by how much a column is ahead of another at least and at most."""
    found = [one[row] - other[row] for row in one.keys() & other.keys() if row[1] in photos]
    return [min(found), max(found)]


def of_lite2() -> list[float]:
    """Return what `lda` has on CIFAR-10 by the larger network, each beside what it has by the smaller one."""
    larger, smaller = means("lda", lines=LITE2), means("lda")
    assert {row[0] for row in larger} == {"cifar10"}
    return [part[row] for row in larger for part in (larger, smaller)]


def over_rows() -> list[float]:
    lda, ridge = means("lda"), means("ridge")
    assert lda.keys() == ridge.keys()
    return [len(lda), fmean(lda.values()), fmean(ridge.values())]


SENTENCES: list[tuple[str, Callable[[], list[float]]]] = [
    ("over its {:.0f} rows `lda` has {:.1f}% on average and `ridge` {:.1f}%, a tie", over_rows),
    (
        "Where classes have as many photos each, `lda` is {:+.1f} to {:+.1f} points ahead of logistic regression",
        lambda: ahead(means("lda"), means(REGRESSION), EQUAL),
    ),
    ("`ridge` {:+.1f} to {:+.1f}", lambda: ahead(means("ridge"), means(REGRESSION), EQUAL)),
    (
        "`edbl` in two updates {:+.1f} to {:+.1f} and in ten {:+.1f} to {:+.1f}",
        lambda: [
            *ahead(means("edbl", 2), means(REGRESSION), EQUAL),
            *ahead(means("edbl", 10), means(REGRESSION), EQUAL),
        ],
    ),
    (
        "Where they have 10 to 100, `lda` is {:+.1f} to {:+.1f} points ahead of it",
        lambda: ahead(means("lda"), means(REGRESSION), UNEQUAL),
    ),
    (
        "`edbl learn` ended {:+.1f} to {:+.1f} points from the same method with all photos",
        lambda: ahead(means("edbl learn", 5), means("edbl", 5), EQUAL),
    ),
    (
        "{:.1f}% with 10 photos of each class of CIFAR-10 ({:.1f}% with `efficientnet-lite0`), {:.1f}% ({:.1f}%) "
        "with 30, {:.1f}% ({:.1f}%) with 100 and {:.1f}% ({:.1f}%) with 10 to 100",
        of_lite2,
    ),
    (
        "With 100 photos of each of 100 classes `edbl` in two updates is {:.1f} points ahead of `lda`",
        lambda: [means("edbl", 2)["cifar100", 100] - means("lda")["cifar100", 100]],
    ),
]


def test_the_table_is_what_was_measured() -> None:
    assert TEACH["table"](LINES) in (ROOT / "docs" / "models.md").read_text()
    assert len({tuple(line[key] for key in TEACH["KEYS"]) for line in LINES}) == len(LINES)


@pytest.mark.parametrize(("sentence", "numbers"), SENTENCES, ids=[one[0][:40] for one in SENTENCES])
def test_what_is_said_of_it_is_so(sentence: str, numbers: Callable[[], list[float]]) -> None:
    said = " ".join((ROOT / "docs" / "models.md").read_text().split())
    assert sentence.format(*numbers()) in said
