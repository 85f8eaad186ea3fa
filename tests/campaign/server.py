"""A server that is killed while it is taught: what it has acknowledged is there, the rest is there or not."""

import http.client
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edbl import presets
from edbl.app import bundle as disk
from edbl.app.description import had
from edbl.nets import pretrained
from edbl.serve.run import Server, Wanted
from edbl.serve.staged import Staged
from tests.backbones import Stand
from tests.campaign.child import Child, Watch, die, nothing
from tests.serving import Caller, lesson, multipart, picture

PATH = "/v1/models/m"
STEPS = 12  # of a lesson
OPERATIONS = 160  # on files, about as many as a lesson takes
SECONDS = 1.5  # about as long
EPOCHS = 40  # of an update
KINDS = ("taught", "taught", "staged", "update", "writers")
CLOSED, TRAINED = {"backbone": "stand-in"}, {"backbone": "mlp", "method": "finetune"}
KILLED = (-signal.SIGKILL, -signal.SIGALRM)

State = Mapping[str, str]  # the class of each photo, by its id
Ask = Callable[[], Any]


class Gone(Exception):
    """The server does not answer any more."""


def serve(place: Path, port: Path, first: Callable[[], object], options: Mapping[str, Any]) -> None:
    """Be a server to the end of this process; `first` may see to it that this is soon."""
    pretrained.find = lambda name: Stand()  # type: ignore[assignment, return-value]
    presets.PACES = {key: pace._replace(least=EPOCHS, most=EPOCHS) for key, pace in presets.PACES.items()}
    server = Server(Wanted(place, port=0, device="cpu", **options))
    port.with_suffix(".new").write_text(server.address)
    port.with_suffix(".new").rename(port)
    first()
    server.run()


class Served:
    """A server in a process of its own, and somebody who asks it."""

    def __init__(self, place: Path, name: str, options: Mapping[str, Any], first: Callable[[], object] = nothing):
        port = place.with_name(f"{place.parent.name}-{name}.port")
        port.unlink(missing_ok=True)
        self.child = Child(nothing, port.with_suffix(".log"), partial(serve, place, port, first, options))
        end = time.monotonic() + 60
        while not port.exists():
            assert time.monotonic() < end, port.with_suffix(".log").read_text()
            time.sleep(0.01)
        self.call = Caller(port.read_text())

    def ask(self, method: str, path: str, values: object = None, files: Any = None, labels: Any = ()) -> Any:
        """Return the answer, or None where another process is writing; what is wrong otherwise ends the case."""
        data, kind = multipart(files, labels) if files else (None, {})
        try:
            answer = self.call(method, f"{PATH}{path}", values, data, kind)
        except (OSError, http.client.HTTPException) as error:
            raise Gone from error
        if answer.status == 409 and b"another process" in answer.body:
            return None
        assert answer.status < 400, answer.body
        return json.loads(answer.body) if answer.body.startswith(b"{") else answer.body

    def end(self) -> tuple[int, str]:
        """Kill what is still there, and return how it ended and what it said."""
        self.child.signal(signal.SIGKILL)
        end = self.child.wait()
        return end.code, end.out


def moment(draw: random.Random) -> Callable[[], object]:
    """Return what ends a process before a file operation or after some time."""
    if draw.random() < 0.6:
        return Watch(draw.randint(1, OPERATIONS), die)

    def alarm() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(draw.uniform(0, SECONDS), 0.001))

    return alarm


@dataclass
class Lesson:
    """Changes that are made one by one, and what the model is after each that was acknowledged."""

    draw: random.Random
    state: State = field(default_factory=dict)
    then: State = field(default_factory=dict)  # if the change that is under way is made
    versions: dict[int, State] = field(default_factory=dict)
    number: int = 0

    def step(self, server: Served) -> None:
        """Make a change."""
        classes = sorted({*self.state.values()})
        kind = self.draw.random()
        if kind < 0.7 or len(classes) < 2:
            self._teach(server)
            return
        if kind < 0.8:
            old = self.draw.choice(classes)
            new = f"{old} {self.number}"
            self.then = {id: new if label == old else label for id, label in self.state.items()}
            answer = server.ask("POST", "/rename", {"old": old, "new": new})
        elif kind < 0.9:
            gone = self.draw.choice(classes)
            self.then = {id: label for id, label in self.state.items() if label != gone}
            answer = server.ask("POST", "/forget", {"classes": [gone]})
        else:
            now = max(self.versions)
            to = self.draw.choice([one for one in self.versions if self.versions[one] != self.state] or [now])
            self.then = self.versions[to]
            answer = server.ask("POST", "/undo", {"to": to}) if self.then != self.state else None
        if answer is not None:
            self._acknowledged(answer["version"])

    def _teach(self, server: Served) -> None:
        digit, number = self.draw.randint(0, 3), self.draw.randint(1, 3)
        files = [picture(digit, 4 * self.number + k) for k in range(number)]
        self.number += 1
        asked = server.ask("POST", "/predict", files=files)["predictions"]
        owners = {one["id"]: self.state.get(one["id"], f"class {digit}") for one in asked}
        self.then = {**self.state, **owners}
        pairs = [{"id": id, "label": label} for id, label in owners.items()]
        answer = server.ask("POST", "/teach", {"photos": pairs, "yes": True})
        if answer is not None:
            self._acknowledged(answer["version"])

    def _acknowledged(self, version: int) -> None:
        self.state = self.versions[version] = self.then


def kept(place: Path) -> State:
    """Return the class of each photo that a model has."""
    if not disk.exists(place):
        return {}
    return {digest: known.name for known in disk.read(place).classes for digest in had(known)}


def taught(draw: random.Random, place: Path) -> list[str]:
    """Teach, rename, forget and undo until the end; then the model is the old or the new one, and learns on."""
    server, lesson_ = Served(place, "a", CLOSED, moment(draw)), Lesson(draw)
    wrong = _until_the_end(server, lambda: lesson_.step(server))
    again = Served(place, "a", CLOSED)
    again.ask("GET", "/")
    if (there := kept(place)) not in (lesson_.state, lesson_.then):
        wrong.append(f"{len(there)} photos, not {len(lesson_.state)} or {len(lesson_.then)}")
    lesson_.state = there
    lesson_.number = STEPS
    lesson_._teach(again)
    again.ask("GET", "/history")  # one photo alone is learnt before that is told
    if kept(place) != lesson_.state:
        wrong.append("cannot be taught any more")
    return [*wrong, *_said(again), *_left(place)]


def staged(draw: random.Random, place: Path) -> list[str]:
    """Stage photos until the end; those that were acknowledged wait."""
    server = Served(place, "a", TRAINED, moment(draw))
    sure: dict[str, str] = {}

    def step() -> None:
        digit = draw.randint(0, 3)
        files = [picture(digit, draw.randint(0, 99)) for _ in range(draw.randint(1, 4))]
        asked = server.ask("POST", "/predict", files=files)["predictions"]
        pairs = {one["id"]: f"class {digit}" for one in asked}
        told = [{"id": id, "label": label} for id, label in pairs.items()]
        server.ask("POST", "/teach", {"photos": told})
        sure.update(pairs)

    wrong = _until_the_end(server, step)
    again = Served(place, "a", TRAINED)
    waiting = {id: one.label for id, one in Staged(place).waiting().items()}
    if lost := [id for id, label in sure.items() if waiting.get(id) != label]:
        wrong.append(f"{len(lost)} staged photos are lost")
    if again.ask("GET", "/")["staged"] != len(waiting):
        wrong.append("another number waits")
    return [*wrong, *_said(again)]


def update(draw: random.Random, place: Path) -> list[str]:
    """End the server during an update: the next one continues it by itself, or it can be started again."""
    files, labels = lesson({0: 6, 1: 6})
    before = Served(place, "a", TRAINED)
    before.ask("POST", "/teach", files=files, labels=labels)
    wrong = _said(before)
    server = Served(place, "a", TRAINED, moment(draw))

    def step() -> None:
        server.ask("POST", "/learn", {})
        while server.ask("GET", "/")["staged"]:
            time.sleep(0.02)
        raise Gone

    wrong += _until_the_end(server, step)
    again = Served(place, "a", TRAINED)
    info = again.ask("GET", "/")
    if info["staged"] and not info["updating"]:
        again.ask("POST", "/learn", {})
    end = time.monotonic() + 90
    while (info := again.ask("GET", "/"))["staged"] or info["updating"]:
        if time.monotonic() > end:
            return [*wrong, "the update does not end", *_said(again)]
        time.sleep(0.05)
    if (info["version"], len(info["classes"])) != (1, 2):
        wrong.append(f"version {info['version']} with {len(info['classes'])} classes")
    return [*wrong, *_said(again)]


def writers(draw: random.Random, place: Path) -> list[str]:
    """Let two servers teach one model until one of them ends: nothing of either is lost."""
    one = Served(place, "a", CLOSED, moment(draw))
    other = Served(place, "b", CLOSED)
    sure: dict[str, str] = {}

    def step(server: Served, digit: int) -> None:
        files = [picture(digit, draw.randint(0, 99))]
        id = server.ask("POST", "/predict", files=files)["predictions"][0]["id"]
        told = {"photos": [{"id": id, "label": f"class {digit}"}], "yes": True}
        if server.ask("POST", "/teach", told) is not None:
            sure[id] = f"class {digit}"

    def both() -> None:
        try:
            step(one, 0)
        finally:
            step(other, 1)

    wrong = _until_the_end(one, both)
    step(other, 2)
    other.ask("GET", "/history")
    there = kept(place)
    if lost := [id for id, label in sure.items() if there.get(id) != label]:
        wrong.append(f"{len(lost)} photos are lost")
    return [*wrong, *_said(other)]


def _until_the_end(server: Served, step: Ask) -> list[str]:
    """Do steps until the server ends or all are done, and return what is wrong with what it said."""
    try:
        for _ in range(STEPS):
            step()
    except Gone:
        pass
    return _said(server)


def _said(server: Served) -> list[str]:
    code, out = server.end()
    wrong = [] if code in KILLED else [f"exit code {code}"]
    return [*wrong, "traceback", out[-3000:]] if "Traceback" in out else wrong


def _left(place: Path) -> list[str]:
    """Return what no version of a model refers to."""
    return ["files that nobody names"] if (place / disk.WRITING).exists() else []


def kill(number: int, seed: int, out: Path, _: object = None) -> dict[str, Any]:
    """Kill a server at a random moment."""
    kind = KINDS[number % len(KINDS)]
    place = out / f"server-{os.getpid()}" / "m"
    shutil.rmtree(place.parent, ignore_errors=True)
    place.parent.mkdir(parents=True)
    wrong = globals()[kind](random.Random(f"server {seed} {number}"), place)
    shutil.rmtree(place.parent, ignore_errors=True)
    faults = [one for one in wrong if len(one) < 100]
    return {"kind": "server", "what": kind, "wrong": faults, "out": "\n".join(wrong)}
