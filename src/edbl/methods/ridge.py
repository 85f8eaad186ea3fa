"""Ridge: ridge regression on frozen features."""

from edbl.methods.closed import ClosedForm
from edbl.nets.closed import Ridge


class RidgeRegression(ClosedForm):
    """Analytic learning (Zhuang et al., NeurIPS 2022) without random features, its penalty chosen by leave-one-out."""

    name = "ridge"
    title = "Ridge regression"
    source = "after Zhuang et al. 2022"
    year = 2022
    form = Ridge
