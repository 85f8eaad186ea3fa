"""Commands about runs: run, resume, report, compare, and the benchmark of a step."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from edbl import group
from edbl.cli import models, options, stopping, terminal
from edbl.cli.options import (
    Data,
    DataDir,
    Device,
    DryRun,
    Gpus,
    KeepGoing,
    Log,
    Memory,
    Mixed,
    On,
    Preset,
    Protocol,
    RecipeFile,
    Settings,
    Tasks,
)
from edbl.errors import EdblError

if TYPE_CHECKING:
    from edbl.fleet.jobs import Job
    from edbl.fleet.many import Where
    from edbl.recipe import Recipe

Methods = Annotated[
    list[str] | None,
    typer.Argument(metavar="METHOD", help="Methods (`edbl list methods`), or .py files with one."),
]
Order = Annotated[
    str | None,
    typer.Option(
        help="Class order: natural, a seed such as 1993, seed (that of the run), or a file. Default: natural."
    ),
]
Stream = Annotated[str | None, typer.Option(metavar="FILE.py:NAME", help="A stream of your own instead of a protocol.")]
Seed = Annotated[int | None, typer.Option(help="Seed of all random choices, except the class order. Default: 0.")]
Seeds = Annotated[
    int, typer.Option(help="Number of runs of each method, with seeds from --seed on.", min=1, max=10_000)
]
AtOnce = Annotated[
    int | None,
    typer.Option(help="Of several runs, how many at a time. Default: what fits the device.", min=1),
]
OnDevice = Annotated[
    str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps or xpu. Default: auto, a GPU if there is one.")
]
Precision = Annotated[
    str | None,
    options.choice("auto", "fp32", "bf16", help="Default: auto, which is bf16 on a GPU that computes it, else fp32."),
]
Graph = Annotated[bool | None, typer.Option(help="On an NVIDIA GPU, replay the step as a CUDA graph. Default: yes.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Of a folder of images, leave unreadable files out instead of stopping.")
]
Out = Annotated[Path | None, typer.Option(help="Output folder, new or with earlier runs. Default: runs/NAME.")]


def run(
    methods: Methods = None,
    recipe: RecipeFile = None,
    data: Data = None,
    protocol: Protocol = None,
    tasks: Tasks = None,
    memory: Memory = None,
    order: Order = None,
    stream: Stream = None,
    seed: Seed = None,
    seeds: Seeds = 1,
    at_once: AtOnce = None,
    preset: Preset = None,
    settings: Settings = None,
    device: OnDevice = None,
    precision: Precision = None,
    graph: Graph = None,
    gpus: Gpus = None,
    skip_bad: SkipBad = False,
    out: Out = None,
    dry_run: DryRun = False,
    keep_going: KeepGoing = True,
    on: On = None,
    mixed: Mixed = False,
    log: Log = None,
    data_dir: DataDir = None,
) -> None:
    """Run methods on a stream of tasks: train, measure after each task, write a record and a report."""
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
    _together(gpus, len(seeded))
    _run(seeded, out, at_once, data_dir, log or [], options.where(on, mixed, keep_going), dry_run)


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
    recipes: "list[Recipe]",
    out: Path | None,
    workers: int | None,
    data_dir: Path | None,
    logged: Sequence[str],
    where: "Where",
    dry_run: bool,
) -> None:
    from edbl.fleet.jobs import jobs_of
    from edbl.logs import logs

    jobs = jobs_of(recipes, out)
    logs(logged)  # what is missing for them is said at once
    if dry_run:
        _show_plan(jobs)
    elif len(jobs) == 1 and not where.on:
        _run_one(jobs[0], out, data_dir, logged)
    else:
        _run_many(jobs, out, workers, data_dir, logged, where)


def _show_plan(jobs: "list[Job]") -> None:
    """List runs with their state, and where they have their first task from."""
    from edbl.engine.folders import is_done
    from edbl.fleet import starts
    from edbl.records import RECORD
    from edbl.text import count

    shared = {place: first for first, others in starts.waiting(jobs, range(len(jobs))).items() for place in others}
    table = terminal.table("run", "seed", "state", "first task")
    states = []
    for place, job in enumerate(jobs):
        done = is_done(job.folder, job.recipe)
        states.append("done" if done else "unfinished" if (job.folder / RECORD).exists() else "missing")
        start = f"from {jobs[shared[place]].folder}" if place in shared else ""
        table.add_row(escape(str(job.folder)), str(job.recipe.seed), states[-1], escape(start))
    terminal.show(table)
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("done", "unfinished", "missing"))
    terminal.tell(f"{count(jobs, 'run')}: {counts}")


def _run_one(job: "Job", out: Path | None, data_dir: Path | None, logged: Sequence[str]) -> None:
    from edbl.engine.folders import is_done
    from edbl.fleet.jobs import make
    from edbl.logs import logs

    with group.joined(job.recipe.device):
        if group.leads():
            is_done(job.folder, job.recipe)  # or something else that is there, and stays
        with stopping.one_run(job.folder, job.recipe.values()) as progress:
            make(job, data_dir, progress, callbacks=logs(logged))
    if not group.follows():
        _show([job.folder], out, job.folder)


def _together(gpus: int | None, runs: int = 1) -> None:
    """Let as many processes as are wanted do what this command says, unless this is one of them."""
    if (gpus or group.wanted()) > 1 and runs > 1:
        raise EdblError("several processes make one run, of one method and seed; without --gpus, runs share GPUs out")
    if group.wanted() > 1:
        if gpus not in (None, group.wanted()):
            raise EdblError(
                f"{group.wanted()} processes were started together, so --gpus {gpus} cannot be; leave it out"
            )
    elif gpus is not None and gpus > 1:
        from edbl.fleet.together import together

        with stopping.interruptible(str):
            stopping.told = True  # by the first of them
            code = together(gpus, sys.argv[1:])
        raise typer.Exit(code)


def _run_many(
    jobs: "list[Job]",
    out: Path | None,
    workers: int | None,
    data_dir: Path | None,
    logged: Sequence[str],
    where: "Where",
) -> None:
    from edbl.fleet.many import run_many, side_by_side

    done = set()
    page = Path("runs") if len(jobs) > 1 else jobs[0].folder
    try:
        with stopping.many_runs():
            number = side_by_side(jobs, workers, where)
            run_many(
                jobs, number, terminal.console, data_dir, lambda job: done.add(job.folder), logged=logged, where=where
            )
    except EdblError:
        if done:
            _show([job.folder for job in jobs if job.folder in done], out, page)
        raise
    _show([job.folder for job in jobs], out, page)


def _show(folders: Sequence[Path], out: Path | None, otherwise: Path) -> None:
    """Show runs and, where they are in a folder that was named, all others in it; the page goes there."""
    from edbl.engine.folders import runs_in

    terminal.show_runs([*folders, *(runs_in(out) if out else [])], (out or otherwise) / "report.html")


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was stopped.")],
    changed: Annotated[
        bool, typer.Option("--changed", help="Continue although code of your own has changed; the record notes it.")
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="The .py file of its method, if it has one: a file runs only if you name it.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The same for its data.")] = None,
    backbone: Annotated[str | None, typer.Option(help="The same for its backbone.")] = None,
    stream: Annotated[str | None, typer.Option(help="The same for its stream.")] = None,
    gpus: Gpus = None,
    log: Log = None,
    data_dir: DataDir = None,
) -> None:
    """Continue a run that was stopped; the result is exactly that of an uninterrupted run."""
    from edbl import users
    from edbl.engine.run import resume as go_on
    from edbl.logs import logs

    _together(gpus)
    own = {"method": method, "data": data, "backbone": backbone, "stream": stream}
    callbacks = logs(log or [])
    with stopping.one_run(folder, {key: own[word] for key, word in users.KEYS.items()}) as progress:
        go_on(folder, **own, data_dir=data_dir, progress=progress, callbacks=callbacks, changed=changed)
    if not group.follows():
        terminal.show_runs([folder], folder / "report.html")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Runs, or folders that contain runs; or a model and photos."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A page (.html) or tables (.csv, .tex, .md). Default: report.html in the folder, or here."),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="File for the accuracy curves, .svg or .png.")] = None,
) -> None:
    """Write one page about runs: tables, curves, confusion matrices, features; or tables for a paper.

    Of a model, as in MODEL [PHOTOS]..., write its page, with mistakes on those photos.
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
        typer.Argument(metavar="A B", help="Two folders, each a run or with runs of several seeds."),
    ],
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="Instead of two folders: two methods in one folder.")
    ] = None,
) -> None:
    """Compare two experiments, pair by pair of the same seed: differences, 95% intervals, paired tests."""
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
    method: Annotated[str, typer.Argument(help="A .py file with a method, or a name of `edbl list methods`.")],
) -> None:
    """Check a method on digits, in under a minute: same seed, same result; killed and resumed; no test images seen."""
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
    backbone: Annotated[
        str, options.choice("resnet32", "resnet18", "small", "mlp", help="Network to time.")
    ] = "resnet32",
    batch: Annotated[int, typer.Option(help="Images per batch.", min=2)] = 128,
    precision: Annotated[
        str, options.choice("auto", "fp32", "bf16", help="Precision of the step; on a CPU, bf16 has a row of its own.")
    ] = "auto",
    steps: Annotated[
        int | None, typer.Option(help="Steps per round. Default: 100 on a GPU, 3 on a CPU.", min=1)
    ] = None,
    workers: Annotated[int, typer.Option(help="DataLoader workers of the plain loop.", min=0)] = 2,
    verify: Annotated[
        bool, typer.Option("--verify", help="Instead, report what works on this device and whether it is right.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Instead, search for a minute for the fastest settings of this GPU.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time a training step beside a plain PyTorch loop; or verify a device, or tune for it."""
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
        terminal.put_json(found)
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
        terminal.put_json(told)
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
        terminal.put_json({"file": str(kept), **asdict(found)})
        return
    terminal.tell(
        f"{found.tried} of {found.of} choices tried, {found.refused} refused; {len(found.table)} taken: "
        f"{found.before:.3f} ms before, {found.after:.3f} ms now\nkept: {kept}"
    )
