"""The page of ambiguities: what it says of values is what recipes have, and its measured table is of records."""

import re
from pathlib import Path

import pytest

from edbl.config import flatten, toml_value
from edbl.methods.edbl import EDBL as METHOD
from edbl.recipe import Recipe
from edbl.studies.paper import EDBL, HALF, ZERO, recipe_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "ambiguities.md").read_text()
ROW = re.compile(r"^\| \[(A\d+)\]\(#a\d+\) \| .* \| (.*) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)
KEY = re.compile(r"`((?:options|optim|data|evaluation)\.\w+)`")
PRESETS = ("default", "paper")


def built_in() -> dict[str, object]:
    """Return what settings have if no preset says otherwise."""
    made = Recipe.build("edbl", "tiny-imagenet", preset="tuned")  # on this data set `tuned` has no row of its own
    parts = {"optim.": type(made.optim)(), "evaluation.": type(made.evaluation)(), "options.": METHOD.Config()}
    return {k: v for prefix, part in parts.items() for k, v in flatten(part, prefix).items()} | {
        "data.augment": made.data.augment
    }


def values(key: str, preset: str) -> str:
    """Return the values of a setting on the paper's streams, as the table has them; A17 is of Tiny-ImageNet alone."""
    columns = HALF[2:] if key == "data.augment" else (*ZERO, *HALF)
    return " or ".join(
        dict.fromkeys(toml_value(recipe_of(c, EDBL, preset=p).values()[key]) for c in columns for p in [preset])
    )


def cells(keys: list[str]) -> tuple[str, ...]:
    built = built_in()
    return (
        ", ".join(toml_value(built[key]) for key in keys),
        *(", ".join(values(key, preset) for key in keys) for preset in PRESETS),
    )


def test_the_table_has_the_values_of_recipes() -> None:
    rows = [(tag, KEY.findall(keys), found) for tag, keys, *found in ROW.findall(PAGE.replace(" by rule", ""))]
    assert [tag for tag, _, _ in rows] == [f"A{n}" for n in range(1, 23)]
    with_keys = [(tag, keys, found) for tag, keys, found in rows if keys]
    assert len(with_keys) == 16
    for tag, keys, found in with_keys:
        assert tuple(found) == cells(keys), tag


@pytest.mark.parametrize("method", ["edbl", "re-mkd", "iib-kd", "iib", "ib", "vanilla-mkd"])
def test_pages_of_methods_say_which_options_default_changes(method: str) -> None:
    page = (ROOT / "docs" / "methods" / f"{method}.md").read_text()
    cells = dict(re.findall(r"^\| `([\w.]+)` \| `[^`]*` \| ([^|]*?) ?\|", page, re.MULTILINE))
    made = Recipe.of({"method": method, "preset": "default", **ZERO[3].settings})
    built = flatten(type(made.options)(), "options.")
    changed = {k for k, v in built.items() if made.values()[k] != v}
    changed |= {key for key in made.by_rule if key.startswith("options.")}
    assert changed
    assert {f"options.{key}" for key, cell in cells.items() if cell} == changed
