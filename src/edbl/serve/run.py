"""Starting and ending the server."""

import os
import secrets
import socket
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType

from edbl.errors import EdblError
from edbl.serve.guard import loopback
from edbl.serve.held import Room
from edbl.serve.limits import Limits
from edbl.serve.model import Served
from edbl.serve.shelf import Shelf

TOKEN_BYTES, LEAST_TOKEN, MOST_TOKEN = 24, 16, 4096
LOCAL = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class Wanted:
    """What is served, where, and to whom."""

    place: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token_file: Path | None = None
    hosts: Sequence[str] = ()  # further names of the server
    keep: str | None = None  # of a new model, as the next two
    method: str | None = None
    backbone: str | None = None
    device: str = "auto"
    limits: Limits = field(default_factory=Limits)
    several: bool = False  # whether an empty folder is one of models

    @cached_property
    def room(self) -> Room:
        """What photos of all models share."""
        return Room(self.limits)

    def model(self, name: str, place: Path) -> Served:
        """Return a model; a file is served without PyTorch."""
        if place.is_file():
            if place.suffix != ".onnx":
                raise EdblError(f"'{place}' is no exported model: its name does not end in .onnx")
            from edbl.serve.exported import Exported

            return Exported(name, place, self.limits)
        from edbl.serve.taught import New, Taught

        return Taught(name, place, self.limits, New(self.keep, self.method, self.backbone), self.device, self.room)


class Server:
    """A server that is ready to run, on a socket that is bound."""

    def __init__(self, wanted: Wanted) -> None:
        try:
            import uvicorn

            from edbl.serve.protocol import protocol
            from edbl.serve.server import application
        except ImportError as error:
            raise EdblError(f"serving needs {error.name}: run `pip install 'edbl[serve]'`") from error
        self.token = _token(wanted.token_file, wanted.host)
        self._socket = _bound(wanted.host, wanted.port)
        try:
            shelf = Shelf(wanted.place, wanted.model, wanted.limits, wanted.several)
        except BaseException:
            self._socket.close()
            raise
        everywhere = wanted.host in EVERYWHERE
        names = [*LOCAL, *wanted.hosts, *(_own_names() if everywhere else [wanted.host])]
        guard, self._desk = application(shelf, names, self.token, wanted.limits)
        shown = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        self.address = f"http://{'localhost' if everywhere else shown}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            guard,
            http=protocol(wanted.limits),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(wanted.limits.idle_seconds),
            timeout_graceful_shutdown=int(wanted.limits.end_seconds),
        )
        self._server = uvicorn.Server(config)
        self._server.handle_exit = self.end  # type: ignore[method-assign]

    def run(self) -> None:
        """Serve until it is told to end; what is under way is finished."""
        with self._socket:
            self._server.run(sockets=[self._socket])

    def end(self, sig: int = 0, frame: FrameType | None = None) -> None:
        """Take no further requests, and end once those under way are done; told twice, at once."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True
        self._desk.ending.set()


def serve(wanted: Wanted, say: Callable[[str], None] = print) -> None:
    """Serve a model, a folder of models or an exported file until the process is told to end."""
    server = Server(wanted)
    secret = f"#token={server.token}" if server.token and wanted.token_file is None else ""
    say(f"{wanted.place} is served at {server.address}/{secret}; Ctrl-C ends it")
    server.run()
    say("the server has ended")


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
