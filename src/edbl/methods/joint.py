"""Joint training: the upper bound."""

from torch import Generator

from edbl.data.samplers import Uniform
from edbl.data.stream import KINDS, Task
from edbl.methods.base import Draw, Method, Phase


class Joint(Method):
    """Train on all images of all seen classes, which no incremental learner may keep.

    The memory is kept for the nearest-mean classifier only.
    """

    name = "joint"
    title = "Joint training on all images seen so far (upper bound)"
    source = "common upper bound"
    keeps = "all images"
    streams = KINDS
    searched = ("first.task_lr", "optim.weight_decay")  # each task is learnt as a first one

    def begin(self, task: Task, generator: Generator) -> None:
        """Start each task from fresh weights."""
        self.net.restart(generator)
        self.net.grow(task.seen, generator)

    def main_phase(self, task: Task, draw: Draw) -> Phase:
        """Return the phase that trains the whole net; fresh weights take the schedule of a first task."""
        return self.first_phase(draw)

    def draw(self, task: Task) -> Draw:
        """Return all images of all seen classes."""
        data = task.joint()
        return Draw(data, Uniform(len(data), self.optim.batch))
