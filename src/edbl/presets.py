"""Presets: the values that a user does not give.

``default`` is ours: every method with EDBL's schedule, batch, weight decay and augmentation, so that methods can be
compared; on CIFAR they are what calibration chose. ``aligned`` is another name for it, for recipes that want to say so.
``paper`` uses what the EDBL paper prints (Appendix C, Table 6) and where it prints nothing the literal equation; a
method from another publication adds its own values (`Method.paper`). ``quick`` is a few epochs, for trying things.
"""

from collections.abc import Mapping
from dataclasses import replace

from edbl.config import flatten
from edbl.memory import Budget
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

# Chosen on held-out training images of CIFAR-100 (docs/calibration.md); milestones are for those who set shape=steps.
CALIBRATED_SCHEDULES = (
    Schedule(120, 0.1, (48, 80, 104), shape="cosine"),
    Schedule(40, 0.01, (12, 24, 32), shape="cosine"),
)
CALIBRATED = {
    "data.augment": "crop-flip-trivial",
    "first.task_epochs": 300,
    "first.task_milestones": (120, 200, 260),
    "first.task_lr": 0.1,
    "optim.weight_decay": 1e-3,
    "options.gamma": 100.0,
    "options.alpha": 5e-6,
    "options.max_rounds": 1,
    "options.clean_norm": True,
    "options.balance_layers": "head",
    "options.balance_norm": "eval",
}


def values(
    preset: str,
    data: str,
    protocol: str,
    phases: int,
    memory: str,
    schedules: Mapping[str, Schedule],
    balances: bool,
    squared: bool,
) -> dict[str, object]:
    """Return the values of a preset for an experiment, by dotted key; a method takes those it knows.

    ``schedules`` are those of the method's further phases, by option; ``balances`` tells whether one that is named
    ``balance`` is like the paper's second phase, ``squared`` whether distillation is multiplied by the squared
    temperature: others have temperatures of their own.
    """
    gamma, alpha = TABLE_6.get((data, protocol, phases), (100.0, 5e-6))
    found: dict[str, object] = {"options.gamma": gamma, "options.alpha": alpha}
    if protocol == "base-half":
        found["memory"] = "per_class=20"
    train, balance = TINY if data == "tiny-imagenet" else CIFAR
    further = dict(schedules) | ({"balance": balance} if balances else {})
    if preset == "paper":
        return found | PAPER | _flat(train, further)
    if data == "digits":  # a hundred times fewer images than CIFAR: smaller batches, fewer epochs
        train, further = train.scaled(30), _shorter(further, 20)
        found |= {"optim.batch": 32, "options.min_old": 8}
    if preset == "quick":
        train, further = train.scaled(6), _shorter(further, 4)
        found["optim.warmup"] = 1
    elif data in ("cifar10", "cifar100"):
        train, balance = CALIBRATED_SCHEDULES
        further |= {"balance": balance} if balances else {}
        found |= CALIBRATED
        if sum(Budget.parse(memory).quotas(100 if data == "cifar100" else 10)) < 2000:
            found["options.min_old"] = 1  # more of the few exemplars in each batch would let them be learnt by heart
            if data == "cifar100":  # nor do they bring back what a higher rate loses
                train = replace(train, lr=0.03)
        if (data, protocol, phases) == ("cifar10", "base0", 2):  # the same when many new images come in one task
            train = replace(train.scaled(40), lr=0.01)
            found |= {"options.gamma": 1000.0, "options.reading": "epoch"}
            further |= {"balance": replace(balance, lr=0.03)} if balances else {}
            if squared:
                found |= {"options.temperature": 4.0, "options.kd_weight": 2.0}
        if protocol == "base-half":  # few new classes: what is known of the many old ones must not move
            train = replace(train, lr=0.01)
            found["options.kd_growth"] = 1.0
    return found | _flat(train, further)


def _shorter(schedules: Mapping[str, Schedule], epochs: int) -> dict[str, Schedule]:
    return {name: s.scaled(min(s.epochs, epochs)) for name, s in schedules.items()}


def _flat(train: Schedule, further: Mapping[str, Schedule]) -> dict[str, object]:
    flat = flatten(train, "schedule.")
    for name, schedule in further.items():
        flat |= flatten(schedule, f"options.{name}.")
    return flat
