"""Backbones: an image or a vector in, one feature vector out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl.data.devices import usable
from edbl.errors import EdblError, unknown
from edbl.nets.efficientnet import EfficientNetLite0

if TYPE_CHECKING:
    from edbl.nets.fused import FusedResNet

# Sees the number of a block and what it returns before its ReLU; what it gives back goes on instead.
Watch = Callable[[int, Tensor], Tensor]


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; where the shape changes, option A pads with zeros, option B projects."""

    def __init__(self, inputs: int, outputs: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = (outputs - inputs) // 2
        self.shortcut: nn.Module | None = None
        if project and (stride != 1 or inputs != outputs):
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block, up to its last ReLU."""
        out: Tensor = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride != 1 or self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], [0, 0, 0, 0, self.padding, self.padding])
        return out + x


class ResNet(nn.Module):
    """A 3x3 stem without pooling, stages of basic blocks, global average pooling, with or without a last ReLU.

    One for ``large`` images begins with a 7x7 stem of stride 2 and a pooling of stride 2, as for ImageNet.
    """

    def __init__(
        self,
        channels: int,
        widths: Sequence[int],
        blocks: int,
        project: bool,
        last_relu: bool = True,
        large: bool = False,
    ) -> None:
        super().__init__()
        self.large = large
        self.width = widths[-1]
        self.last_relu = last_relu
        self.ends = tuple(blocks * (stage + 1) - 1 for stage in range(len(widths)))  # last block of each stage
        self.widths, self.project = tuple(widths), project
        self.stem = nn.Conv2d(channels, widths[0], *((7, 2, 3) if large else (3, 1, 1)), bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        layers = []
        inputs = widths[0]
        for stage, outputs in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(inputs, outputs, 2 if stage and not block else 1, project))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.fused: FusedResNet | None = None

    def fusible(self, shape: Sequence[int]) -> bool:
        """Tell whether the fused kernels fit this net and images of ``shape``."""
        doubling = all(2 * narrow == wide for narrow, wide in pairwise(self.widths))
        halving = shape[1] == shape[2] and shape[1] % 2 ** (len(self.widths) - 1) == 0
        return not self.project and set(self.widths) <= {16, 32, 64} and doubling and halving

    def fuse(self, shape: Sequence[int]) -> None:
        """Train and teach with the fused kernels from now on, in bf16, where they fit and none of them was refused."""
        if self.fusible(shape) and usable("network", self.stem.weight.device):
            from edbl.nets.fused import FusedResNet

            self.fused = FusedResNet(self, shape[1])

    def train(self, mode: bool = True) -> Self:
        """Begin to learn, or to be used; what was folded for use is folded anew."""
        if self.fused is not None:
            self.fused.folded = None
        return super().train(mode)

    def forward(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        """Return features, ``[batch, width]``."""
        if self.fused is not None and watch is None:
            if self.training:
                return self.fused.train(x, torch.bfloat16)
            if not (self.stem.weight.requires_grad or x.requires_grad):
                return self.fused.infer(x, torch.bfloat16)
        x = F.relu(self.norm(self.stem(x)))
        if self.large:
            x = _pooled(x) if x.is_cuda else F.max_pool2d(x, 3, 2, 1)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if watch is not None:
                x = watch(number, x)
            if self.last_relu or number < self.ends[-1]:
                x = F.relu(x)
        return x.mean((2, 3))


def _pooled(x: Tensor) -> Tensor:
    """Return the largest of each 3x3 pixels, 2 apart, of what is never negative.

    On a GPU PyTorch's own way back adds in any order, so that its bits are not always the same.
    """
    x = F.pad(x, [1, 1, 1, 1])
    first, second, third = (x[:, :, k : k + x.shape[2] - 2 : 2] for k in range(3))
    x = torch.maximum(torch.maximum(first, second), third)
    first, second, third = (x[:, :, :, k : k + x.shape[3] - 2 : 2] for k in range(3))
    return torch.maximum(torch.maximum(first, second), third)


class MLP(nn.Module):
    """Two hidden layers over vectors, or over flattened images."""

    ends = (0, 1)

    def __init__(self, inputs: int, width: int = 128, last_relu: bool = True) -> None:
        super().__init__()
        self.width = width
        self.last_relu = last_relu
        self.layers = nn.Sequential(
            nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width)),
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)),
        )

    def forward(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        """Return features, ``[batch, width]``."""
        x = x.flatten(1)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if watch is not None:
                x = watch(number, x)
            if self.last_relu or number < self.ends[-1]:
                x = F.relu(x)
        return x


class Given(nn.Module):
    """Vectors that are features already, such as those of a frozen network."""

    ends = ()
    last_relu = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        """Return the vectors."""
        return x.flatten(1)


class Foreign(nn.Module):
    """A network of another library; what its blocks return cannot be watched, and its last ReLU, if any, stays."""

    ends = ()
    last_relu = False

    def __init__(self, net: nn.Module, width: int, fresh: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.net = net
        self.width = width
        self.fresh = fresh

    def forward(self, x: Tensor, watch: Watch | None = None) -> Tensor:
        """Return features, ``[batch, width]``."""
        features: Tensor = self.net(x)
        return features


Backbone = ResNet | MLP | Given | EfficientNetLite0 | Foreign


@dataclass(frozen=True)
class Maker:
    """Makes backbones by the recipe, each with weights of its own."""

    shape: tuple[int, ...]  # of what they take: an image or a vector
    made: Callable[[Generator, int], Backbone]

    def __call__(self, generator: Generator, width: int = 0) -> Backbone:
        """Return another backbone; with ``width``, one of so many features."""
        if not isinstance(width, int) or width < 0:
            raise EdblError(f"a backbone cannot be made {width!r} features wide; give a whole number")
        return self.made(generator, width)


def refuse_width(name: str, width: int) -> None:
    """Refuse a width where there is no choice."""
    if width:
        raise EdblError(f"the width of backbone {name} is its own; it cannot be made with {width} features")


def _mlp(shape: Sequence[int], relu: bool, width: int) -> Backbone:
    return MLP(torch.Size(shape).numel(), width or 128, last_relu=relu)


def _given(shape: Sequence[int], relu: bool, width: int) -> Backbone:
    refuse_width("given", width)
    return Given(torch.Size(shape).numel())


def _resnet(usual: Sequence[int], **how: Any) -> Callable[[Sequence[int], bool, int], Backbone]:
    """Return what makes a residual network of stages as wide as ``usual``, or in proportion."""

    def make(shape: Sequence[int], relu: bool, width: int) -> Backbone:
        if width % 8:  # which all stages are parts of
            raise EdblError(f"the width of a residual network is a multiple of 8, not {width}")
        widths = [one * (width or usual[-1]) // usual[-1] for one in usual]
        return ResNet(shape[0], widths, last_relu=relu, **how)

    return make


# What makes each for inputs of a shape, with or without a last ReLU, of a width or, for 0, of its usual one.
BACKBONES: dict[str, Callable[[Sequence[int], bool, int], Backbone]] = {
    "resnet32": _resnet((16, 32, 64), blocks=5, project=False),
    "resnet18": _resnet((64, 128, 256, 512), blocks=2, project=True),
    "resnet18-large": _resnet((64, 128, 256, 512), blocks=2, project=True, large=True),
    "small": _resnet((16, 32), blocks=1, project=False),
    "mlp": _mlp,
    "given": _given,
}


def initialise(backbone: Backbone, generator: Generator) -> None:
    """Draw all weights anew and forget the running statistics; one that came with weights gets those again."""
    if isinstance(backbone, EfficientNetLite0 | Foreign) and backbone.fresh is not None:
        backbone.load_state_dict(backbone.fresh().state_dict())
        return
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fresh = nn.init.kaiming_normal_(torch.empty(module.weight.shape), generator=generator)
            module.weight.data.copy_(fresh)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.reset_parameters()


def build(name: str, shape: Sequence[int], generator: Generator, last_relu: bool = True, width: int = 0) -> Backbone:
    """Return a freshly initialised backbone for inputs of ``shape`` (without the batch dimension)."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    if len(shape) != 3 and name not in ("mlp", "given"):
        raise EdblError(f"{name} takes images, and these are vectors; use net.backbone mlp")
    backbone = BACKBONES[name](shape, last_relu, width)
    initialise(backbone, generator)
    return backbone
