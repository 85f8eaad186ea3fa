"""What an ONNX file declares, looked through before onnxruntime makes room for it: the file may come from anywhere.

An ONNX file is a message of protobuf: fields, each with a number and a kind, some of which are messages again. Only the
fields that the checks need are opened; tensors are skipped over, so that it takes no memory and little time.
"""

import math
from collections.abc import Iterator

NODES = 20_000
FIELDS = 500_000  # that are looked at; that takes a second or so
METADATA = 2**24  # bytes
DIMENSIONS = 16
SIZES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8}  # bytes of a number, by what ONNX calls its type
DOMAINS = (b"", b"ai.onnx")
# All that `edbl.nets.graph` and `edbl.nets.lite_graph` write: none of them loops, or reads a file.
OPERATORS = frozenset(
    b"Abs Add Asinh AveragePool BatchNormalization Cast Clip Concat Conv DequantizeLinear Div Erf Expand Gather Gemm "
    b"GlobalAveragePool HardSigmoid HardSwish Identity LayerNormalization LogSoftmax MatMul MaxPool Mul Pad "
    b"QuantizeLinear ReduceL2 ReduceMax ReduceMean ReduceSum Relu Reshape Shape Sigmoid Sign Slice Softmax Sqrt Sub "
    b"Transpose".split()
)
WHOLE, LONG, MESSAGE, SHORT = 0, 1, 2, 5  # kinds of fields
# Numbers of fields that may be there once only, for protobuf would join two, and of such as edbl writes none of.
GRAPH, TENSOR = 7, 5
OF_MODEL = {20: "a part for training", 25: "functions"}
OF_GRAPH = {15: "sparse tensors"}
OF_ATTRIBUTE = {6: "a graph in a node", 11: "graphs in a node", 22: "sparse tensors", 23: "sparse tensors"}
OF_TENSOR = {3: "a tensor in parts", 13: "a part in another file", 14: "a part in another file"}

Field = tuple[int, int | memoryview]


def check(data: bytes) -> None:
    """Refuse a file, by a `ValueError`, that is not as edbl writes them, or declares more than it holds."""
    _Check().model(memoryview(data))


class _Check:
    """How much of a file has been looked at."""

    def __init__(self) -> None:
        self._looked = self._nodes = 0

    def model(self, message: memoryview) -> None:
        """Look through the whole."""
        graphs = metadata = 0
        for number, value in self._fields(message, OF_MODEL):
            if number == 14 and isinstance(value, memoryview):
                metadata += len(value)
            elif number == GRAPH and isinstance(value, memoryview):
                graphs += 1
                self._graph(value)
        if graphs != 1:
            raise ValueError(f"it has {graphs} graphs")
        if metadata > METADATA:
            raise ValueError(f"it says {metadata:,} bytes of itself, and at most {METADATA:,} are read")

    def _graph(self, message: memoryview) -> None:
        for number, value in self._fields(message, OF_GRAPH):
            if number == 1 and isinstance(value, memoryview):
                self._node(value)
            elif number == 5 and isinstance(value, memoryview):
                self._tensor(value)

    def _node(self, message: memoryview) -> None:
        self._nodes += 1
        if self._nodes > NODES:
            raise ValueError(f"it has over {NODES:,} nodes")
        kind = domain = b""
        for number, value in self._fields(message):
            if isinstance(value, memoryview):
                if number == 4:
                    kind = bytes(value[:80])
                elif number == 7:
                    domain = bytes(value[:80])
                elif number == 5:
                    self._attribute(value)
        if kind not in OPERATORS or domain not in DOMAINS:
            raise ValueError(f"it uses {kind.decode(errors='replace')!a}, which `edbl export` does not")

    def _attribute(self, message: memoryview) -> None:
        tensors = 0
        for number, value in self._fields(message, OF_ATTRIBUTE):
            if number in (TENSOR, 10) and isinstance(value, memoryview):
                tensors += number == TENSOR
                self._tensor(value)
        if tensors > 1:
            raise ValueError("it has an attribute of two tensors")

    def _tensor(self, message: memoryview) -> None:
        """Refuse a tensor whose numbers are not there, one after the other, as many as its shape says."""
        shape: list[int] = []
        kind, held, name = 0, 0, b""
        for number, value in self._fields(message, OF_TENSOR):
            if number == 1:
                shape += self._packed(value) if isinstance(value, memoryview) else [value]
            elif number == 2 and isinstance(value, int):
                kind = value
            elif number == 8 and isinstance(value, memoryview):
                name = bytes(value[:80])
            elif number == 9 and isinstance(value, memoryview):
                held = len(value)
        told = f"tensor {name.decode(errors='replace')!a}"
        if kind not in SIZES or len(shape) > DIMENSIONS:
            raise ValueError(f"{told} is of a type or a shape that `edbl export` does not write")
        if held != (declared := math.prod(shape) * SIZES[kind]):
            raise ValueError(f"{told} declares {declared:,} bytes and holds {held:,}")

    def _packed(self, message: memoryview) -> list[int]:
        at, found = 0, []
        while at < len(message):
            self._count()
            value, at = _number(message, at)
            found.append(value)
        return found

    def _fields(self, message: memoryview, refused: dict[int, str] | None = None) -> Iterator[Field]:
        """Yield numbers of fields and what is in them; of one that is neither a number nor bytes, 0."""
        at = 0
        while at < len(message):
            self._count()
            tag, at = _number(message, at)
            number, kind = tag >> 3, tag & 7
            value: int | memoryview = 0
            if kind == WHOLE:
                value, at = _number(message, at)
            elif kind == MESSAGE:
                size, at = _number(message, at)
                value, at = message[at : at + size], at + size
            elif kind in (LONG, SHORT):
                at += 8 if kind == LONG else 4
            else:
                raise ValueError("it is no ONNX file")
            if at > len(message) or tag >= 2**32 or not number:
                raise ValueError("it is no ONNX file, or its end is missing")
            if refused and number in refused and value != 0:
                raise ValueError(f"it has {refused[number]}")
            yield number, value

    def _count(self) -> None:
        self._looked += 1
        if self._looked > FIELDS:
            raise ValueError(f"it has over {FIELDS:,} fields")


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """Return a whole number as protobuf has it, seven bits in a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at + shift // 7 >= len(message):
            break
        byte = message[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + shift // 7 + 1
    raise ValueError("it is no ONNX file, or its end is missing")
