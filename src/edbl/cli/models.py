"""Commands about models: learn, predict, info, forget, rename, export."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from edbl.cli import options, terminal
from edbl.cli.options import Device
from edbl.cli.stopping import interruptible
from edbl.errors import EdblError, command


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
        str | None, typer.Option(help="efficientnet-lite0 or -lite2, timm:NAME, resnet18, resnet32, small or mlp.")
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
        given=options.settings(settings),
        skip_bad=skip_bad,
        relabel=relabel,
    )

    def how() -> str:
        begun = disk.begun(model)
        return f"{command('learn', model)} goes on where it stopped" if begun else "the same command starts again"

    with (
        interruptible(how),
        increment(model, request, device=device, discard=discard, say=terminal.say) as begun,
    ):
        if begun is None:
            return
        begun.prepare()
        with terminal.bars() as progress:
            learnt = begun.learn(progress)
        bundle = begun.commit(learnt)
    terminal.show(show.report(model, bundle))


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
    from edbl.text import count, shown

    if as_json and as_csv:
        raise EdblError("--json and --csv are two formats; give one of them")
    predictor = Predictor(model, readout, device)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    top = min(top, len(predictor.model.names))
    if as_csv:
        writer.writerow(show.csv_heading(top))
    found = []
    streams = (as_json or as_csv) and sys.stdout.isatty()  # then its lines show how far it is
    for prediction in predictor(images, top, terminal.say, streams):
        found.append(prediction)
        if as_json:
            print(json.dumps(show.prediction_values(prediction, predictor.readout)))
        elif as_csv:
            writer.writerow(show.csv_row(prediction, top))
    if not as_json and not as_csv:
        terminal.show(show.predictions(found, predictor.readout))
    if bad := [f"{shown(p.path)} ({p.bad})" for p in found if p.bad]:
        message = "\n".join([f"{count(bad, 'image')} of {len(found):,} cannot be used:", *bad])
        if not skip_bad:
            raise EdblError(message)
        terminal.say(f"note: {message}")


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
        terminal.show(show.info(model, bundle))


def forget(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    classes: Annotated[list[str], typer.Argument(metavar="CLASS...", help="Classes to forget.")],
    device: Device = "auto",
) -> None:
    """Remove classes from a model, with all images of them."""
    from edbl.app import show
    from edbl.app.edit import forget as remove
    from edbl.text import count

    left = remove(model, classes, device)
    gone = ", ".join(dict.fromkeys(classes))
    told = f"forgot {gone}; {count(left.classes, 'class')} left; {show.memory(model, left)}"
    terminal.tell(told)


def rename(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    old: Annotated[str, typer.Argument(metavar="CLASS", help="The class.")],
    new: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Give a class of a model another name."""
    from edbl.app.edit import rename as give
    from edbl.text import class_name

    give(model, old, new)
    terminal.tell(f"'{class_name(old)}' is '{class_name(new)}' now")


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; it must end in .onnx.")],
) -> None:
    """Write a model as one ONNX file, from pixels to both read-outs, and check it with onnxruntime."""
    from edbl.app.export import export_folder
    from edbl.text import count

    with terminal.console.status("exporting"):
        made, worst = export_folder(model, out)
    size = f"{out.stat().st_size / 1e6:.1f} MB, {count(made.names, 'class')}"
    terminal.tell(f"{out}: {size}, at most {worst:.0e} off the model's own outputs")
