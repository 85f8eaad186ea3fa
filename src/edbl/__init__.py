"""Class-incremental learning: EDBL, its baselines and its experiments."""

import os
from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all else here: Ctrl-C may be pressed meanwhile
if TYPE_CHECKING:
    from edbl.app.estimator import EDBLClassifier
    from edbl.app.opened import open
    from edbl.engine.run import resume, run
    from edbl.errors import EdblError
    from edbl.recipe import Recipe
    from edbl.records import Record
    from edbl.report.long import frame
    from edbl.serve.client import connect
    from edbl.users import register

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime reports to its makers, unless told before its import
# How long threads that wait for each other keep their core. As long as by default, they hold up each other, many times
# over, where other processes want the cores too; shorter costs nothing where none does. PyTorch's library of threads
# reads it when PyTorch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"
__all__ = [
    "EDBLClassifier",
    "EdblError",
    "Recipe",
    "Record",
    "__version__",
    "connect",
    "frame",
    "open",
    "register",
    "resume",
    "run",
]

_HOMES = {
    "EDBLClassifier": "edbl.app.estimator",
    "EdblError": "edbl.errors",
    "Recipe": "edbl.recipe",
    "Record": "edbl.records",
    "connect": "edbl.serve.client",
    "frame": "edbl.report.long",
    "open": "edbl.app.opened",
    "register": "edbl.users",
    "resume": "edbl.engine.run",
    "run": "edbl.engine.run",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that ``edbl --help`` need not wait for PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edbl' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
