"""The command that serves models."""

from pathlib import Path
from typing import Annotated

import typer

from edbl.cli import terminal
from edbl.cli.options import Device


def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A model, an empty folder, a folder of models, or an exported file (.onnx)."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to serve at; others than this machine's own want a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="Port to serve at; 0: any that is free.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that requests must have. Default: one is made and printed.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name of this server, such as behind a proxy; may be repeated.")
    ] = None,
    keep: Annotated[str | None, typer.Option(help="Of a new model: features (default), photos or nothing.")] = None,
    method: Annotated[str | None, typer.Option(help="Of a new model: as of learn.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Of a new model: as of learn.")] = None,
    device: Device = "auto",
) -> None:
    """Serve a model over HTTP: a page to teach and ask it, and an API."""
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
    )
    run(wanted, terminal.say)
