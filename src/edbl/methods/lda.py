"""LDA: a shrunk linear discriminant on frozen features."""

from edbl.methods.closed import ClosedForm
from edbl.nets.closed import Discriminant


class LDA(ClosedForm):
    """The streaming linear discriminant (Hayes and Kanan, CVPR Workshops 2020), shrunk by leave-one-out."""

    name = "lda"
    title = "Shrunk linear discriminant"
    source = "after Hayes and Kanan 2020"
    year = 2020
    form = Discriminant
