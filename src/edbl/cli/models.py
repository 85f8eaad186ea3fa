"""Commands about models: learn, predict, info, forget, rename, merge, join, their versions, export."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import typer

from edbl.cli import options, terminal
from edbl.cli.options import Device
from edbl.cli.stopping import interruptible
from edbl.errors import EdblError, command

Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Photos in FOLDER/CLASS/, or lists: .csv, .json, .xml. Leave out to continue an unfinished update.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(help="Learning method; cannot be changed later. Default: lda if the backbone is frozen, else edbl."),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="efficientnet-lite0 or -lite2, timm:NAME, resnet18, resnet32, small or mlp; cannot be changed later. "
        "Default: efficientnet-lite0 if it is installed, else by image size."
    ),
]
Engine = Annotated[
    str | None,
    options.choice(
        "torch",
        "onnxruntime",
        "onnxruntime-int8",
        help="What computes features; cannot be changed later. Default: onnxruntime if it is installed.",
    ),
]
Mirror = Annotated[
    bool | None,
    typer.Option(
        help="Learn mirrored copies too; cannot be changed later. Default: if that is no worse on held-out photos."
    ),
]
Relabel = Annotated[
    bool, typer.Option("--relabel", help="Move photos that the model has under another class to the class given now.")
]
Memory = Annotated[str | None, typer.Option(help="Images that a trained method keeps. Default: per_class=20.")]
MemoryMb = Annotated[float | None, typer.Option(help="The same limit in MB of pixels.")]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Side of the images in pixels; cannot be changed later. Default: by the backbone."),
]
Tune = Annotated[
    str | None,
    options.choice(
        "head", "all", help="What a pretrained network learns; cannot be changed later. Default: head on a CPU."
    ),
]
Validation = Annotated[
    float | None,
    typer.Option(help="Share of photos held out to measure accuracy, by trained methods. Default: 0.1."),
]
Start = Annotated[
    int | None, typer.Option("--from", metavar="VERSION", help="Update this version of the model, not the newest.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Learn photos that look mislabelled too, without stopping.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave unreadable files out instead of stopping.")]


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model; created if it does not exist.")],
    folders: Folders = None,
    method: Method = None,
    keep: options.Keep = None,
    memory: Memory = None,
    memory_mb: MemoryMb = None,
    image_size: ImageSize = None,
    backbone: Backbone = None,
    tune: Tune = None,
    engine: Engine = None,
    mirror: Mirror = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random choices. Default: 0.")] = None,
    device: Device = "auto",
    settings: options.Settings = None,
    validation: Validation = None,
    skip_bad: SkipBad = False,
    relabel: Relabel = False,
    start: Start = None,
    yes: Yes = False,
    discard: Annotated[bool, typer.Option("--discard", help="Discard an unfinished update.")] = False,
) -> None:
    """Create a model from photos, or teach it new classes, or more photos of its classes."""
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
        keep=keep,
        start=start,
        engine=engine,
        mirror=mirror,
    )

    with (
        interruptible(lambda: _again(model)),
        increment(model, request, device=device, discard=discard, yes=yes, say=terminal.say) as begun,
    ):
        if begun is None:
            return
        begun.prepare()
        with terminal.bars() as progress:
            learnt = begun.learn(progress)
        bundle = begun.commit(learnt)
    terminal.show(show.report(model, bundle))
    terminal.tell(f"page: {model / disk.PAGE}")


def _again(model: Path) -> str:
    from edbl.app import bundle as disk

    begun = disk.begun(model)
    return f"{command('learn', model)} continues where it stopped" if begun else "the same command starts again"


def page(model: Path, photos: list[Path], out: Path | None) -> None:
    """Write the page of a model, with the photos of folders or lists."""
    from edbl.app import page as pages
    from edbl.app.bundle import settle

    bundle = settle(model)
    with terminal.console.status("making the page"):
        made = pages.write(model, bundle, pictures=pages.find(photos, bundle.settings.image_size), place=out)
    terminal.tell(f"page: {made}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", help="Images, folders, quoted patterns; - reads paths from standard input."),
    ],
    top: Annotated[int, typer.Option(help="Number of classes to name for each image.", min=1)] = 3,
    readout: Annotated[
        Literal["cnn", "nme"] | None,
        typer.Option("--classifier", "--readout", help="Classifier of a trained method. Default: the method's own."),
    ] = None,
    unknown: Annotated[
        float,
        typer.Option(help="Share of photos of the model's classes that may be called unknown; 0 switches that off."),
    ] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    device: Device = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Do not fail because of unreadable files.")] = False,
) -> None:
    """Predict the classes of images."""
    import csv

    from edbl.app import show
    from edbl.app.predict import Predictor
    from edbl.text import count, shown

    if as_json and as_csv:
        raise EdblError("--json and --csv are two formats; give one of them")
    predictor = Predictor(model, readout, device, unknown, keep=True)
    writer = csv.writer(SimpleNamespace(write=terminal.put), lineterminator="\n")
    top = min(top, len(predictor.names))
    if as_csv:
        writer.writerow(show.csv_heading(top))
    found = []
    streams = (as_json or as_csv) and sys.stdout.isatty()  # then its lines show how far it is
    for prediction in predictor(_paths(images), top, terminal.say, streams):
        found.append(prediction)
        if as_json:
            terminal.put_json(show.prediction_values(prediction, predictor.readout), None)
        elif as_csv:
            writer.writerow(show.csv_row(prediction, top))
    if not as_json and not as_csv and not all(p.bad for p in found):
        terminal.show(show.predictions(found))
    if bad := [f"{shown(p.path)} ({p.bad})" for p in found if p.bad]:
        message = "\n".join([f"{count(bad, 'image')} of {len(found):,} cannot be used:", *bad])
        if not skip_bad:
            raise EdblError(message)
        terminal.say(f"note: {message}")


def _paths(images: list[Path]) -> list[Path]:
    """Return the paths that a command was given, and those of standard input in place of ``-``."""
    found = []
    for path in images:
        lines = sys.stdin.read().splitlines() if str(path) == "-" else [path]
        found += [Path(line) for line in lines if str(line).strip()]
    if not found:
        raise EdblError("standard input names no image; give a path on each line")
    return found


def info(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show a model: classes, accuracy, settings, what it keeps, versions."""
    from edbl.app import show
    from edbl.app.bundle import settle

    bundle = settle(model)
    if as_json:
        terminal.put_json(show.info_values(model, bundle))
    else:
        terminal.show(show.info(model, bundle))


def forget(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    classes: Annotated[
        list[str] | None, typer.Argument(metavar="CLASS", help="Classes to delete.", show_default=False)
    ] = None,
    photos: Annotated[
        list[Path] | None, typer.Option("--photo", help="File of a photo to delete; may be repeated.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Delete classes or photos from a model, with everything that it keeps of them."""
    from edbl.app import show
    from edbl.app.edit import forget as remove
    from edbl.app.edit import forget_photos
    from edbl.text import count

    if bool(classes) == bool(photos):
        raise EdblError("name classes to forget, or photos with --photo FILE; one of both")
    if classes:
        left, gone = remove(model, classes, device), ", ".join(dict.fromkeys(classes))
    else:
        left, gone = forget_photos(model, photos or [], device, terminal.say), count(photos or [], "photo")
    terminal.tell(f"forgot {gone}; {count(left.classes, 'class')} left; {show.memory(model, left)}")
    terminal.say(f"earlier versions still have it: {command('prune', model)} removes them, and {_undone(model)}")


def _undone(model: Path) -> str:
    return f"{command('undo', model)} goes back"


def rename(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    old: Annotated[str, typer.Argument(metavar="CLASS", help="The class.")],
    new: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
) -> None:
    """Rename a class of a model."""
    from edbl.app.edit import rename as give
    from edbl.text import class_name

    give(model, old, new)
    terminal.tell(f"'{class_name(old)}' is '{class_name(new)}' now")


def merge(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    classes: Annotated[list[str], typer.Argument(metavar="CLASS", help="Classes to merge.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the merged class. Default: that of the first.")
    ] = None,
) -> None:
    """Merge several classes of a model into one."""
    from edbl.app.edit import merge as make
    from edbl.text import class_name, count

    left = make(model, classes, name)
    terminal.tell(
        f"merged to '{class_name(name or classes[0])}'; {count(left.classes, 'class')} left; {_undone(model)}"
    )


def join(
    out: Annotated[Path, typer.Argument(metavar="NEW", help="Folder of the new model.")],
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help="Models with the same backbone and method.")],
) -> None:
    """Join several models into a new one, as if it had learnt all their photos."""
    from edbl.app import show
    from edbl.app.joining import join as make
    from edbl.text import count

    made = make(out, models)
    terminal.tell(f"made the model {out}: {count(made.classes, 'class')}; {show.memory(out, made)}")


def history(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the versions of a model, one for each change."""
    from edbl.app import show
    from edbl.app.versions import history as read

    now, every = read(model)
    if as_json:
        terminal.put_json([show.version_values(now, one) for one in every])
    else:
        terminal.show(show.versions(now, every))


def undo(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    to: Annotated[
        int | None,
        typer.Option(metavar="VERSION", help="Version to return to. Default: the one before the last change."),
    ] = None,
) -> None:
    """Undo the last change of a model, or return to any version that it keeps."""
    from edbl.app.versions import undo as go
    from edbl.text import count

    now = go(model, to)
    terminal.tell(f"{model} is at version {now.version} now, with {count(now.classes, 'class')}")


def prune(model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")]) -> None:
    """Delete all versions of a model except the present one, and the photos that only they keep."""
    from edbl.app.versions import prune as remove

    terminal.tell(f"{remove(model) / 1e6:.2f} MB freed; there is no way back to earlier versions")


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the model.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write, ending in .onnx.")],
    unknown: Annotated[
        float, typer.Option(help="Rate of false alarms, as for `edbl predict`; stored in the file.")
    ] = 0.05,
) -> None:
    """Export a model as one ONNX file, from pixels to probabilities, and check it with onnxruntime."""
    from edbl.app.export import export_folder
    from edbl.text import count

    with terminal.console.status("exporting"):
        names, worst = export_folder(model, out, unknown)
    size = f"{out.stat().st_size / 1e6:.1f} MB, {count(names, 'class')}"
    terminal.tell(f"{out}: {size}, at most {worst:.0e} off the model's own outputs")
