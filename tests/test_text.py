"""Words for messages."""

import pytest

from edbl.text import as_text, bar, composed, count, first, shown


def test_how_many_there_are() -> None:
    assert [count(things, "image") for things in ([], ["a"], range(1234))] == ["0 images", "1 image", "1,234 images"]
    assert [count(number, "class") for number in (1, 2)] == ["1 class", "2 classes"]


def test_the_first_few_are_named() -> None:
    assert first(list("abcde")) == "a, b, c, d, e"
    assert first(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_names_that_are_no_text_or_move_the_cursor_can_be_printed() -> None:
    assert as_text("\udcff") == "\\udcff"
    assert shown("a\x1b[2J\n猫") == "a\\x1b[2J\\n猫"
    assert composed("e\u0301") == "\u00e9"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bar_is_for_a_terminal(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        with bar("reading", 3, quiet) as done:
            done(3)
        assert ("reading" in capsys.readouterr().err) is (terminal and not quiet)
