import math
import tomllib
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from edbl import config
from edbl.cli.options import setting
from edbl.config import Leaf, option
from edbl.data.stream import class_order
from edbl.errors import EdblError
from edbl.methods import methods
from edbl.methods.edbl import EDBL
from edbl.methods.options import Balancing, Distilling, Mixing
from edbl.recipe import DROPPED, RECIPE, Recipe
from edbl.schedule import Optim, Schedule
from edbl.seeds import Seeds
from tests.conftest import Cli

PRESETS = ("default", "paper", "quick")
DATA = ("digits", "cifar10", "cifar100", "tiny-imagenet", "fashion-mnist")
SINGLE = ("finetune", "joint", "rkd", "vanilla-mkd", "re-mkd")  # methods of one phase
DOUBLE = ("ib", "iib", "iib-kd", "edbl")

# Table 6 and Appendix C: data, protocol, phases, gamma, alpha, epochs and milestones of both phases, memory.
CIFAR_SCHEDULES = (150, (60, 100, 130), 100, (30, 60, 80))
TINY_SCHEDULES = (250, (75, 125, 175, 225), 150, (60, 100, 130))
EXPERIMENTS = [
    ("cifar10", "base0", 2, 10, 1e-6, *CIFAR_SCHEDULES, "total=200"),
    ("cifar10", "base0", 5, 100, 5e-6, *CIFAR_SCHEDULES, "total=200"),
    ("cifar100", "base0", 2, 100, 5e-6, *CIFAR_SCHEDULES, "total=2000"),
    ("cifar100", "base0", 5, 300, 5e-6, *CIFAR_SCHEDULES, "total=2000"),
    ("cifar100", "base0", 10, 100, 5e-6, *CIFAR_SCHEDULES, "total=2000"),
    ("cifar100", "base-half", 5, 300, 5e-6, *CIFAR_SCHEDULES, "per_class=20"),
    ("cifar100", "base-half", 10, 100, 5e-6, *CIFAR_SCHEDULES, "per_class=20"),
    ("tiny-imagenet", "base-half", 5, 10, 1e-6, *TINY_SCHEDULES, "per_class=20"),
    ("tiny-imagenet", "base-half", 10, 10, 5e-6, *TINY_SCHEDULES, "per_class=20"),
]


@dataclass(frozen=True)
class Inner:
    depth: int = option(2, "how deep", least=1, most=9)
    rate: float = option(0.5, "how fast", least=0, most=1)


@dataclass(frozen=True)
class Outer:
    name: str = option("oak", "what it is called")
    flag: bool = option(False, "yes or no")
    kind: Literal["tree", "shrub"] = option("tree", "which plant")
    steps: tuple[int, ...] = option((1, 2), "where", least=1, most=99)
    order: str | tuple[str, ...] = option("natural", "which order")
    first: Inner = Inner()
    second: Inner = Inner(depth=7)


def complaint(kind: type, values: dict[str, object]) -> str:
    with pytest.raises(EdblError) as caught:
        config.build(kind, values)
    return str(caught.value)


def test_build_keeps_defaults() -> None:
    assert config.build(Outer, {}) == Outer()
    assert config.build(Outer, {}).second == Inner(depth=7)


def test_build_takes_dotted_and_short_keys() -> None:
    built = config.build(Outer, {"second.depth": 3, "name": "elm", "steps": [4, 5, 6], "flag": True, "kind": "shrub"})
    assert built == Outer("elm", True, "shrub", (4, 5, 6), second=Inner(3))
    assert config.build(Inner, {"depth": 3}) == Inner(3)


def test_build_with_a_prefix() -> None:
    assert config.build(Inner, {"plant.depth": 3}, "plant.") == Inner(3)
    assert config.build(Inner, {"depth": 3}, "plant.") == Inner(3)


def test_flatten_is_the_inverse_of_build() -> None:
    outer = Outer("elm", True, "shrub", (9,), ("b", "a"), Inner(1, 0.25), Inner(9, 1.0))
    flat = config.flatten(outer)
    assert flat == {
        "name": "elm",
        "flag": True,
        "kind": "shrub",
        "steps": (9,),
        "order": ("b", "a"),
        "first.depth": 1,
        "first.rate": 0.25,
        "second.depth": 9,
        "second.rate": 1.0,
    }
    assert config.build(Outer, flat) == outer
    assert list(config.flatten(Inner(), "x.")) == ["x.depth", "x.rate"]


def test_leaves_know_type_default_help_and_range() -> None:
    leaves = config.leaves(Outer)
    assert leaves["second.depth"] == Leaf(int, 7, "how deep", 1, 9)
    assert leaves["first.depth"].default == 2
    assert leaves["name"] == Leaf(str, "oak", "what it is called", None, None)
    assert config.flatten(Outer()) == {key: leaf.default for key, leaf in leaves.items()}


def test_settings_without_a_decorator_of_their_own_are_refused() -> None:
    class Deeper(Inner):
        width: int = option(3, "how wide")

    assert complaint(Deeper, {}).endswith("Deeper is not a dataclass: write @dataclass(frozen=True) above it")


def test_settings_that_may_be_none_are_refused() -> None:
    @dataclass(frozen=True)
    class Vague:
        width: int | None = option(None, "how wide")

    assert "Vague.width may be None, which no recipe can hold" in complaint(Vague, {"width": "x"})


@pytest.mark.parametrize(
    ("key", "value", "fitted"),
    [
        ("first.depth", 3.0, 3),
        ("first.rate", 1, 1.0),
        ("name", 1993, "1993"),
        ("order", 1993, "1993"),
        ("order", ["b", 1], ("b", "1")),
        ("steps", (), ()),
        ("first.depth", 1, 1),
        ("first.depth", 9, 9),
        ("first.rate", 0, 0.0),
    ],
)
def test_values_that_fit(key: str, value: object, fitted: object) -> None:
    found = config.flatten(config.build(Outer, {key: value}))[key]
    assert found == fitted
    assert type(found) is type(fitted)


KEYS = "first.depth, first.rate, flag, kind, name, order, second.depth, second.rate, steps"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("first.depth", 2.5, "first.depth = 2.5 is not a whole number"),
        ("first.depth", "3", "first.depth = '3' is not a whole number"),
        ("first.depth", True, "first.depth = True is not a whole number"),
        ("first.rate", "fast", "first.rate = 'fast' is not a finite number"),
        ("first.rate", False, "first.rate = False is not a finite number"),
        ("first.rate", [0.5], "first.rate = [0.5] is not a finite number"),
        ("flag", 1, "flag = 1 is not true or false"),
        ("flag", "true", "flag = 'true' is not true or false"),
        ("name", 1.5, "name = 1.5 is not a text"),
        ("name", True, "name = True is not a text"),
        ("steps", 3, "steps = 3 is not a list, each item a whole number"),
        ("steps", [1, 2.5], "steps = [1, 2.5] is not a list, each item a whole number"),
        ("order", 1.5, "order = 1.5 is not a text or a list, each item a text"),
        ("kind", "shrubs", "unknown value of kind 'shrubs': did you mean 'shrub'? known: shrub, tree"),
        ("kind", "x", "unknown value of kind 'x': known: shrub, tree"),
        ("first.depth", 0, "first.depth = 0 is too small: at least 1"),
        ("first.depth", 10, "first.depth = 10 is too large: at most 9"),
        ("first.rate", -0.1, "first.rate = -0.1 is too small: at least 0"),
        ("first.rate", 1.01, "first.rate = 1.01 is too large: at most 1"),
        ("steps", [3, 0], "steps = 0 is too small: at least 1"),
        ("steps", [100, 3], "steps = 100 is too large: at most 99"),
        ("first.rate", math.inf, "first.rate = inf is not a finite number"),
        ("first.rate", math.nan, "first.rate = nan is not a finite number"),
        ("depth", 3, "key 'depth' is ambiguous: it may be first.depth or second.depth"),
        ("first.deep", 3, "unknown key 'first.deep': did you mean 'first.depth'? known: " + KEYS),
        ("nam", 3, "unknown key 'nam': did you mean 'name'? known: " + KEYS),
        ("dept", 3, "unknown key 'dept': did you mean 'depth'? known: " + KEYS),
        (
            "xyz",
            3,
            "unknown key 'xyz': known: first.depth, first.rate, flag, kind, name, order, second.depth, "
            "second.rate, steps",
        ),
    ],
)
def test_values_that_do_not_fit(key: str, value: object, message: str) -> None:
    assert complaint(Outer, {key: value}) == message


def test_resolve() -> None:
    known = ["a", "b.a", "b.c", "d.c.e", "f.e.c"]
    assert config.resolve("a", known) == "a"  # a whole key is never ambiguous
    assert config.resolve("b.a", known) == "b.a"
    assert config.resolve("c.e", known) == "d.c.e"
    assert config.resolve("e", known) == "d.c.e"
    with pytest.raises(EdblError, match=r"key 'c' is ambiguous: it may be b\.c or f\.e\.c"):
        config.resolve("c", known)


def test_rates_of_a_schedule() -> None:
    schedule = Schedule(150, 0.1, (60, 100, 130), 0.1)
    for epoch in range(150):
        expected = 0.1
        for milestone in (60, 100, 130):
            if epoch >= milestone:
                expected *= 0.1
        assert schedule.rate(epoch, warmup=0) == pytest.approx(expected)


def test_a_cosine_begins_with_the_first_epoch_also_of_a_warm_up() -> None:
    schedule = Schedule(10, 0.1, (), shape="cosine")
    for warmup in (0, 3):
        for epoch in range(warmup, 10):
            expected = 0.1 * (1 + math.cos(math.pi * epoch / 10)) / 2
            assert schedule.rate(epoch, warmup) == pytest.approx(expected)


def test_by_step_a_cosine_is_that_of_pytorch() -> None:
    schedule, steps = Schedule(5, 0.1, (), shape="cosine"), 7
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 5 * steps)
    for step in range(5 * steps):
        assert schedule.rate(step / steps, warmup=0) == pytest.approx(sgd.param_groups[0]["lr"])
        sgd.step()
        theirs.step()


def test_by_step_a_warm_up_rises_in_every_step_and_milestones_stay_where_they_are() -> None:
    schedule = Schedule(4, 0.3, (3,))
    rates = [schedule.rate(step / 4, warmup=2) for step in range(16)]
    assert rates == pytest.approx([0.1 + 0.025 * step for step in range(8)] + [0.3] * 4 + [0.03] * 4)


def test_warmup_rises_evenly_from_a_third() -> None:
    schedule = Schedule(150, 0.3, (60, 100, 130))
    rates = [schedule.rate(epoch, warmup=5) for epoch in range(7)]
    assert rates == pytest.approx([0.1, 0.14, 0.18, 0.22, 0.26, 0.3, 0.3])
    assert schedule.rate(60, warmup=5) == pytest.approx(0.03)


def test_scaled_schedules_keep_their_proportions() -> None:
    assert Schedule(150, 0.1, (60, 100, 130)).scaled(30) == Schedule(30, 0.1, (12, 20, 26))
    assert Schedule(100, 0.01, (30, 60, 80)).scaled(200) == Schedule(200, 0.01, (60, 120, 160))
    assert Schedule(150, 0.1, (60, 100, 130)).scaled(150) == Schedule(150, 0.1, (60, 100, 130))
    assert Schedule(150, 0.1, (1,)).scaled(3).milestones == (1,)


def test_seeds_depend_on_seed_and_place_alone() -> None:
    seeds = Seeds(3)
    places: list[tuple[int | str, ...]] = [("a",), ("b",), ("a", 1), ("a", "1"), ("a1",), ("a", 1, 2), ("a", 12), ()]
    found = [seeds.number(*place) for place in places]
    assert len(set(found)) == len(places)
    assert all(0 <= number < 2**63 for number in found)
    assert [Seeds(3).number(*place) for place in places] == found
    assert not set(found) & {Seeds(4).number(*place) for place in places}
    device = torch.device("cpu")
    first = torch.rand(3, generator=seeds.generator(device, "a", 1))
    assert torch.equal(first, torch.rand(3, generator=seeds.generator(device, "a", 1)))
    assert not torch.equal(first, torch.rand(3, generator=seeds.generator(device, "a", 2)))


def test_all_methods_are_known() -> None:
    others = "lwf lwf-mc icarl eeil bic lucir podnet mnemonics tpcil ssil remix remix-kd gem er cldr wa der-net"
    others += " lda ridge der++ ewc acil ranpac foster"
    assert set(methods()) == {*SINGLE, *DOUBLE, *others.split()}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", sorted(methods()))
def test_toml_round_trip(method: str, preset: str, data: str, tmp_path: Path) -> None:
    recipe = Recipe.build(method, data, preset=preset, seed=7)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.toml(), encoding="utf-8")
    assert Recipe.read(path) == recipe
    assert Recipe.of(recipe.values()) == recipe
    assert (recipe.method, recipe.data.name, recipe.preset, recipe.seed) == (method, data, preset, 7)
    assert isinstance(recipe.options, methods()[method].Config)


def test_toml_round_trip_of_awkward_values(tmp_path: Path) -> None:
    given: dict[str, object] = {
        "data.name": './földer 🦊 "x" \\ \t\x7f\n',
        "stream.protocol": "tasks",
        "stream.tasks": [["cat", 'a "dog"'], ["été", "3"]],
        "options.alpha": 1e-12,
        "options.gamma": 1e20,
        "schedule.milestones": [],
        "data.mean": [0.1, 0.2, 1 / 3],
        "data.skip_bad": True,
    }
    recipe = Recipe.of(given)
    path = tmp_path / "recipe.toml"
    path.write_text(recipe.toml(), encoding="utf-8", newline="\n")
    assert Recipe.read(path) == recipe
    values = recipe.values()
    for key, value in given.items():
        plain = values[key]
        assert (plain == value) or (isinstance(value, list) and isinstance(plain, tuple) and len(plain) == len(value))
    assert recipe.stream.tasks == (("cat", 'a "dog"'), ("été", "3"))


def test_toml_is_sorted_into_sections() -> None:
    text = Recipe.build("edbl", "cifar100").toml()
    assert text.startswith('complete = true\nmethod = "edbl"\npreset = "default"\n')
    for line in ("[data]", "[options]", "[options.balance]", "[optim]", "gamma = 100.0", "alpha = 5e-06"):
        assert line in text.splitlines()


def test_a_file_may_leave_out_what_the_preset_knows(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('method = "rkd"\nepochs = 3\n[data]\nname = "cifar10"\n[stream]\norder = 1993\n', encoding="utf-8")
    recipe = Recipe.read(path)
    assert recipe == Recipe.build("rkd", "cifar10", epochs=3, order="1993")
    assert recipe.schedule.epochs == 3
    assert recipe.memory == "total=200"
    changed = Recipe.read(path, {"schedule.epochs": 4, "data.name": "cifar100"})
    assert (changed.schedule.epochs, changed.data.name, changed.memory) == (4, "cifar100", "total=2000")


IDLE = "does not apply to protocol"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([{"stream.base": 4, "step": 3}], f"stream.base {IDLE} base0; leave it out"),
        ([{"protocol": "tasks", "stream.tasks": [["0"], ["1"]], "order": "1993"}], f"stream.order {IDLE} tasks"),
        ([{"stream.protocol": "base-step"}, {"stream.tasks": 5}], f"stream.tasks {IDLE} base-step"),
        ([{"stream.base": 4}, {"stream.protocol": "base-half"}], f"stream.base {IDLE} base-half"),
    ],
)
def test_a_key_that_means_nothing_to_the_protocol_is_refused(layers: list[dict[str, object]], message: str) -> None:
    with pytest.raises(EdblError, match=message):
        Recipe.of(*layers)


def test_a_later_layer_may_change_the_protocol(tmp_path: Path) -> None:
    assert Recipe.of({"stream.tasks": 2}, {"stream.protocol": "base-step", "stream.step": 3}).stream.step == 3
    assert Recipe.of({"stream.step": 3}, {"stream.protocol": "base-step"}).stream.step == 3
    path = tmp_path / "recipe.toml"
    path.write_text("[stream]\nbase = 4\nstep = 3\n", encoding="utf-8")
    with pytest.raises(EdblError, match=f"stream.base {IDLE} base0"):
        Recipe.read(path)
    assert Recipe.read(path, {"stream.protocol": "base-step"}).stream.base == 4
    made = Recipe.build("rkd", phases=2)
    path.write_text(made.toml(), encoding="utf-8")
    for other in ({}, {"method": "edbl"}):
        assert Recipe.read(path, {"stream.protocol": "base-step", **other}).stream.tasks == 2, "a file of every value"
    with pytest.raises(EdblError, match=f"stream.step {IDLE} base0"):
        Recipe.read(path, {"stream.step": 3})
    path.write_text(made.toml().replace("tasks = []\n", ""), encoding="utf-8")
    assert Recipe.read(path) == made, "complete before there was a key"


RESULTS = Path(__file__).parents[1] / "results"


def test_every_record_opens_and_options_that_are_gone_change_nothing() -> None:
    gone = set()
    for path in RESULTS.rglob(RECIPE):
        told = tomllib.loads(path.read_text())
        options = {f"options.{key}" for key, value in told.get("options", {}).items() if not isinstance(value, dict)}
        gone |= options - Recipe.keys(told["method"]).keys()
        made = Recipe.read(path)
        assert (made.method, made.seed) == (told["method"], told["seed"])
    assert gone
    assert gone <= DROPPED.keys()


def test_no_option_is_gone_from_all_methods_and_still_there() -> None:
    shared = {f"options.{key}" for key in ("kd_scale", "margin", "ratio_per", "temperature")}  # other methods have one
    assert shared == {key for key in DROPPED if any(key in Recipe.keys(method) for method in methods())}


def test_an_option_that_is_gone_may_have_its_last_default_in_a_complete_file_alone(tmp_path: Path) -> None:
    path, made = tmp_path / RECIPE, Recipe.build("edbl", "digits", gamma=7.0)
    older = made.toml().replace("[options]\n", '[options]\nfactor = "decomposed"\n')
    path.write_text(older, encoding="utf-8")
    assert Recipe.read(path) == made
    path.write_text(older.replace("decomposed", "coupled"), encoding="utf-8")
    with pytest.raises(EdblError, match=r'recipe .*: options.factor = "coupled" is no longer to be had'):
        Recipe.read(path)
    path.write_text(older.replace("complete = true", "complete = false"), encoding="utf-8")
    with pytest.raises(EdblError, match=r"unknown key 'options\.factor'"):
        Recipe.read(path)
    other = Recipe.build("gem", "digits", margin=0.7)  # an option that this method still has
    path.write_text(other.toml(), encoding="utf-8")
    assert Recipe.read(path) == other
    other = Recipe.build("eeil", "digits")  # whose option had another default than that of other methods
    older = other.toml().replace("[options]\n", '[options]\nbalance_teacher = "train"\nkd_scale = "none"\n')
    path.write_text(older, encoding="utf-8")
    assert Recipe.read(path) == other
    path.write_text(older.replace('"train"', '"old"'), encoding="utf-8")
    with pytest.raises(
        EdblError, match=r'options.balance_teacher = "old" is no longer to be had, only what was "train"'
    ):
        Recipe.read(path)


def test_a_complete_file_takes_nothing_from_a_preset_that_learnt_more(tmp_path: Path) -> None:
    recipe = Recipe.build("edbl", "cifar100", clean_norm=False)
    path = tmp_path / "recipe.toml"
    older = recipe.toml().replace("clean_norm = false\n", "")
    path.write_text(older, encoding="utf-8")
    assert Recipe.read(path) == recipe
    assert Recipe.read(path, {"seed": 3}) == replace(recipe, seed=3)
    path.write_text(older.replace("complete = true", "complete = false"), encoding="utf-8")
    assert Recipe.read(path) == Recipe.build("edbl", "cifar100"), "the preset's"
    other = Recipe.build("rkd", "cifar100", preset="paper")
    path.write_text(other.toml(), encoding="utf-8")
    assert Recipe.read(path, {"method": "edbl"}).options == Recipe.build("edbl", "cifar100", preset="paper").options
    assert Recipe.read(path, {"preset": "paper"}) == other
    with pytest.raises(EdblError, match="is complete, so a preset would change nothing"):
        Recipe.read(path, {"preset": "quick"})
    path.write_text('complete = "yes"', encoding="utf-8")
    with pytest.raises(EdblError, match="complete is true or false, not 'yes'"):
        Recipe.read(path)


def test_a_recipe_is_read_from_a_path_as_text_too(tmp_path: Path) -> None:
    recipe = Recipe.build("rkd")
    (tmp_path / "a.toml").write_text(recipe.toml())
    assert Recipe.read(str(tmp_path / "a.toml")) == Recipe.read(tmp_path / "a.toml") == recipe


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), np.float32(3)])
def test_numbers_of_numpy_are_numbers(seed: object) -> None:
    theirs = Recipe.build("rkd", seed=seed, nesterov=np.bool_(False), momentum=np.float64(0.5))
    assert theirs == Recipe.build("rkd", seed=3, nesterov=False, momentum=0.5)
    assert type(theirs.seed) is int


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    with pytest.raises(EdblError, match=r"cannot read recipe .*recipe\.toml: No such file"):
        Recipe.read(path)
    path.write_text("method = ", encoding="utf-8")
    with pytest.raises(EdblError, match=r"recipe\.toml is not valid TOML"):
        Recipe.read(path)
    path.write_text(f"seed = {'9' * 5000}", encoding="utf-8")
    with pytest.raises(EdblError, match=r"recipe\.toml is not valid TOML"):
        Recipe.read(path)
    path.write_bytes(b'method = "\xff"')
    with pytest.raises(EdblError, match=r"recipe\.toml is not valid TOML"):
        Recipe.read(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "edlb"}, "unknown method 'edlb': did you mean 'edbl'?"),
        ({"method": "iib_kd"}, "unknown method 'iib_kd': did you mean 'iib-kd'?"),
        ({"data.name": "cifar1000"}, "unknown data set 'cifar1000': did you mean 'cifar100'?"),
        ({"name": "digit"}, "unknown data set 'digit': did you mean 'digits'?"),
        ({"gama": 3}, "unknown key 'gama': did you mean 'gamma'?"),
        ({"method": "rkd", "gamma": 3}, "unknown key 'gamma': "),
        ({"options.redaing": "batch"}, "unknown key 'options.redaing': did you mean 'options.reading'?"),
        ({"options.reading": "bacth"}, "unknown value of options.reading 'bacth': did you mean 'batch'?"),
        ({"preset": "papers"}, "unknown value of preset 'papers': did you mean 'paper'?"),
        ({"stream.protocol": "base-0"}, "unknown value of stream.protocol 'base-0': did you mean 'base0'?"),
        ({"net.backbone": "resnet34"}, "unknown backbone 'resnet34': did you mean 'resnet32'?"),
        ({"memory": "2000"}, "memory '2000' is not understood: write total=2000, per_class=20 or none"),
        ({"epochs": 3}, "key 'epochs' is ambiguous: it may be schedule.epochs or options.balance.epochs"),
        ({"seed": -1}, "seed = -1 is too small: at least 0"),
        ({"schedule.epochs": 0}, "schedule.epochs = 0 is too small: at least 1"),
        ({"schedule.milestones": [3, -1]}, "schedule.milestones = -1 is too small: at least 1"),
        ({"first.task_milestones": [0]}, "first.task_milestones = 0 is too small: at least 1"),
        ({"options.balance.milestones": [0]}, "options.balance.milestones = 0 is too small: at least 1"),
        ({"data.mean": [0.5, 128]}, "data.mean = 128.0 is too large: at most 1"),
        ({"data.mean": [-0.5]}, "data.mean = -0.5 is too small: at least 0"),
        ({"optim.momentum": 1.5}, "optim.momentum = 1.5 is too large: at most 1"),
        ({"optim.batch": "big"}, "optim.batch = 'big' is not a whole number"),
        ({"options.detach": "no"}, "options.detach = 'no' is not true or false"),
    ],
)
def test_mistakes_are_explained(given: dict[str, object], message: str) -> None:
    with pytest.raises(EdblError) as caught:
        Recipe.of(given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("method", SINGLE)
def test_short_keys_where_unambiguous(method: str) -> None:
    recipe = Recipe.build(method, epochs=9, lr=0.5)
    assert (recipe.schedule.epochs, recipe.schedule.lr) == (9, 0.5)


def test_keys_are_those_of_the_method() -> None:
    assert "options.gamma" not in Recipe.keys("rkd")
    assert "options.balance.epochs" in Recipe.keys("edbl")
    recipe = Recipe.build("edbl")
    assert set(recipe.values()) == set(Recipe.keys("edbl"))


def test_recipes_are_frozen_and_hashable() -> None:
    recipes = [Recipe.build(method, data) for method in sorted(methods()) for data in DATA]
    assert len(set(recipes)) == len(recipes)
    assert hash(Recipe.build("edbl", order=["1", "0"])) == hash(Recipe.build("edbl", order=("1", "0")))
    with pytest.raises(FrozenInstanceError):
        recipes[0].seed = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        recipes[0].schedule.lr = 3.0  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        recipes[0].options.gamma = 3.0  # type: ignore[attr-defined]


def test_given_values_win_over_preset_and_data_set() -> None:
    recipe = Recipe.build(
        "edbl",
        "cifar100",
        preset="paper",
        memory="total=77",
        gamma=5,
        nesterov=True,
        **{"schedule.epochs": 11, "options.balance.lr": 0.5, "stream.protocol": "base-half", "data.pad": 1},
    )
    assert isinstance(recipe.options, Balancing)
    assert (recipe.memory, recipe.options.gamma, recipe.optim.nesterov) == ("total=77", 5.0, True)
    assert (recipe.schedule.epochs, recipe.options.balance.lr, recipe.data.pad) == (11, 0.5, 1)
    assert recipe.schedule.milestones == (4, 7, 10)  # of 150: 60, 100, 130


@pytest.mark.parametrize(
    ("data", "protocol", "phases", "gamma", "alpha", "epochs", "drops", "balance_epochs", "balance_drops", "memory"),
    EXPERIMENTS,
)
def test_the_papers_experiments(
    data: str,
    protocol: str,
    phases: int,
    gamma: float,
    alpha: float,
    epochs: int,
    drops: tuple[int, ...],
    balance_epochs: int,
    balance_drops: tuple[int, ...],
    memory: str,
) -> None:
    recipe = Recipe.build("edbl", data, preset="paper", protocol=protocol, phases=phases)
    options = recipe.options
    assert isinstance(options, EDBL.Config)
    assert (options.gamma, options.alpha) == (gamma, alpha)
    assert recipe.schedule == Schedule(epochs, 0.1, drops, 0.1)
    assert options.balance == Schedule(balance_epochs, 0.01, balance_drops, 0.1)
    assert recipe.memory == memory
    assert (recipe.optim.batch, recipe.optim.weight_decay, recipe.optim.momentum) == (128, 0.0002, 0.9)
    assert (options.beta, options.min_old) == (1.0, 32)
    crop = (recipe.data.augment, recipe.data.pad)
    assert crop == (("flip", 0) if data == "tiny-imagenet" else ("crop-flip", 4))
    assert recipe.net.backbone == ("resnet18" if data == "tiny-imagenet" else "resnet32")


def test_paper_is_literal_where_default_is_not() -> None:
    paper, default = (Recipe.build("edbl", "cifar100", preset=preset) for preset in ("paper", "default"))
    assert (paper.optim.nesterov, paper.optim.warmup) == (False, 0)
    assert (default.optim.nesterov, default.optim.warmup) == (True, 5)
    for recipe, scale, rounds, over, total in ((paper, "none", 0, "all", "one"), (default, "t2", 1, "old", "classes")):
        options = recipe.options
        assert isinstance(options, EDBL.Config)
        assert (options.kd_scale, options.max_rounds, options.factor_over) == (scale, rounds, over)
        assert options.weight_sum == total
        assert options.counts == ("raw" if recipe is paper else "effective")  # A6


def test_every_method_takes_its_part_of_the_paper_preset() -> None:
    for name in (*SINGLE, *DOUBLE):
        recipe = Recipe.build(name, "cifar100", preset="paper")
        assert recipe.schedule == Schedule(150, 0.1, (60, 100, 130))
        options = recipe.options
        if isinstance(options, Distilling):
            assert options.kd_scale == "none"
        if isinstance(options, Balancing):
            assert options.gamma == 300.0
            assert options.balance == Schedule(100, 0.01, (30, 60, 80))


@pytest.mark.parametrize("method", sorted(set(methods()) - {*SINGLE, *DOUBLE}))
def test_a_method_of_another_publication_has_its_own_values(method: str) -> None:
    own = methods()[method].paper
    recipe = Recipe.build(method, "cifar100", preset="paper").values()
    assert {key: recipe[key] for key in own} == dict(own)
    aligned = Recipe.build(method, "cifar100", preset="tuned").values()
    common = Recipe.build("edbl", "cifar100", preset="tuned").values()
    for key in ("schedule.epochs", "schedule.lr", "schedule.milestones", "optim.batch", "optim.weight_decay"):
        assert aligned[key] == common[key]
    assert (aligned["data.augment"], aligned["data.brightness"]) == ("crop-flip-trivial", 0.0)
    assert recipe["optim.nesterov"] is False


def test_quick_is_quick() -> None:
    for data in DATA:
        recipe = Recipe.build("edbl", data, preset="quick")
        assert isinstance(recipe.options, Balancing)
        assert recipe.schedule.epochs + recipe.options.balance.epochs <= 10
        assert max(recipe.schedule.milestones) < recipe.schedule.epochs
        assert recipe.optim.warmup <= 1


def test_defaults_of_the_methods() -> None:
    defaults = {name: kind.Config() for name, kind in methods().items()}
    detached = {name: c.detach for name, c in defaults.items() if isinstance(c, Balancing)}
    assert detached == {"ib": False, "iib": False, "iib-kd": False, "edbl": True}  # A10
    distilled = {name: c.balance_kd_weight for name, c in defaults.items() if isinstance(c, Balancing)}
    assert distilled == {"ib": 0.0, "iib": 0.0, "iib-kd": 1.0, "edbl": 1.0}  # A4, A19
    mixed = {name for name, c in defaults.items() if isinstance(c, Mixing)}
    assert mixed == {"vanilla-mkd", "re-mkd", "edbl"}
    for c in defaults.values():
        if isinstance(c, Distilling):
            assert (c.temperature, c.kd_weight) == (2.0, 1.0)
    assert Optim() == Optim(batch=128, momentum=0.9, nesterov=True, weight_decay=2e-4, warmup=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("schedule.epochs=20", ("schedule.epochs", 20)),
        (" lr = 0.5 ", ("lr", 0.5)),
        ("alpha=1e-5", ("alpha", 1e-5)),
        ("detach=true", ("detach", True)),
        ("method=edbl", ("method", "edbl")),
        ("name=./my folder", ("name", "./my folder")),
        ('name="a = b"', ("name", "a = b")),
        ("name=a=b", ("name", "a=b")),
        ("memory=total=200", ("memory", "total=200")),
        ("milestones=[3, 4]", ("milestones", [3, 4])),
        ('tasks=[["a"], ["b", "c"]]', ("tasks", [["a"], ["b", "c"]])),
        ("order=1993", ("order", 1993)),
        ("name=", ("name", "")),
    ],
)
def test_parse_setting(text: str, expected: tuple[str, object]) -> None:
    key, value = setting(text)
    assert (key, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize("text", ["epochs", "", "=3", "  =3"])
def test_parse_setting_errors(text: str) -> None:
    with pytest.raises(EdblError, match=r"write KEY=VALUE, such as schedule\.epochs=20"):
        setting(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": float("inf")}, "seed = inf is not a whole number"),
        ({"seed": float("nan")}, "seed = nan is not a whole number"),
        ({"data.mean": [float("nan")]}, "data.mean .* is not a list, each item a finite number"),
        ({"data.std": [0.0]}, "data.std"),
        ({"data.mean": []}, "data.mean"),
        ({"data.name": "./\udcff"}, "not valid text"),
        ({"data.name": ""}, "unknown data set ''"),
        ({"method": "rkd", "epochs": 3, "schedule.epochs": 4}, "schedule.epochs is given twice"),
        ({"optim.batch": 1}, "optim.batch = 1 is too small"),
    ],
)
def test_values_that_could_only_fail_later_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(EdblError, match=message):
        Recipe.of(given)


@pytest.mark.parametrize("order", ["4294967296", "9" * 5000, "²"])
def test_class_orders_that_are_no_seeds_are_refused(order: str) -> None:
    with pytest.raises(EdblError, match="class order"):
        class_order(order, ["a", "b"])


def test_a_setting_that_looks_like_a_date_stays_text() -> None:
    assert setting("data.name=2024-01-01") == ("data.name", "2024-01-01")


def test_what_no_table_of_the_paper_prints() -> None:
    for preset in ("default", "paper", "quick"):
        for data, phases in (("digits", 5), ("cifar100", 4), ("tiny-imagenet", 4)):
            options = Recipe.build("edbl", data, preset=preset, **{"stream.tasks": phases}).options
            assert isinstance(options, EDBL.Config)
            assert (options.gamma, options.alpha) == (100.0, 5e-6)


def test_digits_have_small_batches_with_few_old_images() -> None:
    for preset, old, batch in (("tuned", 8, 32), ("quick", 8, 32), ("paper", 32, 128)):
        recipe = Recipe.build("edbl", "digits", preset=preset)
        assert isinstance(recipe.options, EDBL.Config)
        assert (recipe.options.min_old, recipe.optim.batch) == (old, batch)


@pytest.mark.parametrize(
    ("data", "given", "min_old", "rate"),
    [
        ("cifar100", {}, 32, 0.1),
        ("cifar100", {"memory": "total=1999"}, 1, 0.03),
        ("cifar100", {"memory": "per_class=19"}, 1, 0.03),
        ("cifar100", {"memory": "per_class=20"}, 32, 0.1),
        ("cifar100", {"memory": "total=500", "stream.protocol": "base-half"}, 1, 0.01),
        ("cifar100", {"memory": "total=500", "preset": "paper"}, 32, 0.1),
        ("cifar10", {}, 1, 0.1),
        ("cifar10", {"stream.tasks": 2}, 1, 0.01),
        ("cifar10", {"memory": "total=2000"}, 32, 0.1),
        ("cifar10", {"memory": "per_class=199"}, 1, 0.1),
        ("cifar10", {"memory": "per_class=200"}, 32, 0.1),
    ],
)
def test_few_exemplars_are_not_learnt_by_heart(data: str, given: dict[str, object], min_old: int, rate: float) -> None:
    recipe = Recipe.of({"method": "edbl", "data.name": data, "preset": "tuned", **given})
    assert isinstance(recipe.options, EDBL.Config)
    assert (recipe.options.min_old, recipe.schedule.lr) == (min_old, rate)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("edbl", {"temperature": 4.0, "kd_weight": 2.0, "balance_kd_weight": 1.0, "balance.lr": 0.03}),
        ("rkd", {"temperature": 4.0, "kd_weight": 2.0}),
        ("mnemonics", {"temperature": 2.0, "kd_weight": 1.0}),
        ("ssil", {"kd_weight": 1.0}),
        ("bic", {"temperature": 2.0}),
        ("der-net", {"temperature": 5.0, "tune.lr": 0.1}),
    ],
)
def test_distillation_that_was_chosen_for_rkd_is_no_other_methods(method: str, given: dict[str, float]) -> None:
    recipe = Recipe.build(method, "cifar10", preset="tuned", phases=2).values()
    assert {key: recipe[f"options.{key}"] for key in given} == given


OWN = """from dataclasses import dataclass

from edbl.config import option
from edbl.methods.edbl import EDBL
from edbl.schedule import Schedule


class Own(EDBL):
    '''Options with names that presets know.'''

    name = "own"
    title = "own"
    source = "here"

    @dataclass(frozen=True)
    class Config(EDBL.Config):
        '''Settings.'''

        gamma: float = option(2.0, "of another kind")
        counts: int = option(3, "of another type")
        balance: Schedule = Schedule(epochs=30, lr=0.5, milestones=(20,))
"""


@pytest.mark.parametrize(("preset", "epochs"), [("default", 30), ("tuned", 20), ("paper", 30), ("quick", 4)])
def test_presets_leave_the_options_of_users_alone(preset: str, epochs: int, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    values = Recipe.build(str(tmp_path / "own.py"), preset=preset).values()
    assert (values["options.gamma"], values["options.counts"]) == (2.0, 3)
    assert (values["options.balance.epochs"], values["options.balance.lr"]) == (epochs, 0.5)
    longer = Recipe.of({"method": str(tmp_path / "own.py"), "preset": preset, "options.balance.epochs": 60}).values()
    at = {"default": (40,), "tuned": (39,), "paper": (40,), "quick": (45,)}[preset]  # 13 of 20, 20 of 30, 3 of 4
    assert longer["options.balance.milestones"] == at
    theirs = Recipe.build("edbl", preset=preset).values()
    assert values["options.alpha"] == theirs["options.alpha"]  # inherited
    cifar = Recipe.build(str(tmp_path / "own.py"), "cifar100", preset=preset).values()
    assert (cifar["options.gamma"], cifar["options.balance.lr"]) == (2.0, 0.5)


@pytest.mark.parametrize(("epochs", "milestones"), [(0, (48, 80, 104)), (150, (60, 100, 130)), (300, (120, 200, 260))])
def test_milestones_of_a_first_task_go_with_its_epochs(epochs: int, milestones: tuple[int, ...]) -> None:
    recipe = Recipe.build("rkd", "cifar100", preset="tuned", task_epochs=epochs, shape="steps")
    assert recipe.first.schedule(recipe.schedule).milestones == milestones
    assert Recipe.build("wa", "cifar100", preset="paper").first.task_milestones == (60, 120, 170)
    assert Recipe.build("wa", "cifar100", preset="paper", task_epochs=20).first.task_milestones == ()


def test_milestones_go_with_epochs_unless_they_are_given() -> None:
    recipe = Recipe.of({"data.name": "digits", "preset": "tuned", "schedule.epochs": 10, "balance.epochs": 40}).values()
    assert recipe["schedule.milestones"] == (4, 7, 9)  # of 30: 12, 20, 26
    assert recipe["options.balance.milestones"] == (12, 24, 32)  # of 20: 6, 12, 16
    given = Recipe.build("rkd", "digits", epochs=10, milestones=(2,)).values()
    assert given["schedule.milestones"] == (2,)


def test_short_schedules_are_not_lengthened() -> None:
    found = [Recipe.build("mnemonics", "digits", preset=preset).values() for preset in ("default", "quick")]
    assert [values["options.exemplars.epochs"] for values in found] == [5, 4]


def test_every_value_says_where_it_comes_from() -> None:
    given = {"method": "edbl", "preset": "tuned", "data.name": "cifar10", "stream.tasks": 2, "balance.epochs": 10}
    found = Recipe.origins(given)
    assert {key: value for key, (value, _) in found.items()} == Recipe.of(given).values()
    origins = {key: origin for key, (_, origin) in found.items()}
    assert origins["optim.momentum"] == "built in"
    assert origins["data.mean"] == "data set cifar10"
    assert origins["options.gamma"] == "preset tuned (calibration: many new images in one task)"
    assert origins["options.balance.milestones"] == "moved with the epochs"
    assert origins["stream.tasks"] == "given"


def test_the_list_of_options_tells_origins(cli: Cli) -> None:
    done = cli("list", "options", "edbl", "--data", "cifar100", "--preset", "paper", "--set", "stream.tasks=10")
    assert done.code == 0, done.err
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert "preset paper (Table 6)" in lines["options.gamma"]
    assert "preset paper (as printed)" in lines["options.max_rounds"]
    assert "given" in lines["stream.tasks"]


@dataclass(frozen=True)
class Part:
    """A part of what a file says."""

    count: int
    share: float | None


@dataclass(frozen=True)
class Said:
    """What a file says."""

    kind: Literal["a", "b"]
    parts: dict[str, Part]
    places: tuple[tuple[int, ...], ...]
    rest: list[Any]


def test_what_a_file_says_is_fitted_to_its_types() -> None:
    said = {"kind": "b", "parts": {"x": {"count": 2.0, "share": None}}, "places": [[1], []], "rest": ["t", 1.5, [[3]]]}
    assert config.fit(Said, said, "file") == Said("b", {"x": Part(2, None)}, ((1,), ()), ["t", 1.5, [[3]]])
    assert config.fit(dict[str, object], {"a": {"b": {}}}, "file") == {"a": {"b": {}}}
    assert config.fit(float | bool | str, True, "file") is True
    assert config.fit(int | float, 2.0, "file") == 2.0
    assert type(config.fit(int | float, 2.0, "file")) is float
    assert math.isnan(config.fit(list[float], [None], "file", null=math.nan)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "'kind' is not a or b"),
        ({"kind": ["a"]}, "'kind' is not a or b"),
        ({"parts": {"x": {"count": 1}}}, "'share' of parts is missing"),
        ({"parts": {"x": {"count": 1, "share": 1, "more": 1}}}, "'more' of parts is unknown"),
        ({"parts": {"x": {"count": 1, "share": "1"}}}, "'share' is not a finite number or null"),
        ({"parts": {"x": [1, 2]}}, "'parts' is not an object that says what a Part is"),
        ({"parts": []}, "'parts' is not an object, each value"),
        ({"places": [[1.5]]}, "'places' is not a whole number"),
        ({"places": [1]}, "'places' is not a list, each item a whole number"),
        ({"rest": [{}]}, "'rest' is not a value that settings have"),
        ({"rest": [[[[[1]]]]]}, "'rest' is not a value that settings have"),
        ({"extra": 1}, "'extra' of file is unknown"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    said = {"kind": "a", "parts": {}, "places": [], "rest": []}
    with pytest.raises(config.Unfit, match=message):
        config.fit(Said, said | change, "file")


@pytest.mark.parametrize("protocol", ["base0", "base-half"])
def test_the_older_name_of_tasks_is_read(protocol: str) -> None:
    recipe = Recipe.of({"method": "rkd", "stream.protocol": protocol, "stream.phases": 3})
    assert recipe == Recipe.build("rkd", protocol=protocol, phases=3) == Recipe.build("rkd", protocol=protocol, tasks=3)
    assert recipe.stream.number == 3


def test_complete_recipes_of_before_are_read(tmp_path: Path) -> None:
    listed = Recipe.of({"method": "rkd", "stream.protocol": "tasks", "stream.tasks": [["0", "1"], ["2"]]})
    for recipe, tasks in ((Recipe.build("rkd", tasks=2), "[]"), (listed, '[["0", "1"], ["2"]]')):
        today = next(line for line in recipe.toml().splitlines() if line.startswith("tasks = "))
        (tmp_path / "old.toml").write_text(recipe.toml().replace(today, f"phases = 2\ntasks = {tasks}"))
        assert Recipe.read(tmp_path / "old.toml") == recipe


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stream.phases": 3, "stream.tasks": 3}, r"^stream\.tasks is given twice, once as 'stream\.phases'$"),
        ({"phases": 3, "stream.phases": 3}, "given twice"),
        ({"stream.tasks": [["0"], ["1"]]}, r"^protocol base0 needs a number as stream\.tasks; protocol tasks lists"),
        (
            {"stream.protocol": "tasks"},
            r"^protocol tasks needs stream\.tasks to list the tasks, with at least one class",
        ),
        ({"stream.protocol": "tasks", "stream.tasks": [["0"], []]}, "with at least one class each"),
        ({"stream.tasks": 0}, r"^stream\.tasks = 0 is too small: at least 1$"),
        ({"stream.tasks": "many"}, r"^stream\.tasks = 'many' is not a whole number or a list"),
    ],
)
def test_tasks_that_a_protocol_has_no_use_for(given: dict[str, object], told: str) -> None:
    with pytest.raises(EdblError, match=told):
        Recipe.of(given)
