"""Features of photos by a frozen backbone: by the engine that the model names, and once for each photo."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor, nn

from edbl import store
from edbl.app.description import Settings
from edbl.app.photos import Array
from edbl.nets import cache, engines, pretrained
from edbl.nets.pretrained import CPU
from edbl.seeds import Seeds
from edbl.text import bar

PART = 64  # images whose features are computed between two saves
CALIBRATED = 100  # photos by which the ranges of eight bits are found


def of(
    settings: Settings,
    x: Tensor,
    device: torch.device,
    say: Callable[[int], None] = lambda done: None,
    keep: bool = True,
) -> Tensor:
    """Return the features of photos as they are, ``[n, 1, width]``; ``keep`` what was computed for another time."""
    backbone, kept = pretrained.find(settings.backbone), cache.usual() if keep else None
    if kept:
        return kept.views(backbone, x, say, device, settings.engine, _ranges(settings))
    return backbone.views(x, 0, Generator(), say, device, settings.engine, _ranges(settings))


def of_increment(
    settings: Settings,
    pixels: Array,
    rows: Sequence[int],
    copies: int,
    kind: str,
    place: Path,
    number: int,
    device: torch.device,
) -> Tensor:
    """Return features of photos of an increment, and of changed copies of each; each part is kept once it is there."""
    backbone, seeds = pretrained.find(settings.backbone), Seeds(settings.seed)
    parts = [torch.empty(0, 1 + copies, backbone.width, dtype=torch.float16)]
    place.mkdir(exist_ok=True)
    with bar("computing features", len(rows)) as say:
        for part in range(0, len(rows), PART):
            chosen, name = rows[part : part + PART], f"{kind}-{part}"
            found = store.find(place, name, dict[str, object])
            views = found[1].get("views") if found else None
            shape = len(chosen), 1 + copies, backbone.width
            if views is None or views.shape != shape or views.dtype != torch.float16:
                x, told = torch.from_numpy(pixels[np.array(chosen)]), partial(_add, say, part)
                if copies:
                    drawn = seeds.generator(CPU, "views", number, kind, part)
                    how = settings.engine, _ranges(settings), settings.mirror
                    views = backbone.views(x, copies, drawn, told, device, *how)
                else:
                    views = of(settings, x, device, told)
                store.save(place, name, {}, {"views": views})
            say(part + len(chosen))
            parts.append(views)
    return torch.cat(parts)


def ranges(settings: Settings, pixels: Array, rows: Sequence[int]) -> list[list[float]]:
    """Return the ranges by which eight bits compute, found on some of the first photos; none for other engines."""
    if settings.engine != engines.INT8:
        return []
    some = [rows[k] for k in np.unique(np.linspace(0, len(rows) - 1, CALIBRATED).astype(int))]
    found: list[list[float]] = pretrained.find(settings.backbone).ranges(torch.from_numpy(pixels[some])).tolist()
    return found


def network(settings: Settings) -> nn.Module:
    """Return the backbone as a model is served with it: in eight bits where it has learnt so, else in float32."""
    backbone, own = pretrained.find(settings.backbone), _ranges(settings)
    return backbone.load() if own is None else backbone.eight(settings.image_size, own)


def _ranges(settings: Settings) -> Tensor | None:
    return torch.tensor(settings.ranges, dtype=torch.float32) if settings.engine == engines.INT8 else None


def _add(say: Callable[[int], None], before: int, done: int) -> None:
    say(before + done)
