"""A model whose classifier has a closed form: its classes, what is kept of their photos, and what it answers by.

It is the same however the same photos came, and without a class or a photo as if that had never been there.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from edbl import store
from edbl.app.bundle import WEIGHTS, Contents, damaged, packed
from edbl.app.description import DIGITS, Bundle, Known, Score, Settings
from edbl.errors import EdblError
from edbl.methods import find_method
from edbl.methods.closed import ClosedForm, one_thread
from edbl.nets.closed import SHRINKAGES, Closed, Form, fitted, linked, rooted
from edbl.nets.kept import Kept, united
from edbl.nets.pooled import Pooled
from edbl.nets.sure import Sure, nearness

SUMS = "sums"  # the entry with what could be worked out from features again
UNIT = "options.unit"
FIXED = 0.7  # shrinkage where no sample can be left out
PART = 2000  # photos that are left out at a time
ENOUGH = 20  # photos of an update by which probabilities are calibrated where nothing is kept
TENSORS = ("weight", "bias", *(f"sure.{name}" for name in Sure._fields))  # of `Answers`
LINK = "link"  # of those whose form is bent


class Answers(NamedTuple):
    """What predictions are made by."""

    weight: Tensor  # [classes, width]
    bias: Tensor  # [classes]
    sure: Sure
    confidence: Callable[[Tensor], Tensor]
    vectors: Callable[[Tensor], Tensor]
    link: Tensor | None  # [2], of `linked`

    @torch.no_grad()
    def __call__(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability of each class, ``[n, classes]``, and how sure it is that one of them is right."""
        x = self.vectors(features.double())
        logits = x @ self.weight.T + self.bias
        return linked(logits, self.link).softmax(1), self.sure(self.confidence(logits), x)

    def tensors(self) -> dict[str, Tensor]:
        """Return all as named tensors."""
        link = {} if self.link is None else {LINK: self.link}
        return dict(zip(TENSORS, (self.weight, self.bias, *self.sure), strict=True)) | link


class LeftOut(NamedTuple):
    """Photos that were left out one by one, and what all others say of each."""

    scores: Tensor  # [n, classes], logits whose softmax is a calibrated probability
    labels: Tensor  # [n]
    digests: list[str]  # of the photos
    near: Tensor  # [n], cosines with the means of all others of their classes


@dataclass
class Exact(ABC):
    """Classes by name, and what is kept of their photos."""

    names: list[str]
    kept: Kept | Pooled
    form: type[Form]
    vectors: Callable[[Tensor], Tensor]
    changed: set[str] = field(default_factory=set)  # classes of which other photos are kept than on disk
    factor: float = 1.0  # by which scores become logits, where nothing is kept to find it anew
    former: Sure | None = None
    found: Closed | None = None  # what it answers by, once it is solved

    @staticmethod
    def new(settings: Settings, width: int) -> "Exact":
        """Return a model without classes."""
        form, vectors = _form(settings)
        if settings.keep == "nothing":
            return OfSums([], Pooled.none(width), form, vectors)
        none = Kept.none(width, torch.device("cpu"), vectors, form.balanced, ids=2)
        return OfFeatures([], none, form, vectors)

    @staticmethod
    def of(folder: Path, contents: Contents) -> "Exact":
        """Return a model as it is on disk."""
        bundle, tensors = contents.bundle, contents.tensors
        try:
            made = Exact.new(bundle.settings, tensors["weight"].shape[1])
            made.names = bundle.names
            made._take(folder, contents)
        except (RuntimeError, KeyError, ValueError, IndexError) as error:
            raise damaged(folder, WEIGHTS, f"its sums or features do not fit this model ({error})") from error
        return made

    @abstractmethod
    def _take(self, folder: Path, contents: Contents) -> None:
        """Take over what is on disk of photos."""

    def learn(self, features: Tensor, digests: Sequence[str], names: Sequence[str]) -> None:
        """Take in photos, by the name of each one's class, new or known."""
        self.names += [name for name in dict.fromkeys(names) if name not in self.names]
        self.changed |= set(names)
        self._add(features, digests, self._labels(names))

    @abstractmethod
    def _add(self, features: Tensor, digests: Sequence[str], labels: Tensor) -> None:
        """Take in photos."""

    def _labels(self, names: Sequence[str]) -> Tensor:
        number = {name: k for k, name in enumerate(self.names)}
        return torch.tensor([number[name] for name in names], dtype=torch.int64)

    def halved(self, features: Tensor) -> Tensor:
        """Return photos as the classifier takes them: what is kept is in half precision."""
        return self.vectors(features.half().double())

    def drop(self, name: str, digests: Sequence[str], features: Tensor | None = None) -> None:
        """Take out photos of a class; of one of which only sums are kept, ``features`` of all of them are wanted."""
        self.changed.add(name)
        self._drop(name, digests, features)

    @abstractmethod
    def _drop(self, name: str, digests: Sequence[str], features: Tensor | None) -> None:
        """Take out photos of a class."""

    @abstractmethod
    def features(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """Return the features of those photos of which they are kept."""

    def forget(self, name: str) -> None:
        """Take out a class."""
        self.kept = self.kept.forget(self.names.index(name))
        self.names.remove(name)

    def merge(self, names: Sequence[str], new: str) -> None:
        """Make one class of several, named ``new``."""
        first, *others = self._in_turn(names)
        for other in others:
            self._join(self.names.index(other), self.names.index(first))
            self.names.remove(other)
        self.names[self.names.index(first)] = new
        self.changed.add(new)

    def _in_turn(self, names: Sequence[str]) -> list[str]:
        """Return classes that are to become one in the order in which the others join the first."""
        return list(names)

    @abstractmethod
    def _join(self, label: int, into: int) -> None:
        """Make the photos of a class those of another one."""

    def join(self, other: "Exact") -> None:
        """Take in all that another model keeps; photos of both count once."""
        raise NotImplementedError("sums alone cannot be joined")

    def solve(self, fresh: tuple[Tensor, Sequence[str]] | None = None) -> tuple[Answers, LeftOut]:
        """Return what it answers by, and the photos that shrinkage, calibration and sureness were chosen by.

        Where nothing is kept these are the ``fresh`` ones: features, and the names of their classes.
        """
        with one_thread():
            return self._solved(fresh)

    @abstractmethod
    def _solved(self, fresh: tuple[Tensor, Sequence[str]] | None) -> tuple[Answers, LeftOut]:
        """Return the same, by one thread."""

    def left_out(self, features: Tensor, digests: Sequence[str], names: Sequence[str]) -> LeftOut:
        """Return what all others say of photos that were learnt before it was solved."""
        labels = self._labels(names)
        starts = range(0, len(labels), PART)
        with one_thread():
            parts = [
                self._left_out(self.halved(features[k : k + PART]), labels[k : k + PART], digests[k : k + PART])
                for k in starts
            ]
        scores, near = (torch.cat([getattr(part, name) for part in parts]) for name in ("scores", "near"))
        every = torch.cat([part.labels for part in parts])
        return LeftOut(scores, every, [digest for part in parts for digest in part.digests], near)

    def _left_out(self, x: Tensor, y: Tensor, digests: Sequence[str]) -> LeftOut:
        """Return what all others say of those that are not alone in their class."""
        assert self.found is not None
        rows = (self.kept.counts[y] > 1).nonzero().squeeze(1)
        x, y, own = x[rows], y[rows], [digests[row] for row in rows.tolist()]
        return LeftOut(linked(self.found.logits(x, y), self.found.link), y, own, nearness(self.kept.classes, x, y))

    def _answers(
        self,
        x: Tensor,
        y: Tensor,
        digests: Sequence[str],
        shrinkages: Sequence[float] = SHRINKAGES,
        factor: float | None = None,
    ) -> tuple[Answers, LeftOut]:
        self.found = found = fitted(self.form, self.kept.classes, x, y, shrinkages, factor)
        self.factor, classes = found.factor, self.kept.classes
        own = [digest for digest, judged in zip(digests, found.judged.tolist(), strict=True) if judged]
        x, y = x[found.judged], y[found.judged]
        near = nearness(classes, x, y)
        sure = Sure.of(self.form.confidence, found, classes.means, x, y, near)
        answers = Answers(found.weight, found.bias, sure, self.form.confidence, self.vectors, found.link)
        return answers, LeftOut(linked(found.left_out, found.link), y, own, near)

    def tensors(self, answers: Answers) -> dict[str, Tensor]:
        """Return what is to be saved with the model itself."""
        return answers.tensors()

    def files(self, bundle: Bundle) -> dict[str, bytes]:
        """Name the file with each class's features in ``bundle``, and return by name those that are not there yet."""
        return {}

    def save_sums(self, folder: Path, bundle: Bundle) -> None:  # noqa: B027 - there may be nothing to keep
        """Keep what could be worked out from features again."""


class OfFeatures(Exact):
    """The features of photos are kept; of those of a class of many, sums and some features."""

    kept: Kept

    def _take(self, folder: Path, contents: Contents) -> None:
        bundle = contents.bundle
        parts = [contents.packs[known.name] for known in bundle.classes]
        for known, part in zip(bundle.classes, parts, strict=True):
            _check_part(known, part, self.kept)
        entry = store.find(folder, SUMS, dict[str, str])
        sums = entry[1] if entry and entry[0] == {"of": _key(bundle)} else None
        if sums is not None:
            store.check_tensors(sums, _sized(self.kept.sums, len(parts)))
        self.kept = Kept.joined(parts, self.kept, sums)

    def _add(self, features: Tensor, digests: Sequence[str], labels: Tensor) -> None:
        self.kept = self.kept.add(features, labels, ids_of(digests))

    def _drop(self, name: str, digests: Sequence[str], features: Tensor | None) -> None:
        label = self.names.index(name)
        wanted, own = ids_of(digests), (self.kept.labels == label).nonzero().squeeze(1)
        same = (self.kept.ids[own].unsqueeze(0) == wanted.unsqueeze(1)).all(2)
        there = same.any(1)
        rows = self.kept.features.new_zeros(len(digests), self.kept.features.shape[1])
        if there.any():
            rows[there] = self.kept.features[own[same[there].int().argmax(1)]]
        if not there.all():
            if features is None:
                raise Unseen(name)
            rows[~there] = features[~there].half()
        self.kept = self.kept.drop(rows, torch.full((len(digests),), label), wanted)

    def features(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """Return the features of those photos of which they are kept."""
        if not digests:
            return {}
        rows = dict(zip(digests_of(self.kept.ids), self.kept.features, strict=True))
        return {digest: rows[digest] for digest in digests if digest in rows}

    def _in_turn(self, names: Sequence[str]) -> list[str]:
        many = [self.names[k] for k in self.kept.summed.tolist()]
        return sorted(names, key=lambda name: name not in many)

    def _join(self, label: int, into: int) -> None:
        kept = self.kept
        if label in kept.summed:
            parts = [kept.part(k) for k in range(len(self.names))]
            parts[into] = united(parts[into], parts[label], self.vectors)
            self.kept = Kept.joined([part for k, part in enumerate(parts) if k != label], self._none())
        else:
            rows = kept.labels == label
            labels = torch.full_like(kept.labels[rows], into - (into > label))
            self.kept = kept.forget(label).add(kept.features[rows], labels, kept.ids[rows])

    def _none(self) -> Kept:
        kept = self.kept
        return Kept.none(kept.features.shape[1], kept.labels.device, self.vectors, kept.balanced, ids=2)

    def join(self, other: Exact) -> None:
        """Take in all that another model keeps; photos of both count once."""
        assert isinstance(other, OfFeatures)
        parts = {name: self.kept.part(k) for k, name in enumerate(self.names)}
        for k, name in enumerate(other.names):
            part = other.kept.part(k)
            parts[name] = united(parts[name], part, self.vectors) if name in parts else part
        self.names = list(parts)
        self.changed |= set(other.names)
        self.kept = Kept.joined(list(parts.values()), self._none())

    def _solved(self, fresh: tuple[Tensor, Sequence[str]] | None) -> tuple[Answers, LeftOut]:
        kept, chosen, judging = self.kept, self.kept.choosing, self.kept.judging
        answers, left_out = self._answers(*kept.samples(chosen), digests_of(kept.ids[chosen]))
        if not torch.equal(chosen, judging):
            left_out = self._left_out(*kept.samples(judging), digests_of(kept.ids[judging]))
        return answers, left_out

    def files(self, bundle: Bundle) -> dict[str, bytes]:
        """Name the file with each class's features in ``bundle``, and return by name those that are not there yet."""
        made: dict[str, bytes] = {}
        for known in bundle.classes:
            if known.features and known.name not in self.changed:
                continue
            part = dict(self.kept.part(self.names.index(known.name)))
            order = np.lexsort(part["ids"].numpy().view(np.uint64).T[::-1])  # whatever order they came in
            part |= {name: part[name][torch.from_numpy(order)] for name in ("features", "ids")}
            known.features, data = packed(part)
            made[f"{known.features}.safetensors"] = data
        return made

    def save_sums(self, folder: Path, bundle: Bundle) -> None:
        """Keep what could be worked out from features again."""
        order = [self.names.index(name) for name in bundle.names]
        sums = dict(self.kept.sums)
        store.save(folder, SUMS, {"of": _key(bundle)}, sums | {n: sums[n][order] for n in ("counts", "means")})


class OfSums(Exact):
    """Nothing is kept of single photos, but sums."""

    kept: Pooled

    def _take(self, folder: Path, contents: Contents) -> None:
        blank, tensors = self.kept.tensors(), contents.tensors
        found = {name: tensors[f"pooled.{name}"] for name in blank}
        store.check_tensors(found, _sized(blank, len(self.names)))
        self.kept = Pooled.of(found)
        self.factor, self.former = float(tensors["factor"]), answers(contents).sure

    def _add(self, features: Tensor, digests: Sequence[str], labels: Tensor) -> None:
        self.kept = self.kept.add(self.halved(features), labels)

    def _drop(self, name: str, digests: Sequence[str], features: Tensor | None) -> None:
        if features is None:
            raise Unseen(name)
        labels = torch.full((len(digests),), self.names.index(name))
        self.kept = self.kept.drop(self.halved(features), labels)

    def features(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """Return none."""
        return {}

    def _join(self, label: int, into: int) -> None:
        self.kept = self.kept.merge(label, into)

    def _solved(self, fresh: tuple[Tensor, Sequence[str]] | None) -> tuple[Answers, LeftOut]:
        x, y = self.kept.means[:0], torch.zeros(0, dtype=torch.int64)
        if fresh:
            x, y = self.halved(fresh[0]), self._labels(fresh[1])
        enough = int((self.kept.counts[y] > 1).sum()) >= ENOUGH
        answers, left_out = self._answers(x, y, [""] * len(x), [FIXED], None if enough else self.factor)
        if not enough and self.former is not None:
            answers = answers._replace(sure=self.former._replace(means=answers.sure.means))
        return answers, left_out

    def tensors(self, answers: Answers) -> dict[str, Tensor]:
        """Return what is to be saved with the model itself."""
        own = {f"pooled.{name}": one for name, one in self.kept.tensors().items()}
        return answers.tensors() | own | {"factor": torch.tensor(self.factor).double()}


def drop_stale(folder: Path, bundle: Bundle) -> int:
    """Remove sums of another version, as what they are of may be forgotten; return how many bytes they had."""
    found = store.find(folder, SUMS, dict[str, str])
    if found and found[0] == {"of": _key(bundle)}:
        return 0
    there = [path for path in folder.glob(f"{SUMS}.*") if path.is_file()]
    size = sum(path.stat().st_size for path in there)
    store.remove(folder, SUMS)
    return size


def answers(contents: Contents) -> Answers:
    """Return what a model on disk answers by."""
    form, vectors = _form(contents.bundle.settings)
    weight, bias, *sure = (contents.tensors[name] for name in TENSORS)
    number, width = len(contents.bundle.classes), weight.shape[-1]
    wanted = [(number, width), (number,), (number, width), (2,), (2,), (sure[3].numel(),)]
    if [tuple(one.shape) for one in (weight, bias, *sure)] != wanted:
        raise ValueError("its tensors are of other shapes")
    link = contents.tensors.get(LINK)  # models made before there was one answer as they did
    if link is not None and (not form.bent or link.shape != (2,)):
        raise ValueError(f"tensor '{LINK}' is not that of its method")
    every = [one.double() for one in (weight, bias, *sure)]
    return Answers(every[0], every[1], Sure(*every[2:]), form.confidence, vectors, link)


def _form(settings: Settings) -> tuple[type[Form], Callable[[Tensor], Tensor]]:
    """Return the closed form of a model, and what makes vectors of features for it."""
    method = find_method(settings.method)
    assert issubclass(method, ClosedForm)
    return method.form, partial(rooted, unit=bool(settings.given.get(UNIT, True)))


def _sized(blank: Mapping[str, Tensor], classes: int) -> dict[str, Tensor]:
    """Return tensors of the shapes that sums of so many classes have, given those of none."""
    return {n: one if n == "scatter" else one.new_empty(classes, *one.shape[1:]) for n, one in blank.items()}


def _check_part(known: Known, part: Mapping[str, Tensor], none: Kept) -> None:
    """Refuse what is not kept of the photos of a class: it may come from anywhere."""
    number = len(part["ids"])
    wanted = {"features": none.features.new_empty(number, none.means.shape[1]), "ids": none.ids.new_empty(number, 2)}
    if "scatter" in part:
        scatter = none.sums["scatter"]
        wanted |= {"count": scatter[0], "mean": none.means.new_empty(none.means.shape[1]), "scatter": scatter}
    store.check_tensors(part, wanted)
    there = set(digests_of(part["ids"]))
    if not there <= set(known.digests) or ("scatter" not in part and len(there) != known.images):
        raise ValueError(f"the features of class '{known.name}' are of other photos")


def right(names: Sequence[str], left_out: LeftOut) -> dict[str, Score]:
    """Return how often photos that were left out are told right, by class."""
    hits = left_out.scores.argmax(1) == left_out.labels
    number = torch.bincount(left_out.labels, minlength=len(names)).tolist()
    found = torch.bincount(left_out.labels[hits], minlength=len(names)).tolist()
    return {name: Score(n, hit) for name, n, hit in zip(names, number, found, strict=True)}


def ids_of(digests: Sequence[str]) -> Tensor:
    """Return digests as numbers, ``[n, 2]``."""
    numbers = np.frombuffer(bytes.fromhex("".join(digests)), ">i8").astype(np.int64)
    return torch.from_numpy(numbers.reshape(-1, 2))


def digests_of(ids: Tensor) -> list[str]:
    """Return what `ids_of` made numbers of."""
    text = ids.numpy().astype(">i8").tobytes().hex()
    return [text[at : at + DIGITS] for at in range(0, len(text), DIGITS)]


def _key(bundle: Bundle) -> str:
    """Return what sums are of: the features of all classes, in order."""
    return hashlib.sha256(" ".join(known.features for known in bundle.classes).encode()).hexdigest()


class Unseen(EdblError):
    """Photos whose features are wanted to take them out of sums."""

    def __init__(self, name: str) -> None:
        super().__init__(f"of class '{name}' sums are kept, not each photo; give the photo's file")
