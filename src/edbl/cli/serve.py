"""The command that serves models."""

from pathlib import Path
from typing import Annotated

import typer

from edbl.cli import terminal
from edbl.cli.options import Device, Keep


def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A model, a folder of models, an empty folder for a new one, or an exported file (.onnx).",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that requests must carry. Default: a new one, printed.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name of this server, such as that of a proxy; may be repeated."),
    ] = None,
    keep: Keep = None,
    method: Annotated[
        str | None, typer.Option(help="Method of a new model, as for `edbl learn`. Default: lda.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Network of a new model, as for `edbl learn`. Default: efficientnet-lite0.")
    ] = None,
    several: Annotated[
        bool, typer.Option("--several", help="Make models in the folder, though it is empty, rather than of it.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Serve a model over HTTP: a page to teach, ask and correct it, and a JSON API."""
    from edbl.serve.run import Wanted
    from edbl.serve.run import serve as run

    wanted = Wanted(
        model,
        host,
        port,
        token_file=token_file,
        hosts=allow_host or (),
        keep=keep,
        method=method,
        backbone=backbone,
        device=device,
        several=several,
    )
    run(wanted, terminal.say)
