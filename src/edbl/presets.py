"""Presets: the values that a user does not give.

``paper`` uses what the paper prints (Appendix C, Table 6) and where it prints nothing the literal equation;
``default`` is ours; ``quick`` is ``default`` in a few epochs, for trying things.
"""

from edbl.config import flatten
from edbl.schedule import Schedule

# Table 6: (data set, protocol, phases) -> gamma, alpha.
TABLE_6 = {
    ("cifar10", "base0", 2): (10.0, 1e-6),
    ("cifar10", "base0", 5): (100.0, 5e-6),
    ("cifar100", "base0", 2): (100.0, 5e-6),
    ("cifar100", "base0", 5): (300.0, 5e-6),
    ("cifar100", "base0", 10): (100.0, 5e-6),
    ("cifar100", "base-half", 5): (300.0, 5e-6),
    ("cifar100", "base-half", 10): (100.0, 5e-6),
    ("tiny-imagenet", "base-half", 5): (10.0, 1e-6),
    ("tiny-imagenet", "base-half", 10): (10.0, 5e-6),
}

# Appendix C: the phase of distillation, then the balancing one.
CIFAR = (Schedule(150, 0.1, (60, 100, 130)), Schedule(100, 0.01, (30, 60, 80)))
TINY = (Schedule(250, 0.1, (75, 125, 175, 225)), Schedule(150, 0.01, (60, 100, 130)))

PAPER = {
    "optim.nesterov": False,
    "optim.warmup": 0,
    "optim.weight_decay": 2e-4,
    "options.counts": "raw",
    "options.kd_scale": "none",
    "options.max_rounds": 0,
    "options.factor_over": "all",
    "options.weight_sum": "one",
}


def values(preset: str, data: str, protocol: str, phases: int) -> dict[str, object]:
    """Return the values of a preset for an experiment, by dotted key; a method takes those it knows."""
    gamma, alpha = TABLE_6.get((data, protocol, phases), (100.0, 5e-6))
    found: dict[str, object] = {"options.gamma": gamma, "options.alpha": alpha}
    if protocol == "base-half":
        found["memory"] = "per_class=20"
    train, balance = TINY if data == "tiny-imagenet" else CIFAR
    if preset == "paper":
        return found | PAPER | _schedules(train, balance)
    if data == "digits":  # a hundred times fewer images than CIFAR: smaller batches, fewer epochs
        train, balance = train.scaled(30), balance.scaled(20)
        found |= {"optim.batch": 32, "options.min_old": 8}
    if preset == "quick":
        train, balance = train.scaled(6), balance.scaled(4)
        found["optim.warmup"] = 1
    return found | _schedules(train, balance)


def _schedules(train: Schedule, balance: Schedule) -> dict[str, object]:
    return flatten(train, "schedule.") | flatten(balance, "options.balance.")
