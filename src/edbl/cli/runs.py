"""Commands about runs: run, resume, report, compare, and the benchmark of a step."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from edbl.cli import models, options, stopping, terminal
from edbl.cli.options import DataDir, Device, Log
from edbl.errors import EdblError

if TYPE_CHECKING:
    from edbl.fleet.many import Job
    from edbl.recipe import Recipe


def run(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="Methods, or .py files with one. See `edbl list methods`."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe file or name; other options win over it.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, or path of an image folder.")] = None,
    protocol: Annotated[str | None, typer.Option(help="base0, base-half, base-step or tasks.")] = None,
    tasks: Annotated[
        int | None, typer.Option("--tasks", "--phases", help="How many tasks; of base-half, after the first one.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="total=2000, per_class=20 or none.")] = None,
    order: Annotated[
        str | None,
        typer.Option(help="natural, a seed such as 1993, seed (the run's), or a file of classes."),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="A stream of your own, as in FILE.py:make, in place of a protocol.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Drives everything random, but the class order unless that is seed.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="How many runs of each method, with seeds from --seed on.", min=1, max=10_000)
    ] = 1,
    at_once: Annotated[
        int | None,
        typer.Option(help="Of several runs, how many at a time.", min=1),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="default, tuned, paper or quick.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for any key of a recipe.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, fp32 or bf16; auto is bf16 on a GPU that computes it.")
    ] = None,
    graph: Annotated[bool | None, typer.Option(help="On a GPU, replay the step as a CUDA graph or not.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Image folders: leave unreadable files out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder, new or of earlier runs. Default: runs/NAME.")] = None,
    log: Log = None,
    data_dir: DataDir = None,
) -> None:
    """Learn a data set class by class; several methods or seeds side by side."""
    given: dict[str, object] = {
        "data.name": data,
        "stream.protocol": protocol or (stream and "own"),
        "stream.given": stream,
        "stream.tasks": tasks,
        "memory": memory,
        "stream.order": options.order(order),
        "seed": seed,
        "preset": preset,
        "device": device,
        "precision": precision,
        "graph": graph,
        "data.skip_bad": skip_bad or None,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    made = _recipes(methods or [], recipe, flags, options.settings(settings))
    seeded = [replace(one, seed=one.seed + number) for one in made for number in range(seeds)]
    _run(seeded, out, at_once, data_dir, log or [])


def _recipes(
    methods: Sequence[str], file: str | None, flags: Mapping[str, object], settings: Mapping[str, object]
) -> "list[Recipe]":
    """Return a recipe for each method, or the one of a file."""
    from edbl.recipe import Recipe, find_recipe

    if not methods and file is None:
        raise EdblError("name a method, as in `edbl run edbl --data digits`, or a --recipe")
    made = []
    for named in [{"method": name} for name in methods] or [{}]:
        layer = layered({**flags, **named}, settings)
        try:
            made.append(Recipe.of(layer) if file is None else Recipe.read(find_recipe(file), layer))
        except EdblError as error:
            if len(methods) < 2:
                raise
            raise EdblError(f"{named['method']}: {error}") from error
    return made


def layered(given: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return what options and ``--set`` give, each key once."""
    if twice := [key for key in settings if key in given]:
        raise EdblError(f"{twice[0]} is given twice, once by --set")
    return {**given, **settings}


def _run(
    recipes: "list[Recipe]", out: Path | None, workers: int | None, data_dir: Path | None, logged: Sequence[str]
) -> None:
    from edbl.fleet.many import jobs_of
    from edbl.logs import logs

    jobs = jobs_of(recipes, out)
    logs(logged)  # what is missing for them is said at once
    if len(jobs) == 1:
        _run_one(jobs[0], out, data_dir, logged)
    else:
        _run_many(jobs, out, workers, data_dir, logged)


def _run_one(job: "Job", out: Path | None, data_dir: Path | None, logged: Sequence[str]) -> None:
    from edbl.engine.folders import is_done
    from edbl.fleet.many import make

    is_done(job.folder, job.recipe)  # or something else that is there, and stays
    with stopping.one_run(job.folder, job.recipe.values()) as progress:
        make(job, data_dir, progress, logged=logged)
    _show([job.folder], out, job.folder)


def _run_many(
    jobs: "list[Job]", out: Path | None, workers: int | None, data_dir: Path | None, logged: Sequence[str]
) -> None:
    from edbl.fleet.many import at_once, run_many

    done = set()
    try:
        with stopping.many_runs():
            workers = min(workers or at_once(jobs[0].recipe.device), len(jobs))
            run_many(jobs, workers, terminal.console, data_dir, lambda job: done.add(job.folder), logged=logged)
    except EdblError:
        if done:
            _show([job.folder for job in jobs if job.folder in done], out, Path("runs"))
        raise
    _show([job.folder for job in jobs], out, Path("runs"))


def _show(folders: Sequence[Path], out: Path | None, otherwise: Path) -> None:
    """Show runs and, where they are in a folder that was named, all others in it; the page goes there."""
    from edbl.engine.folders import runs_in

    terminal.show_runs([*folders, *(runs_in(out) if out else [])], (out or otherwise) / "report.html")


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was stopped.")],
    changed: Annotated[
        bool, typer.Option("--changed", help="Go on though code of your own has changed since; the record notes it.")
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="The .py file of its method, which runs; only if it has one.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Likewise, that of its data.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Likewise, that of its backbone.")] = None,
    stream: Annotated[str | None, typer.Option(help="Likewise, that of its stream.")] = None,
    log: Log = None,
    data_dir: DataDir = None,
) -> None:
    """Go on with a run that was stopped, at any moment, by anything."""
    from edbl import users
    from edbl.engine.run import resume as go_on
    from edbl.logs import logs

    own = {"method": method, "data": data, "backbone": backbone, "stream": stream}
    callbacks = logs(log or [])
    with stopping.one_run(folder, {key: own[word] for key, word in users.KEYS.items()}) as progress:
        go_on(folder, **own, data_dir=data_dir, progress=progress, callbacks=callbacks, changed=changed)
    terminal.show_runs([folder], folder / "report.html")


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Runs, or folders with runs below them.")],
    out: Annotated[
        Path | None,
        typer.Option(help=".html, or tables: .csv, .tex or .md. Default: report.html in the folder, or here."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the accuracy curves here too, as .svg or .png.")] = None,
) -> None:
    """Make one page of one run or of many: tables, curves, confusion matrices, features; or tables alone.

    Or a page of a model: MODEL [PHOTOS]..., photos being those whose mistakes it is to show.
    """
    if (folders[0] / "model.json").is_file():
        if figure or (out and out.suffix != ".html"):
            raise EdblError("the page of a model is one .html file; leave out --figure, and let --out end in .html")
        models.page(folders[0], folders[1:], out)
        return
    page = folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
    terminal.show_runs(folders, out or page, figure)


def compare(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="A B", help="Two folders, each a run or with runs of several seeds below it."),
    ],
    methods: Annotated[str | None, typer.Option(help="Two methods, A,B, of the runs below one folder.")] = None,
) -> None:
    """Compare two experiments over runs of the same seeds: differences, their intervals, tests."""
    from edbl.report.compare import compare as paired
    from edbl.report.compare import notes, table

    names = methods.split(",") if methods is not None else []
    if methods is not None and len(set(names)) != 2:
        raise EdblError(f"--methods takes two methods with a comma between them, not '{methods}'")
    made = paired(places, names)
    told, *more = notes(made)
    terminal.tell(told)
    terminal.show(table(made))
    for note in more:
        terminal.tell(note)


def check(
    method: Annotated[str, typer.Argument(help="A .py file with a method, or the name of one.")],
) -> None:
    """Check a method on digits: seeds, kills, what a GPU's step must not do, what it must not see."""
    from edbl.engine.check import check as findings
    from edbl.methods import find_method

    find_method(method)  # refused at once if it cannot be had
    table = terminal.table("check", "result")
    failed = total = 0
    with terminal.console.status("checking"):
        for finding in findings(method):
            total, failed = total + 1, failed + bool(finding.wrong)
            table.add_row(finding.what, escape(finding.wrong) or "passed")
    terminal.show(table)
    if failed:
        terminal.complain(f"{failed} of {total} checks failed")
        raise typer.Exit(1)


def bench(
    device: Device = "auto",
    backbone: Annotated[str, typer.Option(help="resnet32, resnet18, small or mlp.")] = "resnet32",
    batch: Annotated[int, typer.Option(help="Images per batch.", min=2)] = 128,
    precision: Annotated[str, typer.Option(help="auto, fp32 or bf16, which has a row of its own on a CPU.")] = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Steps per round. Default: 100 on a GPU, 3 on a CPU.", min=1)
    ] = None,
    workers: Annotated[int, typer.Option(help="DataLoader workers of the plain loop.", min=0)] = 2,
    verify: Annotated[
        bool, typer.Option("--verify", help="Say what works on this device, how fast, and whether it is right.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for a minute for what suits this GPU best, and keep it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time a training step beside a plain PyTorch loop and the bare network; or verify a device, or tune for it."""
    from edbl.bench.step import measure
    from edbl.engine.environment import pick_device

    if verify and tune:
        raise EdblError("--verify and --tune are two things; use one after the other")
    if verify or tune:
        (_verify if verify else _tune)(device, as_json)
        return
    with terminal.console.status("timing"):
        found = measure(pick_device(device), backbone, batch, steps, workers, precision)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    terminal.tell(f"{found['device']}; {versions}\n{backbone}, batch {batch}, {found['n']}")
    table = terminal.table()
    for heading in ("", "ms a step", "images/s", "of bare"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in found["rows"]:
        numbers = f"{row['milliseconds']:.3f}", f"{row['images_per_second']:,.0f}", f"{row['of_bare']:.2f}"
        table.add_row(row["name"], *numbers)
    terminal.show(table)


def _verify(device: str, as_json: bool) -> None:
    """Show what works on a device; exit code 1 if something is wrong."""
    from edbl.bench.verify import report, verify
    from edbl.engine.environment import pick_device

    where = pick_device(device)
    with terminal.console.status("verifying") as status:
        found = list(verify(where, lambda what: status.update(f"verifying: {what}")))
    told = report(where, found)
    if as_json:
        print(json.dumps(told, indent=1))
    else:
        terminal.tell(
            f"{told['device']}; {', '.join(f'{name} {version}' for name, version in told['versions'].items())}"
        )
        table = terminal.table("", "", "")
        for finding in found:
            table.add_row(finding.what, finding.state, escape(finding.told))
        terminal.show(table)
    if not told["right"]:
        wrong = sum(finding.state == "wrong" for finding in found)
        terminal.complain(f"{wrong} of {len(found)} are wrong; runs do without them")
        raise typer.Exit(1)


def _tune(device: str, as_json: bool) -> None:
    """Search for a launch table, and keep it."""
    from edbl.bench.tune import keep, search
    from edbl.engine.environment import pick_device

    where = pick_device(device)
    with terminal.console.status("tuning") as status:
        found = search(where, say=lambda what: status.update(f"tuning: {what}"))
    kept = keep(where, found)
    if as_json:
        print(json.dumps({"file": str(kept), **asdict(found)}, indent=1))
        return
    terminal.tell(
        f"{found.tried} of {found.of} choices tried, {found.refused} refused; {len(found.table)} taken: "
        f"{found.before:.3f} ms before, {found.after:.3f} ms now\nkept: {kept}"
    )
