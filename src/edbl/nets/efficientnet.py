"""EfficientNet-Lite0 and Lite2: small networks for photos, whose weights others have trained on ImageNet."""

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

if TYPE_CHECKING:
    from edbl.nets.backbones import Watch

STEM, WIDTH = 32, 1280
Stages = tuple[tuple[int, int, int, int, int], ...]
# Blocks, kernel, stride of the first, widening inside and channels of each stage.
STAGES: Stages = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STAGES2: Stages = (  # a fifth more blocks and a tenth more channels, rounded to eights
    (1, 3, 1, 1, 16),
    (3, 3, 2, 6, 24),
    (3, 5, 2, 6, 48),
    (4, 3, 2, 6, 88),
    (4, 5, 1, 6, 120),
    (5, 5, 2, 6, 208),
    (1, 3, 1, 6, 352),
)
# Layers as the usual state dicts call them, of the net and of a block, and as we do.
OUTER = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "top.conv", "_bn1": "top.norm"}
INNER = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
CLASSIFIER = "_fc"


class Layer(nn.Module):
    """A convolution and its norm. What a stride leaves uneven is padded at the right and at the bottom."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        inside = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, inside, groups=groups, bias=False)
        self.norm: nn.BatchNorm2d | nn.Identity = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer; a stride of 2 halves the size, rounded up."""
        if self.stride > 1:
            (top, bottom), (left, right) = (self.padding(size) for size in x.shape[2:])
            x = F.pad(x, [left, right, top, bottom])
        out: Tensor = self.norm(self.conv(x))
        return out

    def padding(self, size: int) -> tuple[int, int]:
        """Return what a stride needs before and after a row of this size."""
        needed = max((size - 1) // self.stride * self.stride + self.kernel - size, 0)
        return needed // 2, needed - needed // 2


class Inverted(nn.Module):
    """Widen, look at each channel by itself, narrow; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = inputs * widening
        self.expand = Layer(inputs, inner) if widening > 1 else None
        self.depthwise = Layer(inner, inner, kernel, stride, groups=inner)
        self.project = Layer(inner, outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block, which ends without a ReLU."""
        out = x if self.expand is None else F.relu6(self.expand(x))
        out = F.relu6(self.depthwise(out))
        narrow: Tensor = self.project(out)
        return narrow + x if self.shortcut else narrow


class EfficientNetLite0(nn.Module):
    """Stem, blocks, a wide last layer with or without its ReLU, global average pooling; colour images only."""

    width = WIDTH
    stages: ClassVar[Stages] = STAGES
    ends = (0, 2, 4, 10, 16)  # the last block of each size; the last layer counts as a block

    def __init__(self, last_relu: bool = True) -> None:
        super().__init__()
        self.last_relu = last_relu
        self.fresh: Callable[[], nn.Module] | None = None  # makes it with the weights that it came with
        self.stem = Layer(3, STEM, 3, 2)
        blocks, inputs = [], STEM
        for count, kernel, stride, widening, outputs in self.stages:
            for block in range(count):
                blocks.append(Inverted(inputs, outputs, kernel, 1 if block else stride, widening))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.top = Layer(inputs, WIDTH)

    def forward(self, x: Tensor, watch: "Watch | None" = None) -> Tensor:
        """Return features, ``[batch, width]``."""
        x = F.relu6(self.stem(x))
        for number, block in enumerate([*self.blocks, self.top]):
            x = block(x)
            if watch is not None:
                x = watch(number, x)
        if self.last_relu:
            x = F.relu6(x)
        return x.mean((2, 3))

    def folded(self) -> Self:
        """Return a copy that does not learn, its norms made part of its convolutions: the same features, sooner."""
        net = copy.deepcopy(self).eval().requires_grad_(False)
        for layer in net.modules():
            if isinstance(layer, Layer) and isinstance(layer.norm, nn.BatchNorm2d):
                layer.conv, layer.norm = fuse_conv_bn_eval(layer.conv, layer.norm), nn.Identity()
        return net


class EfficientNetLite2(EfficientNetLite0):
    """The same, deeper and wider, with 21 blocks."""

    stages = STAGES2
    ends = (0, 3, 6, 14, 21)


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the usual state dict under our names, without its classifier; every other tensor must have its place."""
    ours = {}
    for key, tensor in state.items():
        match key.split("."):
            case [layer, _] if layer == CLASSIFIER:
                continue
            case ["_blocks", number, layer, kind]:
                ours[f"blocks.{number}.{INNER[layer]}.{kind}"] = tensor
            case [layer, kind]:
                ours[f"{OUTER[layer]}.{kind}"] = tensor
            case _:
                raise KeyError(key)
    return ours
