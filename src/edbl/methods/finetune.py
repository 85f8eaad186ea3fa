"""Fine-tuning: the lower bound."""

from edbl.data.stream import KINDS
from edbl.methods.base import Method


class Finetune(Method):
    """Train on the new images alone, as if nothing had been learnt before.

    The memory is kept for the nearest-mean classifier and never trained on.
    """

    name = "finetune"
    title = "Fine-tuning on new images alone (lower bound)"
    source = "common lower bound"
    keeps = "none"
    streams = KINDS
