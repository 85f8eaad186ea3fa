"""Randomness: every draw of a run comes from one seed and the place where it is made."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b

import torch


@dataclass(frozen=True)
class Seeds:
    """Generators named by place, such as ``("task", 2, "train", "epoch", 17)``.

    A generator depends on the seed and its place alone, not on what was drawn before it: an epoch that is repeated
    after a crash repeats its draws, and no generator state has to be stored.
    """

    seed: int

    def number(self, *place: int | str) -> int:
        """Return the 63-bit seed of a place."""
        digest = blake2b(repr((self.seed, *place)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, device: torch.device, *place: int | str) -> torch.Generator:
        """Return a fresh generator for a place."""
        return torch.Generator(device).manual_seed(self.number(*place))

    @contextmanager
    def everywhere(self, *place: int | str) -> Iterator[None]:
        """Let PyTorch's global generators follow the seed, for code that draws from them; the caller's come back."""
        gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(gpus):
            torch.manual_seed(self.number(*place, "global"))
            yield
