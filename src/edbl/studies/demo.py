"""The demo: basic RKD and EDBL on scikit-learn's digits, with the same memory; RKD trains at least as long."""

from edbl.config import flatten
from edbl.methods.edbl import EDBL
from edbl.recipe import Recipe


def recipes() -> list[Recipe]:
    """Return the demo's two recipes."""
    edbl = Recipe.build("edbl", data="digits")
    assert isinstance(edbl.options, EDBL.Config)
    epochs = edbl.schedule.epochs + edbl.options.balance.epochs
    return [
        Recipe.of({"method": "rkd", "data.name": "digits"} | flatten(edbl.schedule.scaled(epochs), "schedule.")),
        edbl,
    ]
