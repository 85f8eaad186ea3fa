"""Commands about studies: the demo, the paper's tables and figures, the pages made of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markdown import Markdown

from edbl.cli import stopping, terminal
from edbl.cli.options import DataDir
from edbl.errors import command

if TYPE_CHECKING:
    from edbl.studies.paper import Experiment


def demo(out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/demo.")] = None) -> None:
    """Learn scikit-learn's digits in 5 tasks with basic RKD and with EDBL, and compare them."""
    from edbl.studies.demo import free_folder, recipes, run_or_resume

    folder = out or free_folder()
    terminal.tell(
        "Ten digits arrive two at a time; each learner may keep 50 images of the past.\n"
        "RKD trains for at least as many epochs. No choice was made on the test images."
    )
    made = recipes()
    for recipe in made:
        with stopping.interruptible(lambda: f"{command('demo', '--out', folder)} goes on"), terminal.bars() as progress:
            run_or_resume(recipe, folder / recipe.method, progress)
    terminal.show_runs([folder / recipe.method for recipe in made], folder / "report.html")


def reproduce(
    name: Annotated[str, typer.Argument(help="table1 to table5, or fig2 to fig4; at small scale also tuning.")],
    scale: Annotated[
        Literal["paper", "small"], typer.Option(help="The paper's own runs, or counterparts for a CPU.")
    ] = "paper",
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
    from edbl.studies import pages, small
    from edbl.studies.shelf import Shelf

    chosen = None if only is None else [word.strip() for word in only.split(",")]
    found = small.find(name) if scale == "small" else pages.find(name)
    _answer(found, seeds, chosen, data, at_once, resume, runs, results, data_dir)
    if found.name == small.TUNING and (rates := small.chosen(Shelf(results))):
        terminal.tell(f"chosen: RATES = {rates}")


def study(
    file: Annotated[Path, typer.Argument(help="A study: question, streams and candidates, as TOML.")],
    seeds: Annotated[int, typer.Option(help="How many runs of each candidate, with seeds from 0 on.", min=1)] = 1,
    at_once: Annotated[int | None, typer.Option(help="How many runs at a time.", min=1)] = None,
    resume: Annotated[bool, typer.Option(help="Go on with runs that were begun, or begin them anew.")] = True,
    runs: Annotated[Path, typer.Option(help="Where runs go.")] = Path("runs/studies"),
    results: Annotated[Path, typer.Option(help="Where the records of finished runs are kept.")] = Path("results"),
    data_dir: DataDir = None,
) -> None:
    """Run what is missing of a study on held-out training images, and show its candidates side by side."""
    from edbl.studies.study import read

    found = read(file)
    _answer(found.experiment, seeds, None, None, at_once, resume, runs, results, data_dir)
    for title, text in (("rule", found.rule), ("decision", found.decision)):
        if text:
            terminal.tell(f"{title}: {text}")


def _answer(
    experiment: "Experiment",
    seeds: int,
    methods: list[str] | None,
    data: str | None,
    at_once: int | None,
    resume: bool,
    runs: Path,
    results: Path,
    data_dir: Path | None,
) -> None:
    """Run what is missing of an experiment, keep it, and show all of it."""
    from edbl.fleet.many import Job, run_many
    from edbl.fleet.many import at_once as usual
    from edbl.studies import pages
    from edbl.studies.paper import wanted
    from edbl.studies.shelf import Shelf

    shelf = Shelf(results)
    missing = [plan for plan in wanted(experiment, range(seeds), methods, data) if not shelf.has(plan.recipe)]
    jobs = [Job(plan.recipe, runs / plan.folder) for plan in missing]
    if jobs:
        workers = min(at_once or usual("auto"), len(jobs))

        def done(job: Job) -> None:
            shelf.keep(job.folder, job.folder.relative_to(runs).as_posix(), features=experiment.drawn == "tsne")

        otherwise = "use --no-resume to begin all anew, or another --runs"
        with stopping.many_runs():
            run_many(jobs, workers, terminal.console, data_dir, done, otherwise, anew=not resume)
    terminal.console.print(Markdown(pages.shown(experiment, shelf)))
    for figure in pages.figure(experiment, shelf, runs).values():
        terminal.tell(f"figure: {runs / figure}")


def results(
    page: Annotated[
        list[Path] | None, typer.Argument(metavar="[PAGE]...", help="Pages whose tables and figures are made anew.")
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of records.")] = Path("results"),
    studies: Annotated[
        Path | None, typer.Option(help="A folder of studies, shown on a page of its name beside the first page.")
    ] = None,
) -> None:
    """Write tables and figures of the paper into pages, and the list of all runs as CSV, from records."""
    from edbl.studies.pages import write_all

    terminal.tell(f"written: {', '.join(map(str, write_all(page or [Path('results.md')], results, studies)))}")
