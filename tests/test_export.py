"""Export: what onnxruntime makes of the file is what the model says, for every net; what cannot be is refused."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image, ImageOps
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from edbl.app import export as exporting
from edbl.app.export import export
from edbl.app.model import Model
from edbl.data.augment import Transform, Views
from edbl.data.decoding import decode
from edbl.data.images import Images
from edbl.errors import EdblError
from edbl.methods import methods
from edbl.methods.base import Method
from edbl.nets import engines, graph, pretrained
from edbl.nets.backbones import BACKBONES, Backbone, build
from edbl.nets.efficientnet import EfficientNetLite0
from edbl.nets.heads import CorrectedHead, FrozenHead
from edbl.nets.net import LinearHead, Net
from edbl.recipe import Recipe
from tests.conftest import Cli
from tests.photos import SHORT, write_digits

NAMES = ["cat", "Schäfer/hund", 'say "hi"', "line\nbreak\x00", "\udc80 猫 🐈"]
SIZES = (2, 3)
SIDE = 9  # odd, so that strides leave something over
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def stir(module: nn.Module, generator: Generator) -> None:
    """Give batch normalisation something to do."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            for values, middle in ((part.running_mean, 0), (part.running_var, 1), (part.weight.data, 1)):
                values.copy_(middle + 0.2 * torch.rand(values.shape, generator=generator))
            part.bias.data.normal_(0, 0.2, generator=generator)


def learnt(
    method: str = "rkd",
    backbone: str = "small",
    vectors: int = 0,
    flips: bool = False,
    options: Mapping[str, object] | None = None,
) -> Model:
    """Return a model of five classes in two increments, as if it had learnt them."""
    settings = {"net.backbone": backbone, "device": "cpu", "memory": "per_class=4", "evaluation.nme_flips": flips}
    recipe = Recipe.of({"method": method, "preset": "quick", **settings, **(options or {})})
    device = torch.device("cpu")
    transform = Views() if vectors else Transform.of("none", 0, MEAN, STD, device)
    model = Model(recipe, (vectors,) if vectors else (3, SIDE, SIDE), transform, device)
    generator = torch.Generator().manual_seed(3)
    for size in SIZES:
        model.learner.net.grow(size, generator)
    stir(model.learner.net, generator)
    y = torch.arange(5).repeat_interleave(4)
    x = torch.randn(len(y), 3, vectors, generator=generator).half() if vectors else pictures(len(y), generator)
    model.memory.replace(Images(x, y), 5)
    model.method.more(model.memory.images)
    model.names = list(NAMES)
    return model


def pictures(count: int, generator: Generator, side: int = SIDE) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)


def served(path: Path, x: Tensor) -> list[Tensor]:
    """Return what onnxruntime says, of images as Pillow has them or of vectors."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    assert [output.name for output in session.get_outputs()] == ["cnn", "nme", "sureness"]
    found = session.run(["cnn", "nme"], {name: (x.permute(0, 2, 3, 1) if x.ndim == 4 else x).contiguous().numpy()})
    return [torch.from_numpy(array) for array in found]


def assert_same(model: Model, path: Path, x: Tensor, given: Tensor | None = None) -> None:
    """Compare for 1 and 7 images; ``given`` is what the model takes where that is not ``x``."""
    own = x if given is None else given
    for count in (1, 7):
        found = served(path, x[:count])
        for one, other in zip(found, (model.probabilities(own[:count]), model.nearness(own[:count])), strict=True):
            assert one.shape == (count, len(model.names))
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def fresh(side: int = SIDE) -> Tensor:
    return pictures(7, torch.Generator().manual_seed(4), side)


@pytest.mark.parametrize("backbone", [name for name in BACKBONES if name != "given"])
def test_every_backbone(backbone: str, tmp_path: Path) -> None:
    model = learnt(backbone=backbone)
    assert export(model, tmp_path / "a.onnx") < 1e-5
    assert_same(model, tmp_path / "a.onnx", fresh())


ANALYTIC = ("acil", "ranpac")  # which have a layer of their own


@pytest.mark.parametrize("method", ANALYTIC)
def test_random_features_are_not_exported(method: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=f"models of method {method} cannot be exported"):
        export(learnt(method, "mlp"), str(tmp_path / "a.onnx"))


EXPORTED = {name for name, kind in methods().items() if kind.keeps != "all images"} - {*ANALYTIC}


@pytest.mark.parametrize("method", sorted(EXPORTED))
def test_every_method(method: str, tmp_path: Path) -> None:
    model = learnt(method, "mlp")
    export(model, str(tmp_path / "a.onnx"))
    assert_same(model, tmp_path / "a.onnx", fresh())


@pytest.mark.parametrize("method", ["bic", "lucir", "podnet", "der-net"])
def test_every_head_and_net(method: str, tmp_path: Path) -> None:
    model = learnt(method)
    head = model.learner.net.head
    if isinstance(head, CorrectedHead):
        head.correction.data.copy_(torch.tensor([0.6, 1.5]))
    if isinstance(head, FrozenHead):
        head.scale.data.fill_(3)
    export(model, tmp_path / "a.onnx")
    assert_same(model, tmp_path / "a.onnx", fresh())


@pytest.mark.parametrize("method", ["lda", "ridge"])
@pytest.mark.parametrize("unit", [True, False])
def test_closed_forms_of_vectors(method: str, unit: bool, tmp_path: Path) -> None:
    model = learnt(method, "given", vectors=6, options={"options.unit": unit})
    assert export(model, tmp_path / "a.onnx") < 1e-6
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(5))
    assert_same(model, tmp_path / "a.onnx", x, x.unsqueeze(1))


def test_a_head_of_one_increment_is_not_corrected(tmp_path: Path) -> None:
    model = learnt("bic")
    head = model.learner.net.head
    assert isinstance(head, CorrectedHead)
    head.sizes = [5]
    head.correction.data.copy_(torch.tensor([0.6, 1.5]))
    export(model, tmp_path / "a.onnx")
    assert_same(model, tmp_path / "a.onnx", fresh())


def test_vectors(tmp_path: Path) -> None:
    model = learnt(backbone="given", vectors=6)
    export(model, tmp_path / "a.onnx")
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(5))
    assert_same(model, tmp_path / "a.onnx", x, x.unsqueeze(1))


def test_a_frozen_backbone_is_part_of_the_file(tmp_path: Path) -> None:
    backbone = EfficientNetLite0().eval()
    stir(backbone, torch.Generator().manual_seed(6))
    model = learnt("lucir", "given", vectors=backbone.width)
    images = pictures(20, torch.Generator().manual_seed(7), 33)
    path = tmp_path / "a.onnx"
    export(model, path, backbone=backbone, mean=MEAN, std=STD, images=images)
    x = fresh(33)
    with torch.no_grad():
        features = backbone((x / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))
    assert_same(model, path, x, features.unsqueeze(1))


def test_means_count_mirror_images_where_the_recipe_says_so(tmp_path: Path) -> None:
    model = learnt(flips=True)
    export(model, tmp_path / "a.onnx")
    assert_same(model, tmp_path / "a.onnx", fresh())


def test_a_class_without_exemplars_is_infinitely_far(tmp_path: Path) -> None:
    model = learnt()
    images = model.memory.images
    model.memory.replace(images[images.y != 1], 5)
    export(model, tmp_path / "a.onnx")
    assert_same(model, tmp_path / "a.onnx", fresh())
    assert served(tmp_path / "a.onnx", fresh())[1][:, 1].eq(-torch.inf).all()


def test_a_forgotten_class_is_gone(tmp_path: Path) -> None:
    model = learnt("podnet")
    model.forget(NAMES[1])
    export(model, tmp_path / "a.onnx")
    assert_same(model, tmp_path / "a.onnx", fresh())


def test_the_model_stays_as_it_was(tmp_path: Path) -> None:
    model = learnt("bic")
    before = {name: tensor.clone() for name, tensor in model.tensors().items()}
    export(model, tmp_path / "a.onnx")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.tensors().items())
    assert all(p.requires_grad for p in model.learner.net.parameters())


def test_what_the_file_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    export(learnt(), path, readout="nme", settings={"tune": "all"})
    stored = onnx.load(path)
    onnx.checker.check_model(stored, full_check=True)
    assert [(entry.domain, entry.version) for entry in stored.opset_import] == [("", graph.OPSET)]
    assert (stored.ir_version, stored.producer_name) == (8, "edbl")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    assert (images.name, images.type, images.shape) == ("images", "tensor(uint8)", ["n", SIDE, SIDE, 3])
    assert [output.shape for output in session.get_outputs()] == [["n", 5], ["n", 5], ["n"]]
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == NAMES
    assert about["readout"] == "nme"
    assert about["format"] == "1"
    assert json.loads(about["settings"]) == {
        "method": "rkd",
        "backbone": "small",
        "memory": "per_class=4",
        "seed": 0,
        "tune": "all",
    }
    described = json.loads(about["input"])
    assert (described["height"], described["width"]) == (SIDE, SIDE)
    assert "centre square" in described["resize"]


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        export(learnt(), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.onnx"
    path.write_text("old")
    right = exporting._scorer

    def wrong(method: Method, head: LinearHead) -> exporting.Scorer:
        scorer = right(method, head)
        return scorer._replace(bias=scorer.bias + torch.arange(5) * 1e-2)

    monkeypatch.setattr(exporting, "_scorer", wrong)
    with pytest.raises(EdblError, match=r"differs from the model by 0\.0.* was not written"):
        export(learnt(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_model_that_has_gone_to_pieces_is_not_written(tmp_path: Path) -> None:
    model = learnt()
    model.learner.net.head.weight.data[0, 0] = torch.nan
    with pytest.raises(EdblError, match="differs from the model by nan"):
        export(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_net_that_onnxruntime_cannot_run_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_onnx", lambda *_: b"no model")
    with pytest.raises(EdblError, match="onnxruntime cannot run the exported net"):
        export(learnt(), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "attributes"), [("NoSuch", {}), ("Softmax", {"axis": 9})])
def test_a_translation_that_is_wrong_is_not_written(
    kind: str, attributes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(made: graph.Graph, call: graph.Call) -> str:
        return made.add(kind, made.value(call, call["self"]), **attributes)

    monkeypatch.setattr(graph, "TRANSLATIONS", {**graph.TRANSLATIONS, "relu": wrong})
    with pytest.raises(EdblError, match="its translation is no valid ONNX"):
        export(learnt(), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_net_too_large_for_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "LIMIT", 1000)
    with pytest.raises(EdblError, match="2 GiB"):
        export(learnt(), tmp_path / "a.onnx")


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.jpg", "does not end in .onnx"), ("none/a.onnx", "there is no folder"), ("folder.onnx", "it is a folder")],
)
def test_places_that_are_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(EdblError, match=message):
        export(learnt(), tmp_path / name)


def test_a_model_without_classes(tmp_path: Path) -> None:
    model = learnt()
    model.names = []
    with pytest.raises(EdblError, match="no class yet"):
        export(model, tmp_path / "a.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_the_extra(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EdblError, match=rf"export needs {missing}: run `pip install 'edbl\[export\]'`"):
        export(learnt(), tmp_path / "a.onnx")


def test_a_net_of_ones_own(tmp_path: Path) -> None:
    class Own(Net):
        pass

    model = learnt()
    model.learner.net.__class__ = Own
    with pytest.raises(EdblError, match="method rkd cannot be exported"):
        export(model, tmp_path / "a.onnx")


def test_a_head_of_ones_own(tmp_path: Path) -> None:
    class Twice(LinearHead):
        def forward(self, features: Tensor) -> Tensor:
            return 2 * super().forward(features)

    model = learnt()
    model.learner.net.head.__class__ = Twice
    with pytest.raises(EdblError, match="head Twice cannot be exported"):
        export(model, tmp_path / "a.onnx")


def test_a_read_out_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = learnt()
    monkeypatch.setattr(type(model.method), "scores", lambda self, output: output.logits * 2)
    with pytest.raises(EdblError, match="method rkd cannot be exported"):
        export(model, tmp_path / "a.onnx")


def predicted(cli: Cli, model: Path, image: Path, readout: str) -> dict[str, float]:
    shown = cli("predict", model, image, "--readout", readout, "--top", 9, "--json", "--device", "cpu")
    return {entry["class"]: entry["score"] for entry in json.loads(shown.out)["classes"]}


def tiny() -> Backbone:
    backbone = build("small", (3, 8, 8), torch.Generator().manual_seed(1))
    stir(backbone, torch.Generator().manual_seed(2))
    return backbone


@pytest.mark.parametrize("frozen", [False, True])
def test_the_command(frozen: bool, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = tmp_path / "model", tmp_path / "[b]a.onnx"
    options = SHORT
    if frozen:
        net = pretrained.Pretrained("timm:tiny", 32, 8, MEAN, STD, tiny)
        monkeypatch.setattr(pretrained, "find", lambda name: net)
        options = ["--backbone", "timm:tiny", "--tune", "head", "--method", "edbl", *SHORT[2:6], *SHORT[8:]]
    photos = write_digits(tmp_path / "photos", {2: 12, 7: 12})
    assert cli("learn", model, photos, *options).code == 0
    done = cli("export", model, path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{path}: ")
    assert "2 classes, at most " in done.out
    about = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["digit 2", "digit 7"]
    assert json.loads(about["settings"])["backbone"] == ("timm:tiny" if frozen else "mlp")
    image = photos / "digit 7" / "003.png"
    cnn, nme = served(path, torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1).unsqueeze(0))
    found = dict(zip(["digit 2", "digit 7"], cnn[0].tolist(), strict=True))
    assert predicted(cli, model, image, "cnn") == pytest.approx(found, abs=2e-3 if frozen else 1e-5)
    near = predicted(cli, model, image, "nme")
    assert max(near, key=near.__getitem__) == ["digit 2", "digit 7"][nme[0].argmax()]


def write_pictures(folder: Path) -> Iterator[Path]:
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 4), dtype=np.uint8)
    grey = noise[..., 0].astype(np.uint16) * 257
    pictures: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "rgb.png": (Image.fromarray(noise[..., :3].copy()), {}),
        "rgba.png": (Image.fromarray(noise), {}),
        "photo.jpg": (Image.fromarray(noise[..., :3].copy()).resize((90, 60)), {}),
        "palette.png": (Image.fromarray(noise[..., :3].copy()).quantize(9), {"transparency": 3}),
        "16-bit.png": (Image.fromarray(grey), {}),
        "16-bit-transparent.png": (Image.fromarray(grey), {"transparency": int(grey[10, 15])}),
        "16-bit.tif": (Image.fromarray(grey), {}),
    }
    for name, (picture, options) in pictures.items():
        picture.save(folder / name, **options)
        yield folder / name


def test_the_page_reads_photos_as_models_do(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    code = page[page.index("def read(") : page.index("\n\n\nimages = ")]
    names: dict[str, Any] = {"np": np, "Image": Image, "ImageOps": ImageOps, "size": 8}
    exec(code, names)
    for path in write_pictures(tmp_path):
        pixels = decode(path, 8, draft=True).pixels
        assert pixels is not None
        assert np.array_equal(names["read"](path), pixels.transpose(1, 2, 0)), path.name


def test_the_command_looks_before_it_works(cli: Cli, tmp_path: Path) -> None:
    done = cli("export", tmp_path / "none", tmp_path / "a.jpg")
    assert (done.code, done.out) == (2, "")
    assert "does not end in .onnx" in done.err
    assert "does not exist" in cli("export", tmp_path / "none", tmp_path / "a.onnx").err


class Apply(nn.Module):
    """A function as a module, with weights ``p`` for those that need one."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.p = nn.Buffer(torch.randn(shape, generator=torch.Generator().manual_seed(8)))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.function(x, self.p),)


def in_place(x: Tensor, p: Tensor) -> Tensor:
    y = x + 1
    F.relu(y, inplace=True)
    return y


IMAGE, VECTOR = (4, 7, 7), (12,)
OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "abs": (lambda x, p: x.abs(), IMAGE, ()),
    "sqrt": (lambda x, p: x.relu().sqrt(), IMAGE, ()),
    "adaptive_avg_pool2d": (lambda x, p: F.adaptive_avg_pool2d(x, 1), IMAGE, ()),
    "add": (lambda x, p: x + p, IMAGE, (4, 1, 1)),
    "add in place": (in_place, IMAGE, ()),
    "avg_pool2d": (lambda x, p: F.avg_pool2d(x, 3, 2, 1), IMAGE, ()),
    "avg_pool2d without padding": (lambda x, p: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE, ()),
    "batch_norm": (lambda x, p: F.batch_norm(x, p, p * p, p + 1, p - 1, eps=1e-2), IMAGE, (4,)),
    "cat": (lambda x, p: torch.cat([x, 2 * x], -1), IMAGE, ()),
    "chunk": (lambda x, p: x.chunk(3, 1)[1], VECTOR, ()),
    "clamp": (lambda x, p: x.clamp(-0.2, 0.3), IMAGE, ()),
    "clamp_min": (lambda x, p: x.clamp_min(0.3), IMAGE, ()),
    "clone": (lambda x, p: x.clone(), IMAGE, ()),
    "contiguous": (lambda x, p: x.transpose(1, 2).contiguous(), IMAGE, ()),
    "conv2d": (lambda x, p: F.conv2d(x, p, None, (2, 1), (1, 0), (1, 2), 2), IMAGE, (6, 2, 3, 3)),
    "div": (lambda x, p: x / p, IMAGE, (7,)),
    "dropout": (lambda x, p: F.dropout(x, training=False), IMAGE, ()),
    "expand": (lambda x, p: torch.cat([p.expand(x.shape[0], -1), x], 1), VECTOR, (1, 3)),
    "expand_as": (lambda x, p: x[:, :1].expand_as(x), VECTOR, ()),
    "flatten": (lambda x, p: x.flatten(1, 2), IMAGE, ()),
    "gelu": (lambda x, p: F.gelu(x), IMAGE, ()),
    "hardsigmoid": (lambda x, p: F.hardsigmoid(4 * x), IMAGE, ()),
    "hardswish": (lambda x, p: F.hardswish(4 * x), IMAGE, ()),
    "hardtanh": (lambda x, p: F.hardtanh(x, -0.5, 0.1), IMAGE, ()),
    "layer_norm": (lambda x, p: F.layer_norm(x, (7, 7), p, p, 0.1), IMAGE, (7, 7)),
    "linalg_vector_norm": (lambda x, p: F.normalize(x, dim=1), IMAGE, ()),
    "linear": (lambda x, p: F.linear(x, p, p[:, 0]), VECTOR, (5, 12)),
    "linear of images": (lambda x, p: F.linear(x, p, p[:, 0]), IMAGE, (5, 7)),
    "linear without bias": (lambda x, p: F.linear(x, p), IMAGE, (5, 7)),
    "matmul": (lambda x, p: x @ p, IMAGE, (7, 3)),
    "max_pool2d": (lambda x, p: F.max_pool2d(x, 3, 2, 1), IMAGE, ()),
    "max_pool2d with its own stride": (lambda x, p: F.max_pool2d(x, 2), IMAGE, ()),
    "mean": (lambda x, p: x.mean((-1, 1), keepdim=True), IMAGE, ()),
    "mul": (lambda x, p: x * 3, IMAGE, ()),
    "pad": (lambda x, p: F.pad(x, [1, 2, 3, 4, 5, 6], value=0.5), IMAGE, ()),
    "permute": (lambda x, p: x.permute(0, 2, -1, 1), IMAGE, ()),
    "relu": (lambda x, p: F.relu(x), IMAGE, ()),
    "relu6": (lambda x, p: F.relu6(20 * x), IMAGE, ()),
    "reshape": (lambda x, p: x.reshape(x.shape[0], 3, -1), VECTOR, ()),
    "scaled_dot_product_attention": (lambda x, p: F.scaled_dot_product_attention(x, x * p, x + p), IMAGE, (7,)),
    "select": (lambda x, p: x.select(2, -2), IMAGE, ()),
    "sigmoid": (lambda x, p: x.sigmoid(), IMAGE, ()),
    "asinh": (lambda x, p: x.asinh(), IMAGE, ()),
    "sign": (lambda x, p: x.sign(), IMAGE, ()),
    "silu": (lambda x, p: F.silu(x), IMAGE, ()),
    "slice": (lambda x, p: x[:, 1:-1, ::3, 2:5], IMAGE, ()),
    "amax": (lambda x, p: x.amax(1), VECTOR, ()),
    "log_softmax": (lambda x, p: x.log_softmax(1), VECTOR, ()),
    "softmax": (lambda x, p: x.softmax(1), IMAGE, ()),
    "split": (lambda x, p: x.split(3, -1)[2], IMAGE, ()),
    "split_with_sizes": (lambda x, p: x.split([1, 2, 1], 1)[1], IMAGE, ()),
    "squeeze": (lambda x, p: x.sum(1, keepdim=True).squeeze(1), IMAGE, ()),
    "sub": (lambda x, p: x - 0.5, IMAGE, ()),
    "sum": (lambda x, p: x.sum((1, 3)), IMAGE, ()),
    "to": (lambda x, p: (x * x * 9).to(torch.uint8).float(), IMAGE, ()),
    "transpose": (lambda x, p: x.transpose(1, -1), IMAGE, ()),
    "unbind": (lambda x, p: x.unbind(2)[4], IMAGE, ()),
    "unflatten": (lambda x, p: x.unflatten(1, (2, -1)), IMAGE, ()),
    "unsqueeze": (lambda x, p: x.unsqueeze(1), VECTOR, ()),
    "view": (lambda x, p: x.view(-1, 2, 6), VECTOR, ()),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator(name: str) -> None:
    function, shape, parameter = OPERATORS[name]
    module = Apply(function, *parameter)
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(9))
    model = graph.translate(module, x[:2], "x", ["y"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for count in (1, 5):
        (found,) = session.run(None, {"x": x[:count].numpy()})
        np.testing.assert_allclose(found, module(x[:count])[0], atol=1e-5, rtol=1e-4)


def test_every_translation_is_tried() -> None:
    assert {name.partition(" ")[0] for name in OPERATORS} == graph.TRANSLATIONS.keys()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, p: x.cumsum(1), r"uses aten.cumsum.default, which has no translation"),
        (lambda x, p: F.max_pool2d(x, 2, ceil_mode=True), "max_pool2d.default with ceil_mode=True"),
        (lambda x, p: F.conv2d(x, p, padding="same"), "conv2d.padding with padding=same"),
        (lambda x, p: F.gelu(x, approximate="tanh"), "gelu.default with approximate=tanh"),
        (lambda x, p: F.batch_norm(x, p[0, :, 0, 0], p[0, :, 0, 0]), "batch_norm.default without weights"),
        (lambda x, p: F.layer_norm(x, (7, 7)), "layer_norm.default without weights"),
        (lambda x, p: x.to(torch.float64), "with dtype=torch.float64"),
        (lambda x, p: x.reshape(2 * x.shape[0], -1), "it uses <built-in function mul>"),
        (lambda x, p: x if x.sum() > 0 else -x, "PyTorch cannot record it"),
        (lambda x, p: x.mean(), "mean.default without dim"),
        (lambda x, p: x.split(1, 0)[0], "PyTorch cannot record it"),
        (lambda x, p: torch.cat([x, x])[: x.shape[0]], "slice.Tensor from 0 to sym_size"),
        (lambda x, p: torch.cat([x, x]).split([x.shape[0]] * 2)[0], "split_with_sizes.default of the batch"),
        (lambda x, p: x * x.shape[0], "mul.Tensor of sym_size"),
    ],
)
def test_what_has_no_translation_is_named(function: Callable[[Tensor, Tensor], Tensor], message: str) -> None:
    with pytest.raises(EdblError, match=message):
        graph.translate(Apply(function, 4, 4, 3, 3), torch.randn(2, *IMAGE), "x", ["y"])


def test_a_frozen_network_of_others_computes_by_onnxruntime() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(engines.computing(net, 8)(x), net(x), rtol=1e-5, atol=1e-6)
