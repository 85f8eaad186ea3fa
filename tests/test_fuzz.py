"""The corpus of the fuzzer: what readers take, and what they refuse with one message."""

import re

import pytest

from tests.fuzz import CORPUS, TARGETS, read

FOUND = re.compile(
    r"([a-z]+-)?[0-9a-f]{40}"
)  # named by the fuzzer: what it has found is read, or refused with one message
FILES = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_the_corpus_is_read_or_refused(file: str) -> None:
    target, _, name = file.partition("/")
    taken = read(target, (CORPUS / file).read_bytes())
    assert FOUND.fullmatch(name) or taken != name.startswith("bad-")


def test_every_reader_has_files_and_all_are_small() -> None:
    assert {file.partition("/")[0] for file in FILES} == set(TARGETS)
    assert sum((CORPUS / file).stat().st_size for file in FILES) < 60_000
