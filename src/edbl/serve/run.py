"""Starting and ending the server."""

import os
import secrets
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from edbl.errors import EdblError
from edbl.serve.guard import loopback
from edbl.serve.limits import Limits
from edbl.serve.model import Served

TOKEN_BYTES, LEAST_TOKEN, MOST_TOKEN = 24, 16, 4096
LOCAL = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")

Say = Callable[[str], None]


def serve(
    place: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    token_file: Path | None = None,
    hosts: Sequence[str] = (),
    keep: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    device: str = "auto",
    limits: Limits | None = None,
    say: Say = print,
) -> None:
    """Serve a model, a folder of models or an exported file until the process is told to end."""
    try:
        import uvicorn

        from edbl.serve.server import application
    except ImportError as error:
        raise EdblError(f"serving needs {error.name}: run `pip install 'edbl[serve]'`") from error
    limits = limits or Limits()
    token = _token(token_file, host)
    from edbl.serve.shelf import Shelf

    shelf = Shelf(place, _maker(limits, keep, method, backbone, device))
    names = [*LOCAL, *hosts, *([] if host in EVERYWHERE else [host]), *(_own_names() if host in EVERYWHERE else [])]
    guard, desk = application(shelf, names, token, limits)
    with _bound(host, port) as bound:
        config = uvicorn.Config(
            guard,
            http=_protocol(limits),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            backlog=1024,
            timeout_keep_alive=int(limits.idle_seconds),
            timeout_graceful_shutdown=int(limits.end_seconds),
        )

        class Server(uvicorn.Server):
            """A server that ends with exit code 0 where it is told to."""

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                """End once what is under way is done; told twice, at once."""
                self.force_exit = self.should_exit
                self.should_exit = True
                desk.ending.set()

        shown = f"[{host}]" if ":" in host else host
        address = f"http://{'localhost' if host in EVERYWHERE else shown}:{bound.getsockname()[1]}/"
        say(
            f"{place} is served at {address}{f'#token={token}' if token and token_file is None else ''}; Ctrl-C ends it"
        )
        Server(config).run(sockets=[bound])
    say("the server has ended")


def _maker(
    limits: Limits, keep: str | None, method: str | None, backbone: str | None, device: str
) -> Callable[[str, Path], Served]:
    def make(name: str, place: Path) -> Served:
        if place.is_file():
            if place.suffix != ".onnx":
                raise EdblError(f"'{place}' is no exported model: its name does not end in .onnx")
            from edbl.serve.exported import Exported

            return Exported(name, place, limits)
        from edbl.serve.taught import New, Taught

        return Taught(name, place, limits, New(keep, method, backbone), device)

    return make


def _protocol(limits: Limits) -> type:
    from edbl.serve.protocol import protocol

    return protocol(limits)


def _token(file: Path | None, host: str) -> str | None:
    """Return the token that requests must have: that of a file, or a new one where others reach the address."""
    if file is None:
        return None if loopback(host) else secrets.token_urlsafe(TOKEN_BYTES)
    from edbl.store import read_file

    try:
        token = read_file(file, MOST_TOKEN).decode().strip()
        if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise EdblError(f"others may read {file}, which holds the token: run `chmod 600 {file}`")
    except (OSError, ValueError) as error:
        raise EdblError(f"cannot read the token in {file}: {getattr(error, 'strerror', '') or 'no text'}") from error
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise EdblError(f"the token in {file} must have {LEAST_TOKEN} letters or digits or more, and no space")
    return token


def _own_names() -> list[str]:
    """Return what others may call this machine."""
    name = socket.gethostname()
    try:
        found = [str(info[4][0]) for info in socket.getaddrinfo(name, None)]
    except OSError:
        found = []
    return [name, socket.getfqdn(), *found]


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound, or say why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except (OSError, OverflowError) as error:
        made.close()
        why = getattr(error, "strerror", None) or str(error)
        raise EdblError(f"cannot serve at {host}:{port}: {why}; give another host or port") from error
    return made
