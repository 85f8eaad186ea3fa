"""Commands about data sets: fetch and verify."""

from pathlib import Path
from typing import Annotated

import typer

from edbl.cli.examples import DATA, epilog
from edbl.cli.options import DataDir
from edbl.cli.terminal import tell

app = typer.Typer(no_args_is_help=True, help="Fetch and verify data sets, or make example photos.")


@app.command(epilog=epilog(DATA["fetch"]))
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set (`edbl list data`).")], data_dir: DataDir = None
) -> None:
    """Download a data set and check it; an interrupted download continues."""
    from edbl.data import datasets, download

    files = datasets.source(name).files
    if not files:
        tell(f"{name} needs no download")
    for remote in files:
        tell(f"{download.fetch(remote, download.data_dir(data_dir))} is complete")


@app.command(epilog=epilog(DATA["verify"]))
def verify(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set (`edbl list data`).")], data_dir: DataDir = None
) -> None:
    """Check that a data set loads, and its downloads against their published checksums."""
    from edbl.data import datasets, download

    folder = download.data_dir(data_dir)
    for remote in datasets.source(name).files:
        if (folder / remote.name).exists():
            download.verify(remote, folder)
    dataset = datasets.load(name, data_dir)
    dataset.check()
    images = f"{len(dataset.train):,} training and {len(dataset.test):,} test images"
    tell(f"{name} is right: {images} of {len(dataset.classes)} classes")


@app.command(epilog=epilog(DATA["example"]))
def example(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write; one sub-folder for each class.")],
    classes: Annotated[int, typer.Option(help="Number of digits.", min=1, max=10)] = 10,
    photos: Annotated[int, typer.Option(help="Number of photos of each.", min=1, max=170)] = 40,
    first: Annotated[int, typer.Option(help="Skip so many photos of each, to get others.", min=0)] = 0,
) -> None:
    """Write small photos of handwritten digits, a folder for each class, to try `edbl learn` with."""
    from edbl.data import example as digits
    from edbl.text import count

    made = digits.photos(folder, classes, photos, first)
    tell(f"{folder}: {count(sum(map(len, made.values())), 'photo')} of {count(len(made), 'class')}")
