"""Logs for MLflow: to the server or store of ``MLFLOW_TRACKING_URI``, else to ``mlflow.db`` beside the run's folder."""

import getpass
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edbl.engine.callbacks import End, Facts
from edbl.errors import EdblError
from edbl.logs.base import Log, identity, title
from edbl.store import opened, turn

STORE = "mlflow.db"  # beside the folder of a run
EXPERIMENT = "edbl"
HEAD = b"SQLite format 3\x00"  # of a file of its
TAG = "edbl.identity"
LONGEST = 6000  # characters of a parameter
ENDS = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflow(Log):
    """A run of MLflow: metrics by epoch and by task, the recipe as parameters."""

    name = "mlflow"
    package = "mlflow"
    client: Any
    run: str  # its number at MLflow

    def __init__(self) -> None:
        for switch in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):  # read when it is imported
            os.environ.setdefault(switch, "true")
        super().__init__()
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def open(self, run: Facts) -> None:
        """Begin a run, or go on with the one of the same identity."""
        store = run.folder.resolve().parent / STORE
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{store}"
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            check_store(store)
        with turn(_door(place)):  # several that make one store at once would break it
            self.client = self.module.MlflowClient(tracking_uri=place)
            self._find(run)

    def _find(self, run: Facts) -> None:
        """Find the run, or make it."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        own = identity(run)
        same = self.client.search_runs([experiment], f"tags.`{TAG}` = '{own}'", max_results=1)
        if same:
            self.run = same[0].info.run_id
            self.client.update_run(self.run, status="RUNNING")
        else:
            tags = {TAG: own, "edbl.folder": str(run.folder)}
            self.run = self.client.create_run(experiment, run_name=title(run), tags=tags).info.run_id
            parameters = [self.module.entities.Param(k, str(v)[:LONGEST]) for k, v in run.recipe.items()]
            for first in range(0, len(parameters), 100):  # as many as it takes at once
                self.client.log_batch(self.run, params=parameters[first : first + 100])
        self._last: dict[str, int] = {}

    def write(self, points: Mapping[str, float], axis: str, at: int, order: int) -> None:
        """Write metrics; epochs and tasks are their steps."""
        now, metric = int(1000 * time.time()), self.module.entities.Metric
        new = [metric(name, number, now, at) for name, number in points.items() if at > self._step(name)]
        if new:
            self.client.log_batch(self.run, metrics=new)
        self._last |= {one.key: at for one in new}

    def _step(self, name: str) -> int:
        """Return the last step of a metric that is there."""
        if name not in self._last:
            there = self.client.get_metric_history(self.run, name)
            self._last[name] = max((one.step for one in there), default=0)
        return self._last[name]

    def close(self, end: End) -> None:
        """End the run."""
        self.client.set_terminated(self.run, ENDS[end.status])


def check_store(store: Path) -> None:
    """Refuse a file that is no database, of which MLflow would tell at length."""
    with suppress(FileNotFoundError), opened(store, own=True) as file:
        if (head := file.read(len(HEAD))) and head != HEAD:
            raise EdblError(f"'{store}' is no database of MLflow; move it elsewhere, or set MLFLOW_TRACKING_URI")


def _door(place: str) -> Path:
    """Return a folder that all processes of this user here have for a store, and no others."""
    name = hashlib.sha256(f"{getpass.getuser()} {place}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"edbl-{name}"
