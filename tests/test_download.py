import errno
import gzip
import hashlib
import io
import os
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edbl.data import download
from edbl.data.download import Remote
from edbl.errors import EdblError
from edbl.store import lock
from tests.conftest import Cli

CONTENT = bytes(range(256)) * 4000  # four reads' worth


@dataclass
class Server:
    url: str = ""
    resumes: bool = True
    cut: int | None = None  # bytes after which the connection breaks
    status: int = 200
    ranges: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["Range"]
            state.ranges.append(wanted)
            if state.status != 200:
                self.send_error(state.status)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.resumes else 0
            if start and start >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(CONTENT) - start))
            self.end_headers()
            self.wfile.write(CONTENT[start : state.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}/file.bin"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def remote(url: str = "http://127.0.0.1:1/file.bin", name: str = "set/file.bin") -> Remote:
    return Remote(name, url, hashlib.md5(CONTENT).hexdigest(), len(CONTENT), "some-set")


def test_data_dir_prefers_the_argument_then_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("EDBL_DATA", raising=False)
    assert download.data_dir() == tmp_path / ".cache" / "edbl"
    monkeypatch.setenv("EDBL_DATA", "~/there")
    assert download.data_dir() == tmp_path / "there"
    assert download.data_dir(Path("~/here")) == tmp_path / "here"


def test_a_home_folder_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("EDBL_DATA", "~nobody-of-this-name/data")
    with pytest.raises(EdblError, match="there is no home folder for"):
        download.data_dir()
    done = cli("run", "rkd", "--data", "~nobody-of-this-name/photos")
    assert (done.code, "there is no home folder for" in done.err) == (2, True)


def test_fetch_downloads_and_leaves_nothing_else(server: Server, tmp_path: Path) -> None:
    path = download.fetch(remote(server.url), tmp_path)
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_two_fetches_do_not_write_to_one_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with lock(tmp_path / "set"), pytest.raises(EdblError, match="another process is working in"):
        download.fetch(remote(server.url), tmp_path)
    assert download.fetch(remote(server.url), tmp_path).read_bytes() == CONTENT


def test_fetch_keeps_a_right_file_without_asking_the_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    download.fetch(remote(server.url, "file.bin"), tmp_path)
    assert server.ranges == []


def test_fetch_refuses_a_wrong_file_that_is_there(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"other")
    with pytest.raises(EdblError, match=r"not the official file.*\n.*delete it and run `edbl data fetch some-set "):
        download.fetch(remote(server.url, "file.bin"), tmp_path)
    assert path.read_bytes() == b"other"


def test_fetch_resumes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert download.fetch(remote(server.url, "file.bin"), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=1000-"]


def test_fetch_starts_over_where_the_server_does_not_resume(server: Server, tmp_path: Path) -> None:
    server.resumes = False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    assert download.fetch(remote(server.url, "file.bin"), tmp_path).read_bytes() == CONTENT


def test_fetch_takes_a_part_that_was_complete(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download.fetch(remote(server.url, "file.bin"), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


def test_fetch_goes_on_after_a_broken_connection(server: Server, tmp_path: Path) -> None:
    server.cut = 600_000
    with pytest.raises(EdblError, match=r"the connection broke after 600,000 of 1,024,000 bytes\n.*again to go on"):
        download.fetch(remote(server.url, "file.bin"), tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size == 600_000
    server.cut = None
    assert download.fetch(remote(server.url, "file.bin"), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=600000-"]


def test_fetch_removes_what_has_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    wrong = replace(remote(server.url, "file.bin"), md5="0" * 32)
    with pytest.raises(
        EdblError, match=r"not the official file: its md5 sum is [0-9a-f]{32}, not 0{32}\nit was removed"
    ):
        download.fetch(wrong, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_fetch_names_the_status_of_the_server(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(EdblError, match="the server answered 404 Not Found"):
        download.fetch(remote(server.url), tmp_path)


def test_fetch_without_network_says_where_the_file_belongs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file.bin"
    with pytest.raises(EdblError) as caught:
        download.fetch(remote(url), tmp_path)
    message = str(caught.value)
    assert "Connection refused" in message
    assert f"set/file.bin from {url}" in message
    assert f"put the file at {tmp_path / 'set' / 'file.bin'} by hand" in message


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.bin"
        with pytest.raises(EdblError, match="timed out"):
            download.fetch(remote(url), tmp_path)


def test_a_full_disk_is_not_taken_for_a_network_error(server: Server, tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    (tmp_path / "file.bin.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        download.fetch(remote(server.url, "file.bin"), tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.bin"
    file = remote("http://host/file.bin", "file.bin")
    with pytest.raises(EdblError) as caught:
        download.verify(file, tmp_path)
    assert str(caught.value) == str(download.missing(file, tmp_path))
    assert f"run `edbl data fetch some-set --data-dir {tmp_path}`" in str(caught.value)
    monkeypatch.setenv("EDBL_DATA", str(tmp_path))
    assert "run `edbl data fetch some-set`" in str(download.missing(file, tmp_path))
    assert f"download http://host/file.bin and put it at {path}" in str(caught.value)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(EdblError, match=f"{re.escape(str(path))} is damaged or not the official file"):
        download.verify(file, tmp_path)
    path.write_bytes(CONTENT)
    download.verify(file, tmp_path)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 3 if kind == tarfile.REGTYPE else 0
    return info


def write_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info in (member("top", tarfile.DIRTYPE), member("top/good.bin"), *members):
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(b"abc") if info.size else None)
    return path


def test_extract_tar(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", member("top/sub/deep.bin"), member("beside.bin"))
    place = download.extract_tar(archive, tmp_path, "top")
    assert place == tmp_path / "top"
    assert (place / "good.bin").read_bytes() == b"abc"
    assert (place / "sub" / "deep.bin").read_bytes() == b"abc"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar.gz", "top"]


def test_what_an_unpacking_left_that_was_killed_goes_in_time(tmp_path: Path) -> None:
    left, busy = tmp_path / ".unpack-old", tmp_path / ".unpack-new"
    for folder in (left, busy):
        (folder / "top").mkdir(parents=True)
    os.utime(left, times=(0, 0))
    download.extract_tar(write_tar(tmp_path / "a.tar.gz"), tmp_path, "top")
    assert (left.exists(), busy.exists()) == (False, True)


def test_extract_tar_completes_a_folder_and_keeps_what_else_is_in_it(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz", member("top/sub/deep.bin"))
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "good.bin").write_bytes(b"old")
    (tmp_path / "top" / "mine.txt").write_bytes(b"mine")
    download.extract_tar(archive, tmp_path, "top")
    assert (tmp_path / "top" / "good.bin").read_bytes() == b"abc"
    assert (tmp_path / "top" / "sub" / "deep.bin").read_bytes() == b"abc"
    assert (tmp_path / "top" / "mine.txt").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "bad",
    [
        member("/abs.bin"),
        member("top/../../out.bin"),
        member("..\\out.bin"),
        member("C:/out.bin"),
        member("top/link", tarfile.SYMTYPE, "../../out"),
        member("top/abslink", tarfile.SYMTYPE, "/etc"),
        member("top/hard", tarfile.LNKTYPE, "../out"),
        member("top/device", tarfile.CHRTYPE),
        member("top/pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda info: info.name,
)
def test_extract_tar_refuses_members_that_escape(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    archive = write_tar(folder / "a.tar.gz", bad)
    with pytest.raises(EdblError, match=f"was not unpacked: its member '{re.escape(bad.name)}' leads outside"):
        download.extract_tar(archive, folder, "top")
    assert list(folder.iterdir()) == [archive]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("kind", ["cut", "cut in the checksum", "flipped", "empty", "no gzip", "gzip of no tar"])
def test_extract_tar_says_that_an_archive_is_damaged(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "a.tar.gz"
    blob = os.urandom(50_000)  # does not compress, so that a cut takes content
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("top/good.bin")
        info.size = len(blob)
        tar.addfile(info, io.BytesIO(blob))
    raw = archive.read_bytes()
    archive.write_bytes(
        {
            "cut": raw[: len(raw) // 2],
            "cut in the checksum": raw[:-5],
            "flipped": raw[:30_000] + bytes(255 - b for b in raw[30_000:30_100]) + raw[30_100:],
            "empty": b"",
            "no gzip": b"<html>not found</html>" * 100,
            "gzip of no tar": gzip.compress(b"hello" * 1000),
        }[kind]
    )
    with pytest.raises(EdblError, match=r"a\.tar\.gz is damaged or truncated .*: delete it and download it again"):
        download.extract_tar(archive, tmp_path, "top")
    assert list(tmp_path.iterdir()) == [archive]


def test_extract_tar_needs_the_wanted_folder(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "a.tar.gz")
    with pytest.raises(EdblError, match="holds no folder 'other'"):
        download.extract_tar(archive, tmp_path, "other")
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize("name", ["../out.txt", "/abs.txt", "a/../../b.txt", "..\\out.txt"])
def test_open_zip_refuses_members_that_escape(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good.txt", "x")
        file.writestr(name, "x")
    with pytest.raises(EdblError, match=f"its member '{re.escape(name)}' leads outside"):
        download.open_zip(tmp_path / "a.zip")


def test_open_zip_says_that_an_archive_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("good.txt", "x" * 100)
    raw = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(raw[:-30])
    with pytest.raises(EdblError, match=r"a\.zip is damaged or truncated"):
        download.open_zip(tmp_path / "a.zip")
