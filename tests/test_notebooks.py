"""The notebooks run from top to bottom, and keep what they printed."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(notebook: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="edbl[docs] is not installed")
    import nbformat

    book = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    assert all(cell.get("outputs") is not None for cell in book.cells if cell.cell_type == "code")
    nbclient.NotebookClient(book, timeout=250, kernel_name="python3").execute()
    printed = [cell for cell in book.cells if cell.cell_type == "code" and cell.outputs]
    assert len(printed) >= 2
