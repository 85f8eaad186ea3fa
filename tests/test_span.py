"""Closed forms of few samples are solved among these alone: the same classifier, sooner."""

import pytest
import torch

from edbl.nets import closed
from edbl.nets.closed import Discriminant, Form, Ridge, fitted, rooted
from edbl.nets.kept import Kept
from tests.vectors import seeded

WIDTH = 60


@pytest.mark.parametrize("form", [Discriminant, Ridge])
@pytest.mark.parametrize("counts", [[6, 6, 6], [9, 1, 4], [1, 1], [2]])
def test_few_samples_span_all_that_counts(form: type[Form], counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    y = torch.tensor([k for k, count in enumerate(counts) for _ in range(count)])
    features = torch.rand(len(y), WIDTH, generator=seeded(sum(counts))) + y.unsqueeze(1) / 3
    kept = Kept.none(WIDTH, features.device, lambda x: rooted(x, unit=True), form.balanced).add(features, y)
    spans = []
    span = closed._span

    def noted(*arguments: torch.Tensor) -> torch.Tensor | None:
        spans.append(span(*arguments))  # type: ignore[arg-type]
        return spans[-1]

    monkeypatch.setattr(closed, "_span", noted)
    found = fitted(form, kept.classes, *kept.judges())
    assert spans[0] is not None
    assert spans[0].shape[1] < WIDTH
    monkeypatch.setattr(closed, "_span", lambda *_: None)
    whole = fitted(form, kept.classes, *kept.judges())
    assert found.shrinkage == whole.shrinkage
    torch.testing.assert_close(found.weight, whole.weight, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.bias, whole.bias, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.loss, whole.loss, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("form", [Discriminant, Ridge])
def test_samples_that_are_in_sums_alone_are_not_forgotten(form: type[Form]) -> None:
    """Where some are not among those to leave out, nothing may be left out of the scatter."""
    x, y = torch.rand(12, WIDTH, generator=seeded()).double(), torch.tensor([0, 1] * 6)
    classes = Kept.none(WIDTH, x.device, lambda x: x, form.balanced).add(x.float(), y).classes
    assert closed._span(classes, x[:-1], y[:-1]) is None
    assert closed._span(classes, x, y) is not None
