"""A model that goes on learning: more images of classes that it knows, with every kind of method."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from edbl import EdblError, Recipe
from edbl.app.measuring import measure
from edbl.app.model import Model
from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.engine.checkpoint import Checkpoints
from edbl.engine.evaluate import class_means, outputs
from edbl.nets.heads import CorrectedHead, FrozenHead
from edbl.nets.net import Net, Output


def model(method: str, memory: str = "total=20", backbone: str = "mlp", seed: int = 0, **options: object) -> Model:
    """Return a model of images of four pixels."""
    quick = {"net.backbone": backbone, "schedule.epochs": 2, "schedule.milestones": (), "optim.batch": 8}
    settings = {"memory": memory, "data.augment": "none", **quick, **{f"options.{k}": v for k, v in options.items()}}
    recipe = Recipe.build(method, data="digits", preset="quick", seed=seed, **settings)
    shape = (1, 8, 8) if backbone == "small" else (1, 2, 2)
    device = torch.device("cpu")
    return Model(recipe, shape, Transform.of("none", 0, (0.5,), (0.25,), device), device)


def some(count: int, level: int, side: int = 2) -> Tensor:
    """Return images about as bright as ``level``."""
    noise = torch.randint(0, 20, (count, 1, side, side), generator=torch.Generator().manual_seed(level))
    return (noise + level).to(torch.uint8)


def learn(model: Model, classes: dict[str, tuple[int, int]], side: int = 2) -> None:
    """Learn so many images of so bright a level, by class."""
    x = torch.cat([some(count, level, side) for count, level in classes.values()])
    model.learn(x, [name for name, (count, _) in classes.items() for _ in range(count)])


def kept(model: Model, name: str, above: int) -> int:
    """Return how many exemplars of a class are at least so bright."""
    return int((model.memory.classes[model.names.index(name)].x.float().mean((1, 2, 3)) >= above).sum())


@pytest.mark.parametrize("beside", [{}, {"c": (12, 200)}])
def test_more_images_of_a_class_may_become_exemplars(beside: dict[str, tuple[int, int]]) -> None:
    made = model("rkd", memory="per_class=5")
    learn(made, {"a": (5, 0), "b": (12, 60)})
    learn(made, {"a": (50, 120), **beside})
    assert kept(made, "a", above=100) >= 3
    assert [len(images) for images in made.memory.classes] == [5] * (2 + len(beside))


def test_nothing_is_written_unless_there_is_a_folder_for_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Mock()
    monkeypatch.setattr(Checkpoints, "save", saved)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = model("edbl")
    learn(made, {"a": (5, 0), "b": (12, 60)})
    learn(made, {"c": (12, 200)})
    learn(made, {"a": (5, 20)})
    assert not saved.called
    assert not list(tmp_path.iterdir())
    made.learn(some(12, 100), ["d"] * 12, tmp_path / "checkpoints")
    assert [call.args[0] for call in saved.call_args_list] == ["task-3-phase-0", "task-3-phase-1"]


@pytest.mark.parametrize("total", [20, 7])
@pytest.mark.parametrize("beside", [{}, {"c": (12, 200)}])
def test_a_reservoir_stays_within_its_budget(total: int, beside: dict[str, tuple[int, int]]) -> None:
    made = model("er", memory=f"total={total}")
    learn(made, {"a": (15, 0), "b": (15, 60)})
    learn(made, {"b": (30, 120), **beside})
    assert len(made.memory) == total
    assert len(made.memory.classes) == 2 + len(beside)
    assert kept(made, "b", above=100), "an even sample of all images holds some of the new ones"


@pytest.mark.parametrize("beside", [{}, {"c": (50, 200)}])
def test_a_reservoir_is_an_even_sample(beside: dict[str, tuple[int, int]]) -> None:
    more = 0
    for seed in range(6):
        made = model("er", memory="total=20", seed=seed)
        learn(made, {"a": (100, 0), "b": (100, 60)})
        learn(made, {"b": (50, 120), **beside})
        more += kept(made, "b", above=100)
    assert 8 <= more <= 40  # of 120 images that are kept, a fifth or a sixth


def test_means_are_worked_out_once_for_what_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out = []

    def counted(*given: Any) -> Tensor:
        worked_out.append(given)
        return class_means(*given)

    monkeypatch.setattr("edbl.app.model.class_means", counted)
    made, x = model("rkd"), some(5, 0)
    learn(made, {"a": (15, 0), "b": (15, 60)})
    first = made.nearness(x)
    assert torch.equal(made.nearness(x), first)
    assert len(worked_out) == 1
    learn(made, {"c": (15, 120)})
    assert made.nearness(x).shape == (5, 3)
    made.forget("b")
    assert made.nearness(x).shape == (5, 2)
    assert len(worked_out) == 3
    again = model("rkd")
    again.load(made.tensors(), ["a", "c"], [1, 1])
    assert torch.equal(again.nearness(x), made.nearness(x))


def test_images_pass_through_the_net_once_for_both_readouts(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = model("rkd"), some(5, 0)
    learn(made, {"a": (15, 0), "b": (15, 60)})
    expected = made.probabilities(x), made.nearness(x)
    passed = []

    def counted(net: Net, images: Images, transform: Transform) -> Output:
        passed.append(len(images))
        return outputs(net, images, transform)

    monkeypatch.setattr("edbl.app.model.outputs", counted)
    found = made.readouts(x)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert passed == [5]
    assert measure(made, x, ["a"] * 5)["a"].images == 5
    assert passed == [5, 5]


def test_noise_starts_anew_when_classes_are_learnt_again() -> None:
    made = model("eeil", noise=0.1)
    learn(made, {"a": (15, 0), "b": (15, 60)})
    epochs = made.learner.net.get_buffer("noisy_epochs").item()
    learn(made, {"a": (15, 100)})
    assert made.learner.net.get_buffer("noisy_epochs").item() == pytest.approx(epochs)


def test_a_correction_goes_when_all_classes_are_learnt_again() -> None:
    made = model("bic")
    learn(made, {"a": (15, 0), "b": (15, 60)})
    learn(made, {"c": (15, 120)})
    head = made.learner.net.head
    assert isinstance(head, CorrectedHead)
    assert head.correction.tolist() != [1, 0]
    learn(made, {"a": (15, 0)})
    assert head.correction.tolist() == [1, 0]


def test_new_classes_of_one_image_are_not_corrected_away() -> None:
    made = model("bic")
    learn(made, {"a": (40, 0), "b": (40, 60)})
    learn(made, {"c": (1, 120), "d": (1, 200)})
    head = made.learner.net.head
    assert isinstance(head, CorrectedHead)
    assert head.correction.tolist() == [1, 0]


def test_nothing_is_distilled_when_all_classes_are_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model("rkd")
    learn(made, {"a": (15, 0), "b": (15, 60)})
    learn(made, {"c": (15, 120)})
    assert made.method.teacher is not None
    monkeypatch.setattr("edbl.methods.rkd.distillation", Mock(side_effect=AssertionError))
    learn(made, {"a": (15, 200)})


def test_clean_statistics_are_those_of_what_was_learnt_last() -> None:
    made = model("re-mkd", backbone="small", clean_norm=True)
    learn(made, {"a": (15, 0), "b": (15, 60)}, side=8)
    before = {name: value.clone() for name, value in made.learner.learnt.items()}
    learn(made, {"a": (15, 90)}, side=8)
    after, used = made.learner.learnt, made.learner.net.state_dict()
    assert set(before) == set(after)
    assert before
    assert not any(torch.equal(after[name], before[name]) for name in before), "as trained, anew"
    assert not any(torch.equal(used[name], after[name]) for name in before), "of unmixed images, in use"


def test_weights_that_features_below_zero_would_clip_to_nothing() -> None:
    made = model("wa", backbone="given")
    learn(made, {"a": (15, 160), "b": (15, 200)})
    learn(made, {"c": (15, 0)})
    assert made.learner.net.head.weight.isfinite().all()
    assert made.probabilities(some(3, 0)).isfinite().all()


def test_weights_stay_clipped_when_all_classes_are_learnt_again() -> None:
    made = model("wa")
    learn(made, {"a": (15, 0), "b": (15, 60)})
    learn(made, {"c": (15, 120)})
    learn(made, {"a": (15, 200)})
    assert made.learner.net.head.weight.min() == 0


@pytest.mark.parametrize("method", ["lucir", "tpcil", "mnemonics", "podnet"])
def test_frozen_rows_of_a_head_learn_when_all_classes_are_learnt_again(method: str) -> None:
    side, backbone = (8, "small") if method == "podnet" else (2, "mlp")
    made = model(method, backbone=backbone)
    learn(made, {"a": (15, 0), "b": (15, 60)}, side)
    learn(made, {"c": (15, 120)}, side)
    head = made.learner.net.head
    assert isinstance(head, FrozenHead)
    before = head.old.detach().clone()
    learn(made, {"a": (15, 200)}, side)
    assert not torch.equal(head.old, before)


def test_podnet_needs_a_backbone_with_blocks() -> None:
    with pytest.raises(EdblError, match="podnet distils what blocks of the backbone return"):
        learn(model("podnet", backbone="given"), {"a": (15, 0), "b": (15, 60)})


def frozen(method: str, **options: object) -> Model:
    """Return a model of vectors that a frozen backbone gave."""
    settings = {"net.backbone": "given", "memory": "none", **options}
    recipe = Recipe.build(method, data="digits", preset="quick", **settings)
    return Model(recipe, (6,), Views(), torch.device("cpu"))


def vectors(count: int, level: int) -> Tensor:
    """Return features of images of a class, ``[n, 1, 6]``."""
    generator = torch.Generator().manual_seed(level)
    middle = torch.rand(6, generator=generator)
    return (middle + torch.randn(count, 1, 6, generator=generator) / 3).clamp(min=0).half()


@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_a_closed_form_is_the_same_however_images_come_and_classes_go(method: str) -> None:
    x = torch.cat([vectors(n, level) for level, n in enumerate((12, 5, 20, 3, 9))])
    names = [name for name, n in zip("abcde", (12, 5, 20, 3, 9), strict=True) for _ in range(n)]
    asked = torch.cat([vectors(10, level) for level in range(20, 30)])
    whole = frozen(method)
    whole.learn(x, names)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    parts = frozen(method)
    for part in order.tensor_split([9, 10, 30]):  # new classes and more of known ones, in any mixture
        parts.learn(x[part], [names[k] for k in part.tolist()])
    assert len(parts.memory) == 0
    columns = [parts.names.index(name) for name in whole.names]
    torch.testing.assert_close(parts.probabilities(asked)[:, columns], whole.probabilities(asked), rtol=0, atol=1e-6)
    again = frozen(method)
    again.load(parts.tensors(), parts.names, parts.sizes)
    assert torch.equal(again.probabilities(asked), parts.probabilities(asked))
    again.forget("c")
    never = frozen(method)
    stay = torch.tensor([name != "c" for name in names])
    never.learn(x[stay], [name for name in names if name != "c"])
    columns = [again.names.index(name) for name in never.names]
    torch.testing.assert_close(again.probabilities(asked)[:, columns], never.probabilities(asked), rtol=0, atol=1e-6)


def test_what_a_closed_form_makes_of_features_is_for_good() -> None:
    first = frozen("lda")
    first.learn(vectors(4, 1), ["a"] * 4)
    other = frozen("lda", **{"options.unit": False})
    other.load(first.tensors(), first.names, first.sizes)
    with pytest.raises(EdblError, match=r"options\.unit=False was the opposite"):
        other.learn(vectors(4, 2), ["b"] * 4)
