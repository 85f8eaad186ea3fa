"""What a search leaves: the best recipe, with where it comes from, and a page."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from edbl import records
from edbl.config import toml_value
from edbl.errors import EdblError, command
from edbl.logs.wandb import LINKED
from edbl.records import Record
from edbl.report import searched
from edbl.report.filling import filled
from edbl.report.page import Drawer
from edbl.report.searched import Point
from edbl.store import refuse_links, turn, write_output
from edbl.text import count, printable
from edbl.tuning import space as spaces
from edbl.tuning.search import Searcher, average_so_far, folder_of, short
from edbl.tuning.storage import ERROR, asking, optuna

BEST, PAGE = "best.toml", "search.html"
SHOWN = 20  # trials in the table
FEWEST = 4  # trials that came to their end, for importances
STATES = {"COMPLETE": "at its end", "PRUNED": "early"}


def write(search: Searcher) -> list[Path]:
    """Write the best recipe, if there is one, and the page; return what was written."""
    refuse_links(search.folder, but=LINKED)
    with asking(search.folder), turn(search.folder):
        written = []
        best = search.best()
        if best is not None:
            write_output(search.folder / BEST, best_recipe(search, best).encode())
            written.append(search.folder / BEST)
        write_output(search.folder / PAGE, printable(page(search)).encode("utf-8", errors="replace"))
        return [*written, search.folder / PAGE]


def best_recipe(search: Searcher, best: Any) -> str:
    """Return the best recipe as a file: complete, and with nothing held out; comments say where it comes from."""
    recipe = search.plan.recipe(search.values(best))
    whole = replace(recipe, data=replace(recipe.data, holdout=0.0))
    found = ", ".join(f"{key} = {short(value)}" for key, value in search.values(best).items())
    told = [
        search.sentence(),
        f"This is trial {best.number}, of {100 * best.value:.2f}%: {found}.",
        "All training images are learnt, and test images measured, where this recipe is run.",
        *provenance(search, best),
    ]
    return "".join(f"# {line}\n" for text in told for line in printable(text).split("\n")) + "\n" + whole.toml()


def provenance(search: Searcher, best: Any) -> list[str]:
    """Return where, when and on what the best trial ran."""
    record = _record(search, best)
    if record is None:
        return []
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    made = f"sampler {search.plan.found.sampler}, pruner {search.plan.found.pruner}"
    return [
        f"searched with Optuna {optuna().__version__} ({made})",
        f"begun {record.started} on {record.device}",
        f"versions: {versions}",
        f"commit: {record.commit or 'unknown'}",
        f"data fingerprint: {record.data_fingerprint}",
    ]


def page(search: Searcher) -> str:
    """Return the page of a search."""
    draw, plan, best = Drawer(), search.plan, search.best()
    base = plan.recipe({})
    told = [trial for trial in search.trials() if trial.state.name in STATES and trial.intermediate_values]
    points = [_point(trial, best) for trial in told]
    chosen = search.values(best) if best is not None else {}
    tally = search.tally()
    ranked = sorted(told, key=lambda one: (one.state.name != "COMPLETE", -average_so_far(one)[-1], one.number))
    shares = _importances(search)
    return filled(
        "search.html",
        {
            "title": f"{base.method} on {Path(base.data.name).name}",
            "sentence": search.sentence(),
            "running": f"{count(tally.running, 'trial')} not at an end yet" if tally.running else "",
            "best": best and {"number": best.number, "value": f"{100 * best.value:.2f}"},
            "command": command("run", "--recipe", search.folder / BEST).strip("`"),
            "space": [
                {
                    "key": key,
                    "best": short(chosen[key]) if key in chosen else "",
                    "where": spaces.shown(where),
                    "meaning": search.leaves[key].help,
                }
                for key, where in plan.found.space.items()
            ],
            "classifier": plan.classifier,
            "sampler": plan.found.sampler,
            "pruner": plan.found.pruner,
            "history": draw(searched.history(points), "Accuracy of each trial") if points else "",
            "curves": draw(searched.curves(points), "Accuracy of each trial, task by task") if points else "",
            "importances": draw(searched.importances(shares), "Importance of each setting") if shares else "",
            "finished": tally.done,
            "settings": _settings(search, told, points, draw),
            "all": tally.all,
            "rows": [
                {
                    "number": trial.number,
                    "state": STATES[trial.state.name],
                    "value": f"{100 * average_so_far(trial)[-1]:.2f}",
                    "chosen": [short(value) for value in search.values(trial).values()],
                }
                for trial in ranked[:SHOWN]
            ],
            "errors": [(t.number, t.user_attrs.get(ERROR, "")) for t in search.trials() if t.state.name == "FAIL"],
            "fixed": [(k, toml_value(v)) for k, v in base.values().items() if k not in plan.found.space],
            "provenance": provenance(search, best) if best is not None else [],
        },
    )


def _record(search: Searcher, trial: Any) -> Record | None:
    try:
        return records.read(folder_of(search.folder, trial.number))
    except EdblError:  # it may have run elsewhere
        return None


def _point(trial: Any, best: Any) -> Point:
    state: Literal["done", "pruned"] = "done" if trial.state.name == "COMPLETE" else "pruned"
    return Point(trial.number, state, average_so_far(trial), best is not None and trial.number == best.number)


def _importances(search: Searcher) -> list[tuple[str, float]]:
    """Return how much each setting counts, the most first, if there are trials enough that differ."""
    done = [trial for trial in search.trials() if trial.state.name == "COMPLETE"]
    if len(done) < FEWEST or len({trial.value for trial in done}) < 2 or len(search.plan.found.space) < 2:
        return []
    with asking(search.folder):
        importance = optuna().importance
        found = importance.get_param_importances(search.study(), evaluator=importance.FanovaImportanceEvaluator(seed=0))
    return sorted(found.items(), key=lambda item: -item[1])


def _settings(search: Searcher, told: list[Any], points: list[Point], draw: Drawer) -> list[Markup]:
    """Return a figure for each setting."""
    figures = []
    for key, where in search.plan.found.space.items():
        pairs = [(search.values(t)[key], p) for t, p in zip(told, points, strict=True) if key in t.params]
        if pairs:
            values = [short(value) if where.among else value for value, _ in pairs]
            figure = searched.against(key, values, [point for _, point in pairs], where.log)
            figures.append(draw(figure, f"Accuracy against {key}"))
    return figures
