"""`edbl check`: what is wrong with a method is found, named, and where it can be, with its line."""

from pathlib import Path

import pytest
import torch

from edbl.engine.check import _Checks, check
from tests.conftest import Cli
from tests.test_safe import CHEATS, COUNTS, DRAWS, GREEDY, HEAD, PEEKS

RUNS = "runs on digits, within its memory, and could be resumed"
LOSS = """
    def loss(self, batch):
        logits = self.net(batch.x).logits
        {}
        return -(batch.y * logits.log_softmax(1)).sum(1).mean()
"""

WAITING = (
    ("torch.equal(logits, logits)", "equal"),
    ("torch.allclose(logits, logits)", "allclose"),
    ("torch.is_nonzero(logits.sum())", "is_nonzero"),
    ("3.0 in logits", "__contains__"),
    ("logits.detach().to('cpu')", "to"),
    ("logits.detach().to(torch.device('cpu'))", "to"),
    ("logits.detach().to(dtype=torch.float64, device=torch.device('cpu'))", "to"),
    ("f'{logits.sum().detach()}'", "__format__"),
    ("torch.tensor(2.0)", "tensor of numbers of the host"),
)
SHAPED = (
    ("nn.functional.one_hot(batch.y.argmax(1))", "one_hot without the number of classes"),
    ("logits.repeat_interleave(batch.y.argmax(1) + 1, 0)", "repeat_interleave by a tensor without output_size"),
    ("batch.y.unique_consecutive()", "unique_consecutive"),
)
DRAWING = (
    ("torch.rand(())", "rand without a generator"),
    ("torch.empty_like(logits).normal_()", "normal_ without a generator"),
    ("torch.bernoulli(torch.full_like(logits, 0.5)).sum()", "bernoulli without a generator"),
    ("nn.functional.dropout(logits.detach()).mean()", "dropout without a generator"),
    ("__import__('random').random()", "random.random"),
    ("float(__import__('numpy').random.rand())", "numpy.random.rand"),
)


def found(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "mine.py").write_text(text)
    return {finding.what: finding.wrong for finding in check(str(tmp_path / "mine.py"))}


@pytest.mark.parametrize("method", ["edbl", "gem", "lwf"])
def test_methods_of_the_package_pass(method: str) -> None:
    findings = list(check(method))
    assert len(findings) == 9
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
        *((line, "waits for no tensor in a step", f"{name} in mine.py, line 14") for line, name in WAITING),
        *((line, "has the same shapes in every step", f"{name} in mine.py, line 14") for line, name in SHAPED),
    ],
)  # fmt: skip
def test_what_a_step_must_not_do_is_named_with_its_line(line: str, what: str, wrong: str, tmp_path: Path) -> None:
    findings = found(tmp_path, HEAD + LOSS.format(line))
    assert {key: value for key, value in findings.items() if value} == {what: wrong}


@pytest.mark.parametrize(("line", "name"), DRAWING)
def test_what_is_drawn_beside_the_generators_is_named_with_its_line(line: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + LOSS.format(f"logits = logits + 0 * {line}"))
    checks = _Checks(str(tmp_path / "mine.py"), tmp_path)
    assert checks._looks("draws") == f"{name} in mine.py, line 14"
    assert checks._looks("waits") == checks._looks("shapes") == ""


def test_draws_of_a_generator_or_a_module_are_its_own(tmp_path: Path) -> None:
    mixing = """
    def draw(self, task):
        def noise(batch, generator):
            return replace(batch, x=batch.x + torch.randn(batch.x.shape, generator=generator))
        return replace(super().draw(task), mixing=noise)
"""
    (tmp_path / "mine.py").write_text(DRAWS + mixing)
    assert _Checks(str(tmp_path / "mine.py"), tmp_path)._looks("draws") == ""


def test_where_other_tensors_are_is_not_the_cpu(tmp_path: Path) -> None:
    text = """
    def begin(self, task, generator):
        super().begin(task, generator)
        self.where = task.train.x.device

    def draw(self, task):
        def noise(batch, generator):
            share = torch.rand(len(batch.x), generator=generator, device=generator.device)
            return replace(batch, drawn=share.to(batch.x.device).to(generator.device))
        return replace(super().draw(task), mixing=noise)
"""
    weight = "next(self.net.parameters())"
    line = f"logits.to(self.where).to(batch.y.device).to({weight}.device).to({weight}).to(torch.float64)"
    (tmp_path / "mine.py").write_text(HEAD + text + LOSS.format(line))
    assert _Checks(str(tmp_path / "mine.py"), tmp_path)._looks("waits") == ""
    assert torch.zeros(1).device == torch.device("cpu")
    assert "device" not in vars(torch.Tensor)


def test_answers_that_differ_after_a_kill_are_found(tmp_path: Path) -> None:
    text = """
    def scores(self, output, calls=[]):
        calls.append(0)
        return output.logits.roll(len(calls), 1)
"""
    findings = found(tmp_path, HEAD + text)
    assert "the answers of classifier cnn differ from task" in findings["killed anywhere, ends with the same bits"]


def test_other_generators_are_not_the_runs(tmp_path: Path) -> None:
    findings = found(tmp_path, "import random\n" + HEAD + LOSS.format("logits = logits * random.random()"))
    assert findings["same seed, same bits"] == "the loss differs from task 1, phase train, epoch 1 on"
    assert "the loss differs" in findings["killed anywhere, ends with the same bits"]
    assert findings["draws from its generators alone"] == "random.random in mine.py, line 15"
    assert "sees no test images and no later task" not in findings  # any two runs differ


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
    assert "`mine.CALLS` has changed in task 1" in findings[RUNS]
    counted = text.replace("CALLS.append(task.index)", "").replace("len(CALLS)", "next(CALLS)")
    findings = found(tmp_path, "import itertools\nCALLS = itertools.count(1)" + HEAD + counted)
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
    assert "1 of 9 checks failed" in done.err
    done = cli("check", "rkd")
    assert done.code == 0
    assert done.out.count("passed") == 9
    assert cli("check", "rdk").code == 2
