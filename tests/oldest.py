"""``python -m tests.oldest``: the oldest versions that pyproject.toml admits, as constraints for pip."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
LEAST = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def constraints() -> Iterator[str]:
    """Return a line for each dependency that names a least version; not for the tools of the tests."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    stated = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    yield from sorted({f"{found[1]}=={found[2]}" for line in stated if (found := LEAST.match(line))})


if __name__ == "__main__":
    print("\n".join(constraints()))
