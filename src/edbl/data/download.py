"""Files that a data set is made of: where they come from, downloading, checking and unpacking them."""

import errno
import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PureWindowsPath
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from edbl.errors import EdblError, command
from edbl.store import LOCK, lock

TIMEOUT = 30.0  # seconds without a single byte
CHUNK = 1 << 18  # bytes read at once
ABANDONED = 3600  # seconds after which nobody is still writing


class Wrong(EdblError):
    """A file of a data set is damaged, or not what it should be."""


@dataclass(frozen=True)
class Remote:
    """One official file: its name below the data folder, where it is published, and how to recognise it."""

    name: str
    url: str
    md5: str
    size: int  # bytes, 0 if unknown
    dataset: str  # what `edbl data fetch` calls the data set it belongs to


def data_dir(path: Path | None = None) -> Path:
    """Return the folder of the data sets: ``path``, else ``$EDBL_DATA``, else ``~/.cache/edbl``."""
    return at_home(Path(path or os.environ.get("EDBL_DATA") or "~/.cache/edbl"))


def at_home(path: Path) -> Path:
    """Return a path with the home folder for its ``~``."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise EdblError(
            f"there is no home folder for '{path}'; give a whole path, for data sets in EDBL_DATA"
        ) from error


def fetch_command(dataset: str, folder: Path) -> str:
    """Return the command that fetches a data set to ``folder``."""
    place = [] if folder == data_dir() else ["--data-dir", folder]
    return command("data", "fetch", dataset, *place)


def missing(remote: Remote, folder: Path) -> EdblError:
    """Return the error for a file that is not there."""
    return EdblError(
        f"{remote.name} is not in {folder}: run {fetch_command(remote.dataset, folder)},\n"
        f"or download {remote.url} and put it at {folder / remote.name}"
    )


def verify(remote: Remote, folder: Path) -> None:
    """Raise unless the official file lies in ``folder``."""
    path = folder / remote.name
    if not path.is_file():
        raise missing(remote, folder)
    found = _md5(path)
    if found != remote.md5:
        raise EdblError(
            f"{path} is damaged or not the official file: its md5 sum is {found}, not {remote.md5}\n"
            f"delete it and run {fetch_command(remote.dataset, folder)}"
        )


def fetch(remote: Remote, folder: Path) -> Path:
    """Download the file to ``folder`` unless it is there, going on where an interrupted download stopped."""
    target = folder / remote.name
    if target.exists():
        verify(remote, folder)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock(target.parent, links=True):  # where a user keeps data is the user's own
        try:
            _fetch(remote, folder, target)
        finally:
            with suppress(OSError):  # Windows keeps a file that is open
                (target.parent / LOCK).unlink()
    return target


def _fetch(remote: Remote, folder: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    _download(remote, folder, part)
    found = _md5(part)
    if found != remote.md5:
        part.unlink()
        raise EdblError(
            f"what {remote.url} sent is not the official file: its md5 sum is {found}, not {remote.md5}\n"
            f"it was removed; try {fetch_command(remote.dataset, folder)} again, or put the right file at {target}"
        )
    os.replace(part, target)


def extract_tar(archive: Path, folder: Path, wanted_top: str) -> Path:
    """Unpack ``wanted_top`` of a .tar.gz into ``folder``, all of it or nothing, and return its path."""
    for left in folder.glob(".unpack-*"):  # of one that was killed
        if time.time() - left.stat().st_mtime > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as temporary:
        try:
            with gzip.open(archive) as stream, tarfile.open(fileobj=stream, mode="r:") as tar:
                tar.extractall(temporary, filter=_inside)
                while stream.read(CHUNK):
                    pass  # gzip compares its checksum only at the very end
        except tarfile.FilterError as error:
            raise _refused(archive, error.tarinfo.name) from error
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(archive, error) from error
        fresh = Path(temporary) / wanted_top
        if not fresh.is_dir():
            raise EdblError(f"{archive} holds no folder '{wanted_top}': delete it and download it again")
        _put(fresh, folder / wanted_top)
    return folder / wanted_top


def open_zip(archive: Path) -> zipfile.ZipFile:
    """Open a zip file whose member names all stay below the folder it would be unpacked to."""
    try:
        file = zipfile.ZipFile(archive)
    except zipfile.BadZipFile as error:
        raise _damaged(archive, error) from error
    for name in file.namelist():
        if _escapes(name):
            file.close()
            raise _refused(archive, name)
    return file


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(remote: Remote, folder: Path, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    response = _open(remote, folder, have)
    if response is None:
        return
    with response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server does not resume: it sends the file from its first byte
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else remote.size or None
        with part.open("ab" if have else "wb") as file, _bar() as bar:
            task = bar.add_task(Path(remote.name).name, total=total, completed=have)
            # Only the network calls are guarded: a full disk must surface as what it is.
            while chunk := _read(response, remote, folder):
                file.write(chunk)
                have += len(chunk)
                bar.update(task, completed=have)
    if length and have < (total or 0):
        raise _unreachable(remote, folder, f"the connection broke after {have:,} of {total:,} bytes")


def _open(remote: Remote, folder: Path, have: int) -> Any:
    """Return the server's answer, or None if it has nothing beyond the ``have`` bytes that are here."""
    headers = {"User-Agent": "edbl"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return None
        raise _unreachable(remote, folder, f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _unreachable(remote, folder, str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(remote, folder, str(error) or type(error).__name__) from error


def _read(response: Any, remote: Remote, folder: Path) -> bytes:
    try:
        return bytes(response.read(CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(remote, folder, str(error) or type(error).__name__) from error


def _unreachable(remote: Remote, folder: Path, reason: str) -> EdblError:
    return EdblError(
        f"cannot download {remote.name} from {remote.url}: {reason}\n"
        f"run {fetch_command(remote.dataset, folder)} again to go on, or put the file at {folder / remote.name} by hand"
    )


def _bar() -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _escapes(name: str) -> bool:
    # Windows rules are the stricter ones: both slashes separate, and a drive letter is absolute too.
    path = PureWindowsPath(name)
    return bool(path.anchor) or ".." in path.parts


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    # tarfile's own filter makes absolute names relative; in an official archive they have no business at all.
    if _escapes(member.name):
        raise tarfile.OutsideDestinationError(member, folder)
    return tarfile.data_filter(member, folder)


def _put(fresh: Path, target: Path) -> None:
    """Move the folder ``fresh`` to ``target``; where a folder is there already, complete it file by file."""
    try:
        os.rename(fresh, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        for path in fresh.rglob("*"):
            if path.is_file():
                place = target / path.relative_to(fresh)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, place)


def _refused(archive: Path, member: str) -> EdblError:
    return EdblError(
        f"{archive} was not unpacked: its member '{member}' leads outside the data folder or is no plain file\n"
        "this is not an official archive; delete it"
    )


def _damaged(archive: Path, error: Exception) -> EdblError:
    return EdblError(f"{archive} is damaged or truncated ({error}): delete it and download it again")
