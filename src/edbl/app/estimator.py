"""`EDBLClassifier`: a scikit-learn classifier that keeps learning new classes."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data
from torch import Tensor
from torch.nn import functional

import edbl
from edbl import config
from edbl.app.model import Model
from edbl.engine import environment
from edbl.engine.checkpoint import digest_of
from edbl.engine.progress import Bars, Progress
from edbl.errors import EdblError
from edbl.files import lock, write_atomic
from edbl.recipe import MOST_PAD, Recipe, check_values
from edbl.schedule import Schedule

Array = NDArray[Any]

FORMAT = 1  # of a saved estimator
FAR = 4.0  # standard deviations; what a value lies further off counts by its logarithm
LARGEST = np.finfo(np.float64).max
MANY = 10_000  # samples of one call from which batches are of 128, not of 32
SMALL = 16  # pixels: side of images up to which the net is `small`
ROWS = 64  # vectors are predicted in multiples of so many, as matrix products of other sizes round otherwise
READOUTS = ("cnn", "nme")
SHAPE = ("n_features_in_", "feature_names_in_")  # what scikit-learn's checks note of X
IDLE = ("stream.", "preset", "data.name", "data.holdout", "data.image_size", "data.skip_bad")  # keys without effect
WEIGHTS = ("estimator.safetensors", "estimator.safetensors.new")
TRIES = 5  # to read what another process may be saving
PARAMETERS = {  # recipe keys that are parameters of the estimator
    "method": "method",
    "memory": "memory",
    "seed": "random_state",
    "device": "device",
    "net.backbone": "backbone",
    "schedule.epochs": "epochs",
    "schedule.lr": "learning_rate",
    "optim.batch": "batch_size",
}


@dataclass(frozen=True)
class _Vectors:
    """Vectors, each feature in standard deviations from its mean, both of the samples that came first.

    A feature that has not varied yet has scale 0 and counts as 0. It gets its scale from the first samples in which it
    varies, which changes nothing for those that came before.
    """

    mean: Array  # [d]
    scale: Array  # [d]

    @classmethod
    def first(cls, x: Array) -> Self:
        """Learn mean and scale from the first samples."""
        with np.errstate(over="ignore", invalid="ignore"):
            varies = x.max(0) > x.min(0)
            return cls._checked(np.where(varies, x.mean(0), x[0]), np.where(varies, x.std(0), 0.0))

    def later(self, x: Array) -> Self:
        """Learn the scale of features that vary for the first time."""
        with np.errstate(over="ignore"):
            away = np.sqrt(np.square(x - self.mean).mean(0))
        return self._checked(self.mean, np.where(self.scale > 0, self.scale, away))

    @classmethod
    def _checked(cls, mean: Array, scale: Array) -> Self:
        if not np.isfinite(mean).all() or not np.isfinite(scale).all():
            raise ValueError("X has values that are too large to compute with; scale them down")
        return cls(mean, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one vector."""
        return self.mean.shape

    def tensor(self, x: Array) -> Tensor:
        """Return vectors as the net takes them."""
        with np.errstate(over="ignore"):
            z = np.clip(x - self.mean, -LARGEST, LARGEST) / np.where(self.scale > 0, self.scale, np.inf)
        far = np.clip(np.abs(z), FAR, LARGEST)  # what is nearer stays as it is
        return torch.from_numpy(np.clip(z, -FAR, FAR) * (1 + np.log(far / FAR))).float()


@dataclass(frozen=True)
class _Images:
    """Images as bytes, and the mean and standard deviation of each channel in the images that came first."""

    shape: tuple[int, ...]  # channels, height, width
    white: float  # the largest value: 1 or 255; 0 where only uint8 is taken
    mean: tuple[float, ...]  # 0 to 1
    std: tuple[float, ...]

    @classmethod
    def first(cls, x: Array) -> Self:
        """Learn shape, range of values, mean and standard deviation from the first images."""
        planes = _planes(x)
        white = 0.0 if x.dtype == np.uint8 else 1.0 if planes.max() <= 1 else 255.0
        blank = cls(planes.shape[1:], white, (), ())
        channels = blank.tensor(x).transpose(0, 1).flatten(1)
        share = torch.stack([channel.bincount(minlength=256) for channel in channels]) / channels.shape[1]
        levels = torch.arange(256) / 255
        mean = share @ levels
        std = (share * (levels - mean.unsqueeze(1)) ** 2).sum(1).sqrt().clamp(min=1 / 255)
        return replace(blank, mean=tuple(mean.tolist()), std=tuple(std.tolist()))

    def later(self, x: Array) -> Self:
        """Return the same: nothing is learnt from later images."""
        return self

    def tensor(self, x: Array) -> Tensor:
        """Return images as bytes, ``[n, c, h, w]``."""
        planes = _planes(x)
        if planes.shape[1:] != self.shape:
            raise ValueError(
                f"X has images of {_size(planes.shape[1:])}, but {EDBLClassifier.__name__} was fitted with images of "
                f"{_size(self.shape)}"
            )
        if planes.dtype != np.uint8:
            if not self.white:
                raise ValueError(f"the first images were of type uint8, and these are {x.dtype}; convert them to uint8")
            if planes.min() < 0 or planes.max() > self.white:
                raise ValueError(
                    f"X has values from {planes.min():g} to {planes.max():g}; give images as uint8, or with values in "
                    + ("0..1, as the first ones were" if self.white == 1 else "0..1 or 0..255")
                )
            planes = np.rint(planes * (255 / self.white)).astype(np.uint8)
        return torch.from_numpy(np.array(planes, order="C"))


def _planes(x: Array) -> Array:
    """Return images ``[n, h, w]``, ``[n, h, w, c]`` or ``[n, c, h, w]`` as the last of these: channels are fewer."""
    if x.ndim > 4 or 0 in x.shape:
        raise ValueError(
            f"X of shape {x.shape} is neither vectors [n, d] nor images [n, h, w], [n, h, w, c], [n, c, h, w]"
        )
    if x.ndim == 3:
        return x[:, None]
    return x if x.shape[1] < x.shape[3] else np.moveaxis(x, 3, 1)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} x {shape[1]} x {shape[2]} (channels, height, width)"


@dataclass(frozen=True)
class _Learnt:
    """All that was learnt."""

    input: _Vectors | _Images
    labels: Array  # one for each class, in the order of the model's
    model: Model

    def pack(self) -> tuple[dict[str, Any], bytes]:
        """Return it as values that JSON can hold, and bytes in the format of safetensors."""
        model, text = self.model, self.labels.dtype.kind in "OT"
        tensors = {k: v.detach().cpu().contiguous() for k, v in model.tensors().items()}
        values: dict[str, Any] = {
            "recipe": model.learner.recipe.values(),
            "sizes": model.sizes,
            "increments": model.increments,
            "samples": model.seen_images,
            "classes": self.labels.tolist(),
            "dtype": "O" if text else self.labels.dtype.str,
        }
        if isinstance(self.input, _Images):
            values |= {"shape": self.input.shape, "white": self.input.white}
        else:
            tensors |= {f"input.{k}": torch.from_numpy(getattr(self.input, k)) for k in ("mean", "scale")}
        return values, safetensors.torch.save(tensors)

    @classmethod
    def unpack(cls, values: Mapping[str, Any], data: bytes, given: Mapping[str, object]) -> Self:
        """Return what `pack` was given; recipe values of ``given`` win over the packed ones."""
        tensors = safetensors.torch.load(data)
        recipe = Recipe.of(values["recipe"], given)
        read: _Vectors | _Images
        if "shape" in values:
            read = _Images(tuple(values["shape"]), values["white"], recipe.data.mean, recipe.data.std)
        else:
            read = _Vectors(*(tensors.pop(f"input.{k}").numpy() for k in ("mean", "scale")))
        model = _build(recipe, read, Progress())
        model.load(tensors, _names(len(values["classes"])), values["sizes"])
        model.increments, model.seen_images = values["increments"], values["samples"]
        return cls(read, np.array(values["classes"], dtype=np.dtype(values["dtype"])), model)

    def again(self, recipe: Recipe, read: _Vectors | _Images, progress: Progress) -> Model:
        """Return a copy of the model, to learn on by a recipe that may be another."""
        model, old = _build(recipe, read, progress), self.model
        try:
            model.load(old.tensors(), _names(len(self.labels)), old.sizes)
        except RuntimeError as error:
            raise ValueError("options do not fit the net as it was learnt; call fit to begin anew") from error
        model.increments, model.seen_images = old.increments, old.seen_images
        return model


def _names(count: int) -> list[str]:
    """Return what the model calls its classes: their numbers."""
    return [str(number) for number in range(count)]


def _build(recipe: Recipe, read: _Vectors | _Images, progress: Progress) -> Model:
    transform = recipe.data.transform(environment.pick_device(recipe.device))
    return Model(recipe, read.shape, transform, progress=progress)


def _numbered(known: Array, y: Array) -> tuple[Array, Array]:
    """Return all labels, those of ``known`` first, and the number of each of ``y`` among them."""
    if len(known) and (known.dtype.kind in "UOT") != (y.dtype.kind in "UOT"):
        raise ValueError(f"y has labels such as {y[0]!r}, but those before were like {known[0]!r}: text and numbers")
    both = np.concatenate([known, y]) if len(known) else y
    first, rest = both[: len(known)], both[len(known) :]
    if (first.astype(known.dtype) != known).any() or (rest.astype(y.dtype) != y).any():
        raise ValueError(f"labels of type {y.dtype} cannot join labels of type {known.dtype} without loss")
    labels = np.concatenate([first, np.setdiff1d(rest, first)])
    order = np.argsort(labels)
    return labels, order[np.searchsorted(labels[order], rest)]


def _plain(value: Any) -> Any:
    """Return a number of NumPy, such as searches over parameters give, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


class EDBLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network that keeps learning: `partial_fit` may bring new classes at any call.

    ``X`` is vectors ``[n, d]`` or images ``[n, h, w]``, ``[n, h, w, c]`` or ``[n, c, h, w]``. A few samples of each
    class are kept as exemplars, so that old classes are not forgotten when new ones come.

    - ``method``: name of a method (``edbl list methods``), or path of a .py file with one
    - ``memory``: exemplars kept, ``total=K`` of all classes together or ``per_class=k``
    - ``readout``: ``cnn``, the scores of the net, or ``nme``, the nearest mean of exemplars; counts when predicting
    - ``backbone``: the net; ``auto`` is ``mlp`` for vectors, ``small`` or ``resnet32`` for images
    - ``epochs``: passes over the samples of a call; None means 30; a method's further phases get longer or shorter too
    - ``batch_size``: samples in a batch; None means 32, or 128 in a call with 10,000 samples or more
    - ``learning_rate``: at first; None means 0.1; that of a method's further phases goes along
    - ``options``: other settings by recipe key, such as ``{"optim.weight_decay": 1e-3}``
    - ``device``: ``auto``, ``cpu`` or ``cuda``
    - ``random_state``: a number for the same results each time
    - ``verbose``: show bars on a terminal while learning
    """

    classes_: Array
    n_features_in_: int
    _learnt: _Learnt

    def __init__(
        self,
        *,
        method: str = "edbl",
        memory: str = "total=2000",
        readout: Literal["cnn", "nme"] = "cnn",
        backbone: str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        options: Mapping[str, object] | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.memory = memory
        self.readout = readout
        self.backbone = backbone
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.options = options
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, and learn from samples and their classes."""
        return self._learn(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn on: new classes, and more samples of known ones.

        ``classes`` need not be given. Where it is, as by scikit-learn's tools, labels outside it are refused.
        """
        if classes is not None and not np.isin(np.asarray(y), np.asarray(classes)).all():
            raise ValueError("y has labels that are not in classes; leave classes out, or name all of them")
        return self._learn(X, y, vars(self).get("_learnt"))

    def _learn(self, X: Any, y: Any, old: _Learnt | None) -> Self:
        kept = {name: value for name, value in vars(self).items() if name in SHAPE}
        try:
            return self._learn_from(X, y, old)
        except BaseException:  # a call that fails changes nothing
            for name in SHAPE:
                self.__dict__.pop(name, None)
            self.__dict__.update(kept)
            raise

    def _learn_from(self, X: Any, y: Any, old: _Learnt | None) -> Self:
        x, y = self._read(X, y, None if old is None else old.input)
        check_classification_targets(y)
        if old is None:
            read = _Vectors.first(x) if x.ndim == 2 else _Images.first(x)
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        else:
            read, seed = old.input.later(x), old.model.learner.recipe.seed
        samples = read.tensor(x)
        labels, numbers = _numbered(old.labels if old else y[:0], y)
        began = time.monotonic()
        shown: AbstractContextManager[Progress] = nullcontext(Progress())
        if self.verbose:
            shown = Bars(Console(stderr=True))
        with shown as progress:
            try:
                model = self._model(read, len(x), seed, old, progress)
                model.memory.budget.check(len(labels))
            except EdblError as error:
                raise ValueError(str(error)) from error
            new = len(labels) - len(model.names)
            epochs = model.learner.epochs(new=new > 0, first=not model.names)
            progress.run(model.method.name, [*[0] * model.increments, epochs], model.increments)
            model.learn(samples, [str(number) for number in numbers])
            progress.say(f"{len(x)} samples, {new} new classes: {time.monotonic() - began:.1f} s")
        self._learnt = _Learnt(read, labels[[int(name) for name in model.names]], model)
        self.classes_ = np.sort(labels)
        return self

    def _model(
        self, read: _Vectors | _Images, samples: int, seed: int, old: _Learnt | None, progress: Progress
    ) -> Model:
        """Return a model that can learn from so many samples, after what was learnt before."""
        recipe = self._recipe(read, samples, seed)
        if old is None:
            return _build(recipe, read, progress)
        before = old.model.learner.recipe
        pairs = {"method": (before.method, recipe.method), "backbone": (before.net.backbone, recipe.net.backbone)}
        for what, (was, now) in pairs.items():
            if was != now:
                raise ValueError(f"{what} was '{was}' and is '{now}' now; call fit to begin anew with it")
        return old.again(recipe, read, progress)

    def _recipe(self, read: _Vectors | _Images, samples: int, seed: int) -> Recipe:
        """Return the recipe for learning from so many samples."""
        if not isinstance(self.method, str):
            raise ValueError(f"method {self.method!r} is not the name of a method, nor a path")
        given_options = {} if self.options is None else self.options
        if not isinstance(given_options, Mapping) or not all(isinstance(key, str) for key in given_options):
            raise ValueError(f"options {self.options!r} are not recipe keys with values, such as {{'optim.warmup': 2}}")
        known = Recipe.keys(self.method)
        options = check_values(given_options, known, self.method)
        for key in sorted(PARAMETERS.keys() & options.keys()):
            raise ValueError(f"'{key}' is no option here; it is the parameter {PARAMETERS[key]}")
        for key in options:
            if key.startswith(IDLE):
                raise ValueError(
                    f"'{key}' has no effect here: samples are those that are given, epochs a parameter; leave it out"
                )
        _choice("readout", self.readout, READOUTS)
        vectors = isinstance(read, _Vectors)
        backbone = self.backbone
        if backbone == "auto":
            backbone = "mlp" if vectors else "small" if max(read.shape[1:]) <= SMALL else "resnet32"
        if vectors:
            _choice("backbone for vectors", backbone, ("mlp", "given"))
        batch = self._value("batch_size", "optim.batch", 128 if samples >= MANY else 32)
        given: dict[str, object] = {
            "method": self.method,
            "data.name": "digits",  # whose schedules are those of a small data set
            "memory": self.memory,
            "seed": seed,
            "device": self.device,
            "net.backbone": backbone,
            "optim.batch": batch,
        }
        if isinstance(read, _Images):
            given |= {"data.mean": read.mean, "data.std": read.std, "data.pad": min(min(read.shape[1:]) // 8, MOST_PAD)}
        if "options.min_old" in known:
            given["options.min_old"] = max(1, batch // 4)
        usual = Recipe.of(given)
        epochs = self._value("epochs", "schedule.epochs", usual.schedule.epochs)
        rate = self._value("learning_rate", "schedule.lr", usual.schedule.lr)
        further = {f"options.{f.name}.": getattr(usual.options, f.name) for f in fields(cast(Any, usual.options))}
        for prefix, schedule in {"schedule.": usual.schedule, **further}.items():
            if isinstance(schedule, Schedule):
                scaled = schedule.scaled(max(1, round(schedule.epochs * epochs / usual.schedule.epochs)))
                given |= config.flatten(replace(scaled, lr=schedule.lr * (rate / usual.schedule.lr)), prefix)
        given["optim.warmup"] = min(usual.optim.warmup, epochs // 6)
        recipe = Recipe.of(given, options)
        if isinstance(read, _Images):
            recipe.data.check(read.shape[0])
        return recipe

    def _value(self, parameter: str, key: str, usual: Any) -> Any:
        """Return a parameter, checked as the recipe key that it stands for."""
        value = getattr(self, parameter)
        return usual if value is None else Recipe.keys(self.method)[key].check(parameter, value)

    def _read(self, X: Any, y: Any, read: _Vectors | _Images | None) -> tuple[Array, Array]:
        """Return checked samples, and labels unless ``y`` says that there are none."""
        predicting = isinstance(y, str)
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) < 3:
            if isinstance(read, _Images):
                raise ValueError(f"X is not images, but {type(self).__name__} was fitted with images")
            checked = validate_data(self, X, y, reset=read is None, dtype=np.float64)
            return (checked, np.empty(0)) if predicting else checked
        if isinstance(read, _Vectors):
            raise ValueError(f"X is images, but {type(self).__name__} was fitted with vectors")
        if predicting:
            return check_array(X, allow_nd=True), np.empty(0)
        x, y = check_X_y(X, y, allow_nd=True)
        if read is None:
            self.n_features_in_ = int(np.prod(x.shape[1:]))
            self.__dict__.pop("feature_names_in_", None)
        return x, y

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, ``[n, classes]``, in the order of ``classes_``.

        With the nearest mean they are made of distances: their order is right, their size is no frequency.
        """
        check_is_fitted(self)
        _choice("readout", self.readout, READOUTS)
        learnt = self._learnt
        x = learnt.input.tensor(self._read(X, "no_validation", learnt.input)[0])
        filled = functional.pad(x, (0, 0, 0, -len(x) % ROWS)) if x.ndim == 2 else x
        model = learnt.model
        scores = model.probabilities(filled) if self.readout == "cnn" else model.nearness(filled).softmax(1)
        shares: Array = scores[: len(x)].double().numpy()[:, np.argsort(learnt.labels)]
        shares /= shares.sum(1, keepdims=True)
        return shares

    def predict(self, X: Any) -> Array:
        """Return the class of each sample."""
        best: Array = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        return state | {"_learnt": self._learnt.pack()} if "_learnt" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_learnt" in state:
            values, data = state["_learnt"]
            self._learnt = _Learnt.unpack(values, data, {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and all that was learnt to a folder, for `load`. A RandomState is not written."""
        check_is_fitted(self)
        values, data = self._learnt.pack()
        parameters = {k: _plain(v) for k, v in self.get_params().items() if not isinstance(v, np.random.RandomState)}
        if self.options is not None:
            parameters["options"] = {k: _plain(v) for k, v in self.options.items()}
        names = vars(self).get("feature_names_in_")
        values |= {"parameters": parameters, "feature_names": None if names is None else names.tolist()}
        values |= {"format": FORMAT, "edbl": edbl.__version__}
        try:
            text = json.dumps({"values": values, "sha256": digest_of(data, values)}, indent=1)
        except TypeError as error:
            raise ValueError(f"a parameter cannot be saved: {error}") from error
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with lock(folder):
                for left in folder.glob(".estimator.*.tmp"):  # of writers that were killed
                    left.unlink(missing_ok=True)
                _settle(folder)
                write_atomic(folder / WEIGHTS[1], data)
                write_atomic(folder / "estimator.json", text.encode())
                _settle(folder)
        except OSError as error:
            raise EdblError(f"cannot save to '{folder}': {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], **parameters: Any) -> Self:
        """Return the estimator that `save` wrote; ``parameters`` win over those saved.

        A method of your own, a .py file, is not run because a saved file names it: give ``method`` again.
        """
        folder = Path(path)
        damaged = EdblError(f"the estimator in '{folder}' is damaged; save it again, or take a copy")
        try:
            _, values, data = _saved(folder)
        except OSError as error:
            raise EdblError(f"there is no estimator in '{folder}': {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged from error
        if values.get("format") != FORMAT:
            raise EdblError(
                f"the estimator in '{folder}' has format {values.get('format')}, and this edbl reads {FORMAT}; "
                f"it was saved by edbl {values.get('edbl')}"
            )
        try:
            own = str(values["recipe"]["method"]).endswith(".py")
            if own and "method" not in parameters:
                raise EdblError(
                    f"the estimator in '{folder}' learns by a method of its own, {values['recipe']['method']}; "
                    "give that file, if you trust it, as load(path, method=FILE)"
                )
            found = cls(**{**values["parameters"], **parameters})
            given = {"device": found.device} | ({"method": found.method} if own else {})
            found._learnt = _Learnt.unpack(values, data, given)
            found.classes_ = np.sort(found._learnt.labels)
            found.n_features_in_ = int(np.prod(found._learnt.input.shape))
            if values["feature_names"] is not None:
                found.feature_names_in_ = np.array(values["feature_names"], dtype=object)
        except (KeyError, AttributeError, RuntimeError) as error:
            raise damaged from error
        return found


def _saved(folder: Path) -> tuple[str, dict[str, Any], bytes]:
    """Return what is saved in a folder, and the name of the file that holds the weights.

    New weights wait beside the old ones until the JSON that vouches for them is written. Both may be replaced while
    they are read, so several tries are made.
    """
    for _ in range(TRIES):
        described = json.loads((folder / "estimator.json").read_bytes())
        for name in WEIGHTS:
            with suppress(FileNotFoundError):
                data = (folder / name).read_bytes()
                if digest_of(data, described["values"]) == described["sha256"]:
                    return name, described["values"], data
    raise ValueError("the checksum is wrong")


def _settle(folder: Path) -> None:
    """Let new weights take the place of the old ones if the JSON vouches for them; else they go."""
    try:
        name, _, _ = _saved(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # nothing saved that is worth keeping
        return
    if name == WEIGHTS[1]:
        (folder / name).replace(folder / WEIGHTS[0])
    else:
        (folder / WEIGHTS[1]).unlink(missing_ok=True)


def _choice(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r} is not known: it is {' or '.join(known)}")
