"""`edbl check`: what is wrong with a method is found, named, and where it can be, with its line."""

from pathlib import Path

import pytest

from edbl.engine.check import check
from tests.conftest import Cli
from tests.test_safe import CHEATS, COUNTS, DRAWS, GREEDY, HEAD, PEEKS

RUNS = "runs on digits, within its memory, and could be resumed"
LOSS = """
    def loss(self, batch):
        logits = self.net(batch.x).logits
        {}
        return -(batch.y * logits.log_softmax(1)).sum(1).mean()
"""


def found(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "mine.py").write_text(text)
    return {finding.what: finding.wrong for finding in check(str(tmp_path / "mine.py"))}


@pytest.mark.parametrize("method", ["edbl", "gem", "lwf"])
def test_methods_of_the_package_pass(method: str) -> None:
    findings = list(check(method))
    assert len(findings) == 8
    assert [finding for finding in findings if finding.wrong] == []


@pytest.mark.parametrize("text", [DRAWS, COUNTS], ids=["draws", "counts"])
def test_ordinary_pytorch_code_passes(text: str, tmp_path: Path) -> None:
    assert not any(found(tmp_path, text).values())


@pytest.mark.parametrize(
    ("line", "what", "wrong"),
    [
        ("float(logits.detach().mean())", "waits for no tensor in a step", "__float__ in mine.py, line 14"),
        ("logits.detach().cpu()", "waits for no tensor in a step", "cpu in mine.py, line 14"),
        ("logits = -logits if logits.any() else 0", "waits for no tensor in a step", "__bool__ in mine.py, line 14"),
        ("logits[logits > 0]", "has the same shapes in every step", "__getitem__ in mine.py, line 14"),
        ("logits.nonzero()", "has the same shapes in every step", "nonzero in mine.py, line 14"),
    ],
)  # fmt: skip
def test_what_a_step_must_not_do_is_named_with_its_line(line: str, what: str, wrong: str, tmp_path: Path) -> None:
    findings = found(tmp_path, HEAD + LOSS.format(line))
    assert {key: value for key, value in findings.items() if value} == {what: wrong}


def test_other_generators_are_not_the_runs(tmp_path: Path) -> None:
    findings = found(tmp_path, "import random\n" + HEAD + LOSS.format("logits = logits * random.random()"))
    assert findings["same seed, same bits"] == "the loss differs from task 1, phase train, epoch 1 on"
    assert "the loss differs" in findings["killed anywhere, ends with the same bits"]


def test_a_method_without_chance_has_the_same_bits_for_every_seed(tmp_path: Path) -> None:
    text = """
    @classmethod
    def build(cls, make, generator):
        return super().build(make, torch.Generator().manual_seed(0))

    def begin(self, task, generator):
        super().begin(task, torch.Generator().manual_seed(0))

    def phases(self, task):
        return []
"""
    assert found(tmp_path, HEAD + text)["another seed, other bits"] == "all tensors are the same"


def test_what_is_lost_by_a_kill_is_found(tmp_path: Path) -> None:
    text = """
    def phases(self, task):
        CALLS.append(task.index)
        phase = self.main_phase(task, self.draw(task))
        yield replace(phase, schedule=replace(phase.schedule, lr=0.01 * len(CALLS)))
"""
    findings = found(tmp_path, "CALLS = []" + HEAD + text)
    assert "killed at moment" in findings["killed anywhere, ends with the same bits"]


def test_a_teacher_that_changes_is_found(tmp_path: Path) -> None:
    text = """
    distils = True

    def loss(self, batch):
        if self.teacher is not None:
            self.teacher.net.head.bias.add_(1.0)
        return super().loss(batch)
"""
    assert found(tmp_path, HEAD + text)["leaves the teacher as it is"] == "'head.bias' of the teacher changes"


def test_what_it_must_not_see_is_found(tmp_path: Path) -> None:
    text = """
    def end(self, task):
        import gc
        from edbl.data.stream import Stream
        super().end(task)
        streams = [found for found in gc.get_objects() if type(found) is Stream]
        self.state["peeked"] = sum(stream._test.x.float().mean() for stream in streams) / len(streams)
"""
    assert (
        found(tmp_path, HEAD + text)["sees no test images and no later task"] == "what it learns hangs on test images"
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (GREEDY, "the method keeps 578 exemplars where the memory holds 50"),
        (PEEKS, "AttributeError: 'Task' object has no attribute 'test'"),
        (CHEATS, "images of earlier tasks are for a method that says"),
        (HEAD + "    def phases(self, task):\n        pass", "`phases` of mine gives None"),
    ],
    ids=["greedy", "peeks", "cheats", "none"],
)
def test_what_does_not_run_is_told_at_once(text: str, wrong: str, tmp_path: Path) -> None:
    findings = found(tmp_path, text)
    assert list(findings) == [RUNS]
    assert wrong in findings[RUNS]


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + LOSS.format("logits.sum().item()"))
    done = cli("check", tmp_path / "mine.py")
    assert done.code == 1
    assert "item in mine.py, line 14" in done.out
    assert "1 of 8 checks failed" in done.err
    done = cli("check", "rkd")
    assert done.code == 0
    assert done.out.count("passed") == 8
    assert cli("check", "rdk").code == 2
