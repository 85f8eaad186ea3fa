"""The records of the repository, read once for all tests of a process."""

from pathlib import Path

from edbl.studies.shelf import Shelf

SHELF = Shelf(Path(__file__).parents[1] / "results")
