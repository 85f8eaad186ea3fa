"""The command line: parsing and printing only."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from edbl.errors import EdblError, command, unknown

if TYPE_CHECKING:
    from edbl.engine.progress import Bars
    from edbl.recipe import Recipe

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
data_app = typer.Typer(no_args_is_help=True, help="Fetch and verify data sets.")
app.add_typer(data_app, name="data")
console = Console(emoji=False)
# How long threads that wait for each other keep their core. As long as by default, they hold up each other, many times
# over, where other processes want the cores too; shorter costs nothing where none does.
SPINS = "2000"
WIDE = 10_000  # columns
HANGUP = getattr(signal, "SIGHUP", None)  # not on Windows

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets lie. Default: $EDBL_DATA, or ~/.cache/edbl.")
]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute; auto takes a GPU if any.")]


def main() -> None:
    """Run the command line; errors a user can mend are one message and exit code 2."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when PyTorch is imported, which is later
    if sys.stdout is None:  # closed by the caller: what is printed goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what it cannot hold of a name must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except EdblError as error:
        _stderr().print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written: nothing that a traceback would explain
        where = f" ({error.filename})" if error.filename else ""
        told = escape(f"{error.strerror or error}{where}")
        _stderr().print(f"[red]error:[/red] {told}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from edbl import __version__

        console.print(f"edbl {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def edbl(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Class-incremental learning: EDBL and its baselines."""


@app.command()
def run(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="Methods, or .py files with one. See `edbl list methods`."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Recipe file or name; other options win over it.")] = None,
    data: Annotated[str | None, typer.Option(help="Data set, or path of an image folder.")] = None,
    protocol: Annotated[str | None, typer.Option(help="base0, base-half, base-step or tasks.")] = None,
    phases: Annotated[int | None, typer.Option(help="Number of phases.")] = None,
    memory: Annotated[str | None, typer.Option(help="total=2000 or per_class=20.")] = None,
    order: Annotated[
        str | None, typer.Option(help="natural, a seed such as 1993, or a file with a class per line.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Drives everything random but the class order.")] = None,
    seeds: Annotated[int, typer.Option(help="How many runs of each method, with seeds from --seed on.", min=1)] = 1,
    at_once: Annotated[
        int | None,
        typer.Option(help="Of several runs, how many at a time.", min=1),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="default, aligned, paper or quick.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for any key of a recipe.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16; auto is bf16 on a GPU.")] = None,
    graph: Annotated[bool | None, typer.Option(help="On a GPU, replay the step as a CUDA graph or not.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Image folders: leave unreadable files out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder; must not exist. Default: runs/NAME.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Learn a data set class by class; several methods or seeds side by side."""
    from edbl.recipe import Recipe

    given = {
        "data.name": data,
        "stream.protocol": protocol,
        "stream.phases": phases,
        "memory": memory,
        "stream.order": _order(order),
        "seed": seed,
        "preset": preset,
        "device": device,
        "precision": precision,
        "graph": graph,
        "data.skip_bad": skip_bad or None,
    }
    flags: dict[str, object] = {k: v for k, v in given.items() if v is not None}
    if not methods and recipe is None:
        raise EdblError("name a method, as in `edbl run edbl --data digits`, or a --recipe")
    chosen = _settings(settings)
    made = []
    for named in [{"method": name} for name in methods or []] or [{}]:
        options = flags | named
        if twice := [key for key in chosen if key in options]:
            raise EdblError(f"{twice[0]} is given twice, once by --set")
        layer = options | chosen
        try:
            one = Recipe.of(layer) if recipe is None else Recipe.read(_recipe_file(recipe), layer)
        except EdblError as error:
            if len(methods or []) < 2:
                raise
            raise EdblError(f"{named['method']}: {error}") from error
        made += [replace(one, seed=one.seed + number) for number in range(seeds)]
    if len(made) == 1:
        _run_one(made[0], out, data_dir)
    else:
        _run_many(made, out, at_once, data_dir)


def _settings(given: list[str] | None) -> dict[str, object]:
    """Return what ``--set`` gives, by key as it is written."""
    from edbl.recipe import parse_setting

    pairs = [parse_setting(text) for text in given or []]
    if again := [key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number])]:
        raise EdblError(f"--set gives {again[0]} twice")
    return dict(pairs)


def _run_one(recipe: "Recipe", out: Path | None, data_dir: Path | None) -> None:
    from edbl.engine.run import default_folder
    from edbl.engine.run import run as start

    folder = out or default_folder(recipe)
    with _bars(folder) as progress:
        start(recipe, folder, data_dir=data_dir, progress=progress)
    _finish([folder], folder / "report.html")


def _run_many(recipes: "list[Recipe]", out: Path | None, workers: int | None, data_dir: Path | None) -> None:
    from edbl.engine.many import Job, at_once, run_many
    from edbl.engine.run import default_folder
    from edbl.records import RECORD

    if out and (out / RECORD).exists():
        raise EdblError(f"output folder {out} holds a run; use another --out")
    jobs = [Job(recipe, out / _name(recipe) if out else default_folder(recipe)) for recipe in recipes]
    if len({job.folder for job in jobs}) < len(jobs):
        raise EdblError("two methods have the same name, or one is named twice; each needs a folder of its own")
    page, done = (out or Path("runs")) / "report.html", set()
    try:
        with _many():
            workers = min(workers or at_once(recipes[0].device), len(jobs))
            run_many(jobs, workers, console, data_dir, lambda job: done.add(job.folder))
    except EdblError:
        if done:
            _finish([job.folder for job in jobs if job.folder in done], page)
        raise
    _finish([job.folder for job in jobs], page)


@contextmanager
def _many() -> Iterator[None]:
    code = 128 + signal.SIGINT

    def end(number: int, _: object) -> None:  # as batch systems and closed terminals ask for: tidied up first
        nonlocal code
        code = 128 + number
        raise KeyboardInterrupt

    asked = [one for one in (signal.SIGTERM, HANGUP) if one and signal.getsignal(one) != signal.SIG_IGN]  # as by nohup
    usual = {one: signal.signal(one, end) for one in asked}
    try:
        yield
    except KeyboardInterrupt:
        _stderr().print("interrupted; the same command goes on from the last checkpoints", highlight=False)
        raise typer.Exit(code) from None
    finally:
        for one, handler in usual.items():
            signal.signal(one, handler)


def _name(recipe: "Recipe") -> str:
    return f"{Path(recipe.method).stem}-seed{recipe.seed}"


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that was stopped.")],
    data_dir: DataDir = None,
) -> None:
    """Go on with a run that was stopped, at any moment, by anything."""
    from edbl.engine.run import resume as go_on

    with _bars(folder) as progress:
        go_on(folder, data_dir=data_dir, progress=progress)
    _finish([folder], folder / "report.html")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option(help="HTML file. Default: report.html in the run, or here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Write the accuracy curves here too, as .svg or .png.")] = None,
) -> None:
    """Make one page of one run or of many: tables, curves, confusion matrices, features."""
    _finish(folders, out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html")), figure)


@app.command()
def demo(out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/demo.")] = None) -> None:
    """Learn scikit-learn's digits in 5 tasks with basic RKD and with EDBL, and compare them."""
    from edbl.demo import recipes
    from edbl.engine.run import resume
    from edbl.engine.run import run as start
    from edbl.recipe import RECIPE, Recipe
    from edbl.records import RECORD

    folder = out or _free(Path("runs/demo"))
    console.print(
        "Ten digits arrive two at a time; each learner may keep 50 images of the past.\n"
        "RKD trains for at least as many epochs. No choice was made on the test images."
    )
    made = recipes()
    for recipe in made:
        place = folder / recipe.method
        with _interruptible(lambda: f"{command('demo', '--out', folder)} goes on"), _live() as progress:
            if (place / RECORD).exists() and Recipe.read(place / RECIPE) == recipe:
                resume(place, progress=progress)
            else:
                start(recipe, place, progress=progress)
    _finish([folder / recipe.method for recipe in made], folder / "report.html")


@app.command()
def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; made if it does not exist.")],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Photos to learn, in FOLDER/CLASS/. None: go on."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="Method to learn by, for good. Default: edbl.")] = None,
    memory: Annotated[str | None, typer.Option(help="Images to keep: per_class=20 (default) or total=2000.")] = None,
    memory_mb: Annotated[float | None, typer.Option(help="Images to keep, in MB of pixels.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images, for good.")] = None,
    backbone: Annotated[
        str | None, typer.Option(help="efficientnet-lite0, timm:NAME, resnet18, resnet32, small or mlp, for good.")
    ] = None,
    tune: Annotated[str | None, typer.Option(help="Of a pretrained net, learn its head or all, for good.")] = None,
    seed: Annotated[int | None, typer.Option(help="Drives everything random.")] = None,
    device: Device = "auto",
    settings: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for a key of a recipe.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of images to hold out. Default: 0.1.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable files out.")] = False,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="Images that the model keeps as another class get the one given.")
    ] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Drop an increment that was begun.")] = False,
) -> None:
    """Make a model from photos, or teach it more classes, or more about those it knows."""
    from edbl.app import bundle as disk
    from edbl.app import show
    from edbl.app.learn import increment
    from edbl.app.settings import Request

    request = Request(
        folders=[str(folder.resolve()) for folder in folders or []],
        method=method,
        memory=memory,
        memory_mb=memory_mb,
        image_size=image_size,
        backbone=backbone,
        tune=tune,
        seed=seed,
        validation=validation,
        given=_settings(settings),
        skip_bad=skip_bad,
        relabel=relabel,
    )

    def how() -> str:
        begun = disk.begun(model)
        return f"{command('learn', model)} goes on where it stopped" if begun else "the same command starts again"

    with (
        _interruptible(how),
        increment(model, request, device=device, discard=discard, say=_say) as begun,
    ):
        if begun is None:
            return
        begun.prepare()
        with _live() as progress:
            learnt = begun.learn(progress)
        bundle = begun.commit(learnt)
    _show(show.report(model, bundle))


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Images, or folders of images.")],
    top: Annotated[int, typer.Option(help="How many classes to name for each image.", min=1)] = 3,
    readout: Annotated[
        Literal["cnn", "nme"] | None, typer.Option(help="Default: what was better on held-out images.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    device: Device = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Unreadable files are no error.")] = False,
) -> None:
    """Say which classes images show."""
    import csv

    from edbl.app import show
    from edbl.app.predict import Predictor
    from edbl.data.folder import count, shown

    if as_json and as_csv:
        raise EdblError("--json and --csv are two formats; give one of them")
    predictor = Predictor(model, readout, device)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    top = min(top, len(predictor.model.names))
    if as_csv:
        writer.writerow(show.csv_heading(top))
    found = []
    streams = (as_json or as_csv) and sys.stdout.isatty()  # then its lines show how far it is
    for prediction in predictor(images, top, _say, streams):
        found.append(prediction)
        if as_json:
            print(json.dumps(show.prediction_values(prediction, predictor.readout)))
        elif as_csv:
            writer.writerow(show.csv_row(prediction, top))
    if not as_json and not as_csv:
        _show(show.predictions(found, predictor.readout))
    if bad := [f"{shown(p.path)} ({p.bad})" for p in found if p.bad]:
        message = "\n".join([f"{count(bad, 'image')} of {len(found):,} cannot be used:", *bad])
        if not skip_bad:
            raise EdblError(message)
        _say(f"note: {message}")


@app.command()
def info(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what a model knows, remembers and has been through."""
    from edbl.app import show
    from edbl.app.bundle import settle

    bundle = settle(model)
    if as_json:
        print(json.dumps(show.info_values(model, bundle), indent=1))
    else:
        _show(show.info(model, bundle))


@app.command()
def forget(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Classes to forget.")],
    device: Device = "auto",
) -> None:
    """Remove classes from a model, with all images of them."""
    from edbl.app import show
    from edbl.app.edit import forget as remove
    from edbl.data.folder import count

    left = remove(model, classes, device)
    gone = ", ".join(dict.fromkeys(classes))
    told = f"forgot {gone}; {count(left.classes, 'class')} left; {show.memory(model, left)}"
    console.print(told, markup=False, soft_wrap=True)


@app.command()
def rename(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    old: Annotated[str, typer.Argument(metavar="CLASS", help="The class.")],
    new: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Give a class of a model another name."""
    from edbl.app.edit import rename as give
    from edbl.app.photos import class_name

    give(model, old, new)
    console.print(f"'{class_name(old)}' is '{class_name(new)}' now", markup=False, highlight=False, soft_wrap=True)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; it must end in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from pixels to both read-outs, and check it with onnxruntime."""
    from edbl.app.export import export_folder
    from edbl.data.folder import count

    with console.status("exporting"):
        made, worst = export_folder(model, out)
    size = f"{out.stat().st_size / 1e6:.1f} MB, {count(made.names, 'class')}"
    console.print(f"{out}: {size}, at most {worst:.0e} off the model's own outputs", markup=False, soft_wrap=True)


@app.command()
def bench(
    device: Device = "auto",
    backbone: Annotated[str, typer.Option(help="resnet32, resnet18, small or mlp.")] = "resnet32",
    batch: Annotated[int, typer.Option(help="Images per batch.", min=2)] = 128,
    steps: Annotated[
        int | None, typer.Option(help="Steps per round. Default: 100 on a GPU, 3 on a CPU.", min=1)
    ] = None,
    workers: Annotated[int, typer.Option(help="DataLoader workers of the plain loop.", min=0)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time a training step beside a plain PyTorch loop and the bare network."""
    from edbl.bench import measure
    from edbl.engine.environment import pick_device

    chosen = pick_device(device)
    if steps is None:
        steps = 100 if chosen.type == "cuda" else 3
    with console.status("timing"):
        found = measure(chosen, backbone, batch, steps, workers)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    console.print(f"{found['device']}; {versions}\n{backbone}, batch {batch}, {found['n']}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "ms a step", "images/s", "of bare"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in found["rows"]:
        numbers = f"{row['milliseconds']:.3f}", f"{row['images_per_second']:,.0f}", f"{row['of_bare']:.2f}"
        table.add_row(row["name"], *numbers)
    _show(table)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table5, fig2 to fig4, or calibration.")],
    seeds: Annotated[int, typer.Option(help="How many runs of each cell, with seeds from 0 on.", min=1)] = 1,
    only: Annotated[str | None, typer.Option(help="Methods to run, with commas between them.")] = None,
    data: Annotated[str | None, typer.Option(help="The data set to run; all of the table if not given.")] = None,
    at_once: Annotated[int | None, typer.Option(help="How many runs at a time.", min=1)] = None,
    resume: Annotated[bool, typer.Option(help="Go on with runs that were begun, or begin them anew.")] = True,
    runs: Annotated[Path, typer.Option(help="Where runs go.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Where the records of finished runs are kept.")] = Path("results"),
    data_dir: DataDir = None,
) -> None:
    """Run what is missing of a table or figure of the paper, and show it beside what was printed."""
    from edbl.engine.many import Job, run_many
    from edbl.engine.many import at_once as usual
    from edbl.experiments import planned
    from edbl.report import paper

    experiments = paper.find(name)
    chosen = [] if only is None else [word.strip() for word in only.split(",")]
    methods = sorted({row.method for experiment in experiments for row in experiment.rows})
    for method in chosen:
        if method not in methods:
            raise unknown(f"method in {name}", method, methods)
    wanted = [p for p in planned(experiments, range(seeds), chosen) if data in (None, p.recipe.data.name)]
    if not wanted:
        raise EdblError(f"{name} has nothing on {data}")
    missing = [p for p in wanted if not paper.is_kept(results / p.folder, p.recipe)]
    jobs = [Job(p.recipe, runs / p.folder) for p in missing]
    if jobs:
        workers = min(at_once or usual("auto"), len(jobs))

        def done(job: Job) -> None:
            paper.keep(job.folder, results / job.folder.relative_to(runs), experiments[0])

        otherwise = "use --no-resume to begin all anew, or another --runs"
        with _many():
            run_many(jobs, workers, console, data_dir, done, otherwise, anew=not resume)
    for experiment in experiments:
        console.print(Markdown(paper.shown(experiment, results)))
        for figure in paper.figure(experiment, results, runs).values():
            console.print(f"figure: {runs / figure}", markup=False, highlight=False, soft_wrap=True)


@app.command("results")
def results_(
    results: Annotated[Path, typer.Option(help="The folder of records.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The page to write; figures go to a folder beside it.")] = Path(
        "docs/results.md"
    ),
    readme: Annotated[
        Path | None, typer.Option(help="A text whose table between <!-- results --> marks is written anew.")
    ] = None,
) -> None:
    """Write the page of all tables and figures of the paper, and beside it that of the calibration, from records."""
    from edbl.report import paper
    from edbl.store import write_atomic

    if out.suffix != ".md" or out.name == "calibration.md":
        raise EdblError(f"--out {out} must end in .md, and calibration.md is the name of the other page")
    try:
        text = readme.read_text(encoding="utf-8") if readme else ""
    except UnicodeDecodeError as error:
        raise EdblError(f"{readme} is not UTF-8: {error}") from error
    other = out.with_name("calibration.md")
    if other.exists() and paper.MADE_BY not in other.read_text(encoding="utf-8", errors="replace"):
        raise EdblError(f"{other} is not by `edbl results`, which would overwrite it; choose another folder by --out")
    text = paper.with_tables(text, results) if readme else ""
    write_atomic(out, paper.page(results, out.with_suffix("")).encode())
    if readme:
        write_atomic(readme, text.encode())
    write_atomic(other, paper.calibration_page(results).encode())
    told = f"results: {out} and {other}"
    console.print(told, markup=False, highlight=False, soft_wrap=True)


@app.command("list")
def list_(
    what: Annotated[Literal["methods", "options", "data", "recipes"], typer.Argument(help="What to list.")],
    method: Annotated[
        str | None, typer.Argument(metavar="[METHOD]", help="For options: of which method, or .py file with one.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="For options: values for which data set.")] = None,
    preset: Annotated[str | None, typer.Option(help="For options: values of which preset.")] = None,
) -> None:
    """List what there is to choose from."""
    if what == "options" and method is None:
        raise EdblError("name a method, as in `edbl list options edbl`")
    if what != "options" and (method or data or preset):
        raise EdblError(f"a method, --data and --preset mean nothing to `edbl list {what}`; leave them out")
    table = Table(box=None, pad_edge=False)
    if method is not None:
        from edbl.recipe import Recipe, toml_value

        table.add_column("key", no_wrap=True)
        table.add_column("value", max_width=22 if console.is_terminal else None)
        table.add_column("meaning")
        values = Recipe.build(method, data or "digits", preset=preset or "default").values()
        for key, leaf in sorted(Recipe.keys(method).items()):
            may_be = f" ({', '.join(leaf.choices)})" if leaf.choices else ""
            table.add_row(key, *map(escape, (toml_value(values[key]), leaf.help + may_be)))
    elif what == "methods":
        from edbl.methods import methods

        for heading in ("name", "year", "keeps", "read-out", "what it does"):
            table.add_column(heading)
        for name, kind in sorted(methods().items()):
            title = kind.title + (" (our reading)" if kind.our_reading else "")
            table.add_row(name, str(kind.year or ""), kind.keeps, kind.readout.upper(), title)
    elif what == "data":
        from edbl.data.datasets import DATASETS

        table.add_column("name")
        table.add_column("what it holds")
        for name, source in DATASETS.items():
            table.add_row(name, source.title)
        table.add_row("PATH", "any image folder: PATH/train/CLASS/*.jpg, or PATH/CLASS/*.jpg")
    else:
        table.add_column("name")
        table.add_column("what it runs")
        for path in sorted(_shipped_recipes().glob("*.toml")):
            table.add_row(path.stem, path.read_text(encoding="utf-8").splitlines()[0].lstrip("# "))
    _show(table)


@data_app.command()
def fetch(name: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Download a data set, resuming what was begun, and check it."""
    from edbl.data import datasets, download

    files = datasets.source(name).files
    if not files:
        console.print(f"{name} needs no download", highlight=False)
    for remote in files:
        told = f"{download.fetch(remote, download.data_dir(data_dir))} is complete"
        console.print(told, markup=False, highlight=False, soft_wrap=True)


@data_app.command()
def verify(name: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Check that a data set loads, and those of its downloads that are there against their published checksums."""
    from edbl.data import datasets, download

    folder = download.data_dir(data_dir)
    for remote in datasets.source(name).files:
        if (folder / remote.name).exists():
            download.verify(remote, folder)
    dataset = datasets.load(name, data_dir)
    console.print(
        f"{name} is right: {len(dataset.train):,} training and {len(dataset.test):,} test images of "
        f"{len(dataset.classes)} classes",
        highlight=False,
    )


@contextmanager
def _bars(folder: Path) -> Iterator["Bars"]:
    def how() -> str:
        from edbl.records import RECORD

        begun = (folder / RECORD).exists()
        return (
            f"{command('resume', folder)} goes on from the last checkpoint"
            if begun
            else "the same command starts again"
        )

    with _interruptible(how), _live() as bars:
        yield bars


def _live() -> "Bars":
    from edbl.engine.progress import Bars

    return Bars(console)


@contextmanager
def _interruptible(how: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _say(f"interrupted; {how()}")
        raise typer.Exit(130) from None


def _stderr() -> Console:
    return Console(stderr=True, emoji=False)


def _show(tables: RenderableType) -> None:
    """Print tables; in a file or a pipe nothing of them is folded."""
    (console if console.is_terminal else Console(emoji=False, width=WIDE)).print(tables, highlight=False)


def _say(message: str) -> None:
    _stderr().print(escape(message), highlight=False, soft_wrap=True)


def _finish(folders: list[Path], page: Path, figure: Path | None = None) -> None:
    from edbl.report.page import read_runs, write_report
    from edbl.report.plots import save_curves
    from edbl.report.tables import groups, run_table

    runs = read_runs(folders)
    found = [run.record for run in runs]
    if figure:
        save_curves(groups(found), figure)
    _show(run_table(found))
    with console.status("making the report"):
        written = write_report(runs, page)
    console.print(f"report: {written}", markup=False, highlight=False, soft_wrap=True)


def _order(text: str | None) -> str | tuple[str, ...] | None:
    if text is None or text == "natural" or text.isdecimal():
        return text
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EdblError(
            f"--order {text} is neither natural, a seed, nor a readable file with a class per line"
        ) from error
    return tuple(line.strip() for line in lines if line.strip())


def _shipped_recipes() -> Path:
    return Path(__file__).parent / "recipes"


def _recipe_file(name: str) -> Path:
    shipped = _shipped_recipes() / f"{name}.toml"
    if os.sep in name or name.endswith(".toml"):
        return Path(name)
    if not shipped.is_file():
        raise unknown("recipe", name, (path.stem for path in _shipped_recipes().glob("*.toml")))
    return shipped


def _free(folder: Path) -> Path:
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in range(2, 10_000))
    return folder if not folder.exists() else next(path for path in numbered if not path.exists())
