"""Objects in place of names: data, backbones and methods that a call in Python is given."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from edbl import EdblError, Recipe, Record, records, resume, run, users
from edbl.config import option
from edbl.data import datasets
from edbl.data.given import as_dataset
from edbl.data.images import Dataset, Images
from edbl.data.mixing import Batch
from edbl.engine.prepare import Prepared
from edbl.engine.progress import Progress
from edbl.methods.rkd import RKD
from edbl.nets import named, pretrained
from edbl.nets.backbones import Foreign
from tests.conftest import Cli
from tests.photos import write_digits
from tests.test_cli import refused
from tests.test_contract import Killed, last_state
from tests.test_resume import KillIn
from tests.vectors import same, seeded

DIGITS = datasets.load("digits")
QUICK: Any = {"preset": "quick", "optim.batch": 100, "stream.tasks": 2, "checkpoint_seconds": 0}


def arrays(dataset: Dataset = DIGITS) -> tuple[Any, ...]:
    return tuple(t.numpy() for part in (dataset.train, dataset.test) for t in (part.x, part.y))


def recipe(**values: Any) -> Recipe:
    return Recipe.build(values.pop("method", "rkd"), "given", **QUICK | {"net.backbone": "mlp"} | values)


class Items:
    """A data set as PyTorch has them."""

    def __init__(self, images: Images, form: str) -> None:
        self.images, self.form = images, form

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> object:
        x, y = self.images.x[number], int(self.images.y[number])
        match self.form:
            case "pil":
                return Image.fromarray(x[0].numpy()), y
            case "dict":
                return {"img": Image.fromarray(x[0].numpy()), "label": y}
            case "floats":
                return x.float() / 255, torch.tensor(y)
            case "random":
                return x + torch.randint(2, x.shape, dtype=torch.uint8), y
            case "odd":
                return {"pixels": x, "label": y}
            case "sizes":
                return x[:, : 8 - number % 2], y
        return x.permute(1, 2, 0).numpy(), str(y)


def pair(form: str) -> Any:
    return Items(DIGITS.train, form), Items(DIGITS.test, form)


def last(folder: Path) -> dict[str, Tensor]:
    return last_state(folder, records.read(folder)).tensors


# Data.


@pytest.mark.parametrize("form", ["pil", "dict", "floats", "arrays"])
def test_data_sets_that_give_images_by_number(form: str) -> None:
    found = as_dataset(pair(form))
    for ours, theirs in ((found.train, DIGITS.train), (found.test, DIGITS.test)):
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
    assert found.classes == DIGITS.classes
    assert bool(found.notes) == (form == "floats")
    assert torch.equal(as_dataset(dict(zip(("train", "test"), pair(form), strict=True))).train.x, found.train.x)


def test_arrays_tensors_and_their_order_of_axes() -> None:
    x, y, x_test, y_test = arrays()
    wide = np.repeat(x, 3, 1)
    for given in (
        (x, y, x_test, y_test),
        [torch.from_numpy(one) for one in (x, y, x_test, y_test)],
        (x[:, 0], y[:, None], x_test[:, 0], y_test),
        (x.transpose(0, 2, 3, 1), y.astype(np.uint8), x_test, y_test),
        (x / 255, y, x_test.astype(np.float32) / 255, y_test),
        lambda: (x, y, x_test, y_test),
        DIGITS,
    ):
        found = as_dataset(given)
        assert torch.equal(found.train.x, DIGITS.train.x)
        assert torch.equal(found.test.y, DIGITS.test.y)
        found.check()
    assert torch.equal(as_dataset((wide.transpose(0, 2, 3, 1), y, wide[:9], y[:9])).train.x, torch.from_numpy(wide))
    bands = np.zeros((9, 5, 8, 8), np.uint8)
    assert as_dataset((bands, y[:9], bands.transpose(0, 2, 3, 1), y[:9])).test.x.shape == (9, 5, 8, 8)
    vectors = as_dataset((x.reshape(-1, 64) / 16, y, x_test.reshape(-1, 64) / 16, y_test))
    assert vectors.train.x.dtype == torch.float32


def test_classes_have_the_names_that_can_be_had() -> None:
    x, y, x_test, y_test = arrays()
    assert as_dataset((x, y + 5, x_test, y_test + 5)).classes == tuple(map(str, range(5, 15)))
    words = np.array([f"w{k}" for k in range(10)])
    texts = as_dataset((x, words[y], x_test, words[y_test]))
    assert texts.classes == tuple(words)
    assert torch.equal(texts.train.y, DIGITS.train.y)
    train: Any = TensorDataset(DIGITS.train.x, DIGITS.train.y)
    train.classes = list(words)
    half = as_dataset((Subset(train, range(100)), TensorDataset(DIGITS.test.x, DIGITS.test.y)))
    assert half.classes == tuple(words)
    faces: Any = Items(DIGITS.train, "dict")
    faces.features = {"img": None, "label": type("ClassLabel", (), {"names": list(words)})()}
    assert as_dataset((faces, faces)).classes == tuple(words)


X, Y, X_TEST, Y_TEST = arrays()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X, "cannot be read from an object of type ndarray of shape"),
        ((X, Y, X_TEST), "cannot be read from an object of type tuple of 3"),
        ((X, X), "the training images of the given data cannot be read from an object of type ndarray"),
        (3, "cannot be read from an object of type int"),
        ((X / 255 - 0.5, Y, X_TEST, Y_TEST), "are float64, not all from 0 to 1, so black and white are not known"),
        ((X.astype(float), Y, X_TEST, Y_TEST), "not all from 0 to 1"),
        ((X.astype(int), Y, X_TEST, Y_TEST), "int64 of shape .*; give images as uint8"),
        ((X.astype(object), Y, X_TEST, Y_TEST), "of type object; give uint8"),
        ((X * float("nan"), Y, X_TEST, Y_TEST), "not all from 0 to 1"),
        ((X[:, :, :3, :3].repeat(3, 1), Y, X_TEST, Y_TEST), "which axis has the channels is not certain"),
        ((X, Y[:5], X_TEST, Y_TEST), r"with labels \[5\]; give one label for each"),
        ((X, np.eye(10)[Y], X_TEST, Y_TEST), r"with labels \[1442, 10\]"),
        ((X, Y / 2, X_TEST, Y_TEST), "labels of type float64; give whole numbers or texts"),
        ((X, Y.clip(0, 8), X_TEST, Y_TEST), "test images of class '9', but no training image of it"),
        ((X[:0], Y[:0], X_TEST, Y_TEST), "the training images of the given data are none"),
        ((X, Y, X_TEST[:, :, :5, :5], Y_TEST), "training images .* and test images"),
        (pair("random"), "are others each time; leave out random changes: data.augment makes them"),
        (pair("odd"), "are dictionaries of pixels, label; image and label are needed"),
        (pair("sizes"), "differ in size: 1 x 8 x 8, and number 1 1 x 7 x 8; resize them"),
        (([1, 2], [3]), "come as an object of type int; an image and its label are needed"),
    ],
)
def test_data_that_cannot_be_told_are_refused(given: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=message) as caught:
        run(recipe(), tmp_path / "run", data=given)
    assert len(str(caught.value)) < 400
    assert not (tmp_path / "run").exists()


def test_objects_among_settings_are_told_where_they_belong() -> None:
    for given, word in (
        ({"data": X}, "data"),
        ({"data": (X, Y)}, "data"),
        ({"net.backbone": nn.Flatten()}, "backbone"),
    ):
        with pytest.raises(EdblError, match=rf"give it to `edbl.run\(recipe, out, {word}=...\)`") as caught:
            Recipe.build("rkd", **given)
        assert len(str(caught.value)) < 200
    with pytest.raises(EdblError, match="method is an object of type ndarray"):
        Recipe.build(X)
    with pytest.raises(EdblError, match="seed = an object of type ndarray is not a whole number"):
        Recipe.build("rkd", seed=X)
    with pytest.raises(EdblError, match="int is no subclass of"):
        Recipe.build(int)  # type: ignore[arg-type]
    with pytest.raises(EdblError, match=r"order .* \.\.\. is not a text"):
        Recipe.build("rkd", order=[0.5] * 1000)


def equal(first: Record, second: Record) -> bool:
    return first.losses == second.losses and all(
        bool((a == b).all()) for a, b in zip(first.confusions["cnn"], second.confusions["cnn"], strict=True)
    )


def test_a_run_on_given_data_is_that_on_the_same_data_by_name(tmp_path: Path, cli: Cli) -> None:
    given = run(recipe(), tmp_path / "given", data=arrays())
    values = {k: v for k, v in given.recipe.items() if k != "data.name"}
    by_name = run(Recipe.of({**values, "data.name": "digits"}), tmp_path / "named")
    assert equal(given, by_name)
    assert given.data_fingerprint == by_name.data_fingerprint
    assert given.data == f"given:{given.data_fingerprint}"
    assert tomllib.loads((tmp_path / "given" / "recipe.toml").read_text())["data"]["name"] == given.data
    assert cli("report", tmp_path / "given").code == 0
    with pytest.raises(EdblError, match="the recipe is for digits, whose mean and more may not suit"):
        run(Recipe.build("rkd"), tmp_path / "x", data=arrays())
    with pytest.raises(EdblError, match="stands for data that a call is given"):
        run(recipe(), tmp_path / "x")


def test_a_run_on_given_data_goes_on_in_python_alone(tmp_path: Path, cli: Cli) -> None:
    whole = run(recipe(), tmp_path / "whole", data=DIGITS)
    with pytest.raises(Killed):
        run(recipe(), tmp_path / "run", data=DIGITS, progress=KillIn(1, "train", 2))
    refused(
        cli("resume", tmp_path / "run"), "was given its data in Python; go on there, with `edbl.resume(", "data=..."
    )
    other = replace(DIGITS, train=Images(DIGITS.train.x.flip(3), DIGITS.train.y))
    with pytest.raises(EdblError, match=r"the data is not what run .* began with"):
        resume(tmp_path / "run", data=other)
    with pytest.raises(EdblError, match="was not given its method as an object; leave it out"):
        resume(tmp_path / "run", data=DIGITS, method=RKD)
    assert equal(resume(tmp_path / "run", data=arrays()), whole)
    with pytest.raises(EdblError, match=r"the data is not what run .* began with"):  # though it is done
        resume(tmp_path / "run", data=other)
    assert equal(resume(tmp_path / "run"), whole)


# Methods.


class Smooth(RKD):
    """RKD whose labels give a little to every class."""

    name = "smooth"
    title = "Smooth"
    source = "none"

    @dataclass(frozen=True)
    class Config(RKD.Config):
        """Settings."""

        share: float = option(0.1, "of each label", least=0, most=1)

    config: Config

    def loss(self, batch: Batch) -> Tensor:
        return super().loss(Batch(batch.x, batch.y * (1 - self.config.share) + self.config.share / batch.y.shape[1]))


def test_a_method_as_a_class(tmp_path: Path, cli: Cli) -> None:
    plain = run(recipe(), tmp_path / "plain", data=DIGITS)
    smooth = run(recipe(), tmp_path / "smooth", data=DIGITS, method=Smooth)
    assert smooth.recipe["options.share"] == 0.1
    assert (smooth.method, smooth.recipe["method"]) == ("smooth", "given:smooth")
    assert not equal(plain, smooth)
    assert equal(run(recipe(method=Smooth), tmp_path / "built", data=DIGITS), smooth)
    assert equal(run(recipe(method=Smooth, share=0.0), tmp_path / "none", data=DIGITS), plain)
    adam = {"optim.kind": "adamw", "schedule.lr": 1e-3}  # for which a recipe holds a momentum that nobody chose
    runs = [
        run(recipe(method=m, **adam), tmp_path / f"adam-{m.name}", data=DIGITS, method=Smooth) for m in (RKD, Smooth)
    ]
    assert equal(*runs)
    assert not equal(runs[0], smooth)
    smooth.status = "running"
    records.write(smooth, tmp_path / "smooth")
    refused(cli("resume", tmp_path / "smooth"), "was given its data and method in Python")
    with pytest.raises(EdblError, match="the method is not the one that run"):
        resume(tmp_path / "smooth", data=DIGITS, method=RKD)
    assert resume(tmp_path / "smooth", data=DIGITS, method=Smooth).status == "done"


NOTEBOOK = """
class Mine(RKD):
    name = "mine"

    def loss(self, batch):
        if 1 in {1, 2}:
            return FACTOR * super().loss(batch)

    @torch.no_grad()
    def end(self, task):
        super().end(task)
"""


def cell(text: str) -> type[RKD]:
    names: dict[str, Any] = {"RKD": RKD, "torch": torch, "__name__": "cell"}
    exec(text, names)
    found: type[RKD] = names["Mine"]
    return found


def test_a_class_of_a_notebook_is_known_by_its_code(tmp_path: Path) -> None:
    first, again = cell(NOTEBOOK.replace("FACTOR", "2")), cell("\n\n\n" + NOTEBOOK.replace("FACTOR", "2"))
    assert users.digest_of(first) == users.digest_of(again) != ""
    others = [
        ("FACTOR", "3"),
        ("{1, 2}", "{1, 3}"),
        ("super().end(task)", "pass"),
        ("class Mine(", "class M:\n    x = 1\n\n\nclass Mine(M, "),
    ]
    for old, new in others:
        other = cell(NOTEBOOK.replace(old, new).replace("FACTOR", "2"))
        assert users.digest_of(other) != users.digest_of(first), new
    made = run(recipe(), tmp_path / "run", data=DIGITS, method=first)
    made.status = "running"
    records.write(made, tmp_path / "run")
    changed = cell(NOTEBOOK.replace("FACTOR", "3"))
    with pytest.raises(EdblError, match="given:mine has changed since run"):
        resume(tmp_path / "run", data=DIGITS, method=changed)
    assert resume(tmp_path / "run", data=DIGITS, method=changed, changed=True).notes[-1].startswith("from task 3 on, ")


# Backbones.


class Net(nn.Module):
    """A small network with what ours do not have."""

    def __init__(self, shape: tuple[int, ...] = (1, 8, 8)) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 24), nn.LayerNorm(24), nn.GELU())
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.layers(x))
        return out


def taught(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def test_a_module_keeps_its_weights_and_is_not_trained_itself(tmp_path: Path) -> None:
    net = taught()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    frozen = taught().requires_grad_(False)
    run(recipe(), tmp_path / "frozen", data=DIGITS, backbone=frozen)
    state = last(tmp_path / "frozen")
    for name, tensor in before.items():
        assert torch.equal(state[f"net.backbone.net.{name}"], tensor)
    first = run(recipe(), tmp_path / "first", data=DIGITS, backbone=net)
    torch.manual_seed(99)
    again = run(recipe(), tmp_path / "again", data=DIGITS, backbone=net)
    assert equal(first, again)
    assert same(last(tmp_path / "first"), last(tmp_path / "again"))
    assert same(net.state_dict(), before)
    assert first.recipe["net.backbone"] == "given:Net"
    assert not equal(first, run(recipe(seed=1), tmp_path / "seed", data=DIGITS, backbone=net))
    assert not equal(first, run(recipe(), tmp_path / "other", data=DIGITS, backbone=taught(1)))


def test_a_function_makes_other_weights_for_other_seeds(tmp_path: Path) -> None:
    made: list[Record] = []
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(made))
        made.append(run(recipe(seed=seed), tmp_path / folder, data=DIGITS, backbone=Net))
    assert equal(made[0], made[1])
    assert made[0].losses[0]["train"][0] != made[2].losses[0]["train"][0]
    shapes: list[object] = []

    def make(shape: tuple[int, ...]) -> nn.Module:
        shapes.append(shape)
        return Net(shape)

    run(recipe(), tmp_path / "d", data=DIGITS, backbone=make)
    assert set(shapes) == {(1, 8, 8)}


def test_several_backbones_and_starting_again_take_the_weights_that_a_module_came_with(tmp_path: Path) -> None:
    net = taught().requires_grad_(False)
    for method in ("der-net", "joint"):
        assert run(recipe(method=method), tmp_path / method, data=DIGITS, backbone=net).status == "done"
    state = last(tmp_path / "joint")
    assert torch.equal(state["net.backbone.net.layers.1.weight"], net.state_dict()["layers.1.weight"])


def test_a_run_with_a_module_goes_on_with_the_same_one(tmp_path: Path, cli: Cli) -> None:
    whole = run(recipe(), tmp_path / "whole", data=DIGITS, backbone=taught())
    with pytest.raises(Killed):
        run(recipe(), tmp_path / "run", data=DIGITS, backbone=taught(), progress=KillIn(1, "train", 2))
    refused(cli("resume", tmp_path / "run"), "was given its backbone and data in Python")
    with pytest.raises(EdblError, match="given:Net has changed since run"):
        resume(tmp_path / "run", data=DIGITS, backbone=taught(1))
    with pytest.raises(EdblError, match="the backbone is not what run"):
        resume(tmp_path / "run", data=DIGITS, backbone=nn.Flatten())
    assert equal(resume(tmp_path / "run", data=DIGITS, backbone=taught()), whole)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Identity(), r"returns \[2, 1, 8, 8\] for two images; it must return \[2, width\]"),
        (nn.Conv2d(3, 4, 3), r"backbone given:Conv2d fails for two images of shape \[1, 8, 8\]: Given groups=1"),
        (3, "backbone given:int is an object of type int, neither a module nor a function"),
        (lambda: 3, "makes an object of type int, not a torch.nn.Module"),
        (nn.LSTM(8, 8), "fails for two images"),
    ],
)
def test_backbones_that_are_none(backbone: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(EdblError, match=message):
        run(recipe(), tmp_path / "run", data=DIGITS, backbone=backbone)


def test_vectors_need_a_backbone_for_them(tmp_path: Path) -> None:
    vectors = (X.reshape(-1, 64) / 255, Y, X_TEST.reshape(-1, 64) / 255, Y_TEST)
    with pytest.raises(EdblError, match=r"small takes images, and these are vectors; use net\.backbone mlp"):
        run(recipe(**{"net.backbone": "small"}), tmp_path / "x", data=vectors)
    assert run(recipe(), tmp_path / "run", data=vectors).status == "done"


# Pretrained networks.


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> pretrained.Pretrained:
    """Let a pretrained network be a small one."""

    def load() -> Foreign:
        torch.manual_seed(3)
        net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 16))
        return Foreign(net, 16)

    found = pretrained.Pretrained("timm:small", 16, 12, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), load, any_size=False)
    monkeypatch.setattr(pretrained, "find", lambda name: found)
    return found


def test_a_pretrained_network_in_a_run(tmp_path: Path, stand_in: pretrained.Pretrained) -> None:
    colour = replace(DIGITS, train=Images(DIGITS.train.x.repeat(1, 3, 1, 1), DIGITS.train.y))
    colour = replace(colour, test=Images(DIGITS.test.x.repeat(1, 3, 1, 1), DIGITS.test.y))
    made = recipe(**{"net.backbone": "timm:small", "net.image_size": 12, "schedule.lr": 0.0, "first.task_lr": 0.0})
    assert (made.data.mean, made.data.std) == (stand_in.mean, stand_in.std)
    assert recipe(**{"net.backbone": "timm:small", "data.mean": [0.5]}).data.mean == (0.5,)
    record = run(made, tmp_path / "run", data=colour)
    assert record.code == {"net.backbone": stand_in.digest}
    state = last(tmp_path / "run")
    weights = stand_in.load().state_dict()
    for name, tensor in weights.items():
        assert torch.equal(state[f"net.backbone.net.1.{name}"], tensor)
    with pytest.raises(EdblError, match="takes images in colour"):
        run(made, tmp_path / "x", data=DIGITS)
    with pytest.raises(EdblError, match="takes images of 12 pixels only, not of 8"):
        run(replace(made, net=replace(made.net, image_size=0)), tmp_path / "x", data=colour)


def test_a_frozen_backbone_keeps_weights_and_statistics(tmp_path: Path) -> None:
    given: Any = {"net.backbone": "small", "data.augment": "none", "schedule.epochs": 2}
    states = {}
    for frozen in (True, False):
        made = Recipe.build("rkd", "digits", **QUICK | given | {"net.frozen": frozen})
        states[frozen] = [Prepared(made, None, Progress()).learner.net.state_dict()]
        run(made, tmp_path / str(frozen))
        states[frozen].append({k.removeprefix("net."): v for k, v in last(tmp_path / str(frozen)).items()})
    backbone = [name for name in states[True][0] if name.startswith("backbone.")]
    assert any("running_mean" in name for name in backbone)
    for name in backbone:
        assert torch.equal(states[True][0][name], states[True][1][name]), name
    changed = {name for name in backbone if not torch.equal(states[False][0][name], states[False][1][name])}
    assert changed == set(backbone)
    assert states[True][1]["head.weight"].abs().max() > 0


@pytest.mark.skipif(pretrained.default() is None, reason="needs the weights of edbl[photos]")
def test_ranpac_on_a_frozen_pretrained_network_and_a_folder(tmp_path: Path) -> None:
    folder = write_digits(tmp_path / "photos", dict.fromkeys(range(4), 6))
    given: Any = {"net.backbone": "efficientnet-lite0", "net.frozen": True, "options.size": 64, "data.image_size": 64}
    record = run(Recipe.build("ranpac", str(folder), **given | {"stream.tasks": 2}), tmp_path / "run")
    assert record.losses == [{}, {}]
    assert record.accuracy.keys() == {"cnn"}
    weights = pretrained.find("efficientnet-lite0").load().state_dict()
    kept = last(tmp_path / "run")
    assert all(torch.equal(kept[f"net.backbone.{name}"], weight) for name, weight in weights.items())


def test_images_of_a_folder_are_read_as_large_as_the_network_wants_them(
    tmp_path: Path, stand_in: pretrained.Pretrained
) -> None:
    chosen: Any = {"net.backbone": "timm:small"}
    assert Recipe.build("rkd", str(tmp_path), **chosen).data.image_size == 12
    assert Recipe.build("rkd", str(tmp_path), **chosen | {"data.image_size": 9}).data.image_size == 9
    assert Recipe.build("rkd", "cifar10", **chosen).data.image_size == 0


def test_the_published_network_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if pretrained.default() is None:
        pytest.skip("needs edbl[photos]")
    monkeypatch.setenv("EDBL_DATA", str(tmp_path / "data"))
    made = recipe(method="lucir", **{"net.backbone": pretrained.LITE0})
    assert made.data.mean == (0.5, 0.5, 0.5)
    make = named.maker(pretrained.LITE0, (3, 32, 32), last_relu=False)
    net = make(seeded())
    assert net.last_relu is False
    assert same(net.state_dict(), pretrained.find(pretrained.LITE0).load().state_dict())
    scaled = named.maker("small", (1, 8, 8), image_size=16)(seeded())
    assert scaled(torch.zeros(2, 1, 8, 8)).shape == (2, 32)
