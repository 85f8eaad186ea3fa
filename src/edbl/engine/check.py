"""Checks of a method on digits: what one run does not show, and what a GPU or a kill would show too late."""

import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import edbl
from edbl import users
from edbl.data import datasets
from edbl.data.images import Dataset, Images
from edbl.engine.checkpoint import CHECKPOINTS, Checkpoints
from edbl.engine.prepare import Prepared
from edbl.engine.progress import Progress
from edbl.engine.run import resume, run
from edbl.errors import EdblError
from edbl.methods.base import Method, Phase
from edbl.recipe import Recipe
from edbl.records import Record

KILLS = 6  # moments, evenly spread over a run
TASKS = 3
# Calls that bring a tensor to the host, so that the host waits for the device, and those whose shape hangs on values.
WAITS = {"item", "tolist", "cpu", "numpy", "equal", "allclose", "is_nonzero"}
WAITS |= {f"__{name}__" for name in ("bool", "float", "int", "index", "array", "repr", "format", "contains")}
# Tensors of numbers on the host, made anew in each step.
MAKES = {"tensor", "as_tensor", "from_numpy", "new_tensor"}
SHAPES = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "bincount"}
# Calls that draw; in modules, such as dropout, PyTorch's own generator follows the seed.
DRAWN = {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson", "binomial", "rrelu"}
DRAWN |= {f"{name}_like" for name in ("rand", "randn", "randint")} | {"_standard_gamma", "_sample_dirichlet"}
DRAWN |= {f"{name}_" for name in ("normal", "uniform", "random", "bernoulli", "exponential", "cauchy", "geometric")}
DRAWN |= {"log_normal_"} | {f"{kind}dropout" for kind in ("", "alpha_", "feature_", "feature_alpha_")}
DRAWN |= {f"dropout{dims}d" for dims in (1, 2, 3)}
OTHERS = {random: random._inst, np.random: np.random.mtrand._rand}  # whose draws no seed has
# What tensors say of where they are while steps are looked at: on a GPU too that is not the CPU by name.
CPU, HERE = torch.device("cpu"), torch.device("cpu", 0)
SEED, SEES = "same seed, same bits", "sees no test images and no later task"
PACKAGE = str(Path(edbl.__file__).parent)


@dataclass(frozen=True)
class Finding:
    """What was looked at, and what is wrong with it, if anything."""

    what: str
    wrong: str = ""


class _Killed(BaseException):
    """Stands for a process that ends without a word."""


class _Moments(Progress):
    """Count the moments of a run, and end it at one of them."""

    def __init__(self, at: int = -1) -> None:
        self.count, self.at = 0, at

    def _moment(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise _Killed

    def phase(self, task: int, name: str, epochs: int, done: int) -> None:
        """Count the beginning of a phase."""
        self._moment()

    def step(self, losses: Tensor, number: int, images: int) -> None:
        """Count a step."""
        self._moment()

    def busy(self, what: str) -> None:
        """Count what is no training."""
        self._moment()


def recipe(method: str, seed: int = 0) -> Recipe:
    """Return a run of seconds, with every phase that the method has."""
    short: dict[str, object] = {"net.backbone": "mlp", "stream.tasks": TASKS, "checkpoint_seconds": 0.0, "seed": seed}
    short |= {key: 2 for key in Recipe.keys(method) if key.endswith("epochs") and key != "first.task_epochs"}
    return Recipe.build(method, "digits", preset="quick", **{**short, "device": "cpu"})


def check(method: str) -> Iterator[Finding]:
    """Yield one finding after another, for as long as the method runs at all."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _Checks(method, Path(folder)).all()


class _Checks:
    def __init__(self, method: str, folder: Path) -> None:
        self.method, self.folder, self.drawn = method, folder, 0

    def all(self) -> Iterator[Finding]:
        counter = _Moments()
        try:
            whole = self._run("whole", 0, counter)
        except Exception as error:
            yield Finding("runs on digits, within its memory, and could be resumed", _why(error))
            return
        yield Finding("runs on digits, within its memory, and could be resumed")
        checks: dict[str, Callable[[], str]] = {
            SEED: lambda: self._differ(whole, self._run("again", 0), "again"),
            "another seed, other bits": lambda: self._alike(self._run("other", 1)),
            "killed anywhere, ends with the same bits": lambda: self._killed(whole, counter.count),
            "waits for no tensor in a step": partial(self._looks, "waits"),
            "has the same shapes in every step": partial(self._looks, "shapes"),
            "draws from its generators alone": partial(self._looks, "draws"),
            "leaves the teacher as it is": partial(self._looks, "teacher"),
            SEES: self._sees,
        }
        seeded = True
        for what, look in checks.items():
            if what == SEES and not seeded:  # any two runs differ, whatever they see
                continue
            try:
                finding = Finding(what, look())
            except Exception as error:
                finding = Finding(what, _why(error))
            seeded = seeded and not (what == SEED and finding.wrong)
            yield finding

    def _run(self, name: str, seed: int, progress: Progress | None = None) -> Record:
        """Run the method, whatever was drawn before."""
        self.drawn += 1
        _as_new(self.drawn)
        return run(recipe(self.method, seed), self.folder / name, progress=progress)

    def _last(self, name: str) -> dict[str, Tensor]:
        saved = Checkpoints(self.folder / name / CHECKPOINTS).load(f"task-{TASKS - 1}")
        assert saved is not None
        return saved.tensors

    def _differ(self, whole: Record, other: Record, name: str) -> str:
        """Return where a run differs from the whole one, or nothing."""
        for task, (one, two) in enumerate(zip(whole.losses, other.losses, strict=True)):
            for phase, losses in one.items():
                pairs = zip(losses, two[phase], strict=True)
                if epochs := [epoch for epoch, (first, second) in enumerate(pairs) if first != second]:
                    return f"the loss differs from task {task + 1}, phase {phase}, epoch {epochs[0] + 1} on"
        for name_of, matrices in whole.confusions.items():
            both = zip(matrices, other.confusions.get(name_of, []), strict=False)
            if tasks := [task for task, (first, second) in enumerate(both) if not np.array_equal(first, second)]:
                return f"the answers of classifier {name_of} differ from task {tasks[0] + 1} on"
        odd = _different(self._last("whole"), self._last(name))
        return f"'{odd[0]}' differs after the last task" if odd else ""

    def _alike(self, other: Record) -> str:
        return "" if _different(self._last("whole"), self._last("other")) else "all tensors are the same"

    def _killed(self, whole: Record, moments: int) -> str:
        for number in range(1, KILLS + 1):
            name, at = f"killed-{number}", max(1, moments * number // (KILLS + 1))
            try:
                self._run(name, 0, _Moments(at))
            except _Killed:
                _as_new(1000 + number)
                if wrong := self._differ(whole, resume(self.folder / name), name):
                    return f"killed at moment {at} of {moments}: {wrong}"
        return ""

    def _looks(self, what: str) -> str:
        """Look at what happens inside the steps of the first two tasks."""
        seen = _Seen()
        prepared = Prepared(recipe(self.method), None, Progress())
        prepared.learner.kind = _watched(prepared.learner.kind, seen)
        with _elsewhere():
            for number in range(2):
                prepared.learner.learn(prepared.stream[number])
        return cast(str, getattr(seen, what))

    def _sees(self) -> str:
        """Learn two tasks, with other test images, other images of later tasks, and as they are."""
        data = datasets.load("digits")
        later = data.train.y >= sum(Prepared(recipe(self.method), None, Progress()).stream.sizes[:2])
        kinds = {
            "as they are": data,
            "test images": replace(data, test=_inverted(data.test, torch.ones(len(data.test), dtype=torch.bool))),
            "images of later tasks": replace(data, train=_inverted(data.train, later)),
        }
        states = {}
        for name, dataset in kinds.items():
            prepared = _prepared(self.method, dataset)
            for number in range(2):
                prepared.learner.learn(prepared.stream[number])
            states[name] = prepared.learner.tensors()
        seen = [name for name, state in states.items() if _different(states["as they are"], state)]
        return f"what it learns hangs on {seen[0]}" if seen else ""


def _as_new(number: int) -> None:
    """Begin as another process would: with other global generators, and with users' files as nobody has used them."""
    users.forget()
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _prepared(method: str, dataset: Dataset) -> Prepared:
    return Prepared(recipe(method), None, Progress(), dataset)


def _inverted(images: Images, which: Tensor) -> Images:
    return replace(images, x=torch.where(which.view(-1, 1, 1, 1), 255 - images.x, images.x))


def _different(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that differ."""
    return sorted(
        name
        for name in {**one, **other}
        if name not in one or name not in other or not torch.equal(one[name].nan_to_num(), other[name].nan_to_num())
    )


def _why(error: Exception) -> str:
    if isinstance(error, EdblError):
        return str(error).partition(" (run ")[0]  # whose folder is gone
    return users.told(error) or f"{type(error).__name__}: {error}"


@dataclass
class _Seen:
    """What was seen inside steps, the first of each kind, with the line that does it."""

    waits: str = ""
    shapes: str = ""
    draws: str = ""
    teacher: str = ""

    def note(self, kind: str, what: str) -> None:
        """Note something with its line, unless something of its kind was seen before."""
        setattr(self, kind, getattr(self, kind) or f"{what} in {_line()}")


class _Watch(TorchFunctionMode):
    """Look at every call of PyTorch."""

    def __init__(self, seen: _Seen) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in WAITS or (name == "to" and _to_host((*args[1:], *kwargs.values()))):
            self.seen.note("waits", name)
        if name in MAKES and not isinstance(next(iter((*args, *kwargs.values())), None), Tensor):
            self.seen.note("waits", f"{name} of numbers of the host")
        if name in SHAPES or (name in ("__getitem__", "__setitem__") and _by_truth(args[1])):
            self.seen.note("shapes", name)
        if name == "where" and len(args) == 1:
            self.seen.note("shapes", "where of one tensor")
        if name == "one_hot" and (*args[1:], kwargs.get("num_classes", -1))[0] == -1:
            self.seen.note("shapes", "one_hot without the number of classes")
        counts = kwargs.get("repeats", args[1] if len(args) > 1 else None)
        if name == "repeat_interleave" and isinstance(counts, Tensor | None) and kwargs.get("output_size") is None:
            self.seen.note("shapes", "repeat_interleave by a tensor without output_size")
        if name in DRAWN and kwargs.get("generator") is None and not _in_module():
            self.seen.note("draws", f"{name} without a generator")
        return func(*args, **kwargs)


def _to_host(arguments: tuple[object, ...]) -> bool:
    """Tell whether a tensor is sent to the CPU by name, and not to where another one is."""
    return any(one == CPU or (isinstance(one, str) and one.startswith("cpu")) for one in arguments)


class _Drawing(torch.Generator):
    """A generator that says of where it is what tensors say."""

    device = HERE


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Let tensors say that they are somewhere else than on the CPU by name."""
    setattr(Tensor, "device", property(lambda _: HERE))  # noqa: B010  # over what a class of C says
    try:
        yield
    finally:
        delattr(Tensor, "device")


def _in_module() -> bool:
    """Tell whether a module led here, such as dropout."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "watched":
        if isinstance(frame.f_locals.get("self"), nn.Module):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _others(seen: _Seen) -> Iterator[None]:
    """Note draws from the generators of Python and NumPy, which follow no seed of the run."""

    def noted(called: Callable[..., Any], name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            seen.note("draws", name)
            return called(*args, **kwargs)

        return function

    held = [
        (module, name, value)
        for module, generator in OTHERS.items()
        for name, value in vars(module).items()
        if getattr(value, "__self__", None) is generator
    ]
    for module, name, value in held:
        setattr(module, name, noted(value, f"{module.__name__}.{name}"))
    try:
        yield
    finally:
        for module, name, value in held:
            setattr(module, name, value)


def _by_truth(index: object) -> bool:
    """Tell whether an index picks by true and false, so that the values say how much."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


def _line() -> str:
    """Return the nearest line of a method that led here: of a user's file, or of one of the package's methods."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = file.startswith(PACKAGE)
        if (ours and "/methods/" in file) or (not ours and "site-packages" not in file and not file.startswith("<")):
            return f"{Path(file).name}, line {frame.f_lineno}"
        frame = frame.f_back
    return "code of others"


def _watched(kind: type[Method], seen: _Seen) -> type[Method]:
    """Return the method with an eye on its phases."""

    @contextmanager
    def eye() -> Iterator[None]:
        with _Watch(seen), _others(seen):
            yield

    def under(function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any) -> Any:
            given = [_Drawing().set_state(x.get_state()) if isinstance(x, torch.Generator) else x for x in args]
            with eye():
                return function(*given)

        return watched

    def looked_at(self: Method, task: Any) -> Iterator[Phase]:
        before: dict[str, Tensor] | None = None
        for phase in kind.phases(self, task) or ():
            if self.teacher is not None and before is None:
                before = {name: tensor.clone() for name, tensor in self.teacher.net.state_dict().items()}
            adjust = under(phase.adjust) if phase.adjust is not None else None
            augment = under(phase.draw.augment) if phase.draw.augment is not None else None
            draw = replace(phase.draw, mixing=under(phase.draw.mixing), augment=augment)
            yield replace(phase, loss=under(phase.loss), adjust=adjust, draw=draw)
        if before is not None and self.teacher is not None:
            odd = _different(before, self.teacher.net.state_dict())
            seen.teacher = f"'{odd[0]}' of the teacher changes" if odd else seen.teacher

    return type(kind.__name__, (kind,), {"phases": looked_at, "name": kind.name})
