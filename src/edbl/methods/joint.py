"""Joint training: the upper bound."""

from dataclasses import dataclass

from torch import Generator

from edbl.config import option
from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.methods.base import Draw, Method, Phase


class Joint(Method):
    """Train on all images of all seen classes, which no incremental learner may keep.

    The memory is kept for the nearest-mean read-out only.
    """

    name = "joint"
    title = "Joint training on all images seen so far (upper bound)"
    source = "common upper bound"
    keeps = "all images"

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        restart: bool = option(True, "start each task from fresh weights instead of the last task's")

    config: Config

    def begin(self, task: Task, generator: Generator) -> None:
        """Start afresh, or let the head grow."""
        if self.config.restart:
            self.net.restart(generator)
        self.net.grow(task.seen - self.net.head.classes, generator)

    def main_phase(self, task: Task, draw: Draw) -> Phase:
        """Return the phase that trains the whole net; fresh weights take the schedule of a first task."""
        return self.first_phase(draw) if self.config.restart else super().main_phase(task, draw)

    def draw(self, task: Task) -> Draw:
        """Return all images of all seen classes."""
        data = task.joint()
        return Draw(data, Uniform(len(data), self.optim.batch))
