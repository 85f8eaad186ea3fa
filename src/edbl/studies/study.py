"""Studies of one's own: a question, candidates and streams in a TOML file, settled on held-out training images.

A file has ``question``, ``method``, ``rule`` (of the choice, written before the runs) and, once it is made,
``decision``; tables ``[settings]`` (what all runs share), ``[streams.NAME]`` and ``[candidates.NAME]`` of dotted keys,
later ones winning in that order; and ``include``, names of tables in a file ``shared.toml`` beside it.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edbl import users
from edbl.errors import EdblError, unknown
from edbl.recipe import flat
from edbl.store import read_toml
from edbl.studies.paper import Column, Experiment, Row

SHARED = "shared.toml"
LONGEST = 48  # characters of a candidate's folder
TEXTS = ("question", "method", "rule", "decision")
TABLES = ("settings", "streams", "candidates")


@dataclass(frozen=True)
class Study:
    """A question, how it is to be answered, and the runs that answer it."""

    path: Path
    name: str
    question: str
    rule: str  # of the choice
    decision: str  # once it is made, and why
    experiment: Experiment


def read(path: Path) -> Study:
    """Read a study file; a ``.py`` file that it names must be named by the user too, as it would run."""
    tree = _toml(path)
    if wrong := [key for key in tree if key not in (*TEXTS, *TABLES, "include")]:
        raise unknown(f"key in study {path}", wrong[0], [*TEXTS, *TABLES, "include"])
    for key in TEXTS:
        if not isinstance(tree.get(key, ""), str):
            raise EdblError(f"study {path}: {key} must be a text")
    for key in TABLES:
        if not isinstance(tree.get(key, {}), dict):
            raise EdblError(f"study {path}: {key} must be a table")
    settings = {"preset": "default"} | _included(path, tree.get("include", [])) | flat(tree.get("settings", {}))
    streams, candidates = tree.get("streams", {}), tree.get("candidates", {})
    if not tree.get("question") or not streams or not candidates:
        raise EdblError(f"study {path} needs a question, at least one of [streams.NAME] and one of [candidates.NAME]")
    folder = f"{path.resolve().parent.name}/{path.stem}"
    columns = tuple(
        Column(label, folder if len(streams) == 1 else f"{folder}/{_slug(label)}", settings | _values(path, label, own))
        for label, own in streams.items()
    )
    rows = tuple(_row(path, label, own, tree.get("method", "edbl")) for label, own in candidates.items())
    for alike in ([column.name for column in columns], [row.name for row in rows]):
        if len(set(alike)) < len(alike):
            raise EdblError(f"study {path}: give each stream and candidate a name that tells its folder from others")
    for values in (*(column.settings for column in columns), *({"method": row.method, **row.options} for row in rows)):
        users.refuse_unnamed(values, path)
    experiment = Experiment(path.stem, str(tree["question"]), "readouts", columns, rows)
    for column in columns:
        for row in rows:
            if not {**column.settings, **row.options}.get("data.holdout"):
                raise EdblError(f"study {path}: '{row.label}' on '{column.label}' needs data.holdout above 0")
    return Study(path, path.stem, experiment.title, tree.get("rule", ""), tree.get("decision", "").strip(), experiment)


def read_all(folder: Path) -> list[Study]:
    """Read all studies in a folder, by name."""
    return [read(path) for path in sorted(folder.glob("*.toml")) if path.name != SHARED]


def _row(path: Path, label: str, own: object, method: str) -> Row:
    values = _values(path, label, own)
    return Row(label, str(values.pop("method", method)), "cnn", (), options=values, name=_slug(label))


def _values(path: Path, label: str, own: object) -> dict[str, object]:
    if not isinstance(own, dict):
        raise EdblError(f"study {path}: '{label}' must be a table of settings")
    return flat(own)


def _included(path: Path, names: object) -> dict[str, object]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EdblError(f"study {path}: include must be a list of names")
    if not names:
        return {}
    shared = _toml(path.with_name(SHARED))
    values: dict[str, object] = {}
    for name in names:
        if not isinstance(shared.get(name), dict):
            raise unknown(f"table in {path.with_name(SHARED)}", name, shared)
        values |= flat(shared[name])
    return values


def _toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as error:
        raise EdblError(f"cannot read study {path}: {error.strerror}") from error
    except ValueError as error:
        raise EdblError(f"study {path} is not valid TOML: {error}") from error


def _slug(label: str) -> str:
    """Return a label as the name of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower())[:LONGEST].strip("-.")
