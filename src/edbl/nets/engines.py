"""What computes features: PyTorch, or onnxruntime, which on a CPU is about twice as fast, in float32 or in eight bits.

The second differs from the first by less than 1e-5 of the largest feature. Eight bits are another step from that, so a
model that has learnt from features of one engine is asked with those of the same.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edbl.errors import EdblError
from edbl.nets.efficientnet import EfficientNetLite0

TORCH, ONNX, INT8 = "torch", "onnxruntime", "onnxruntime-int8"
ENGINES = (TORCH, ONNX, INT8)
FLAGS = frozenset({"avx512_vnni", "avx_vnni", "asimddp"})  # of processors that multiply eight bits fast
CPUINFO = Path("/proc/cpuinfo")

LITE_ONLY = f"{INT8} is there for efficientnet-lite0 and efficientnet-lite2 only; use {ONNX}"

Compute = Callable[[Tensor], Tensor]


def installed() -> bool:
    """Tell whether onnxruntime, and what its graphs are written with, is there."""
    return all(find_spec(name) for name in ("onnx", "onnxruntime"))


@cache
def fast_int8() -> bool:
    """Tell whether the processor is known to have instructions for sums of products of eight bits (VNNI)."""
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(FLAGS & set(line.split()) for line in lines if line.lower().startswith(("flags", "features")))


def check(engine: str) -> None:
    """Refuse an engine that there is not, or that cannot work here."""
    if engine not in ENGINES:
        raise EdblError(f"unknown engine '{engine}': there are {', '.join(ENGINES)}")
    if engine == INT8 and not fast_int8():
        raise EdblError(f"{INT8} needs a processor with VNNI, which this one is not known to have; use {ONNX}")
    if engine != TORCH and not installed():
        raise EdblError(f"features by {engine} need the library onnxruntime: run `pip install 'edbl[export]'`")


def computing(net: nn.Module, size: int, ranges: Tensor | None = None) -> Compute:
    """Return what computes the features of images of ``size`` by onnxruntime, one by one.

    So those of an image do not hang on what else is in its batch. With ``ranges`` it computes in eight bits.
    """
    session = _session(graph_of(net, size, ranges))

    def compute(x: Tensor) -> Tensor:
        images = x.numpy()
        found = [session.run(["features"], {"images": images[k : k + 1]})[0] for k in range(len(images))]
        return torch.from_numpy(np.concatenate(found))

    return compute


def graph_of(net: nn.Module, size: int, ranges: Tensor | None = None) -> bytes:
    """Return the ONNX graph that computes the features of images of ``size``, with ``ranges`` in eight bits."""
    if isinstance(net, EfficientNetLite0):
        from edbl.nets.lite_graph import lite_graph

        data, rounded = lite_graph(net, size)
        if ranges is not None:
            check_ranges(ranges, len(rounded))
            data, _ = lite_graph(net, size, [(low, high) for low, high in ranges.tolist()])
        return data
    if ranges is not None:
        raise EdblError(LITE_ONLY)
    from edbl.nets.graph import translate

    found: bytes = translate(net, torch.zeros(2, 3, size, size), "images", ["features"]).SerializeToString()
    return found


class Eight(nn.Module):
    """A network as its ONNX graph in eight bits, which `edbl export` puts into a file as it is."""

    def __init__(self, net: nn.Module, size: int, ranges: Tensor) -> None:
        super().__init__()
        self.graph = graph_of(net, size, ranges)
        self.compute = computing(net, size, ranges)

    def __deepcopy__(self, memo: object) -> "Eight":
        """Return itself: nothing in it changes."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return features."""
        return self.compute(x)


def ranges_of(net: nn.Module, x: Tensor) -> Tensor:
    """Return the least and the most that each value inside a network is over images, ``[values, 2]``."""
    if not isinstance(net, EfficientNetLite0):
        raise EdblError(LITE_ONLY)
    from edbl.nets.lite_graph import lite_graph

    data, rounded = lite_graph(net, x.shape[-1], inner=True)
    session, images = _session(data), x.numpy()
    found = []
    for k in range(len(images)):
        image = images[k : k + 1]
        values = [image, *session.run(rounded[1:], {"images": image})]  # the first is the image itself
        found.append([(value.min(), value.max()) for value in values])
    ends = np.array(found, dtype=np.float32)  # [n, values, 2]
    return torch.from_numpy(np.stack([ends[..., 0].min(0), ends[..., 1].max(0)], 1))


def check_ranges(ranges: Tensor, values: int) -> None:
    """Refuse ranges that cannot be those of a network: they may come from anywhere."""
    good = ranges.shape == (values, 2) and ranges.dtype == torch.float32
    if not good or not ranges.isfinite().all() or not (ranges[:, 0] <= ranges[:, 1]).all():
        raise EdblError(f"the ranges for {INT8} are damaged: they are no {values} pairs of numbers, the lower first")


def digest(engine: str, ranges: Tensor | None) -> str:
    """Return what tells features of this engine from those of others."""
    if ranges is None:
        return engine
    return f"{engine} {hashlib.sha256(ranges.contiguous().numpy().tobytes()).hexdigest()}"


def _session(data: bytes) -> Any:
    """Return a graph ready to run, in one thread: several run it at once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of every kind, and none of them documented
        why = str(error).partition("\n")[0]
        raise EdblError(f"onnxruntime cannot run the network: {why}\nuse engine {TORCH}") from error
