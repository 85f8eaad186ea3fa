"""Commands about studies: the demo, the paper's tables and figures, the pages made of them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from edbl.cli import stopping, terminal
from edbl.cli.options import DataDir
from edbl.errors import command


def demo(out: Annotated[Path | None, typer.Option(help="Output folder. Default: runs/demo.")] = None) -> None:
    """Learn scikit-learn's digits in 5 tasks with basic RKD and with EDBL, and compare them."""
    from edbl.demo import free_folder, recipes, run_or_resume

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
    from edbl.report import paper

    experiments = paper.find(name)
    methods = [] if only is None else [word.strip() for word in only.split(",")]
    jobs = [Job(plan.recipe, runs / plan.folder) for plan in paper.missing(name, results, range(seeds), methods, data)]
    if jobs:
        workers = min(at_once or usual("auto"), len(jobs))

        def done(job: Job) -> None:
            paper.keep(job.folder, results / job.folder.relative_to(runs), experiments[0])

        otherwise = "use --no-resume to begin all anew, or another --runs"
        with stopping.many_runs():
            run_many(jobs, workers, terminal.console, data_dir, done, otherwise, anew=not resume)
    for experiment in experiments:
        terminal.console.print(Markdown(paper.shown(experiment, results)))
        for figure in paper.figure(experiment, results, runs).values():
            terminal.tell(f"figure: {runs / figure}")


def results(
    results: Annotated[Path, typer.Option(help="The folder of records.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The page to write; figures go to a folder beside it.")] = Path(
        "docs/results.md"
    ),
    readme: Annotated[
        Path | None, typer.Option(help="A text whose table between <!-- results --> marks is written anew.")
    ] = None,
) -> None:
    """Write the page of all tables and figures of the paper, and beside it that of the calibration, from records."""
    from edbl.report.paper import write_pages

    terminal.tell(f"results: {out} and {write_pages(results, out, readme)}")
