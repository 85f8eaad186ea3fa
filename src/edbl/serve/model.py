"""What a served model can be asked and told: one interface, for a folder that learns and for a file that does not."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edbl.data.decoding import Decoded, decode_bytes, digest
from edbl.serve.held import Held, Room, Shown, thumbnail
from edbl.serve.limits import Limits
from edbl.serve.refusals import Refused

Values = dict[str, Any]  # as the answers of the API have them


class Served(ABC):
    """A model by its name. All methods may be called from several threads; those that change it, from one at a time."""

    learns = "never"

    def __init__(self, name: str, place: Path, limits: Limits, room: Room | None = None) -> None:
        self.name, self.place, self.limits = name, place, limits
        self.held = Held(room or Room(limits))

    @property
    def places(self) -> Mapping[str, str]:
        """Paths of the server that messages may have, and what to say in their place."""
        resolved = self.place.resolve()
        return {
            str(self.place): self.name,
            str(resolved): self.name,
            f"{self.place.parent}/": "",
            f"{resolved.parent}/": "",
        }

    @property
    @abstractmethod
    def image_size(self) -> int:
        """The side of the images that it takes."""

    def read(self, data: bytes, file: str) -> Shown | Decoded:
        """Decode a photo that was sent, and hold it; what cannot be decoded says why."""
        decoded = decode_bytes(data, file, self.image_size, self.limits.pixels)
        if decoded.pixels is None:
            return decoded
        return self.held.put(digest(decoded.pixels), file, decoded.pixels)

    @abstractmethod
    def ask(self, shown: Sequence[Shown]) -> Sequence[Shown]:
        """Ask the model of now about photos, which say what it says then."""

    def photo(self, id: str) -> bytes | None:
        """Return a small JPEG of a photo, where one is at hand: here, of those that are held."""
        shown = self.held.get(id)
        return thumbnail(shown.pixels) if shown else None

    @abstractmethod
    def info(self) -> Values:
        """Return what the model is."""

    def finish(self) -> None:  # noqa: B027 - where nothing is put off, nothing is to do
        """Do what was put off, before anything else is changed or told."""

    def ahead(self) -> Callable[[], None] | None:
        """Work out a part of it, beside all else, and return what completes that part; None if nothing is left."""
        return None

    def idle(self) -> None:  # noqa: B027 - as for `finish`
        """Do what may be left undone."""

    def rest(self) -> None:  # noqa: B027 - where nothing can be read again, all stays
        """Let go of what can be read again, as others were wanted since."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way, and let go of all."""


class Learning(Served):
    """A model that changes."""

    @abstractmethod
    def teach(self, photos: Sequence[tuple[Shown, str]], yes: bool, relabel: bool) -> Values:
        """Learn photos with their classes, or stage them; both are on the disk when it returns."""

    @abstractmethod
    def relabel(self, photos: Sequence[tuple[str, str]]) -> Values:
        """Give photos, by id, another class."""

    @abstractmethod
    def learn(self) -> None:
        """Start an update with what is staged, or continue an unfinished one."""

    @abstractmethod
    def discard(self) -> None:
        """Drop what is staged, and an unfinished update."""

    @abstractmethod
    def events(self, seconds: float) -> Iterator[tuple[str, Values]]:
        """Yield what an update comes to, name and values, and nothing where ``seconds`` have passed without news."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""

    @abstractmethod
    def merge(self, classes: Sequence[str], into: str | None) -> None:
        """Make one class of several."""

    @abstractmethod
    def join(self, other: "Learning") -> None:
        """Take in what another model has learnt."""

    @abstractmethod
    def forget(self, classes: Sequence[str]) -> None:
        """Forget classes."""

    @abstractmethod
    def forget_photos(self, ids: Sequence[str]) -> None:
        """Forget photos."""

    @abstractmethod
    def undo(self, to: int | None, of: int | None = None) -> None:
        """Go back to a version, from version ``of`` if one is given."""

    @abstractmethod
    def prune(self) -> int:
        """Remove all other versions, and return how many bytes they had."""

    @abstractmethod
    def history(self) -> list[Values]:
        """Return the versions."""

    @abstractmethod
    def mistakes(self) -> list[Values]:
        """Return photos that the model would get wrong if it had not learnt them."""

    @abstractmethod
    def suspicious(self) -> list[Values]:
        """Return photos whose class may be wrong."""

    @abstractmethod
    def report(self) -> bytes:
        """Return the page of the model."""

    @abstractmethod
    def export(self, place: Path) -> None:
        """Write the model as an ONNX file."""


def learning(model: Served) -> Learning:
    """Return a model that changes, or refuse."""
    if not isinstance(model, Learning):
        raise Refused(409, f"'{model.name}' is an exported file, which answers and does not learn")
    return model
