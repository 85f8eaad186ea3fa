"""EfficientNet-Lite as an ONNX graph, written layer by layer: in float32, or in eight bits by ranges of its values."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper
from torch import nn

from edbl.nets.efficientnet import EfficientNetLite0, Inverted, Layer
from edbl.nets.graph import IR_VERSION, OPSET, Graph

IMAGES, FEATURES = "images", "features"
LEVELS, WEIGHT_LEVELS = 255, 127  # steps of eight bits: of values, from their least to their most, and of weights
Shape = list[str | int | None]
Range = tuple[float, float]  # the least and the most that a value was


def lite_graph(
    net: EfficientNetLite0, size: int, ranges: Sequence[Range] | None = None, inner: bool = False
) -> tuple[bytes, list[str]]:
    """Return a folded network for images of ``size`` as ONNX, and the names of the values that eight bits round.

    With a range for each of these it computes in eight bits; ``inner`` makes them outputs, to find their ranges.
    """
    writer = _Writer(ranges)
    writer.net(net, size)
    graph, named = writer.graph, writer.rounded[1:] if inner else []
    maps: Shape = ["n", None, None, None]
    outputs = [_output(FEATURES, ["n", net.width]), *(_output(name, maps) for name in named)]
    images = helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, ["n", 3, size, size])
    model = helper.make_model(
        helper.make_graph(graph.nodes, "edbl", [images], outputs, graph.weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(), writer.rounded


def _output(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


class _Writer:
    """Nodes of a network; what has passed `round` is what was put in, or what eight bits make of it."""

    def __init__(self, ranges: Sequence[Range] | None) -> None:
        self.graph = Graph(IMAGES)
        self.ranges = ranges
        self.rounded: list[str] = []
        self.scales: dict[str, np.float32] = {}  # of values in eight bits

    def net(self, net: EfficientNetLite0, size: int) -> None:
        x, size = self.layer(self.round(IMAGES), net.stem, size, clip=True)
        for block in net.blocks:
            assert isinstance(block, Inverted)
            before = x
            for layer in (block.expand, block.depthwise, block.project):
                if layer is not None:
                    x, size = self.layer(x, layer, size, clip=layer is not block.project)
            if block.shortcut:
                x = self.round(self.graph.add("Add", x, before))
        x, size = self.layer(x, net.top, size, clip=net.last_relu)
        mean = self.graph.add("ReduceMean", x, axes=[2, 3], keepdims=0)
        self.graph.nodes.append(helper.make_node("Identity", [mean], [FEATURES], FEATURES))

    def layer(self, x: str, layer: Layer, size: int, clip: bool) -> tuple[str, int]:
        """Add a convolution, with its ReLU6 if there is one, and return its output and the size of that."""
        graph, conv = self.graph, layer.conv
        if layer.stride > 1:
            before, after = layer.padding(size)
        else:
            before = after = layer.kernel // 2
        inputs = [x, *self.weights(x, conv)]
        pads = [before, before, after, after]
        out = graph.add("Conv", *inputs, pads=pads, strides=[layer.stride] * 2, group=conv.groups)
        if clip:
            out = graph.add("Clip", out, graph.constant(np.float32(0)), graph.constant(np.float32(6)))
        return self.round(out), -(-size // layer.stride)

    def weights(self, x: str, conv: nn.Conv2d) -> list[str]:
        """Add weights and bias, in eight and 32 bits where the input has eight: each channel has a scale of its own."""
        weight, bias = (part.detach().cpu().numpy() for part in (conv.weight, conv.bias) if part is not None)
        if x not in self.scales:
            return [self.graph.constant(weight), self.graph.constant(bias)]
        most = np.abs(weight).max((1, 2, 3))
        scale = (np.where(most > 0, most, 1) / WEIGHT_LEVELS).astype(np.float32)
        steps = np.rint(weight / scale[:, None, None, None]).astype(np.int8)
        wide = self.scales[x] * scale
        limits = np.iinfo(np.int32)
        whole = np.clip(np.rint(bias / wide.astype(np.float64)), limits.min, limits.max).astype(np.int32)
        return [self.widened(steps, scale), self.widened(whole, wide)]

    def widened(self, steps: np.ndarray, scale: np.ndarray) -> str:
        names = [self.graph.constant(part) for part in (steps, scale, np.zeros(len(scale), steps.dtype))]
        return self.graph.add("DequantizeLinear", *names, axis=0)

    def round(self, name: str) -> str:
        """Round a value to eight bits, which hold 0 exactly, as padding needs it."""
        self.rounded.append(name)
        if self.ranges is None:
            return name
        low, high = (float(bound) for bound in self.ranges[len(self.rounded) - 1])
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32((high - low) / LEVELS or 1.0)
        zero = np.uint8(np.clip(np.rint(-low / scale), 0, LEVELS))
        given = self.graph.constant(scale), self.graph.constant(zero)
        out = self.graph.add("DequantizeLinear", self.graph.add("QuantizeLinear", name, *given), *given)
        self.scales[out] = scale
        return out
