"""Logs of runs for TensorBoard, Weights & Biases and MLflow, each a callback; their packages are extras."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

from edbl.engine.callbacks import Callback
from edbl.errors import EdblError, unknown

# The class of each log, in the file of its name.
LOGS: Mapping[str, str] = {"tensorboard": "TensorBoard", "wandb": "WeightsAndBiases", "mlflow": "MLflow"}


def logs(names: Sequence[str]) -> list[Callback]:
    """Return the logs of these names; what is missing for them is said before anything is trained."""
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise EdblError(f"log {twice[0]} is named twice")
    return [_class(name)() for name in names]


def _class(name: str) -> Callable[[], Callback]:
    if name not in LOGS:
        raise unknown("log", name, LOGS)
    made: Callable[[], Callback] = getattr(import_module(f"edbl.logs.{name}"), LOGS[name])
    return made


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings of others' packages, which are not about runs, from users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
