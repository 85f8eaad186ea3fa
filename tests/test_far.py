"""Images that are far from the device: the same bits as on it, little memory, and what may go wrong on the way."""

import gc
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from edbl import EdblError, Recipe, resume, run
from edbl.data import far as module
from edbl.data.far import Far, Held, OnDisk, as_tensor, far, near, placed
from edbl.data.images import Images
from edbl.engine.callbacks import Callback, Stop, TaskEnd
from edbl.engine.learner import Learner
from edbl.engine.progress import Progress
from tests.test_contract import last_state
from tests.vectors import seeded

CPU = torch.device("cpu")


def pixels(count: int, side: int = 4) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=seeded(count))


def on_disk(path: Path, x: Tensor) -> Tensor:
    path.write_bytes(b"head" + x.numpy().tobytes())
    n, c, h, w = x.shape
    return as_tensor(Far.all_of(OnDisk(path, (n, c, h, w), "checksum", 4)))


def test_it_stands_for_a_tensor(tmp_path: Path) -> None:
    x, exemplars = pixels(20), pixels(5)
    apart = on_disk(tmp_path / "x", x)
    index = torch.tensor([3, 3, 19, 0])
    both = torch.cat([exemplars, apart[index], apart[2:4]])
    plain = torch.cat([exemplars, x[index], x[2:4]])
    assert (both.shape, both.ndim, both.dtype, len(both)) == (plain.shape, 4, torch.uint8, 11)
    assert torch.equal(near(both), plain)
    assert [part.tolist() for part in both.split(4)] == [part.tolist() for part in plain.split(4)]
    mixed = torch.tensor([[10, 0], [4, 5], [6, 6]])
    found = far(both)
    assert found is not None
    assert torch.equal(torch.stack(list(found.batches(mixed.unbind()))), plain[mixed])
    images = Images(both, torch.arange(11))[torch.tensor([9, 1])]
    assert torch.equal(images.here().x, plain[[9, 1]])
    assert images.y.tolist() == [9, 1]
    with pytest.raises(TypeError, match=r"torch\.stack"):
        torch.stack([both])


@pytest.mark.parametrize("method", ["edbl", "der++", "ewc", "gem", "mnemonics"])
def test_a_run_has_the_same_bits(method: str, tmp_path: Path) -> None:
    small = {"net.backbone": "small", "stream.phases": 2, "schedule.epochs": 2, "checkpoint_seconds": 0}
    states = []
    for on in ("device", "host"):
        recipe = Recipe.build(method, "digits", preset="quick", **{**small, "data.on": on})
        record = run(recipe, tmp_path / on)
        states.append(last_state(tmp_path / on, record).tensors)
    here, apart = states
    assert here.keys() == apart.keys()
    assert all(torch.equal(here[k].nan_to_num(), apart[k].nan_to_num()) for k in here)


def test_exemplars_are_there_once_while_a_task_is_learnt(tmp_path: Path) -> None:
    """A learner holds all exemplars, and each task has one of its own."""

    class Watching(Progress):
        learners: ClassVar[list[int]] = []

        def phase(self, task: int, name: str, epochs: int, done: int) -> None:
            self.learners.append(sum(type(thing) is Learner for thing in gc.get_objects()))

    gc.collect()
    small = {"net.backbone": "mlp", "stream.tasks": 3, "schedule.epochs": 1, "data.on": "host"}
    run(Recipe.build("er", "digits", preset="quick", **small), tmp_path / "run", progress=Watching())
    assert Watching.learners == [1, 1, 1]


def test_a_run_goes_on_from_elsewhere(tmp_path: Path) -> None:
    class Once(Callback):
        def on_task(self, task: TaskEnd) -> None:
            raise Stop

    small = {"net.backbone": "mlp", "stream.phases": 2, "schedule.epochs": 2}
    whole, parts = (
        Recipe.build("icarl", "digits", preset="quick", **{**small, "data.on": on}) for on in ("device", "host")
    )
    record = run(whole, tmp_path / "whole")
    run(parts, tmp_path / "parts", callbacks=[Once()])
    recipe = tmp_path / "parts" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('on = "host"', 'on = "device"'))
    resumed = resume(tmp_path / "parts")
    assert resumed.status == "done"
    ends = [last_state(tmp_path / name, record).tensors for name in ("whole", "parts")]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


def test_where_images_are_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, kept = torch.device("cuda", 0), on_disk(tmp_path / "x", pixels(10))
    size, room = kept.nbytes, {"cuda": 0, "cpu": 0}
    monkeypatch.setattr(module, "free", lambda device: room[device.type])

    def place(x: Tensor, device: torch.device) -> str:
        (found,) = placed([x], "auto", device)
        apart = far(found)
        return "device" if apart is None else type(apart.rows[0]).__name__

    room |= {"cuda": 2 * size, "cpu": 0}
    assert [place(kept, gpu), place(kept, CPU)] == ["device", "OnDisk"]
    room |= {"cuda": 2 * size - 1, "cpu": 2 * size}
    assert [place(kept, gpu), place(kept, CPU)] == ["Held", "device"]
    room["cpu"] -= 1
    assert [place(kept, gpu), place(kept, CPU)] == ["OnDisk", "OnDisk"]
    assert [place(near(kept), gpu), place(near(kept), CPU)] == ["Held", "device"]
    assert module.free is not None


def test_free_memory_is_known() -> None:
    assert 2**20 < module.free(CPU) < 2**60


def test_a_walk_through_a_file_takes_little_memory(tmp_path: Path) -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("only Linux says how much memory a process has")

    def resident() -> int:
        return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    count, side = 4000, 128
    with open(tmp_path / "x", "wb") as file:
        for number in range(count):
            file.write(bytes([number % 251]) * (3 * side * side))
    apart = Far.all_of(OnDisk(tmp_path / "x", (count, 3, side, side), ""))
    order = torch.randperm(count, generator=seeded())
    before = most = resident()
    for numbers, batch in zip(order.split(50), apart.batches(order.split(50)), strict=True):
        assert torch.equal(batch[:, 0, 0, 0], (numbers % 251).to(torch.uint8))
        most = max(most, resident())
    assert apart.nbytes > 190e6
    assert most - before < 60e6


def test_a_file_that_is_gone_or_short_ends_a_run_with_a_word(tmp_path: Path) -> None:
    apart = on_disk(tmp_path / "x", pixels(10))
    os.truncate(tmp_path / "x", 50)
    with pytest.raises(EdblError, match="its size has changed"):
        list(apart.split(2))
    (tmp_path / "x").unlink()
    with pytest.raises(EdblError, match="cannot be read"):
        near(apart)


def test_what_tells_images_from_others() -> None:
    x = pixels(6)
    one, other = Far.all_of(Held(x)), Far.all_of(Held(x.flip(0)))
    assert one.digest() == Far.all_of(Held(x.clone())).digest() != other.digest()
    assert one[torch.arange(5, -1, -1)].digest() != one.digest()
    assert np.array_equal(one.here().numpy(), x.numpy())
