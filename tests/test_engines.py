"""Features by onnxruntime: those of PyTorch but for rounding, and in eight bits nearly so."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from edbl.errors import EdblError
from edbl.nets import engines
from edbl.nets.backbones import Foreign
from edbl.nets.efficientnet import EfficientNetLite0, EfficientNetLite2, Layer
from edbl.nets.engines import INT8, ONNX, TORCH
from edbl.nets.pretrained import LITE0, Pretrained
from edbl.serve.declared import check
from tests.test_efficientnet import fresh
from tests.vectors import seeded

SIZE = 40
HALF = (0.5, 0.5, 0.5)

with_onnx = pytest.mark.skipif(not engines.installed(), reason="needs edbl[export]")
with_int8 = pytest.mark.skipif(not engines.fast_int8() or not engines.installed(), reason="needs VNNI and edbl[export]")


def noise(n: int = 4, size: int = SIZE) -> Tensor:
    return torch.randint(256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(size))


def scaled(net: EfficientNetLite0) -> EfficientNetLite0:
    """Return a net whose every layer has values of about the same size, as trained ones do."""
    x = torch.rand(4, 3, SIZE, SIZE, generator=seeded()) * 2 - 1
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    with torch.no_grad():
        net.train()(x)
    return net.eval()


@pytest.fixture(scope="module")
def lite() -> Pretrained:
    return network(fresh())


def network(net: EfficientNetLite0, name: str = LITE0) -> Pretrained:
    net = scaled(net)
    return Pretrained(name, net.width, SIZE, HALF, HALF, lambda: net)


def views(of: Pretrained, x: Tensor, engine: str, copies: int = 0, ranges: Tensor | None = None) -> Tensor:
    return of.views(x, copies, seeded(), lambda done: None, engine=engine, ranges=ranges).float()


@with_onnx
@pytest.mark.parametrize("kind", [EfficientNetLite0, EfficientNetLite2])
@pytest.mark.parametrize("size", [33, SIZE])
def test_a_graph_computes_what_the_network_does(kind: type[EfficientNetLite0], size: int) -> None:
    net = scaled(fresh(kind=kind)).folded()
    x = torch.rand(3, 3, size, size, generator=seeded(1)) * 2 - 1
    with torch.no_grad():
        expected = net(x)
    found = engines.computing(net, size)(x)
    assert found.shape == expected.shape
    # With random weights a difference grows from layer to layer; with trained ones it does not (test_pretrained.py).
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


@with_onnx
def test_features_are_those_of_pytorch_but_for_rounding(lite: Pretrained) -> None:
    x = noise()
    by_torch, by_onnx = (views(lite, x, engine, copies=2) for engine in (TORCH, ONNX))
    assert by_onnx.shape == (4, 3, 1280)
    assert (by_torch - by_onnx).abs().max() <= 2e-3 * by_torch.abs().max()  # one step of half precision


@with_onnx
def test_features_of_an_image_do_not_hang_on_others(lite: Pretrained) -> None:
    x = noise(5)
    alone = torch.cat([views(lite, image, ONNX) for image in x.split(1)])
    assert torch.equal(views(lite, x, ONNX), alone)


@with_int8
def test_eight_bits_are_near(lite: Pretrained) -> None:
    x = noise(8)
    ranges = lite.ranges(x)
    assert ranges.shape[1] == 2
    right, rounded = views(lite, x, TORCH)[:, 0], views(lite, x, INT8, ranges=ranges)[:, 0]
    assert not torch.equal(right, rounded)
    assert torch.cosine_similarity(right, rounded).min() > 0.9  # of trained weights it is 0.99: test_pretrained.py


@with_onnx
def test_eight_bits_number_by_number() -> None:
    """One layer: values and weights that are rounded, what they come to, and that rounded again."""
    from onnx import TensorProto, helper

    from edbl.nets.graph import IR_VERSION, OPSET
    from edbl.nets.lite_graph import IMAGES, _Writer

    layer = Layer(3, 4, 3, 2)
    layer.conv, layer.norm = nn.Conv2d(3, 4, 3, 2), nn.Identity()
    nn.init.normal_(layer.conv.weight, generator=seeded(1))
    layer.conv.weight.data[2] = 0  # a channel of no scale
    writer = _Writer([(-1.0, 1.5), (0.5, 6.0)])
    out, size = writer.layer(writer.round(IMAGES), layer, 6, clip=True)
    assert size == 3
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 6, 6]) for name in (IMAGES,)]
    given = helper.make_tensor_value_info(out, TensorProto.FLOAT, ["n", 4, 3, 3])
    graph = helper.make_graph(writer.graph.nodes, "one layer", ends, [given], writer.graph.weights)
    opset = [helper.make_opsetid("", OPSET)]
    data = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()
    check(data)  # as a server does
    session = engines._session(data)
    x = torch.rand(2, 3, 6, 6, generator=seeded(2)) * 2.5 - 1
    (found,) = session.run([out], {IMAGES: x.numpy()})

    step, zero = 2.5 / 255, 102  # of values from -1 to 1.5
    rounded = ((x / step).round() + zero).clamp(0, 255).sub(zero) * step
    weight, bias = layer.conv.weight.detach(), layer.conv.bias
    assert bias is not None
    most = weight.abs().amax((1, 2, 3))
    scale = most.where(most > 0, 1.0) / 127
    whole = (weight / scale.view(-1, 1, 1, 1)).round() * scale.view(-1, 1, 1, 1)
    padded = nn.functional.pad(rounded, [0, 1, 0, 1])
    exact = nn.functional.conv2d(padded, whole, bias.detach(), 2).clamp(0, 6)
    last = 6 / 255  # 0 is always among the values
    expected = (exact / last).round() * last
    difference = (torch.from_numpy(found) - expected).abs()
    assert difference.max() < 1.01 * last  # where what is rounded lies between two steps
    assert (difference > 1e-4).float().mean() < 0.05
    assert len(torch.unique(expected)) > 20


@pytest.mark.parametrize("damage", ["values", "order", "type", "nan"])
@with_int8
def test_ranges_from_anywhere_are_checked(lite: Pretrained, damage: str) -> None:
    ranges = lite.ranges(noise(1))
    bad = {
        "values": ranges[1:],
        "order": ranges.flip(1) + torch.tensor([0.0, -1.0]),
        "type": ranges.double(),
        "nan": ranges * float("nan"),
    }[damage]
    with pytest.raises(EdblError, match=r"ranges for onnxruntime-int8 are damaged: they are no \d+ pairs"):
        views(lite, noise(1), INT8, ranges=bad)


def test_engines_that_are_not_there(lite: Pretrained, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EdblError, match="unknown engine 'tensorrt': there are torch, onnxruntime, onnxruntime-int8"):
        views(lite, noise(1), "tensorrt")
    with pytest.raises(EdblError, match="ranges go with onnxruntime-int8 alone"):
        views(lite, noise(1), TORCH, ranges=torch.zeros(1, 2))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EdblError, match=re.escape("run `pip install 'edbl[export]'`")):
        views(lite, noise(1), ONNX)
    assert lite.usual_engine() == TORCH


def test_eight_bits_are_refused_where_they_are_slow(
    lite: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, fast in (("flags\t\t: fpu sse avx2\n", False), ("flags : avx2 avx512_vnni\n", True), (None, False)):
        monkeypatch.setattr(engines, "CPUINFO", tmp_path / str(text and len(text)))
        if text is not None:
            engines.CPUINFO.write_text(text)
        engines.fast_int8.cache_clear()
        assert engines.fast_int8() == fast
    with pytest.raises(EdblError, match=r"onnxruntime-int8 needs a processor with VNNI.*use onnxruntime"):
        lite.ranges(noise(1))
    engines.fast_int8.cache_clear()


@with_onnx
def test_the_usual_engine(lite: Pretrained) -> None:
    assert lite.usual_engine() == ONNX
    assert lite.usual_engine(torch.device("cuda")) == TORCH
    other = Pretrained("timm:any", 7, SIZE, HALF, HALF, lambda: Foreign(nn.Flatten(), 7))
    assert other.usual_engine() == TORCH


@with_int8
def test_eight_bits_are_for_our_own_networks() -> None:
    other = Pretrained("timm:any", 4, 8, HALF, HALF, lambda: Foreign(nn.Flatten(), 4))
    match = "for efficientnet-lite0 and efficientnet-lite2 only; use onnxruntime"
    with pytest.raises(EdblError, match=match):
        other.ranges(noise(1, 8))
    with pytest.raises(EdblError, match=match):
        views(other, noise(1, 8), INT8, ranges=torch.zeros(1, 2))


@with_onnx
def test_onnxruntime_reports_to_nobody(tmp_path: Path) -> None:
    line = "import edbl, onnxruntime; onnxruntime.SessionOptions()"
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    usual = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", line], check=True, env={**usual, **places})
    assert not list(tmp_path.rglob("*")), "a device id, a database of what is to be sent"
