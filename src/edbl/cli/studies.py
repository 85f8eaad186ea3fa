"""Commands about studies: the demo, the paper's tables and figures, the pages made of them."""

import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markdown import Markdown

from edbl.cli import options, stopping, terminal
from edbl.cli.options import Code, DataDir, DryRun, KeepGoing, Mixed, On
from edbl.errors import Busy, EdblError, command

if TYPE_CHECKING:
    from edbl.fleet.many import Where
    from edbl.fleet.turns import Limit
    from edbl.studies.paper import Experiment, Planned
    from edbl.studies.queue import Entry, Item
    from edbl.studies.shelf import Shelf
    from edbl.studies.study import Study


def demo(
    what: Annotated[
        Literal["digits", "photos"], typer.Argument(help="What to show: two methods compared, or a model of photos.")
    ] = "digits",
    out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/demo.")] = None,
) -> None:
    """Compare two methods on ten digits, in a minute or two; or teach, ask and correct a model of photos."""
    from edbl.studies.demo import INTRODUCTION, NEXT, free_folder, recipes, run_or_resume

    folder = out or free_folder()
    if what == "photos":
        _demo_photos(folder)
        return
    terminal.tell(INTRODUCTION)
    made = recipes()
    for recipe in made:
        with (
            stopping.interruptible(lambda: f"{command('demo', '--out', folder)} continues"),
            terminal.bars() as progress,
        ):
            run_or_resume(recipe, folder / recipe.method, progress)
    page = folder / "report.html"
    terminal.show_runs([folder / recipe.method for recipe in made], page)
    terminal.tell(f"Open {page.resolve().as_uri()} in a browser.\n{NEXT}")


def _demo_photos(folder: Path) -> None:
    """Teach a model, ask it, correct it, and say what to do next."""
    from edbl.studies import demo as shown

    with stopping.interruptible(lambda: f"{command('demo', 'photos')} begins anew"):
        for title, step in shown.photo_steps(folder):
            with terminal.console.status(title):
                told = step()
            terminal.tell(f"{title}: {told}")
    model = folder / "model"
    terminal.tell(
        f"Next: {command('predict', model, folder / 'new')}; {command('learn', model, 'FOLDER')} of your photos;\n"
        f"{command('undo', model)}; {command('serve', model)} for a page on which to teach it."
    )


def reproduce(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="table1-5, fig2-4, all; at small scale tuning, others-tuning, others.")
    ],
    scale: Annotated[
        Literal["paper", "small"], typer.Option(help="The paper's own runs, or small counterparts for a CPU.")
    ] = "paper",
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each cell, with seeds from 0 on. Default: 1; for all, 3.", min=1, max=1000),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="A,B", help="Run these methods only.")] = None,
    data: Annotated[str | None, typer.Option(help="Run this data set only.")] = None,
    dry_run: DryRun = False,
    keep_going: KeepGoing = True,
    on: On = None,
    mixed: Mixed = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many minutes; the same command continues later.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(help="How many runs at a time. Default: what fits the device.", min=1)
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue unfinished runs, or start them again.")] = True,
    runs: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder for the records of finished runs.")] = Path("results"),
    studies: Annotated[Path, typer.Option(help="With all: folder of studies to run too.")] = Path("studies/rule"),
    data_dir: DataDir = None,
    code: Code = None,
) -> None:
    """Run what is missing of a table or figure of the paper, and show it beside the printed numbers."""
    from edbl.store import refuse_links
    from edbl.studies import pages, queue, small
    from edbl.studies.paper import planned
    from edbl.studies.shelf import Shelf

    end = _end(minutes, resume)
    refuse_links(runs)
    where = options.where(on, mixed, keep_going)
    shelf = Shelf(results)
    if name == queue.ALL:
        found = None
        asked = _asked(studies, code)
        items = queue.small_scale() if scale == "small" else queue.everything(seeds or queue.SEEDS, asked, shelf)
    else:
        found = small.find(name) if scale == "small" else pages.find(name)
        items = [queue.Item(name, found.title, planned(found, range(seeds or 1)))]
    methods = None if only is None else [word.strip() for word in only.split(",")]
    items = queue.chosen(items, name, methods, data)
    if dry_run:
        _show_queue(_entries(items, shelf, runs, data_dir))
        return
    if found is None or minutes is not None:
        _work_off(items, shelf, runs, at_once, resume, data_dir, where, end)
    else:
        _make([[run for item in items for run in item.runs]], shelf, runs, at_once, resume, data_dir, where)
    if found is not None:
        _show(found, shelf, runs)
    if scale == "small":
        _tell_rates(shelf)


def _tell_rates(shelf: "Shelf") -> None:
    """Show the learning rates at small scale that are chosen, and not yet written down."""
    from edbl.studies import small

    if not small.RATES and (rates := small.chosen(shelf)):
        terminal.tell(f"chosen: RATES = {rates}")
    if not small.OTHERS_RATES and (rates := small.chosen(shelf, small.OTHERS)):
        terminal.tell(f"chosen: OTHERS_RATES = {rates}")


def _asked(folder: Path, code: list[str] | None) -> "list[Study]":
    """Return the studies in a folder, if there is one; their code may run if it is named."""
    from edbl.studies.study import read_all

    with options.trusting(code):
        return read_all(folder) if folder.is_dir() else []


def _end(minutes: float | None, resume: bool) -> float | None:
    """Return when the time is over that a command has from now on."""
    if minutes is None:
        return None
    if not minutes > 0:
        raise EdblError(f"--minutes {minutes:g}: it takes more than 0")
    if not resume:
        raise EdblError("--minutes continues unfinished runs; leave --no-resume out")
    return time.monotonic() + 60 * minutes


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study, as TOML: question, streams and candidates.")],
    seeds: Annotated[int, typer.Option(help="Runs of each candidate, with seeds from 0 on.", min=1, max=1000)] = 1,
    at_once: Annotated[
        int | None, typer.Option(help="How many runs at a time. Default: what fits the device.", min=1)
    ] = None,
    dry_run: DryRun = False,
    keep_going: KeepGoing = True,
    on: On = None,
    mixed: Mixed = False,
    resume: Annotated[bool, typer.Option(help="Continue unfinished runs, or start them again.")] = True,
    runs: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs/studies"),
    results: Annotated[Path, typer.Option(help="Folder for the records of finished runs.")] = Path("results"),
    data_dir: DataDir = None,
    code: Code = None,
) -> None:
    """Run what is missing of a study on held-out training images, and compare its candidates."""
    from edbl.store import refuse_links
    from edbl.studies.paper import planned
    from edbl.studies.queue import Item
    from edbl.studies.shelf import Shelf
    from edbl.studies.study import read

    where = options.where(on, mixed, keep_going)
    refuse_links(runs)
    with options.trusting(code):
        found, shelf = read(file), Shelf(results)
    plan = planned(found.experiment, range(seeds))
    if dry_run:
        _show_queue(_entries([Item(found.name, found.question, plan)], shelf, runs, data_dir))
        return
    _make([plan], shelf, runs, at_once, resume, data_dir, where)
    _show(found.experiment, shelf, runs)
    for title, text in (("rule", found.rule), ("decision", found.decision)):
        if text:
            terminal.tell(f"{title}: {text}")


def _make(
    batches: "Sequence[Sequence[Planned]]",
    shelf: "Shelf",
    runs: Path,
    at_once: int | None,
    resume: bool,
    data_dir: Path | None,
    where: "Where",
    limit: "Limit | None" = None,
) -> None:
    """Run what is missing of the plans, batch by batch, and keep it."""
    from edbl.fleet.jobs import Job
    from edbl.fleet.many import run_many, side_by_side
    from edbl.scratch import tidy

    tidy()  # where nothing is left to run, too
    plans = {runs / plan.folder: plan for batch in batches for plan in batch if not shelf.has(plan.recipe)}

    def done(job: Job) -> None:
        shelf.keep(job.folder, plans[job.folder].folder, features=plans[job.folder].features)

    otherwise = "use --no-resume to begin all anew, or another --runs"
    failed = []
    with stopping.many_runs():
        for batch in batches:
            jobs = [Job(plan.recipe, runs / plan.folder) for plan in batch if runs / plan.folder in plans]
            if jobs:
                workers = side_by_side(jobs, at_once, where)
                try:
                    run_many(jobs, workers, terminal.console, data_dir, done, otherwise, not resume, limit, (), where)
                except EdblError as error:
                    failed.append(error)
                    if not where.keep_going:
                        break
    if failed:
        kind = Busy if all(isinstance(error, Busy) for error in failed) else EdblError
        raise kind("\n".join(map(str, failed)))


def _show(experiment: "Experiment", shelf: "Shelf", runs: Path) -> None:
    from edbl.studies import pages

    terminal.console.print(Markdown(pages.shown(experiment, shelf)))
    for figure in pages.figure(experiment, shelf, runs).values():
        terminal.tell(f"figure: {runs / figure}")


def _entries(items: "Sequence[Item]", shelf: "Shelf", runs: Path, data_dir: Path | None) -> "list[Entry]":
    """Return the queue as it stands on this machine."""
    from edbl.data import datasets
    from edbl.engine import environment
    from edbl.studies import queue

    @cache
    def absent(name: str) -> str:
        try:
            datasets.load(name, data_dir)
        except EdblError as error:
            return str(error).splitlines()[0].rstrip(",")
        return ""

    return queue.plan(items, shelf, runs, environment.describe(environment.pick_device("auto")), absent)


def _work_off(
    items: "Sequence[Item]",
    shelf: "Shelf",
    runs: Path,
    at_once: int | None,
    resume: bool,
    data_dir: Path | None,
    where: "Where",
    end: float | None,
) -> None:
    """Run what is missing of a queue, in order, until the time is over."""
    from edbl.engine import environment
    from edbl.fleet.turns import Limit
    from edbl.studies import queue

    entries = _entries(items, shelf, runs, data_dir)
    _tell_obstacles(entries)
    limit = None
    if end is not None:
        limit = Limit(end, queue.in_time(entries, runs, end - time.monotonic()))
    try:
        gpu = not where.on and environment.pick_device("auto").type == "cuda"
        _make(queue.batches(entries, gpu), shelf, runs, at_once, resume, data_dir, where, limit)
    finally:
        terminal.tell(_summary(_entries(items, shelf, runs, data_dir)))


def _show_queue(entries: "Sequence[Entry]") -> None:
    from edbl.studies.queue import shown
    from edbl.text import count

    table = terminal.table("item", "run", "seed", "state", "left", "first task")
    for entry in entries:
        left = "" if entry.state == "done" else shown(entry.seconds) + (f" on {entry.machine}" if entry.machine else "")
        start = f"from {entry.start}" if entry.start else f"for {count(entry.others, 'other')}" if entry.others else ""
        state = f"{entry.state}, cannot be run" if entry.obstacle else entry.state
        table.add_row(entry.item, entry.run.folder, str(entry.run.recipe.seed), state, left, start)
    terminal.show(table)
    _tell_obstacles(entries)
    terminal.tell(_summary(entries))


def _tell_obstacles(entries: "Sequence[Entry]") -> None:
    from edbl.text import count

    for why, number in Counter(entry.obstacle for entry in entries if entry.obstacle).items():
        terminal.tell(f"{count(number, 'run')} left out: {why}")


def _summary(entries: "Sequence[Entry]") -> str:
    """Return how much of a queue is done, and how long the rest takes."""
    from edbl.studies.queue import shown
    from edbl.text import count

    states = Counter(entry.state for entry in entries)
    todo = [entry.seconds for entry in entries if entry.state != "done"]
    known = [seconds for seconds in todo if seconds is not None]
    unknown = f", and {len(todo) - len(known)} of them nobody knows how long" if len(todo) > len(known) else ""
    rest = f"; the rest takes about {shown(sum(known))}, the times of all runs added up{unknown}" if known else ""
    told = ", ".join(f"{states[state]} {state}" for state in ("done", "unfinished", "missing"))
    return f"{count(len(entries), 'run')}: {told}{rest}"


def results(
    page: Annotated[
        list[Path] | None, typer.Argument(metavar="PAGE", help="Pages (.md) whose tables and figures to update.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of records.")] = Path("results"),
    studies: Annotated[
        Path | None, typer.Option(help="Folder of studies, for a page of that name beside the first.")
    ] = None,
    code: Code = None,
) -> None:
    """Update the tables and figures of pages, and the list of all runs, from records."""
    from edbl.studies.pages import write_all

    with options.trusting(code):
        written = write_all(page or [Path("results.md")], results, studies)
    terminal.tell(f"written: {', '.join(map(str, written))}")
