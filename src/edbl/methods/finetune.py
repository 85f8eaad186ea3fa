"""Fine-tuning: the lower bound."""

from edbl.data.samplers import Uniform
from edbl.data.stream import Task
from edbl.methods.base import Draw, Method


class Finetune(Method):
    """Train on the new images alone, as if nothing had been learnt before.

    The memory is kept for the nearest-mean read-out and never trained on.
    """

    name = "finetune"
    title = "Fine-tuning on new images alone (lower bound)"
    source = "common lower bound"

    def draw(self, task: Task) -> Draw:
        """Return the new images alone."""
        return Draw(task.train, Uniform(len(task.train), self.optim.batch))
