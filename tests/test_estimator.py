"""The scikit-learn estimator: scikit-learn's own checks, increments, inputs of every kind, files."""

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from edbl import EDBLClassifier, EdblError, store
from edbl.app.samples import Vectors
from edbl.methods import methods
from edbl.training import Training

Array = NDArray[Any]
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
INCREMENTS = ((7, 8, 9), (0, 1, 2, 3), (4, 5, 6))
DIGITS = load_digits()
X, X_TEST = DIGITS.data[:600], DIGITS.data[600:900]
Y, Y_TEST = DIGITS.target[:600], DIGITS.target[600:900]
IMAGES = DIGITS.images[:600]


def quick(**given: Any) -> EDBLClassifier:
    return EDBLClassifier(**{"epochs": 6, "random_state": 0, **given})


def only(classes: tuple[int, ...], x: Array = X, y: Array = Y) -> tuple[Array, Array]:
    there = np.isin(y, classes)
    return x[there], y[there]


def learnt(x: Array = X, y: Array = Y, **given: Any) -> EDBLClassifier:
    """Return an estimator after three increments."""
    model = quick(**given)
    for classes in INCREMENTS:
        there = np.isin(Y, classes)
        model.partial_fit(x[there], y[there])
    return model


def blobs(*centres: float, each: int = 12) -> tuple[Array, Array]:
    """Return vectors around a centre for each class."""
    noise = np.random.default_rng(0).normal(size=(len(centres) * each, 3))
    return noise + np.repeat(centres, each)[:, None], np.repeat(np.arange(len(centres)), each)


def same(first: EDBLClassifier, second: EDBLClassifier, x: Array = X_TEST) -> bool:
    return bool(np.array_equal(first.predict_proba(x), second.predict_proba(x)))


@parametrize_with_checks([EDBLClassifier(), EDBLClassifier(method="rkd", readout="nme")])  # type: ignore[untyped-decorator]
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


def test_old_classes_are_kept() -> None:
    model = learnt(memory="total=100", epochs=10)
    assert model.score(X_TEST, Y_TEST) > 0.8
    assert len(model._learnt.model.memory) == 100
    assert learnt(method="finetune", epochs=10).score(X_TEST, Y_TEST) < 0.5


def test_classes_are_sorted_whatever_the_order_of_arrival() -> None:
    model = quick()
    for classes, so_far in zip(INCREMENTS, ([7, 8, 9], [0, 1, 2, 3, 7, 8, 9], range(10)), strict=True):
        model.partial_fit(*only(classes))
        assert model.classes_.tolist() == list(so_far)
    shares = model.predict_proba(X_TEST)
    assert shares.shape == (300, 10)
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_array_equal(model.classes_[shares.argmax(1)], model.predict(X_TEST))
    assert shares[np.arange(300), Y_TEST].mean() > 0.6


@pytest.mark.parametrize("dtype", ["U", "O"])
def test_labels_may_be_text(dtype: str) -> None:
    model = learnt(y=NAMES[Y].astype(dtype))
    assert model.classes_.tolist() == sorted(NAMES)
    assert model.score(X_TEST, NAMES[Y_TEST]) > 0.85


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bool"])
def test_labels_may_be_numbers(dtype: str) -> None:
    x, y = blobs(-5, 5)
    model = quick().fit(x, y.astype(dtype))
    assert model.classes_.dtype == dtype
    assert model.predict(x).dtype == dtype
    assert model.score(x, y.astype(dtype)) == 1


def test_whole_numbers_and_floats_are_the_same_labels() -> None:
    x, y = blobs(-8, 0, 8)
    model = quick().fit(x[y < 2], y[y < 2]).partial_fit(x[y > 0], y[y > 0].astype(float))
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(x, y) > 0.9


def test_labels_of_another_kind_are_refused() -> None:
    x, y = blobs(-5, 5)
    with pytest.raises(ValueError, match="text and numbers"):
        quick().fit(x, y).partial_fit(x, y.astype(str))
    with pytest.raises(ValueError, match="without loss"):
        quick().fit(x, np.where(y == 0, 2**53 + 1, 5)).partial_fit(x, np.ones(len(y)))
    big = 2**53 + y  # which floats cannot tell apart
    with pytest.raises(ValueError, match="without loss"):
        quick().fit(x, big).partial_fit(x, y.astype(float))
    with pytest.raises(ValueError, match="without loss"):
        quick().fit(x, y.astype(float)).partial_fit(x, big)


def test_more_of_known_classes_may_come() -> None:
    x, y = blobs(-8, 8)
    model = quick().fit(x, y)
    assert model.score([[20.0, -20.0, 20.0]], [0]) == 0
    model.partial_fit(np.full((12, 3), (20.0, -20.0, 20.0)), np.zeros(12, int))
    assert model.classes_.tolist() == [0, 1]
    assert model.score([[20.0, -20.0, 20.0]], [0]) == 1
    assert model.score(x, y) > 0.9


def test_fit_begins_anew_and_partial_fit_goes_on() -> None:
    model = quick().fit(*only((0, 1)))
    assert same(clone(model).partial_fit(*only((0, 1))), model)
    seed = model._learnt.model.learner.training.seed
    model.set_params(random_state=1).partial_fit(*only((2, 3)))
    assert model.classes_.tolist() == [0, 1, 2, 3]
    inner = model._learnt.model
    assert (inner.learner.training.seed, inner.increments, inner.seen_images) == (seed, 2, len(only((0, 1, 2, 3))[0]))
    model.set_params(random_state=0).fit(*only((4, 5)))
    assert same(model, quick().fit(*only((4, 5))))


def test_a_call_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = quick().fit(*only((0, 1)))
    before = copy.deepcopy(model)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("edbl.memory.Memory.update", stop)
        with pytest.raises(KeyboardInterrupt):
            model.partial_fit(*only((2, 3)))
    x, y = only((0, 1))
    for bad in (np.linspace(0, 1, len(y)), y):
        with pytest.raises(ValueError, match=r"total=1|continuous"):
            model.set_params(memory="total=1").fit(x[:, :5], bad)
    model.set_params(memory=before.memory)
    assert model.n_features_in_ == before.n_features_in_
    assert model.classes_.tolist() == [0, 1]
    assert same(model, before)
    assert same(model.partial_fit(*only((2, 3))), before.partial_fit(*only((2, 3))))


@pytest.mark.parametrize(
    "options", [{"data.holdout": 0.5}, {"stream.tasks": 3}, {"data.image_size": 7}, {"preset": "quick"}]
)
def test_options_that_would_do_nothing(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="has no effect here"):
        quick(options=options).fit(*only((0, 1)))


def test_classes_need_not_be_given_but_are_believed() -> None:
    model = quick().partial_fit(*only((0, 1)), classes=range(10))
    assert model.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="not in classes"):
        model.partial_fit(*only((2, 3)), classes=[0, 1, 2])


def test_one_sample_of_one_class() -> None:
    model = quick().partial_fit(X[:1], ["only"])
    assert model.predict(X_TEST).tolist() == ["only"] * 300
    assert model.predict_proba(X[:1]).tolist() == [[1.0]]
    model.partial_fit(X[1:2], ["another"])
    assert model.predict(X[:2]).tolist() == ["only", "another"]


def test_results_follow_the_random_state() -> None:
    first = learnt(random_state=1)
    assert same(first, learnt(random_state=1))
    assert not same(first, learnt(random_state=2))
    state = np.random.RandomState(0)
    assert not same(quick(random_state=state).fit(X, Y), quick(random_state=state).fit(X, Y))
    assert not same(quick(random_state=None).fit(X, Y), quick(random_state=None).fit(X, Y))


def test_units_of_features_do_not_matter() -> None:
    units = 10.0 ** np.random.default_rng(0).integers(-8, 8, X.shape[1])
    plain, scaled = learnt(), learnt(X * units)
    np.testing.assert_allclose(plain.predict_proba(X_TEST), scaled.predict_proba(X_TEST * units), atol=1e-2)


def test_a_feature_may_begin_to_vary_later() -> None:
    x, y = blobs(-5, 5)
    still = np.where(np.arange(3) == 2, 7.0, x)
    model = quick(epochs=None).fit(still, y)
    before = model.predict_proba(still)
    strange = np.where(np.arange(3) == 2, 1e6, x)
    np.testing.assert_array_equal(model.predict_proba(strange), before)  # a feature that says nothing counts nothing
    moved = np.where(np.arange(3) == 2, 7e-6, still)
    model.partial_fit(moved, np.full(len(y), 2))
    assert model.score(np.vstack([still, moved]), np.append(y, np.full(len(y), 2))) > 0.95


def test_numbers_of_any_size_are_borne() -> None:
    x, y = blobs(-5, 5)
    model = quick().fit(x, y)
    assert np.isfinite(model.predict_proba([[1e308, -1e308, 0], [1e-308, 0, 0]])).all()
    assert quick().fit(x * 1e100, y).score(x * 1e100, y) == 1
    with pytest.raises(ValueError, match="too large"):
        quick().fit(x * 1e300, y)


@pytest.mark.parametrize("layout", ["grey", "last", "first", "bytes", "shares", "colour"])
def test_images_of_every_layout(layout: str) -> None:
    change: Callable[[Array], Array] = {
        "grey": lambda x: x,
        "last": lambda x: x[..., None],
        "first": lambda x: x[:, None],
        "bytes": lambda x: (x * 15).astype(np.uint8),
        "shares": lambda x: (x / 16).astype(np.float32),
        "colour": lambda x: np.stack([x, 16 - x, x / 2], 3),
    }[layout]
    model = learnt(change(IMAGES), method="rkd")
    assert model.n_features_in_ == (192 if layout == "colour" else 64)
    test = change(DIGITS.images[600:900])
    assert model.score(test, Y_TEST) > 0.8
    assert model.set_params(readout="nme").score(test, Y_TEST) > 0.8


def test_layouts_are_the_same_images() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (30, 12, 8, 3)).astype(np.uint8)
    y = np.arange(30) % 2
    last = quick(epochs=2).fit(colour, y)
    first = quick(epochs=2).fit(colour.transpose(0, 3, 1, 2), y)
    assert same(last, first, colour)
    assert same(last, quick(epochs=2).fit(colour / 255, y), colour)
    assert last._learnt.input.shape == (3, 12, 8)
    channels = colour.reshape(-1, 3) / 255
    np.testing.assert_allclose(last._learnt.model.learner.training.data.mean, channels.mean(0), rtol=1e-5)
    np.testing.assert_allclose(last._learnt.model.learner.training.data.std, channels.std(0), rtol=1e-5)


def test_large_images() -> None:
    large = np.random.default_rng(0).integers(0, 256, (2, 520, 520)).astype(np.uint8)
    model = quick(epochs=1, backbone="mlp").fit(large, [0, 1])
    assert model._learnt.model.learner.training.data.pad == 64


def test_channels_that_images_do_not_have() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (30, 12, 8, 3)).astype(np.uint8)
    with pytest.raises(ValueError, match=r"data\.mean and data\.std need 3 values"):
        quick(options={"data.mean": [0.5, 0.5]}).fit(colour, np.arange(30) % 2)


def test_a_load_while_another_process_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(epochs=1).fit(*only((0, 1))).save(tmp_path)
    first = (tmp_path / "estimator.json").read_bytes()
    quick(epochs=2).fit(*only((0, 1))).save(tmp_path)
    read, looks = Path.read_bytes, iter([first])  # the first look is at what is about to be replaced
    monkeypatch.setattr(Path, "read_bytes", lambda path: next(looks, None) or read(path))
    assert EDBLClassifier.load(tmp_path).epochs == 2


def test_images_that_do_not_go_together_are_refused() -> None:
    y = Y[:40]
    bytes_, shares = (IMAGES[:40] * 15).astype(np.uint8), IMAGES[:40] / 16
    model = quick(epochs=1).fit(bytes_, y)
    for x, match in (
        (shares, "uint8, and these are float64"),
        (bytes_[:, :6], r"1 x 6 x 8 .* 1 x 8 x 8"),
        (X[:40], "fitted with images"),
    ):
        with pytest.raises(ValueError, match=match):
            model.predict(x)
        with pytest.raises(ValueError, match=match):
            model.partial_fit(x, y)
    with pytest.raises(ValueError, match=r"0 to 255.*in 0\.\.1, as the first"):
        quick(epochs=1).fit(shares, y).predict(shares * 255)
    for bad in (shares - 1, IMAGES[:40] * 100):
        with pytest.raises(ValueError, match="as uint8, or with values in"):
            quick(epochs=1).fit(bad, y)
    for bad in (np.zeros((2, 1, 2, 2, 2)), np.zeros((2, 0, 4))):
        with pytest.raises(ValueError, match="is neither vectors"):
            quick(epochs=1).fit(bad, [0, 1])
    with pytest.raises(ValueError, match="NaN"):
        quick(epochs=1).fit(np.full((2, 4, 4), np.nan), [0, 1])
    with pytest.raises(ValueError, match="fitted with vectors"):
        quick(epochs=1).fit(X[:40], y).predict(shares)


def test_vectors_after_images_begin_anew() -> None:
    model = quick(epochs=1).fit(IMAGES[:40], Y[:40]).fit(X[:40, :9], Y[:40])
    assert model.n_features_in_ == 9
    model.feature_names_in_ = np.array([f"feature {k}" for k in range(9)], dtype=object)
    assert not hasattr(model.fit(IMAGES[:40], Y[:40]), "feature_names_in_")


def test_the_net_suits_the_samples() -> None:
    def backbone(x: Array, **given: Any) -> str:
        made = quick(epochs=1, method="finetune", **given).fit(x, np.arange(len(x)))
        return str(made._learnt.model.learner.training.net.backbone)

    assert backbone(X[:4]) == "mlp"
    assert backbone(X[:4], backbone="given") == "given"
    assert backbone(np.zeros((4, 16, 16), np.uint8)) == "small"
    assert backbone(np.zeros((4, 17, 16), np.uint8)) == "resnet32"
    assert backbone(np.zeros((4, 17, 16), np.uint8), backbone="mlp") == "mlp"
    with pytest.raises(ValueError, match="backbone for vectors 'resnet32'"):
        backbone(X[:4], backbone="resnet32")


def test_parameters_reach_the_recipe() -> None:
    def recipe(samples: int = 40, **given: Any) -> Training:
        made = EDBLClassifier(**given)
        return made._training(Vectors.first(X[:2]), torch.zeros(samples, 64), 0)

    usual = recipe()
    assert (usual.schedule.epochs, usual.schedule.lr, usual.optim.batch, usual.optim.warmup) == (30, 0.1, 32, 5)
    assert recipe(10_000).optim.batch == 128
    assert recipe(10_000).values()["options.min_old"] == 32
    short = recipe(epochs=6, learning_rate=0.05, batch_size=np.int64(16)).values()
    assert short["schedule.epochs"] == 6
    assert short["schedule.milestones"] == (2, 4, 5)
    assert short["options.balance.epochs"] == 4
    assert short["options.balance.lr"] == pytest.approx(0.005)
    assert short["optim.warmup"] == 1
    assert short["optim.batch"] == 16
    given = {"optim.weight_decay": np.float64(0.5), "balance.epochs": 9, "shape": "cosine"}
    with pytest.raises(EdblError, match="ambiguous"):
        recipe(options=given)
    given["schedule.shape"] = given.pop("shape")
    values = recipe(options=given).values()
    assert values["optim.weight_decay"] == 0.5
    assert values["options.balance.epochs"] == 9
    assert values["schedule.shape"] == "cosine"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "ebdl"}, "did you mean 'edbl'"),
        ({"method": "joint"}, "keeps all images"),
        ({"method": None}, "method None is not the name"),
        ({"memory": "many"}, "total=2000"),
        ({"memory": "total=1"}, "at least total=2"),
        ({"readout": "knn"}, "cnn or nme"),
        ({"backbone": "vgg"}, "mlp or given"),
        ({"epochs": 0}, "epochs = 0 is too small"),
        ({"epochs": 1.5}, "not a whole number"),
        ({"batch_size": 1}, "batch_size = 1 is too small"),
        ({"learning_rate": -1}, "learning_rate = -1.0 is too small"),
        ({"device": "tpu"}, "value of device"),
        ({"options": {"epohcs": 3}}, "unknown key"),
        ({"options": ["warmup"]}, "are not recipe keys"),
        ({"options": {1: 2}}, "are not recipe keys"),
        ({"options": {"backbone": "mlp"}}, "parameter backbone"),
        ({"options": {"seed": 1}}, "parameter random_state"),
        ({"options": {"schedule.epochs": 2}}, "'schedule.epochs' is no option here; it is the parameter epochs"),
        ({"options": {"schedule.lr": 0.2}}, "parameter learning_rate"),
        ({"options": {"batch": 8}}, "parameter batch_size"),
        ({"random_state": "x"}, "cannot be used to seed"),
    ],
)
def test_wrong_parameters_are_named(given: dict[str, Any], match: str) -> None:
    x, y = blobs(-5, 5)
    with pytest.raises(ValueError, match=match):
        EDBLClassifier(**given).fit(x, y)


def test_a_loss_that_explodes_is_told() -> None:
    with pytest.raises(EdblError, match=r"the loss became .* lower the learning rate"):
        quick(learning_rate=1e30).fit(X, Y)


def test_answers_that_are_no_numbers_are_told() -> None:
    x, y = blobs(-5, 5)
    model = quick(method="rkd", epochs=1, batch_size=24).fit(x, y)
    before = model.predict_proba(x)
    with pytest.raises(EdblError, match="the network's outputs are NaN after training"):
        model.set_params(learning_rate=1e25).partial_fit(x[:12], y[:12] + 2)
    assert np.array_equal(model.predict_proba(x), before)


def test_method_and_net_stay_until_the_next_fit() -> None:
    model = quick(epochs=1).fit(*only((0, 1)))
    for given in ({"method": "rkd"}, {"backbone": "given"}):
        other = copy.deepcopy(model).set_params(**given)
        assert same(other, model)
        with pytest.raises(ValueError, match="call fit to begin anew"):
            other.partial_fit(*only((2, 3)))
        assert other.fit(*only((2, 3))).classes_.tolist() == [2, 3]
    assert model.set_params(epochs=2, memory="per_class=5").partial_fit(*only((2, 3))).classes_.tolist() == [0, 1, 2, 3]
    assert len(model._learnt.model.memory) == 20


def test_readouts_differ_and_may_change_after_fitting() -> None:
    model = learnt(memory="total=50")
    cnn = model.predict_proba(X_TEST)
    nme = model.set_params(readout="nme").predict_proba(X_TEST)
    assert not np.array_equal(cnn.argmax(1), nme.argmax(1))
    assert model.score(X_TEST, Y_TEST) > 0.8
    with pytest.raises(ValueError, match="cnn or nme"):
        model.set_params(readout="best").predict(X_TEST)


def test_samples_are_predicted_alone_as_together() -> None:
    model = learnt()
    alone = np.vstack([model.predict_proba(X_TEST[k : k + 1]) for k in range(100)])
    np.testing.assert_allclose(model.predict_proba(X_TEST)[:100], alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", sorted(methods().keys() - {"joint"}))
def test_every_method_learns_on(method: str, tmp_path: Path) -> None:
    model = quick(method=method, epochs=1, memory="total=40")
    for classes in ((3, 4), (1,), (0, 4)):
        model.partial_fit(*only(classes))
    assert model.classes_.tolist() == [0, 1, 3, 4]
    model.save(tmp_path)
    other = EDBLClassifier.load(tmp_path)
    assert same(model, other)
    assert same(model.partial_fit(*only((2, 1))), other.partial_fit(*only((2, 1))))


def test_a_pipeline_and_its_cross_validation() -> None:
    pipeline = Pipeline([("scale", StandardScaler()), ("learn", quick(method="rkd"))])
    assert cross_val_score(pipeline, X, Y, cv=3).mean() > 0.85
    assert "learn__method" in pipeline.get_params()


def test_a_search_over_methods() -> None:
    x, y = only((0, 1, 2))
    search = GridSearchCV(quick(), {"method": ["rkd", "edbl"], "epochs": np.arange(3, 5)}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8
    assert len(search.cv_results_["params"]) == 4
    assert search.predict(x).shape == y.shape


def test_a_clone_has_the_parameters_and_nothing_learnt() -> None:
    model = quick(options={"optim.weight_decay": 1e-3}).fit(*only((0, 1)))
    copied = clone(model)
    assert copied.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)
    assert same(copied.fit(*only((0, 1))), model)


@pytest.mark.parametrize("x", [X, IMAGES], ids=["vectors", "images"])
def test_a_pickle_in_memory_learns_on(x: Array) -> None:
    model = quick(epochs=2).fit(*only((0, 1), x))
    other = pickle.loads(pickle.dumps(model))
    assert same(model, other, x)
    assert same(model.partial_fit(*only((2, 3), x)), other.partial_fit(*only((2, 3), x)), x)


@pytest.mark.parametrize("kind", ["numbers", "text", "objects", "floats", "images"])
def test_a_saved_estimator_goes_on(kind: str, tmp_path: Path) -> None:
    labels = {"text": NAMES[Y], "objects": NAMES[Y].astype(object), "floats": Y.astype(float)}.get(kind, Y)
    x = IMAGES if kind == "images" else X
    first, then = np.isin(Y, (3, 7)), np.isin(Y, (0, 7, 8))
    model = quick(epochs=np.int64(2), readout="nme", options={"optim.nesterov": False}).fit(x[first], labels[first])
    model.save(tmp_path / "deep" / "model")
    other = EDBLClassifier.load(str(tmp_path / "deep" / "model"))
    assert other.get_params() == model.get_params()
    assert other.classes_.dtype == model.classes_.dtype
    assert other.n_features_in_ == 64
    assert same(model, other, x)
    assert same(model.partial_fit(x[then], labels[then]), other.partial_fit(x[then], labels[then]), x)
    np.testing.assert_array_equal(other.classes_, model.classes_)
    other.save(tmp_path / "deep" / "model")
    assert same(EDBLClassifier.load(tmp_path / "deep" / "model"), model, x)


def test_names_of_features_are_saved(tmp_path: Path) -> None:
    x, y = blobs(-5, 5)
    model = quick(epochs=1).fit(x, y)
    model.feature_names_in_ = np.array(["length", "width", "height"], dtype=object)
    model.save(tmp_path)
    assert EDBLClassifier.load(tmp_path).feature_names_in_.tolist() == ["length", "width", "height"]


def test_parameters_may_be_given_on_loading(tmp_path: Path) -> None:
    model = quick(epochs=1, random_state=np.random.RandomState(0)).fit(*only((0, 1)))
    model.save(tmp_path)
    other = EDBLClassifier.load(tmp_path, epochs=3, readout="nme", device="cpu")
    assert (other.epochs, other.readout, other.device, other.random_state) == (3, "nme", "cpu", None)
    assert other._learnt.model.learner.training.device == "cpu"
    assert same(model.set_params(readout="nme"), other)
    with pytest.raises(TypeError, match="epohcs"):
        EDBLClassifier.load(tmp_path, epohcs=3)


def test_a_method_of_ones_own_is_not_run_by_a_saved_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("from edbl.methods.rkd import RKD\n\nclass Mine(RKD):\n    name = 'mine'\n    title = source = ''\n")
    model = quick(method=str(own), epochs=1).fit(*only((0, 1)))
    model.save(tmp_path / "model")
    with pytest.raises(EdblError, match="if you trust it"):
        EDBLClassifier.load(tmp_path / "model")
    other = EDBLClassifier.load(tmp_path / "model", method=str(own))
    assert same(model.partial_fit(*only((2, 3))), other.partial_fit(*only((2, 3))))


def test_a_crash_while_saving_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = quick(epochs=1).fit(*only((0, 1))), quick(epochs=1).fit(*only((2, 3)))

    for crash_at in range(4):
        folder = tmp_path / str(crash_at)
        old.save(folder)
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1
            if steps > crash_at:  # noqa: B023
                raise KeyboardInterrupt

        def replace(source: Path, target: Path, count: Any = count, move: Any = os.replace) -> None:
            count()
            move(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)  # of tensors, of the JSON, and when tensors take their place
            try:
                new.save(folder)
                whole = True
            except KeyboardInterrupt:
                whole = False
        assert whole == (crash_at == 3)
        found = EDBLClassifier.load(folder)
        assert same(found, new if crash_at >= 2 else old)
        old.save(folder)
        assert same(EDBLClassifier.load(folder), old)
        assert sorted(p.name for p in folder.iterdir()) == [".lock", "estimator.json", "estimator.safetensors"]


def test_a_crash_after_a_crash_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = quick(epochs=1).fit(*only((0, 1))), quick(epochs=1).fit(*only((2, 3)))
    first.save(tmp_path)
    weights = (tmp_path / "estimator.safetensors").read_bytes()
    second.save(tmp_path)  # and now as if it had been killed before its last step
    (tmp_path / "estimator.safetensors").rename(tmp_path / "estimator.safetensors.new")
    (tmp_path / "estimator.safetensors").write_bytes(weights)
    left = tmp_path / f".estimator.json.{'0' * 32}.tmp"
    left.write_text("left behind")
    assert same(EDBLClassifier.load(tmp_path), second)

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_atomic", Mock(side_effect=KeyboardInterrupt))  # tensors are new, the JSON is not
        with pytest.raises(KeyboardInterrupt):
            first.save(tmp_path)
    assert same(EDBLClassifier.load(tmp_path), second)
    assert not left.exists()


def test_damage_is_told(tmp_path: Path) -> None:
    quick(epochs=1).fit(*only((0, 1))).save(tmp_path)
    described, weights = tmp_path / "estimator.json", tmp_path / "estimator.safetensors"
    text, data = described.read_text(), weights.read_bytes()
    for bad_text, bad_data in (
        (text, data[:-1]),
        (text, data[:-1] + bytes([data[-1] ^ 1])),
        (text.replace('"increments": 1', '"increments": 2'), data),
        (text.replace('"format": 1', '"format": 0'), data),
        (text[:-9], data),
        ("[]", data),
        ("{}", data),
        ("[" * 100_000, data),
    ):
        described.write_text(bad_text)
        weights.write_bytes(bad_data)
        with pytest.raises(EdblError, match="is damaged"):
            EDBLClassifier.load(tmp_path)
    described.write_text(text)
    weights.unlink()
    with pytest.raises(EdblError, match="is damaged"):
        EDBLClassifier.load(tmp_path)
    with pytest.raises(EdblError, match="there is no estimator"):
        EDBLClassifier.load(tmp_path / "elsewhere")


def rewrite(folder: Path, key: str, change: dict[str, Any], format: int = 1) -> None:
    """Change what a saved estimator says of itself, checksum included."""
    values, tensors = store.load(folder, "estimator", cast(type[dict[str, Any]], dict[str, object]))
    values[key] |= change
    store.save(folder, "estimator", values, tensors, format)


@pytest.mark.parametrize(
    ("change", "format", "match"),
    [
        ({}, 2, "has format 2, and this edbl reads format 1: it was written by a newer edbl"),
        ({"sizes": [3]}, 1, "is damaged: what it says does not fit its tensors"),
        ({"sizes": 3}, 1, "is damaged: estimator.json: 'sizes' is not a list, each item a whole number"),
        ({"recipe": {}}, 1, "is damaged: its recipe names no method"),
        ({"dtype": "nonsense"}, 1, "is damaged: what it says does not fit its tensors"),
        ({"more": 1}, 1, "is damaged: estimator.json: 'more' of learnt is unknown"),
    ],
)
def test_what_another_wrote_is_told(change: dict[str, Any], format: int, match: str, tmp_path: Path) -> None:
    quick(epochs=1).fit(*only((0, 1))).save(tmp_path)
    rewrite(tmp_path, "learnt", change, format)
    with pytest.raises(EdblError, match=match):
        EDBLClassifier.load(tmp_path)


def test_a_parameter_that_there_is_not(tmp_path: Path) -> None:
    quick(epochs=1).fit(*only((0, 1))).save(tmp_path)
    rewrite(tmp_path, "parameters", {"epohcs": 1})
    with pytest.raises(EdblError, match="is damaged: it has no parameter 'epohcs'"):
        EDBLClassifier.load(tmp_path)


def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        quick().save(tmp_path)
    model = quick(epochs=1).fit(*only((0, 1)))
    (tmp_path / "file").touch()
    with pytest.raises(EdblError, match="cannot save to"):
        model.save(tmp_path / "file")
    with pytest.raises(ValueError, match="cannot be saved"):
        model.set_params(options={"optim.warmup": {1}}).save(tmp_path)


def test_bars_are_shown_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    quick(epochs=1).fit(*only((0, 1)))
    assert capfd.readouterr() == ("", "")
    model = quick(epochs=1, verbose=True).fit(*only((0, 1)))
    assert "2 new classes" in capfd.readouterr().err
    assert same(model, quick(epochs=1).fit(*only((0, 1))))
    pickle.dumps(model)


def test_it_learns_about_as_well_as_others_when_all_comes_at_once() -> None:
    reference = LogisticRegression(max_iter=1000).fit(X / 16, Y).score(X_TEST / 16, Y_TEST)
    assert quick(epochs=None).fit(X, Y).score(X_TEST, Y_TEST) > reference - 0.02


@pytest.mark.parametrize("method", ["lda", "ridge"])
def test_a_closed_form_of_features_needs_no_memory_and_no_order(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": method, "backbone": "given", "memory": "none", "random_state": 0}
    features = X * 1e5  # as half precision could not hold them
    whole, parts = EDBLClassifier(**settings).fit(features, Y), EDBLClassifier(**settings)
    parts.partial_fit(features[:1] / 5, Y[:1])  # of another size
    for rows in np.array_split(np.random.default_rng(0).permutation(len(Y)), 4):
        parts.partial_fit(features[rows], Y[rows])
    whole.partial_fit(features[:1] / 5, Y[:1])
    asked = X_TEST * 1e5
    np.testing.assert_allclose(parts.predict_proba(asked), whole.predict_proba(asked), rtol=0, atol=1e-6)
    assert whole.score(asked, Y_TEST) > 0.8
    parts.save(tmp_path)
    assert same(parts, EDBLClassifier.load(tmp_path))
    with pytest.raises(ValueError, match="no exemplars"):
        parts.set_params(readout="nme").predict(asked)


def test_the_rate_for_features_goes_by_their_width() -> None:
    wide = np.repeat(X, 20, axis=1)  # the same images, and vectors of another length
    for features, asked in ((X, X_TEST), (wide, np.repeat(X_TEST, 20, axis=1))):
        model = EDBLClassifier(method="rkd", backbone="given", random_state=0).fit(features, Y)
        assert model.score(asked, Y_TEST) > 0.9
