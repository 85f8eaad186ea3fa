"""LwF.MC: iCaRL's training without exemplars."""

from edbl.methods.icarl import ICaRL


class LwFMC(ICaRL):
    """iCaRL's training on new images alone; the net's outputs decide.

    The memory is kept for the nearest-mean classifier and never trained on.
    """

    name = "lwf-mc"
    title = "Learning without forgetting, multi-class (iCaRL without exemplars)"
    source = "Rebuffi et al. 2017, after Li & Hoiem 2016"
    keeps = "none"
    streams = frozenset()
    readout = "cnn"
