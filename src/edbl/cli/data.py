"""Commands about data sets: fetch and verify."""

from pathlib import Path
from typing import Annotated

import typer

from edbl.cli.options import DataDir
from edbl.cli.terminal import tell

app = typer.Typer(no_args_is_help=True, help="Fetch and verify data sets.")


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Download a data set, resuming what was begun, and check it."""
    from edbl.data import datasets, download

    files = datasets.source(name).files
    if not files:
        tell(f"{name} needs no download")
    for remote in files:
        tell(f"{download.fetch(remote, download.data_dir(data_dir))} is complete")


@app.command()
def verify(name: Annotated[str, typer.Argument(help="Data set.")], data_dir: DataDir = None) -> None:
    """Check that a data set loads, and those of its downloads that are there against their published checksums."""
    from edbl.data import datasets, download

    folder = download.data_dir(data_dir)
    for remote in datasets.source(name).files:
        if (folder / remote.name).exists():
            download.verify(remote, folder)
    dataset = datasets.load(name, data_dir)
    dataset.check()
    images = f"{len(dataset.train):,} training and {len(dataset.test):,} test images"
    tell(f"{name} is right: {images} of {len(dataset.classes)} classes")


@app.command()
def example(
    folder: Annotated[Path, typer.Argument(help="Where the folders of classes go.")],
    classes: Annotated[int, typer.Option(help="How many digits.", min=1, max=10)] = 10,
    photos: Annotated[int, typer.Option(help="How many photos of each.", min=1, max=170)] = 40,
    first: Annotated[int, typer.Option(help="Number of the first; later ones are other photos.", min=0)] = 0,
) -> None:
    """Write small photos of handwritten digits, a folder for each class, to try `edbl learn` with."""
    from edbl.data import example as digits
    from edbl.text import count

    made = digits.photos(folder, classes, photos, first)
    tell(f"{folder}: {count(sum(map(len, made.values())), 'photo')} of {count(len(made), 'class')}")
