"""Class-incremental learning: EDBL, its baselines and its experiments."""

__version__ = "0.1.0"

from edbl.engine.run import resume, run
from edbl.errors import EdblError
from edbl.recipe import Recipe
from edbl.records import Record

__all__ = ["EdblError", "Recipe", "Record", "__version__", "resume", "run"]
