"""Exported files that somebody has forged: what they declare is looked at before onnxruntime makes room for it."""

import ast
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edbl
from edbl import EdblError
from edbl.serve.declared import OPERATORS, check
from edbl.serve.exported import Exported
from edbl.serve.limits import Limits
from edbl.serve.run import Server, Wanted
from tests.serving import NEW, M, lesson, served

pytestmark = pytest.mark.usefixtures("stand_in")


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A model as a file."""
    with served(tmp_path / "m", **NEW) as call:
        assert call.form(f"{M}/teach?yes=true", *lesson({0: 3, 1: 3})).json["learnt"] == 6
        (tmp_path / "m.onnx").write_bytes(call("GET", f"{M}/export").body)
    return tmp_path / "m.onnx"


def told(model: Any, key: str, value: str) -> None:
    """Replace what a file says of itself."""
    next(one for one in model.metadata_props if one.key == key).value = value


def endless(model: Any) -> None:
    """Let the last output come out of a loop without end."""
    graph, flat, value = model.graph, helper.make_tensor_value_info, TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [flat("i", TensorProto.INT64, []), flat("c", TensorProto.BOOL, []), flat("v", value, None)],
        [flat("d", TensorProto.BOOL, []), flat("w", value, None)],
    )
    for node in graph.node:
        node.output[:] = ["before" if name == "sureness" else name for name in node.output]
    graph.initializer.append(numpy_helper.from_array(np.array(2**60), "many"))
    graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graph.node.append(helper.make_node("Loop", ["many", "yes", "before"], ["sureness"], body=body))


def elsewhere(model: Any) -> None:
    """Let a tensor lie in a file beside the model."""
    tensor = next(one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")


def huge(model: Any) -> None:
    """Let a tensor of a few bytes be one of a billion numbers."""
    tensor = next(one for one in model.graph.initializer if one.data_type == TensorProto.FLOAT)
    tensor.dims[:] = [10**9]


def filled(model: Any, number: int) -> None:
    """Let the file hold a tensor of so many numbers only once it is computed."""
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([number]), "wide"))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    for node in graph.node:
        node.output[:] = ["before" if name == "sureness" else name for name in node.output]
    graph.node.append(helper.make_node("Expand", ["zero", "wide"], ["zeros"]))
    graph.node.append(helper.make_node("ReduceMax", ["zeros"], ["most"], keepdims=0))
    graph.node.append(helper.make_node("Add", ["before", "most"], ["sureness"]))


def many(model: Any) -> None:
    """Add more nodes than any network has."""
    model.graph.node.extend([helper.make_node("Identity", ["images"], [f"x{k}"]) for k in range(20_001)])


def parts(model: Any) -> None:
    """Say a shape in more numbers than can be looked at."""
    model.graph.initializer.append(TensorProto(name="x", data_type=1, dims=[0] * 600_000))


def one_more(model: Any, kind: str, **more: Any) -> None:
    """Add a node."""
    model.graph.node.append(helper.make_node(kind, ["images"], ["x"], **more))


ONNX: dict[str, tuple[Callable[[Any], None], str]] = {
    "a loop": (endless, "it has a graph in a node"),
    "a huge tensor": (huge, "declares 4,000,000,000 bytes and holds"),
    "no numbers": (lambda m: m.graph.initializer[0].ClearField("raw_data"), "and holds 0"),
    "numbers of another kind": (lambda m: m.graph.initializer.add(name="x", data_type=8), "is of a type or a shape"),
    "a computed tensor": (lambda m: filled(m, 10**9), "over 1,024 MB of memory"),
    "many nodes": (many, "it has over 20,000 nodes"),
    "many fields": (parts, "it has over 500,000 fields"),
    "sparse tensors": (lambda m: m.graph.sparse_initializer.add(), "it has sparse tensors"),
    "functions": (lambda m: m.functions.add(), "it has functions"),
    "another operator": (lambda m: one_more(m, "RandomNormalLike"), "uses 'RandomNormalLike', which"),
    "another maker's": (lambda m: one_more(m, "Gemm", domain="com.microsoft"), "uses 'Gemm', which"),
    "a long text": (lambda m: told(m, "classes", "[" * 2**24), "bytes of itself"),
    "another file": (elsewhere, "it has a part in another file"),
    "a huge input": (lambda m: told(m, "input", '{"height": 1e400, "width": 1}'), "is no model that"),
    "half a character": (lambda m: told(m, "classes", '["\\ud800", "b"]'), "is no name of a class"),
    "an escape": (lambda m: told(m, "classes", '["\\u001b[31m", "b"]'), "is no name of a class"),
    "a class twice": (lambda m: told(m, "classes", '["a", "a"]'), "has a class twice"),
    "classes by name": (lambda m: told(m, "classes", '{"a": 1}'), "no class"),
    "a rate that is none": (lambda m: told(m, "unknown", '{"rate": NaN, "at_most": null}'), "its threshold is none"),
}


@pytest.mark.parametrize("name", ONNX)
def test_a_forged_file_is_not_served(exported: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("edbl.serve.exported.SLOWEST", 1.0)
    monkeypatch.chdir(exported.parent)
    (exported.parent / "secret").write_bytes(bytes(10_000))
    change, why = ONNX[name]
    model = onnx.load(exported)
    change(model)
    exported.write_bytes(model.SerializeToString())
    with pytest.raises(EdblError, match=why):
        Server(Wanted(exported, port=0))


def test_a_photo_takes_so_long_and_no_longer(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edbl.serve.exported.SLOWEST", 0.5)
    model = onnx.load(exported)
    filled(model, 4 * 10**7)
    for k in range(500):
        model.graph.node.append(helper.make_node("Abs", [f"zeros{k - 1}" if k else "zeros"], [f"zeros{k}"]))
    model.graph.node.append(helper.make_node("ReduceMax", ["zeros499"], ["last"], keepdims=0))
    next(node for node in model.graph.node if node.op_type == "Add" and "sureness" in node.output).input[1] = "last"
    exported.write_bytes(model.SerializeToString())
    with pytest.raises(EdblError, match=r"it takes over 0\.5 s"):
        Server(Wanted(exported, port=0))


def test_what_onnxruntime_cannot_read_is_said_once(exported: Path, capfd: pytest.CaptureFixture[str]) -> None:
    exported.write_bytes(exported.read_bytes().replace(b"classes", b"class\xff\x1b"))
    with pytest.raises(EdblError, match="is no"):
        Server(Wanted(exported, port=0))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("why", "served"), [("it has already been registered", True), ("it is out of order", False)])
def test_an_older_onnxruntime_keeps_its_first_bound(
    exported: Path, monkeypatch: pytest.MonkeyPatch, why: str, served: bool
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError(why)

    monkeypatch.setattr("onnxruntime.create_and_register_allocator", refuse)
    with nullcontext() if served else pytest.raises(EdblError, match=why):
        Exported("m", exported, Limits()).close()


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_file_that_is_cut_or_is_none_is_not_served(exported: Path, cut: int) -> None:
    exported.write_bytes(exported.read_bytes()[:cut])
    with pytest.raises(EdblError, match="is no ONNX file that can be run: it"):
        Server(Wanted(exported, port=0))


def test_a_tensor_that_two_make_is_not_served() -> None:
    attribute = helper.make_attribute("value", numpy_helper.from_array(np.zeros(9, np.float32))).SerializeToString()
    node = helper.make_node("Cast", ["x"], ["y"]).SerializeToString()
    whole = node + b"".join(_message(5, attribute + attribute[k:]) for k in [attribute.index(b"\x2a")])
    with pytest.raises(ValueError, match="an attribute of two tensors"):
        check(_message(7, _message(1, whole)))
    with pytest.raises(ValueError, match="it has 2 graphs"):
        check(2 * _message(7, b""))


def _message(number: int, content: bytes) -> bytes:
    assert len(content) < 2**14
    size = [len(content)] if len(content) < 128 else [len(content) % 128 | 128, len(content) >> 7]
    return bytes([number << 3 | 2, *size]) + content


def test_no_operator_is_read_that_is_not_written() -> None:
    written = set()
    for name in ("graph", "lite_graph"):
        path = Path(edbl.__file__).parent / "nets" / f"{name}.py"
        nodes = ast.walk(ast.parse(path.read_text()))
        written |= {one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    assert {name for name in written if onnx.defs.has(name)} == {name.decode() for name in OPERATORS}
