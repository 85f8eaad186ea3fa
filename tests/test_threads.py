"""Work in threads: in order, errors passed on, a bar if it lasts."""

import pytest

from edbl.data import threads
from edbl.data.threads import in_threads


def test_in_threads_keeps_the_order_and_passes_errors_on() -> None:
    assert in_threads(lambda n: n * n, range(20), "squares") == [n * n for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda n: 1 // n, range(20), "reciprocals")


def test_in_threads_shows_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(threads, "PATIENCE", -1.0)
    in_threads(lambda n: n, range(3), "reading images")
    assert "reading images" in capsys.readouterr().err
