"""The corpus of the fuzzer: what readers take, and what they refuse with one message."""

import pytest

from tests.fuzz import CORPUS, TARGETS, read

FILES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_the_corpus_is_read_or_refused(file: str) -> None:
    target, _, name = file.partition("/")
    assert read(target, (CORPUS / file).read_bytes()) != name.startswith("bad-")


def test_every_reader_has_files_and_all_are_small() -> None:
    assert {file.partition("/")[0] for file in FILES} == set(TARGETS)
    assert sum((CORPUS / file).stat().st_size for file in FILES) < 60_000
