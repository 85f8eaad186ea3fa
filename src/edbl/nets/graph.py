"""A PyTorch module as an ONNX graph: PyTorch records its operators, each becomes one of ONNX or a few."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, compose, helper, numpy_helper
from torch import Tensor, fx, nn

from edbl.errors import EdblError

OPSET = 17
IR_VERSION = 8  # of opset 17; onnx would write its newest, which runtimes of last year refuse
TYPES = {torch.float32: TensorProto.FLOAT, torch.uint8: TensorProto.UINT8}


class Call:
    """An operator of PyTorch with all its arguments by name, defaults included."""

    def __init__(self, node: fx.Node) -> None:
        self.full_name = str(node.target)
        # PyTorch takes what an operator changes in place, with its name ending in _, for a new value from there on.
        self.name = self.full_name.removeprefix("aten.").partition(".")[0].removesuffix("_")
        self.out: Any = node.meta.get("val")  # as PyTorch foresees it: shape and type
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            raise self.unsupported()
        known = {argument.name: argument.default_value for argument in schema.arguments}
        self.arguments: dict[str, Any] = known | dict(zip(known, node.args, strict=False)) | node.kwargs
        self.first = next(iter(known), "")  # name of the first argument

    def __getitem__(self, name: str) -> Any:
        if name not in self.arguments:
            raise self.unsupported(f" without {name}")
        return self.arguments[name]

    def unsupported(self, why: str = "") -> EdblError:
        """Return the error for an operator that has no translation."""
        return EdblError(
            f"the network cannot be exported: it uses {self.full_name}{why}, which has no translation to ONNX"
        )

    def require(self, **wanted: object) -> None:
        """Refuse arguments that are not those which the translation stands for."""
        for name, value in wanted.items():
            if self.arguments.get(name, value) != value:
                raise self.unsupported(f" with {name}={self.arguments[name]}")


class Graph:
    """ONNX nodes and weights, and the name of each value of PyTorch's graph among them."""

    def __init__(self, images: str) -> None:
        self.images = images  # name of the input
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.names: dict[fx.Node, str] = {}
        self.lists: dict[fx.Node, list[str]] = {}  # of operators that return several

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node and return the name of its output."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any, name: str | None = None) -> str:
        """Add values that do not change and return their name."""
        name = name or f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def numbers(self, *values: int) -> str:
        """Add a list of whole numbers, such as a shape, and return its name."""
        return self.constant(np.array(values, dtype=np.int64))

    def value(self, call: Call, argument: Any) -> str:
        """Return the name of an argument: the value of a node, or a number."""
        if isinstance(argument, fx.Node) and argument in self.names:
            return self.names[argument]
        if isinstance(argument, int | float):
            return self.constant(np.float32(argument))
        raise call.unsupported(f" of {argument}")

    def tensors(self, call: Call, *names: str) -> list[str]:
        """Return the names of arguments, up to the first that is not given."""
        given = [call[name] for name in names]
        return [self.value(call, argument) for argument in given[: given.index(None) if None in given else None]]


Translation = Callable[[Graph, Call], str | list[str]]


def _node(kind: str, *arguments: str, **wanted: object) -> Translation:
    """Return the translation to one node without attributes."""

    def translate(graph: Graph, call: Call) -> str:
        call.require(**wanted)
        return graph.add(kind, *graph.tensors(call, *(arguments or [call.first])))

    return translate


def _same(graph: Graph, call: Call) -> str:
    call.require(train=False)
    return graph.value(call, call[call.first])


def _shape(call: Call, symbol: int) -> list[int]:
    """Return the shape of the output, with ``symbol`` for the number of images."""
    return [size if isinstance(size, int) else symbol for size in call.out.shape]


def _reshape(graph: Graph, call: Call) -> str:
    shape = _shape(call, -1)
    if shape.count(-1) > 1:
        raise call.unsupported(f" to {tuple(call.out.shape)}")
    return graph.add("Reshape", graph.value(call, call["self"]), graph.numbers(*shape))


def _expand(graph: Graph, call: Call) -> str:
    name, wanted = graph.value(call, call["self"]), _shape(call, 1)
    if isinstance(call.out.shape[0], int) or not isinstance(call["self"].meta["val"].shape[0], int):
        return graph.add("Expand", name, graph.numbers(*wanted))  # to 1 means: as long as before
    images = graph.add("Shape", graph.images, end=1)
    return graph.add("Expand", name, graph.add("Concat", images, graph.numbers(*wanted[1:]), axis=0))


def _select(graph: Graph, call: Call) -> str:
    return graph.add(
        "Gather", graph.value(call, call["self"]), graph.constant(np.int64(call["index"])), axis=call["dim"]
    )


def _unbind(graph: Graph, call: Call) -> list[str]:
    name, dim = graph.value(call, call["self"]), call["dim"]
    return [graph.add("Gather", name, graph.constant(np.int64(k)), axis=dim) for k in range(len(call.out))]


def _split(graph: Graph, call: Call) -> list[str]:
    sizes = [part.shape[call["dim"]] for part in call.out]
    if not all(isinstance(size, int) for size in sizes):
        raise call.unsupported(" of the batch")
    ends = [0, *accumulate(sizes)]
    name, dim = graph.value(call, call["self"]), graph.numbers(call["dim"])
    return [graph.add("Slice", name, graph.numbers(start), graph.numbers(end), dim) for start, end in pairwise(ends)]


def _attention(graph: Graph, call: Call) -> str:
    call.require(attn_mask=None, dropout_p=0, is_causal=False, enable_gqa=False)
    query, key, value = graph.tensors(call, "query", "key", "value")
    dims = list(range(call.out.ndim))
    scale = call["scale"] or call["query"].meta["val"].shape[-1] ** -0.5
    turned = graph.add("Transpose", key, perm=[*dims[:-2], dims[-1], dims[-2]])
    products = graph.add("MatMul", graph.add("Mul", query, graph.constant(np.float32(scale))), turned)
    return graph.add("MatMul", graph.add("Softmax", products, axis=-1), value)


def _permute(graph: Graph, call: Call) -> str:
    order = list(range(call.out.ndim))
    if call.name == "permute":
        order = [dim % len(order) for dim in call["dims"]]
    else:
        order[call["dim0"]], order[call["dim1"]] = order[call["dim1"]], order[call["dim0"]]
    return graph.add("Transpose", graph.value(call, call["self"]), perm=order)


def _cast(graph: Graph, call: Call) -> str:
    if call.out.dtype not in TYPES:
        raise call.unsupported(f" with dtype={call.out.dtype}")
    return graph.add("Cast", graph.value(call, call["self"]), to=TYPES[call.out.dtype])


def _cat(graph: Graph, call: Call) -> str:
    parts = [graph.value(call, part) for part in call["tensors"]]
    return graph.add("Concat", *parts, axis=call["dim"])


def _slice(graph: Graph, call: Call) -> str:
    bounds = [0 if call["start"] is None else call["start"], 2**63 - 1 if call["end"] is None else call["end"]]
    if not all(isinstance(bound, int) for bound in bounds):
        raise call.unsupported(f" from {bounds[0]} to {bounds[1]}")
    if bounds == [0, 2**63 - 1] and call["step"] == 1:
        return graph.value(call, call["self"])
    limits = [graph.numbers(number) for number in (*bounds, call["dim"], call["step"])]
    return graph.add("Slice", graph.value(call, call["self"]), *limits)


def _pad(graph: Graph, call: Call) -> str:
    call.require(mode="constant")
    pads = [0] * (2 * call.out.ndim - len(call["pad"])) + list(call["pad"])[::-1]
    # PyTorch's list, turned round, is end and begin of each dimension; ONNX has all begins, then all ends.
    pads = pads[1::2] + pads[::2]
    value = graph.constant(np.float32(call["value"] or 0))
    return graph.add("Pad", graph.value(call, call["self"]), graph.numbers(*pads), value)


def _pair(value: Sequence[int]) -> list[int]:
    return [value[0], value[-1]]


def _window(call: Call) -> dict[str, list[int]]:
    """Return how a window moves over an image."""
    if isinstance(call["padding"], str):
        raise call.unsupported(f" with padding={call['padding']}")
    return {"strides": _pair(call["stride"] or call["kernel_size"]), "pads": _pair(call["padding"]) * 2}


def _convolution(graph: Graph, call: Call) -> str:
    inputs = graph.tensors(call, "input", "weight", "bias")
    return graph.add("Conv", *inputs, dilations=_pair(call["dilation"]), group=call["groups"], **_window(call))


def _max_pool(graph: Graph, call: Call) -> str:
    call.require(ceil_mode=False)
    sizes = {"kernel_shape": _pair(call["kernel_size"]), "dilations": _pair(call["dilation"])}
    return graph.add("MaxPool", graph.value(call, call["self"]), **sizes, **_window(call))


def _average_pool(graph: Graph, call: Call) -> str:
    call.require(ceil_mode=False, divisor_override=None)
    counted = {"kernel_shape": _pair(call["kernel_size"]), "count_include_pad": int(call["count_include_pad"])}
    return graph.add("AveragePool", graph.value(call, call["self"]), **counted, **_window(call))


def _global_pool(graph: Graph, call: Call) -> str:
    call.require(output_size=[1, 1])
    return graph.add("GlobalAveragePool", graph.value(call, call["self"]))


def _batch_norm(graph: Graph, call: Call) -> str:
    call.require(training=False)
    inputs = graph.tensors(call, "input", "weight", "bias", "running_mean", "running_var")
    if len(inputs) < 5:
        raise call.unsupported(" without weights")
    return graph.add("BatchNormalization", *inputs, epsilon=call["eps"])


def _layer_norm(graph: Graph, call: Call) -> str:
    inputs = graph.tensors(call, "input", "weight", "bias")
    if len(inputs) < 2:
        raise call.unsupported(" without weights")
    return graph.add("LayerNormalization", *inputs, axis=-len(call["normalized_shape"]), epsilon=call["eps"])


def _linear(graph: Graph, call: Call) -> str:
    inputs = graph.tensors(call, "input", "weight", "bias")
    if call.out.ndim == 2:
        return graph.add("Gemm", *inputs, transB=1)
    product = graph.add("MatMul", inputs[0], graph.add("Transpose", inputs[1], perm=[1, 0]))
    return graph.add("Add", product, inputs[2]) if len(inputs) == 3 else product


def _mean(graph: Graph, call: Call) -> str:
    call.require(dtype=None)
    return graph.add("ReduceMean", graph.value(call, call["self"]), axes=call["dim"], keepdims=int(call["keepdim"]))


def _sum(graph: Graph, call: Call) -> str:
    call.require(dtype=None)
    axes = graph.numbers(*call["dim"])
    return graph.add("ReduceSum", graph.value(call, call["self"]), axes, keepdims=int(call["keepdim"]))


def _norm(graph: Graph, call: Call) -> str:
    call.require(ord=2, dtype=None)
    return graph.add("ReduceL2", graph.value(call, call["self"]), axes=call["dim"], keepdims=int(call["keepdim"]))


def _softmax(graph: Graph, call: Call) -> str:
    call.require(dtype=None)
    kind = "LogSoftmax" if call.name == "log_softmax" else "Softmax"
    return graph.add(kind, graph.value(call, call["self"]), axis=call["dim"])


def _largest(graph: Graph, call: Call) -> str:
    return graph.add("ReduceMax", graph.value(call, call["self"]), axes=call["dim"], keepdims=int(call["keepdim"]))


def _clip(graph: Graph, call: Call) -> str:
    names = ("min_val", "max_val") if call.name == "hardtanh" else ("min", "max")
    limits = (0, 6) if call.name == "relu6" else [call.arguments.get(name) for name in names]
    low, high = (bound if limit is None else limit for limit, bound in zip(limits, (-np.inf, np.inf), strict=True))
    return graph.add("Clip", graph.value(call, call["self"]), graph.value(call, low), graph.value(call, high))


def _silu(graph: Graph, call: Call) -> str:
    x = graph.value(call, call["self"])
    return graph.add("Mul", x, graph.add("Sigmoid", x))


def _hard_sigmoid(graph: Graph, call: Call) -> str:
    return graph.add("HardSigmoid", graph.value(call, call["self"]), alpha=1 / 6, beta=0.5)


def _gelu(graph: Graph, call: Call) -> str:
    call.require(approximate="none")
    x = graph.value(call, call["self"])
    share = graph.add("Erf", graph.add("Mul", x, graph.constant(np.float32(1 / math.sqrt(2)))))
    half = graph.add("Mul", x, graph.constant(np.float32(0.5)))
    return graph.add("Mul", half, graph.add("Add", share, graph.constant(np.float32(1))))


TRANSLATIONS: Mapping[str, Translation] = {
    "abs": _node("Abs"),
    "amax": _largest,
    "adaptive_avg_pool2d": _global_pool,
    "add": _node("Add", "self", "other", alpha=1),
    "asinh": _node("Asinh"),
    "avg_pool2d": _average_pool,
    "batch_norm": _batch_norm,
    "cat": _cat,
    "chunk": _split,
    "clamp": _clip,
    "clamp_min": _clip,
    "clone": _same,
    "contiguous": _same,
    "conv2d": _convolution,
    "div": _node("Div", "self", "other", rounding_mode=None),
    "dropout": _same,
    "expand": _expand,
    "expand_as": _expand,
    "flatten": _reshape,
    "gelu": _gelu,
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _node("HardSwish"),
    "hardtanh": _clip,
    "layer_norm": _layer_norm,
    "linalg_vector_norm": _norm,
    "linear": _linear,
    "log_softmax": _softmax,
    "matmul": _node("MatMul", "self", "other"),
    "max_pool2d": _max_pool,
    "mean": _mean,
    "mul": _node("Mul", "self", "other"),
    "pad": _pad,
    "permute": _permute,
    "relu": _node("Relu"),
    "relu6": _clip,
    "reshape": _reshape,
    "scaled_dot_product_attention": _attention,
    "select": _select,
    "sigmoid": _node("Sigmoid"),
    "sign": _node("Sign"),
    "silu": _silu,
    "slice": _slice,
    "softmax": _softmax,
    "split": _split,
    "split_with_sizes": _split,
    "sqrt": _node("Sqrt"),
    "squeeze": _reshape,
    "sub": _node("Sub", "self", "other", alpha=1),
    "sum": _sum,
    "to": _cast,
    "transpose": _permute,
    "unbind": _unbind,
    "unflatten": _reshape,
    "unsqueeze": _reshape,
    "view": _reshape,
}


def translate(module: nn.Module, example: Tensor, name: str, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return a module in evaluation mode as a model of one input, a batch of any size like ``example``, of float32."""
    dynamic = ({0: torch.export.Dim("n")},)
    try:
        with torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # of many kinds, for code whose path depends on values
        raise EdblError(
            f"the network cannot be exported: PyTorch cannot record it: {str(error).splitlines()[0]}"
        ) from error
    values: dict[str, Any] = {**program.state_dict, **program.constants}
    sources = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    graph = Graph(name)
    results: Sequence[fx.Node] = ()
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.users:
            target = sources[node.name]
            weight = None if target is None else values[target].detach().cpu().numpy()
            graph.names[node] = name if weight is None else graph.constant(weight, target)
        elif node.op == "output":
            results = node.args[0]
        elif node.op == "call_function":
            _translate(graph, node)
    for result, output in zip(results, outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [graph.names[result]], [output], output))
    shapes = [["n", *result.meta["val"].shape[1:]] for result in results]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "edbl",
            [helper.make_tensor_value_info(name, TYPES[example.dtype], ["n", *example.shape[1:]])],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, s) for o, s in zip(outputs, shapes, strict=True)],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        why = str(error).partition("\n")[0]
        raise EdblError(f"the network cannot be exported: its translation is no valid ONNX: {why}") from error
    return model


def chained(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Return models as one, each of which takes what the one before gives."""
    whole = models[0]
    for number, model in enumerate(models[1:]):
        after = compose.add_prefix(model, f"part{number}/", rename_outputs=False)
        whole = compose.merge_models(whole, after, [(whole.graph.output[0].name, after.graph.input[0].name)])
    return whole


def _translate(graph: Graph, node: fx.Node) -> None:
    if node.target is operator.getitem:
        several, number = node.args
        assert isinstance(several, fx.Node)
        assert isinstance(number, int)
        graph.names[node] = graph.lists[several][number]
        return
    call = Call(node)
    if call.name == "sym_size" or call.out is None:
        return  # a size, where shapes are read off outputs, or an assertion
    if call.name not in TRANSLATIONS:
        raise call.unsupported()
    found = TRANSLATIONS[call.name](graph, call)
    if isinstance(found, list):
        graph.lists[node] = found
    else:
        graph.names[node] = found
