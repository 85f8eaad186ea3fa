"""`EDBLClassifier`: a scikit-learn classifier that keeps learning new classes."""

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y, validate_data
from torch import Tensor
from torch.nn import functional

import edbl
from edbl import config, presets, store, users
from edbl.app.model import Model
from edbl.app.samples import Array, Pictures, Vectors
from edbl.engine import environment
from edbl.engine.progress import Bars, Progress
from edbl.errors import EdblError
from edbl.recipe import OF_RUNS
from edbl.schedule import Schedule
from edbl.store import Damaged
from edbl.training import MOST_PAD, Training

NAME, FORMAT = "estimator", 1  # of a saved estimator
MANY = 10_000  # samples of one call from which batches are of 128, not of 32
SMALL = 16  # pixels: side of images up to which the net is `small`
GIVEN = "given"  # the backbone of vectors that are features already
ROWS = 64  # vectors are predicted in multiples of so many, as matrix products of other sizes round otherwise
READOUTS = ("cnn", "nme")
SHAPE = ("n_features_in_", "feature_names_in_")  # what scikit-learn's checks note of X
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
class _Saved:
    """What is saved of what was learnt, beside tensors."""

    recipe: dict[str, Any]
    sizes: list[int]
    increments: int
    samples: int
    classes: list[Any]
    dtype: str  # of the classes; "O" where they are texts of any length
    shape: tuple[int, ...] | None  # of images; None for vectors
    white: float  # of images


@dataclass(frozen=True)
class _File:
    """What ``estimator.json`` says."""

    edbl: str  # the version that saved it
    parameters: dict[str, bool | int | float | str | dict[str, Any] | None]
    feature_names: list[str] | None
    learnt: _Saved


@dataclass(frozen=True)
class _Learnt:
    """All that was learnt."""

    input: Vectors | Pictures
    labels: Array  # one for each class, in the order of the model's
    model: Model

    def pack(self) -> tuple[_Saved, dict[str, Tensor]]:
        """Return it as values that JSON can hold, and tensors."""
        model, read = self.model, self.input
        saved = _Saved(
            recipe=model.learner.training.values(),
            sizes=model.sizes,
            increments=model.increments,
            samples=model.seen_images,
            classes=self.labels.tolist(),
            dtype="O" if self.labels.dtype.kind in "OT" else self.labels.dtype.str,
            shape=read.shape if isinstance(read, Pictures) else None,
            white=read.white if isinstance(read, Pictures) else 0.0,
        )
        return saved, model.tensors() | read.tensors()

    @classmethod
    def unpack(cls, saved: _Saved, tensors: Mapping[str, Tensor], given: Mapping[str, object]) -> Self:
        """Return what `pack` was given; recipe values of ``given`` win over the packed ones."""
        recipe = Training.of(saved.recipe, given)
        read: Vectors | Pictures
        if saved.shape is not None:
            read = Pictures(saved.shape, saved.white, recipe.data.mean, recipe.data.std)
        else:
            read = Vectors.of(tensors)
        model = _build(recipe, read, Progress())
        model.load(dict(tensors), _names(len(saved.classes)), saved.sizes)
        model.increments, model.seen_images = saved.increments, saved.samples
        return cls(read, np.array(saved.classes, dtype=np.dtype(saved.dtype)), model)

    def again(self, recipe: Training, read: Vectors | Pictures, progress: Progress) -> Model:
        """Return a copy of the model, to learn on by a recipe that may be another."""
        model, old = _build(recipe, read, progress), self.model
        try:
            model.load(old.tensors(), _names(len(self.labels)), old.sizes)
        except ValueError as error:
            raise ValueError("options do not fit the net as it was learnt; call fit to begin anew") from error
        model.increments, model.seen_images = old.increments, old.seen_images
        return model


def _names(count: int) -> list[str]:
    """Return what the model calls its classes: their numbers."""
    return [str(number) for number in range(count)]


def _build(recipe: Training, read: Vectors | Pictures, progress: Progress) -> Model:
    device = environment.pick_device(recipe.device)
    return Model(recipe, read.shape, recipe.data.transform(device), device, progress=progress)


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

    - ``method``: any method but ``joint`` (``edbl list methods``), or the path of a .py file with one
    - ``memory``: exemplars kept, ``total=K`` of all classes together or ``per_class=k``
    - ``readout``: ``cnn``, the scores of the network, or ``nme``, the nearest mean of exemplars; counts when predicting
    - ``backbone``: ``auto`` is ``mlp`` for vectors; for images ``small`` up to 16 pixels a side, ``resnet32`` above
    - ``epochs``: passes over the samples of a call; None means 30; a method's further phases change in proportion
    - ``batch_size``: samples in a batch; None means 32, or 128 in a call with 10,000 samples or more
    - ``learning_rate``: at first; None means 0.1; for ``given`` 6 over the mean square length; further phases' too
    - ``options``: other settings by recipe key, such as ``{"optim.weight_decay": 1e-3}``; not ``preset``
    - ``device``: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or ``xpu``
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
        device: str = "auto",
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
            read = Vectors.first(x, self.backbone == GIVEN) if x.ndim == 2 else Pictures.first(x)
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        else:
            read, seed = old.input.later(x), old.model.learner.training.seed
        samples = read.tensor(x)
        labels, numbers = _numbered(old.labels if old else y[:0], y)
        began = time.monotonic()
        shown: AbstractContextManager[Progress] = nullcontext(Progress())
        if self.verbose:
            shown = Bars(Console(stderr=True))
        with shown as progress:
            try:
                model = self._model(read, samples, seed, old, progress)
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
        self, read: Vectors | Pictures, samples: Tensor, seed: int, old: _Learnt | None, progress: Progress
    ) -> Model:
        """Return a model that can learn from samples, after what was learnt before."""
        recipe = self._training(read, samples, seed)
        if old is None:
            return _build(recipe, read, progress)
        before = old.model.learner.training
        pairs = {"method": (before.method, recipe.method), "backbone": (before.net.backbone, recipe.net.backbone)}
        for what, (was, now) in pairs.items():
            if was != now:
                raise ValueError(f"{what} was '{was}' and is '{now}' now; call fit to begin anew with it")
        return old.again(recipe, read, progress)

    def _training(self, read: Vectors | Pictures, samples: Tensor, seed: int) -> Training:
        """Return the recipe for learning from samples."""
        if not isinstance(self.method, str):
            raise ValueError(f"method {self.method!r} is not the name of a method, nor a path")
        given_options = {} if self.options is None else self.options
        if not isinstance(given_options, Mapping) or not all(isinstance(key, str) for key in given_options):
            raise ValueError(f"options {self.options!r} are not recipe keys with values, such as {{'optim.warmup': 2}}")
        known = Training.keys(self.method)
        for key in given_options:
            if key == "preset" or (not config.ends(key, known) and config.ends(key, OF_RUNS)):
                raise ValueError(f"'{key}' has no effect here: samples are those that are given; leave it out")
        options = Training.checked(self.method, given_options)
        for key in sorted(PARAMETERS.keys() & options.keys()):
            raise ValueError(f"'{key}' is no option here; it is the parameter {PARAMETERS[key]}")
        _choice("readout", self.readout, READOUTS)
        vectors = isinstance(read, Vectors)
        backbone = self.backbone
        if backbone == "auto":
            backbone = "mlp" if vectors else "small" if max(read.shape[1:]) <= SMALL else "resnet32"
        if vectors:
            _choice("backbone for vectors", backbone, ("mlp", GIVEN))
        batch = self._value("batch_size", "optim.batch", 128 if len(samples) >= MANY else 32)
        given: dict[str, object] = {
            "method": self.method,
            "preset": "samples",
            "memory": self.memory,
            "seed": seed,
            "device": self.device,
            "net.backbone": backbone,
            "optim.batch": batch,
        }
        if isinstance(read, Pictures):
            given |= {"data.mean": read.mean, "data.std": read.std, "data.pad": min(min(read.shape[1:]) // 8, MOST_PAD)}
        if "options.min_old" in known:
            given["options.min_old"] = max(1, batch // 4)
        usual = Training.of(given)
        epochs = self._value("epochs", "schedule.epochs", usual.schedule.epochs)
        # The gradient of a linear layer grows with the square of its input's length.
        own = usual.schedule.lr
        if backbone == GIVEN:
            own = presets.UNIT_RATE / max(float(samples.square().sum(1).mean()), 1e-6)
        rate = self._value("learning_rate", "schedule.lr", own)
        further = {f"options.{f.name}.": getattr(usual.options, f.name) for f in fields(cast(Any, usual.options))}
        for prefix, schedule in {"schedule.": usual.schedule, **further}.items():
            if isinstance(schedule, Schedule):
                scaled = schedule.scaled(max(1, round(schedule.epochs * epochs / usual.schedule.epochs)))
                given |= config.flatten(replace(scaled, lr=schedule.lr * (rate / usual.schedule.lr)), prefix)
        given["optim.warmup"] = min(usual.optim.warmup, epochs // 6)
        recipe = Training.of(given, options)
        if isinstance(read, Pictures):
            recipe.data.check(read.shape[0])
        return recipe

    def _value(self, parameter: str, key: str, usual: Any) -> Any:
        """Return a parameter, checked as the recipe key that it stands for."""
        value = getattr(self, parameter)
        return usual if value is None else Training.keys(self.method)[key].check(parameter, value)

    def _read(self, X: Any, y: Any, read: Vectors | Pictures | None) -> tuple[Array, Array]:
        """Return checked samples, and labels unless ``y`` says that there are none."""
        predicting = isinstance(y, str)
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) < 3:
            if isinstance(read, Pictures):
                raise ValueError(f"X is not images, but {type(self).__name__} was fitted with images")
            checked = validate_data(self, X, y, reset=read is None, dtype=np.float64)
            return (checked, np.empty(0)) if predicting else checked
        if isinstance(read, Vectors):
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
        if self.readout == "nme" and not len(learnt.model.memory):
            raise ValueError("there are no exemplars, whose means readout 'nme' asks; use 'cnn'")
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
        if "_learnt" in state:
            saved, tensors = self._learnt.pack()
            state["_learnt"] = saved, store.bytes_of(tensors)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_learnt" in state:
            saved, data = state["_learnt"]
            self._learnt = _Learnt.unpack(saved, store.tensors_in(data), {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and all that was learnt to a folder, for `load`. A RandomState is not written."""
        check_is_fitted(self)
        parameters = {k: _plain(v) for k, v in self.get_params().items() if not isinstance(v, np.random.RandomState)}
        if self.options is not None:
            parameters["options"] = {k: _plain(v) for k, v in self.options.items()}
        names = vars(self).get("feature_names_in_")
        saved, tensors = self._learnt.pack()
        file = _File(edbl.__version__, parameters, None if names is None else names.tolist(), saved)
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with store.lock(folder):
                store.sweep(folder, NAME)
                store.save(folder, NAME, file, tensors, FORMAT)
        except (TypeError, ValueError) as error:
            raise ValueError(f"a parameter or the labels cannot be saved: {error}") from error
        except OSError as error:
            raise EdblError(f"cannot save to '{folder}': {error.strerror or error}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], **parameters: Any) -> Self:
        """Return the estimator that `save` wrote; ``parameters`` win over those saved.

        A method of your own, a .py file, is not run because a saved file names it: give ``method`` again.
        """
        folder = Path(path)
        try:
            file, tensors = store.load(folder, NAME, _File, FORMAT)
        except OSError as error:
            raise EdblError(f"there is no estimator in '{folder}': {error.strerror}") from error
        except Damaged as error:
            raise _damaged(folder, f"{error.file}: {error.why}") from error
        if "method" not in file.learnt.recipe:
            raise _damaged(folder, "its recipe names no method")
        own = users.files(file.learnt.recipe)
        for key, name in {**users.files(file.parameters), **own}.items():
            if (word := users.KEYS[key]) not in parameters:
                raise EdblError(
                    f"the estimator in '{folder}' learns by a {word} of its own, {name}; "
                    f"give that file, if you trust it, as load(path, {word}=FILE)"
                )
        if odd := sorted(file.parameters.keys() - cls._get_param_names()):
            raise _damaged(folder, f"it has no parameter '{odd[0]}'")
        found = cls(**{**file.parameters, **parameters})
        given = {"device": found.device} | {key: getattr(found, users.KEYS[key]) for key in own}
        try:
            found._learnt = _Learnt.unpack(file.learnt, tensors, given)
        except (KeyError, RuntimeError, TypeError, ValueError, IndexError) as error:
            raise _damaged(folder, f"what it says does not fit its tensors ({str(error).splitlines()[0]})") from error
        found.classes_ = np.sort(found._learnt.labels)
        found.n_features_in_ = int(np.prod(found._learnt.input.shape))
        if file.feature_names is not None:
            found.feature_names_in_ = np.array(file.feature_names, dtype=object)
        return found


def _damaged(folder: Path, why: str) -> EdblError:
    return EdblError(f"the estimator in '{folder}' is damaged: {why}\nsave it again, or take a copy")


def _choice(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r} is not known: it is {' or '.join(known)}")
