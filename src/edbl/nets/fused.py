"""A residual network on a GPU in a quarter of the kernels.

`FusedResNet` computes what `ResNet` computes in training mode, and what a frozen copy of it computes as a teacher, with
the kernels of `edbl.nets.kernels`: statistics, their gradients and shortcuts are part of the convolutions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edbl.nets import kernels, launch
from edbl.nets.backbones import Block, ResNet
from edbl.nets.launch import Launch

PAIRED = 32  # most output channels for which pixels are worked out in pairs
PIECED = 32  # least input channels for which a lone pixel's neighbours are multiplied one after the other


@dataclass(frozen=True)
class Layer:
    """A convolution and its batch normalisation."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    inputs: int
    outputs: int
    stride: int
    side_in: int
    side_out: int

    @property
    def group(self) -> int:
        """Neighbouring pixels that are worked out together."""
        return 2 if self.stride == 1 and self.outputs <= PAIRED and self.side_out % 2 == 0 else 1

    def tall(self, how: Launch) -> int:
        """Rows of pixels that are worked out together."""
        return how.tall if self.stride == 1 and self.side_out % 2 == 0 else 1

    @property
    def pieces(self) -> int:
        """Products that a row takes."""
        return 3 if self.group == 1 and self.inputs >= PIECED else 1

    @property
    def width(self) -> int:
        """Values of a row that a product takes on the way forward, as a power of two."""
        return _power((self.group + 2) // self.pieces * self.inputs)

    @property
    def back(self) -> int:
        """Values of a row that a product takes on the way back."""
        return _power((self.group + 2) // self.pieces * self.outputs)


class FusedResNet:
    """The layers of a `ResNet`, and the tables that bring its weights into the kernels' order and back."""

    def __init__(self, net: ResNet, side: int) -> None:
        self.layers = [_layer(net.stem, net.norm, side)]
        self.modes: list[int] = []  # of each block's shortcut: 1 the input itself, 2 option A
        for block in net.blocks.children():
            assert isinstance(block, Block)
            first = _layer(block.conv1, block.norm1, self.layers[-1].side_out)
            self.layers += [first, _layer(block.conv2, block.norm2, first.side_out)]
            self.modes.append(1 if first.inputs == first.outputs else 2)
        device = net.stem.weight.device
        self.last_relu = net.last_relu
        self.table = launch.table(device)
        self.chained = launch.chains(device)
        self.zero = torch.zeros(1, device=device)
        # Of each layer: programs that are done, and two totals for each channel.
        self.totals = [torch.zeros(1 + 2 * la.outputs, dtype=torch.int64, device=device) for la in self.layers]
        self.pack, self.unpack = (table.to(device) for table in _tables(self.layers))
        self.folded: tuple[list[Tensor], list[Tensor]] | None = None

    def parameters(self) -> list[Tensor]:
        """Return convolution weights, then scales, then shifts of all layers."""
        norms = [layer.norm for layer in self.layers]
        convs = [layer.conv.weight for layer in self.layers]
        return [*convs, *(norm.weight for norm in norms), *(norm.bias for norm in norms)]

    def start(self, kernel: str, layer: Layer) -> tuple[Launch, dict[str, Any]]:
        """Return how a kernel is started for a layer, and the arguments that all kernels are started with."""
        how, arguments = launch.started(self.table, kernel, layer.outputs)
        chained = {"launch_pdl": True} if self.chained else {}
        return how, {"CHAINED": self.chained, **arguments, **chained}

    def rectifies(self, number: int) -> bool:
        """Tell whether a layer's output goes through a ReLU."""
        return self.last_relu or number < len(self.layers) - 1

    def train(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return features in training mode; gradients flow to the parameters, not to ``x``."""
        return _train(self, dtype, x, *self.parameters())

    @torch.no_grad()
    def infer(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return features in evaluation mode, of a net that does not change any more."""
        if self.folded is None:
            self.folded = self._fold(dtype)
        weights, shifts = self.folded
        batch = len(x)

        def convolve(number: int, source: Tensor, shortcut: Tensor, mode: int) -> Tensor:
            layer = self.layers[number]
            y = _empty(batch, layer, source)
            how, arguments = self.start("infer", layer)
            tall = layer.tall(how)
            kernels.infer_kernel[(_tiles(y, how, layer.group * tall),)](
                source, weights[number], shifts[number], shortcut, y, len(y),
                layer.side_in, layer.side_out, layer.stride, layer.inputs, layer.width, layer.outputs,
                layer.group, layer.pieces, mode, self.rectifies(number), tall, how.block,
                num_stages=1, **arguments,
            )  # fmt: skip
            return y

        rows = _rows(x, dtype)
        y = convolve(0, rows, rows, 0)
        for block, mode in enumerate(self.modes):
            inner = convolve(2 * block + 1, y, y, 0)
            y = convolve(2 * block + 2, inner, y, mode)
        return _pool(y, batch)

    def _fold(self, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        scaled, shifts = [], []
        for layer in self.layers:
            norm = layer.norm
            assert norm.running_mean is not None
            assert norm.running_var is not None
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            scaled.append(layer.conv.weight * scale.view(-1, 1, 1, 1))
            shifts.append(norm.bias - norm.running_mean * scale)
        return self.packed(scaled, dtype)[0], shifts

    def packed(self, weights: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        """Return weights as the kernels take them on the way forward, and on the way back."""
        flat = torch.cat([*(w.flatten() for w in weights), self.zero]).to(dtype)[self.pack]
        forward = [3 * layer.pieces * layer.width * layer.group * layer.outputs for layer in self.layers]
        backward = [3 * layer.pieces * layer.back * layer.group * layer.inputs for layer in self.layers]
        parts = torch.split(flat, forward + backward)
        return list(parts[: len(forward)]), list(parts[len(forward) :])


def _tiles(z: Tensor, how: Launch, group: int) -> int:
    return -(-len(z) // (group * how.block))


def _power(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


def _layer(conv: nn.Conv2d, norm: nn.BatchNorm2d, side: int) -> Layer:
    stride = conv.stride[0]
    return Layer(conv, norm, conv.in_channels, conv.out_channels, stride, side, -(-side // stride))


def _tables(layers: list[Layer]) -> tuple[Tensor, Tensor]:
    """Return the indices that pack weights for the kernels, and those that unpack the gradients of the weights."""
    end = sum(layer.conv.weight.numel() for layer in layers)
    forward, backward, unpack = [], [], []
    start = 0
    for layer in layers:
        shape = (layer.outputs, layer.inputs, 3, 3)
        index = start + torch.arange(torch.Size(shape).numel())
        weight = index.view(shape)
        forward.append(_banded(weight.permute(2, 3, 1, 0), layer, layer.width, end))
        backward.append(_banded(weight.flip(2, 3).permute(2, 3, 0, 1), layer, layer.back, end))
        unpack.append(index.view(3, 3, layer.inputs, layer.outputs).permute(3, 2, 0, 1).flatten())
        start += len(index)
    return torch.cat(forward + backward), torch.cat(unpack)


def _banded(weight: Tensor, layer: Layer, width: int, empty: int) -> Tensor:
    """Return ``[3, pieces, width, group * out]`` of ``[3, 3, in, out]``: kernel rows, shifted for each pixel."""
    _, _, inputs, outputs = weight.shape
    table = torch.full((3 * layer.pieces, width, layer.group * outputs), empty)
    taken = 3 // layer.pieces * inputs
    for pixel in range(layer.group):
        rows = slice(pixel * inputs, pixel * inputs + taken)
        table[:, rows, pixel * outputs : (pixel + 1) * outputs] = weight.reshape(-1, taken, outputs)
    return table.flatten()


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.permute(0, 2, 3, 1).to(dtype).contiguous()


def _empty(batch: int, layer: Layer, like: Tensor) -> Tensor:
    return like.new_empty(batch * layer.side_out**2, layer.outputs)


def _pool(y: Tensor, batch: int) -> Tensor:
    return y.view(batch, -1, y.shape[1]).mean(1, dtype=torch.float32)


class _Train(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, net: FusedResNet, dtype: torch.dtype, x: Tensor, *parameters: Tensor) -> Tensor:
        layers = net.layers
        weights, back = net.packed(list(parameters[: len(layers)]), dtype)
        raws: list[Tensor] = []  # z of each layer
        stats: list[Tensor] = []
        inputs = [_rows(x, dtype)]  # of each layer, and at last the output

        def convolve(number: int, shortcut: Tensor | None, mode: int) -> None:
            """Append a layer's raw output and what follows it up to the ReLU."""
            layer, norm = layers[number], layers[number].norm
            z = _empty(len(x), layer, inputs[-1])
            stat = x.new_empty(4, layer.outputs, dtype=torch.float32)
            how, arguments = net.start("forward", layer)
            tall = layer.tall(how)
            kernels.forward_kernel[(min(how.programs, _tiles(z, how, layer.group * tall)),)](
                inputs[-1], weights[number], z, net.totals[number],
                norm.weight, norm.bias, norm.running_mean, norm.running_var, stat, len(z),
                layer.side_in, layer.side_out, layer.stride, layer.inputs, layer.width, layer.outputs,
                layer.group, layer.pieces, tall, how.block, num_stages=1, **arguments,
            )  # fmt: skip
            y = torch.empty_like(z)
            how, arguments = net.start("activate", layer)
            kernels.activate_kernel[(_tiles(z, how, 1),)](
                z, stat, z if shortcut is None else shortcut, y, len(z), layer.side_out, layer.outputs, mode,
                net.rectifies(number), how.block, **arguments,
            )  # fmt: skip
            raws.append(z)
            stats.append(stat)
            inputs.append(y)

        convolve(0, None, 0)
        for block, mode in enumerate(net.modes):
            shortcut = inputs[-1]
            convolve(2 * block + 1, None, 0)
            convolve(2 * block + 2, shortcut, mode)
        ctx.net, ctx.saved = net, (back, raws, stats, inputs)
        return _pool(inputs[-1], len(x))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        net: FusedResNet = ctx.net
        back, raws, stats, inputs = ctx.saved
        layers = net.layers
        # The sums of all layers of one width stand in one table, so that one reduction serves them all.
        columns: dict[int, int] = {}
        starts = []
        for layer in layers:
            starts.append(columns.setdefault(layer.outputs, 0))
            columns[layer.outputs] += layer.conv.weight.numel()
        dw = {width: stats[0].new_empty(launch.SUMS["weight"][width].programs, columns[width]) for width in columns}
        dscales = [torch.empty_like(layer.norm.weight) for layer in layers]
        dshifts = [torch.empty_like(layer.norm.bias) for layer in layers]
        factors = [stats[0].new_empty(3, layer.outputs) for layer in layers]

        def behind(number: int) -> tuple[Any, ...]:
            """Return what a kernel needs to take a gradient through the normalisation of a layer."""
            return net.totals[number], layers[number].norm.weight, dscales[number], dshifts[number], factors[number]

        def weight(number: int, g: Tensor) -> Tensor:
            """Work out the gradient of a layer's weights, and return that at its raw output."""
            layer, z = layers[number], raws[number]
            dz = torch.empty_like(g)
            (how, arguments), width = net.start("weight", layer), layer.outputs
            kernels.weight_kernel[(how.programs, 3 // how.rows)](
                inputs[number], g, z, factors[number], dz, dw[width][:, starts[number] :], len(z), columns[width],
                layer.side_in, layer.side_out, layer.stride, layer.inputs, layer.width, layer.outputs,
                layer.group, layer.pieces, how.rows, layer.tall(how), how.block,
                num_stages=1, **arguments,
            )  # fmt: skip
            return dz

        def data(number: int, dz: Tensor, shortcut: Tensor | None, mode: int) -> Tensor:
            """Return the gradient at the output of the normalisation before a layer."""
            layer, z = layers[number], raws[number - 1]
            g = torch.empty_like(z)
            how, arguments = net.start("data", layer)
            tall = layer.tall(how)
            kernels.data_kernel[(min(how.programs, _tiles(z, how, layer.group * tall)),)](
                dz, back[number], dz if shortcut is None else shortcut, inputs[number], z, stats[number - 1], g,
                *behind(number - 1), len(z),
                layer.side_in, layer.side_out, layer.stride, layer.inputs, layer.back, layer.outputs,
                layer.group, layer.pieces, mode, tall, how.block, num_stages=1, **arguments,
            )  # fmt: skip
            return g

        last = layers[-1]
        g = torch.empty_like(raws[-1])
        how, arguments = net.start("pool", last)
        kernels.pool_kernel[(min(how.programs, _tiles(g, how, 1)),)](
            gradients[0].contiguous(), inputs[-1], raws[-1], stats[-1], g, *behind(len(layers) - 1), len(g),
            last.side_out, last.outputs, net.last_relu, how.block, **arguments,
        )  # fmt: skip
        for number in reversed(range(len(net.modes))):
            first, second = 2 * number + 1, 2 * number + 2
            inner = data(second, weight(second, g), None, 0)
            g = data(first, weight(first, inner), g, net.modes[number])
        weight(0, g)
        # Layers of one width follow each other, and so do their columns.
        flat = torch.cat([table.sum(0) for table in dw.values()])[net.unpack]
        sizes = [layer.conv.weight.numel() for layer in layers]
        dconvs = [d.view_as(layer.conv.weight) for d, layer in zip(torch.split(flat, sizes), layers, strict=True)]
        return (None, None, None, *dconvs, *dscales, *dshifts)


_train: Callable[..., Tensor] = _Train.apply
