import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edbl import records
from edbl.errors import EdblError
from edbl.records import Record


def make(tasks: int = 2) -> Record:
    sizes = [2, 1]
    matrices = [np.array([[3, 1], [0, 4]]), np.array([[2, 1, 1], [0, 3, 1], [0, 0, 4]])][:tasks]
    return Record(
        method="edbl",
        data="digits",
        protocol="base0",
        phases=2,
        memory="total=20",
        order="natural",
        seed=3,
        recipe={"schedule": {"epochs": 2, "steps": [1, 2]}, "seed": 3},
        classes=["näme", "b", "c"],
        task_sizes=sizes,
        status="done" if tasks == len(sizes) else "running",
        commit="abc",
        versions={"torch": "2"},
        device="cpu",
        started="2026-01-01T00:00:00+00:00",
        seconds=[1.5, 2.5][:tasks],
        timings=[{"train": 1.0}, {"train": 2.0, "evaluation": 0.5}][:tasks],
        data_fingerprint="f00",
        notes=["a note"],
        confusions={"cnn": matrices, "nme": [matrix.T.copy() for matrix in matrices]},
    )


def damage(folder: Path, **changes: Any) -> None:
    path = folder / "record.json"
    changed = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in changed.items() if key != "sha256"}))


def test_record_comes_back_as_written(tmp_path: Path) -> None:
    record = make()
    records.write(record, tmp_path / "new" / "run")
    back = records.read(tmp_path / "new" / "run")
    for readout in ("cnn", "nme"):
        for one, other in zip(record.confusions[readout], back.confusions[readout], strict=True):
            np.testing.assert_array_equal(one, other)
    record.confusions = back.confusions
    assert back == record
    assert back.finished == 2
    assert sorted(path.name for path in (tmp_path / "new" / "run").iterdir()) == ["confusions.npz", "record.json"]


def test_derived_numbers(tmp_path: Path) -> None:
    record = make()
    assert record.accuracy["cnn"] == pytest.approx([7 / 8, 9 / 12])
    assert record.average_incremental_accuracy["cnn"] == pytest.approx((7 / 8 + 9 / 12) / 2)
    records.write(record, tmp_path)
    stored = json.loads((tmp_path / "record.json").read_text())
    assert stored["format"] == 1
    assert stored["accuracy"]["cnn"] == pytest.approx([7 / 8, 9 / 12])
    assert stored["average_incremental_accuracy"]["nme"] == pytest.approx((7 / 8 + 9 / 12) / 2)


def test_same_record_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        records.write(make(), tmp_path / name)
    for file in ("record.json", "confusions.npz"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_run_without_a_finished_task(tmp_path: Path) -> None:
    records.write(make(tasks=0), tmp_path)
    back = records.read(tmp_path)
    assert back.finished == 0
    assert back.accuracy == {"cnn": [], "nme": []}
    assert math.isnan(back.average_incremental_accuracy["cnn"])


def test_nan_is_never_written(tmp_path: Path) -> None:
    record = make()
    record.confusions["nme"][0][:] = 0
    record.seconds[0] = math.nan
    record.timings[0] = {"train": math.inf}
    record.recipe["clip"] = math.inf
    records.write(record, tmp_path)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    stored = json.loads((tmp_path / "record.json").read_text(), parse_constant=refuse)
    assert stored["accuracy"]["nme"][0] is None
    back = records.read(tmp_path)
    assert math.isnan(back.accuracy["nme"][0])
    assert math.isnan(back.seconds[0])
    assert math.isnan(back.timings[0]["train"])
    assert back.recipe["clip"] is None


def test_json_rules_over_a_longer_npz(tmp_path: Path) -> None:
    records.write(make(tasks=1), tmp_path)
    short = (tmp_path / "record.json").read_bytes()
    records.write(make(tasks=2), tmp_path)
    (tmp_path / "record.json").write_bytes(short)
    assert records.read(tmp_path).finished == 1


def test_no_folder_and_no_run(tmp_path: Path) -> None:
    with pytest.raises(EdblError, match="no such run folder"):
        records.read(tmp_path / "missing")
    with pytest.raises(EdblError, match=r"is not a run: it has no record\.json$"):
        records.read(tmp_path)
    records.write(make(), tmp_path / "inner")
    with pytest.raises(EdblError, match=r"record\.json; the folders in it are: name them, as '.*inner'$"):
        records.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[]", "\x00"])
def test_broken_json(tmp_path: Path, text: str) -> None:
    records.write(make(), tmp_path)
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(EdblError, match=r"broken run .*record\.json: not"):
        records.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "has format 2"),
        ({"seed": "one"}, "'seed' is not a whole number"),
        ({"seed": True}, "'seed' is not a whole number"),
        ({"status": "odd"}, "'status' is not running or done or failed"),
        ({"task_sizes": [2, "x"]}, "'task_sizes' is not a whole number"),
        ({"task_sizes": [2]}, "'task_sizes' does not fit"),
        ({"task_sizes": [0, 3]}, "'task_sizes' does not fit"),
        ({"task_sizes": [4, -1]}, "'task_sizes' does not fit"),
        ({"returning": [[], ["x"]]}, "'returning' is not a whole number"),
        ({"returning": [[0]]}, "'returning' does not fit 'task_sizes'"),
        ({"returning": [[0], []]}, "'returning' does not fit 'task_sizes'"),
        ({"returning": [[], [2]]}, "'returning' does not fit 'task_sizes'"),
        ({"returning": [[], [-1]]}, "'returning' does not fit 'task_sizes'"),
        ({"task_sizes": [1, 2]}, "'cnn_0' is not a 1 x 1 matrix"),
        ({"timings": [{"train": "x"}]}, "'timings' is not a finite number"),
        ({"classes": ["a"]}, "fewer classes"),
        ({"accuracy": {"cnn": [0.1] * 2, "nme": "x"}}, "'accuracy' is not"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    records.write(make(), tmp_path)
    damage(tmp_path, **changes)
    with pytest.raises(EdblError, match=words):
        records.read(tmp_path)


def test_missing_field(tmp_path: Path) -> None:
    records.write(make(), tmp_path)
    stored = json.loads((tmp_path / "record.json").read_text())
    del stored["method"], stored["sha256"]
    (tmp_path / "record.json").write_text(json.dumps(stored))
    with pytest.raises(EdblError, match="'method' is missing"):
        records.read(tmp_path)


def test_confusions_missing_short_or_broken(tmp_path: Path) -> None:
    records.write(make(tasks=1), tmp_path)
    one = (tmp_path / "confusions.npz").read_bytes()
    records.write(make(), tmp_path)
    (tmp_path / "confusions.npz").write_bytes(one)
    with pytest.raises(EdblError, match="'cnn_1' is missing"):
        records.read(tmp_path)
    (tmp_path / "confusions.npz").write_bytes(one[:-40])
    with pytest.raises(EdblError, match=r"confusions\.npz: unreadable"):
        records.read(tmp_path)
    (tmp_path / "confusions.npz").unlink()
    with pytest.raises(EdblError, match=r"confusions\.npz: the file is missing"):
        records.read(tmp_path)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    records.write(make(tasks=1), tmp_path)
    evil = np.array([[{}, 1], [1, 1]], dtype=object)
    np.savez(tmp_path / "confusions.npz", cnn_0=evil, nme_0=evil)
    with pytest.raises(EdblError, match="unreadable"):
        records.read(tmp_path)
    (tmp_path / "confusions.npz").write_text("junk")
    with pytest.raises(EdblError, match="unreadable"):
        records.read(tmp_path)


def test_features(tmp_path: Path) -> None:
    assert records.read_features(tmp_path) is None
    features = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float16)
    records.write_features(tmp_path, features, np.arange(6))
    kept = records.read_features(tmp_path)
    assert kept is not None
    np.testing.assert_array_equal(kept[0], features)
    np.testing.assert_array_equal(kept[1], np.arange(6))
    assert kept[0].dtype == np.float16
    records.write_features(tmp_path, torch.ones(2, 3), torch.tensor([0, 1]))
    kept = records.read_features(tmp_path)
    assert kept is not None
    assert kept[0].dtype == np.float32
    with pytest.raises(ValueError, match="features must be"):
        records.write_features(tmp_path, features, np.arange(5))


def test_broken_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "features.npz", features=np.zeros((3, 2)), labels=np.array([0, -1, 2]))
    with pytest.raises(EdblError, match="labels do not match"):
        records.read_features(tmp_path)
    np.savez(tmp_path / "features.npz", features=np.zeros(3), labels=np.arange(3))
    with pytest.raises(EdblError, match="are not features"):
        records.read_features(tmp_path)


def test_write_into_a_place_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(EdblError, match="cannot make the folder"):
        records.write(make(), tmp_path / "plain" / "run")
