"""What the paper leaves open, settled by experiment on training images that are held out.

CIFAR-100, Base-0, 5 phases, order 1993, 2000 exemplars where a question says nothing else; a tenth of the training
images held out by seed. Questions are asked one after the other, and start from what was decided before; everything
that preset `default` may change is written out, so that records stay comparable.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from edbl.experiments import Column, Experiment, Row

BASE: Mapping[str, object] = {
    "data.name": "cifar100",
    "data.holdout": 0.1,
    "data.augment": "crop-flip",
    "data.brightness": 0.0,
    "data.cutout": 0,
    "stream.protocol": "base0",
    "stream.phases": 5,
    "stream.order": "1993",
    "memory": "total=2000",
    "first.task_epochs": 0,
    "first.task_milestones": (),
    "first.task_lr": 0.0,
    "schedule.epochs": 30,
    "schedule.milestones": (12, 20, 26),
    "schedule.lr": 0.1,
    "schedule.shape": "steps",
    "optim.batch": 128,
    "optim.weight_decay": 5e-4,
    "optim.nesterov": True,
    "optim.warmup": 5,
    "options.temperature": 2.0,
    "options.kd_weight": 1.0,
    "options.kd_growth": 0.0,
    "options.kd_scale": "t2",
    "evaluation.nme_flips": False,
}
EDBL: Mapping[str, object] = {
    "data.augment": "crop-flip-trivial",
    "first.task_epochs": 150,
    "first.task_milestones": (60, 100, 130),
    "first.task_lr": 0.1,
    "schedule.epochs": 60,
    "schedule.milestones": (24, 40, 52),
    "optim.weight_decay": 1e-3,
    "options.balance.epochs": 40,
    "options.balance.milestones": (12, 24, 32),
    "options.balance.lr": 0.01,
    "options.balance.shape": "steps",
    "options.balance_kd_weight": 1.0,
    "options.balance_layers": "all",
    "options.balance_norm": "train",
    "options.gamma": 100.0,
    "options.alpha": 5e-6,
    "options.counts": "effective",
    "options.weight_sum": "classes",
    "options.detach": True,
    "options.reading": "batch",
    "options.min_old": 32,
    "options.max_rounds": 1,
    "options.ratio_per": "pass",
    "options.first_task": "mixup",
    "options.clean_norm": False,
}
LONG_FIRST: Mapping[str, object] = {"first.task_epochs": 300, "first.task_milestones": (120, 200, 260)}
COSINE: Mapping[str, object] = {"schedule.shape": "cosine", "options.balance.shape": "cosine"}
FIRST_DECIDED: Mapping[str, object] = {**LONG_FIRST, **COSINE}
UNMIXED: Mapping[str, object] = {"options.clean_norm": True}
HEAD: Mapping[str, object] = {"options.balance_layers": "head", "options.balance_norm": "eval"}
THEN_DECIDED: Mapping[str, object] = {**FIRST_DECIDED, **UNMIXED, **HEAD}
LONGER: Mapping[str, object] = {"schedule.epochs": 120, "schedule.milestones": (48, 80, 104)}
# On CIFAR-100 with 2000 exemplars, Base-0; preset `default` there.
DECIDED: Mapping[str, object] = {**THEN_DECIDED, **LONGER}
ROOT: Mapping[str, object] = {"options.kd_growth": 0.5}
RATIO: Mapping[str, object] = {"options.kd_growth": 1.0}
SLOWER: Mapping[str, object] = {"schedule.lr": 0.03}
SLOWEST: Mapping[str, object] = {"schedule.lr": 0.01}
HEAVY: Mapping[str, object] = {"options.kd_weight": 2.0, "options.balance_kd_weight": 2.0}
BASE_HALF: Mapping[str, object] = {"stream.protocol": "base-half", "memory": "per_class=20"}
TEN: Mapping[str, object] = {"stream.phases": 10}
TWO: Mapping[str, object] = {"stream.phases": 2}
CIFAR_10: Mapping[str, object] = {"data.name": "cifar10", "stream.order": "natural", "memory": "total=200"}
FEW_OLD: Mapping[str, object] = {"options.min_old": 1}  # as many as there are, and one at least
FEW_EXEMPLARS: Mapping[str, Mapping[str, object]] = {
    "32; 0.1": {},
    "1; 0.1": FEW_OLD,
    "1; 0.03": {**FEW_OLD, **SLOWER},
}
STRONG: Mapping[str, object] = {"options.gamma": 1000.0}
FOUR_OLD: Mapping[str, object] = {"options.min_old": 4}
FASTER_BALANCE: Mapping[str, object] = {"options.balance.lr": 0.03}
OLD_SHARE: Mapping[str, object] = {"options.norm_share": "classes"}
SOFT: Mapping[str, object] = {"options.temperature": 4.0}
EPOCH: Mapping[str, object] = {"options.reading": "epoch"}
CONCAT: Mapping[str, object] = {"options.reading": "concat"}
FORTY: Mapping[str, object] = {"schedule.epochs": 40}
FIRST_HEAVY: Mapping[str, object] = {"options.kd_weight": 2.0}  # in phase 1 alone
LONGEST_FIRST: Mapping[str, object] = {"first.task_epochs": 600, "first.task_milestones": (240, 400, 520)}


def _epochs(number: int) -> Mapping[str, object]:
    return {"schedule.epochs": number, "schedule.milestones": ()}


SHORTER: Mapping[str, Mapping[str, object]] = {
    "40; 0.03": {**_epochs(40), **SLOWER},
    "40; 0.01": {**_epochs(40), **SLOWEST},
    "20; 0.03": {**_epochs(20), **SLOWER},
    "20; 0.01": {**_epochs(20), **SLOWEST},
    "10; 0.03": {**_epochs(10), **SLOWER},
    "10; 0.01": {**_epochs(10), **SLOWEST},
    "5; 0.03": {**_epochs(5), **SLOWER},
}

TWO_CLASSES: Mapping[str, object] = {
    "data.name": "cifar10",
    "stream.protocol": "tasks",
    "memory": "total=200",
    "schedule.epochs": 150,
    "schedule.milestones": (60, 100, 130),
}


@dataclass(frozen=True)
class Question:
    """Something open, and its possible answers: each a name and the values that it stands for."""

    text: str
    method: str
    answers: Mapping[str, Mapping[str, object]]
    decision: str = ""  # once it is made, and why
    start: Mapping[str, object] = field(default_factory=dict)  # what its answers share beyond what all start from


QUESTIONS = (
    Question(
        "Weight decay, Nesterov momentum, warm-up (A16)",
        "rkd",
        {
            "2e-4": {"optim.weight_decay": 2e-4},
            "5e-4": {},
            "1e-3": {"optim.weight_decay": 1e-3},
            "5e-4, plain momentum": {"optim.nesterov": False},
            "5e-4, no warm-up": {"optim.warmup": 0},
        },
        "Nesterov momentum and warm-up stay on: without either both read-outs lose 0.8 to 2 points, by one seed. More\n"
        "weight decay than the printed 2e-4 helps, most with nearest means.",
    ),
    Question(
        "Class order: the first two classes of CIFAR-10, 150 epochs, for which the paper prints 98.9",
        "rkd",
        {
            "natural": {"stream.tasks": (("airplane", "automobile"),)},
            "1993": {"stream.tasks": (("deer", "bird"),)},
        },
        "Natural, on CIFAR-10: the first two classes of order 1993, bird and deer, are too alike for the printed\n"
        "accuracy. CIFAR-100 has no such tell, and keeps 1993, the order of most published results.",
        start=TWO_CLASSES,
    ),
    Question(
        "Weight decay of EDBL (A16)",
        "edbl",
        {"1e-3": {}, "2e-3": {"optim.weight_decay": 2e-3}},
        "1e-3: twice as much loses 1.6 and 1.1 points.",
    ),
    Question(
        "Augmentation",
        "edbl",
        {"crop and flip": {"data.augment": "crop-flip"}, "and TrivialAugment": {}},
        "TrivialAugment, for the sake of nearest means (+0.6; CNN -0.2). One seed does not settle it.",
    ),
    Question(
        "One ratio per pass or per sample (A3)",
        "edbl",
        {"per pass": {}, "per sample": {"options.ratio_per": "sample"}},
        "Per pass, as in later public code of the same group; the other loses 0.4 and 0.7 points.",
    ),
    Question(
        "Shape of the schedule, epochs of the first task",
        "edbl",
        {
            "steps, 150": {},
            "steps, 300": LONG_FIRST,
            "cosine, 150": COSINE,
            "cosine, 300": FIRST_DECIDED,
        },
        "Cosine and 300: each gains 0.8 points or more by both read-outs, and they add up. The questions that follow\n"
        "start from here.",
    ),
    Question(
        'Reading of "N/2 times" and its cap, class counts in lambda_k (A2, A6)',
        "edbl",
        {
            "within each batch, at most 1, effective": {},
            "within each batch, at most 1, raw": {"options.counts": "raw"},
            "within each batch, at most 3, effective": {"options.max_rounds": 3},
            "old and new once together, effective": CONCAT,
            "old and new once together, raw": {**CONCAT, "options.counts": "raw"},
            "over the epoch, effective": {**EPOCH, "options.max_rounds": 0},
        },
        "Within each batch, at most once, effective counts. Raw counts lose 1.9 and 0.4 points, more rounds lose 0.8\n"
        "by NME, the printed number of them over the epoch 1.0 and 2.1; mixing old and new once together trades 0.9\n"
        "points of CNN for 0.5 of NME, and raw counts lose 0.5 and 0.7 there too.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Epochs and learning rate of later tasks",
        "edbl",
        {
            "60 + 40": {},
            "150 + 100, as printed": {
                "schedule.epochs": 150,
                "schedule.milestones": (60, 100, 130),
                "options.balance.epochs": 100,
                "options.balance.milestones": (30, 60, 80),
            },
            "60 + 40, 0.03": {"schedule.lr": 0.03},
        },
        "No change that one seed could tell by both read-outs: 150 + 100 gains 0.4 by CNN and loses 0.5 by NME. Asked\n"
        "again below.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Weight and temperature of distillation (A4)",
        "edbl",
        {
            "1, 2": {},
            "0.5, 2": {"options.kd_weight": 0.5, "options.balance_kd_weight": 0.5},
            "2, 2": {"options.kd_weight": 2.0, "options.balance_kd_weight": 2.0},
            "1, 4": SOFT,
        },
        "1 and 2: all others lose by both read-outs, 0.2 to 1 point.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Scale of lambda_k: gamma (A5)",
        "edbl",
        {"100": {}, "30": {"options.gamma": 30.0}, "300": {"options.gamma": 300.0}},
        "100: 30 trades 0.4 points of CNN for 0.4 of NME. Table 6 prints 300 here, which loses 1.9 and 2.3, and\n"
        "100 in most other places on CIFAR.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Statistics of batch normalisation after a task; what the balancing phase trains (A13)",
        "edbl",
        {
            "of mixed images; all": {},
            "of mixed images; the head": HEAD,
            "of unmixed images; all": UNMIXED,
            "of unmixed images; the head": {**UNMIXED, **HEAD},
        },
        "Of unmixed images, and the head: each helps both read-outs, and together they gain 1.3 and 1.6 points. The\n"
        "questions that follow start from here, but for the last three.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Epochs of later tasks, once more",
        "edbl",
        {"60 + 40": {}, "120 + 40": LONGER},
        "120: +0.7 and +0.4. The questions that follow start from here, but for the next one and the last three.",
        start=THEN_DECIDED,
    ),
    Question(
        "Least number of old images in a batch",
        "edbl",
        {"32": {}, "64": {"options.min_old": 64}},
        "32, as printed: 64 makes no difference by CNN and loses 0.4 by NME.",
        start=THEN_DECIDED,
    ),
    Question(
        "Least number of old images in a batch, once more",
        "edbl",
        {"32": {}, "1": FEW_OLD},
        "32: as many as chance gives it, and one at least, loses 0.8 and 0.4.",
        start=DECIDED,
    ),
    Question(
        "1000 exemplars: least number of old images in a batch, and learning rate of later tasks",
        "edbl",
        FEW_EXEMPLARS,
        "1 and 0.03: +1.5 and +1.9 together, most of NME's by the first, most of CNN's by the second.",
        start={**DECIDED, "memory": "total=1000"},
    ),
    Question(
        "500 exemplars: least number of old images in a batch, and learning rate of later tasks",
        "edbl",
        FEW_EXEMPLARS,
        "1 and 0.03: +3.1 and +3.9 together. With 200 exemplars it was not asked; preset `default` has the same there.",
        start={**DECIDED, "memory": "total=500"},
    ),
    Question(
        "CIFAR-10, 5 phases: least number of old images in a batch",
        "edbl",
        {"32": {}, "1": FEW_OLD},
        "1, so that a batch has as many as chance gives it: +3.2 and +3.9. With 32, the 200 exemplars are learnt by\n"
        "heart.",
        start={**DECIDED, **CIFAR_10},
    ),
    Question(
        "CIFAR-10, 2 phases: least number of old images in a batch, and more",
        "edbl",
        {
            "32": {"options.min_old": 32},
            "1": {},
            "1; rate 0.03 in later tasks": SLOWER,
            "1; rate 0.01 in later tasks": SLOWEST,
            "1; distillation twice as heavy": HEAVY,
            "1; twice as heavy, rate 0.03": {**HEAVY, **SLOWER},
            "1; four times as heavy": {"options.kd_weight": 4.0, "options.balance_kd_weight": 4.0},
            "1; gamma 10": {"options.gamma": 10.0},
        },
        "1, as with 5 phases: +1.4 and +1.5. A lower rate and heavier distillation gain a point at most, and in all\n"
        "of them too many images are taken for one of the new classes.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO},
    ),
    Question(
        "CIFAR-10, 2 phases: epochs and rate of later tasks",
        "edbl",
        {
            "120; 0.1": {},
            "120; 0.01": SLOWEST,
            **SHORTER,
        },
        "Between 20 and 40 at 0.01: up to 1.6 points more by CNN and 2.3 by NME than 120 epochs at that rate. CNN is\n"
        "best with 40, NME with 10: the longer new classes are learnt, the more is forgotten of the old ones.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO},
    ),
    Question(
        "CIFAR-10, 2 phases: gamma and more, with few epochs at a rate of 0.01",
        "edbl",
        {
            "20; gamma 30": {"options.gamma": 30.0},
            "20; gamma 100": {},
            "20; gamma 300": {"options.gamma": 300.0},
            "20; gamma 1000": STRONG,
            "20; gamma 3000": {"options.gamma": 3000.0},
            "20; raw counts": {"options.counts": "raw"},
            "20; balanced without distillation": {"options.balance_kd_weight": 0.0},
            "20; all layers balanced": {"options.balance_layers": "all", "options.balance_norm": "train"},
            "30; gamma 1000": {**_epochs(30), **STRONG},
            "40; gamma 300": {**_epochs(40), "options.gamma": 300.0},
            "40; gamma 1000": {**_epochs(40), **STRONG},
            "40; gamma 1000, distillation twice as heavy": {**_epochs(40), **STRONG, **HEAVY},
            "40; gamma 1000, rate 0.005": {**_epochs(40), "schedule.lr": 0.005, **STRONG},
        },
        "30 epochs and gamma 1000: by one seed and an earlier version of the kernels (90.7 and 89.1) the best of CNN\n"
        "and NME together, with 40 epochs at 0.005. Gamma moves nothing but the head, and CNN by a few tenths.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO, **_epochs(20), **SLOWEST},
    ),
    Question(
        "CIFAR-10, 2 phases: distillation, old images, statistics and read-outs, with 30 epochs and gamma 1000",
        "edbl",
        {
            "as it was": {},
            "temperature 4": SOFT,
            "balanced at a rate of 0.03": FASTER_BALANCE,
            "class means of mirror images too": {"evaluation.nme_flips": True},
            "distillation twice as heavy": HEAVY,
            "4 old images in a batch": FOUR_OLD,
            "4 old images, twice as heavy": {**FOUR_OLD, **HEAVY},
            "8 rounds over the old images": {"options.max_rounds": 8},
            "statistics by classes": OLD_SHARE,
            "statistics by classes, balanced at 0.03": {**FASTER_BALANCE, **OLD_SHARE},
            "statistics by classes, twice as heavy": {**HEAVY, **OLD_SHARE},
            "statistics by classes, 4 old images": {**FOUR_OLD, **OLD_SHARE},
            "statistics by classes, 20 epochs": {**_epochs(20), **OLD_SHARE},
            "statistics by classes, 40 epochs": {**_epochs(40), **OLD_SHARE},
            "statistics by classes, 40 epochs, twice as heavy": {**_epochs(40), **HEAVY, **OLD_SHARE},
            "statistics by classes, 40 epochs at 0.005": {**_epochs(40), "schedule.lr": 0.005, **OLD_SHARE},
        },
        "Temperature 4, by a hair. All were asked with one seed and the four best, by the sum of both read-outs, with\n"
        "two more; of those that lose by neither, it has the best sum (+0.1 and +0.0). Distillation twice as heavy\n"
        "trades 0.3 points of CNN for 0.4 of NME. More old images lose 0.6 points of NME or more, and statistics of\n"
        "batch normalisation in which old classes have the share of their number (`norm_share`) 3.7 of CNN or more.\n"
        "The first row, by the first seed, had been 0.2 and 0.5 higher with an earlier version of the kernels.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO, **_epochs(30), **SLOWEST, **STRONG},
    ),
    Question(
        "CIFAR-10, 2 phases: weight of distillation in phase 1 and epochs of the first task, with temperature 4",
        "edbl",
        {
            "as it was": {},
            "1.5 times as heavy": {"options.kd_weight": 1.5},
            "twice as heavy": FIRST_HEAVY,
            "twice as heavy, gamma 3000": {**FIRST_HEAVY, "options.gamma": 3000.0},
            "twice as heavy, balanced at a rate of 0.03": {**FIRST_HEAVY, **FASTER_BALANCE},
            "twice as heavy in both phases": HEAVY,
            "three times as heavy": {"options.kd_weight": 3.0},
            "temperature 8": {"options.temperature": 8.0},
            "600 epochs of the first task": LONGEST_FIRST,
            "600 epochs, twice as heavy, balanced at 0.03": {**LONGEST_FIRST, **FIRST_HEAVY, **FASTER_BALANCE},
            "600 epochs, twice as heavy in both phases": {**LONGEST_FIRST, **HEAVY},
        },
        "Twice as heavy in phase 1 and balanced at 0.03: the best sum of both read-outs (-0.2 and +0.6). The rule set\n"
        "before these runs chose the first task first, by the rows with nothing else changed, and so 600 epochs (+0.1\n"
        "and +0.1); but with 600 heavier distillation gains less, and five rows with 300 have a better sum. The rule\n"
        "was changed to the best sum of all rows before any of them but the first was run on test images.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO, **_epochs(30), **SLOWEST, **STRONG, **SOFT},
    ),
    Question(
        "CIFAR-10, 2 phases: how old images are mixed, with temperature 4",
        "edbl",
        {
            "within the batch (B), as it was": {},
            "B, 2 old images in a batch": {"options.min_old": 2},
            "over the epoch (A)": EPOCH,
            "A, distillation 1.5 times as heavy": {**EPOCH, "options.kd_weight": 1.5},
            "A, twice as heavy, balanced at 0.03": {**EPOCH, **FIRST_HEAVY, **FASTER_BALANCE},
            "A, twice as heavy, balanced at 0.03, 40 epochs": {**EPOCH, **FIRST_HEAVY, **FASTER_BALANCE, **FORTY},
            "old and new together (C)": CONCAT,
            "C, 1.5 times as heavy": {**CONCAT, "options.kd_weight": 1.5},
            "C, twice as heavy, balanced at 0.03": {**CONCAT, **FIRST_HEAVY, **FASTER_BALANCE},
            "C, 40 epochs": {**CONCAT, **FORTY},
            "C, twice as heavy, balanced at 0.03, 40 epochs": {**CONCAT, **FIRST_HEAVY, **FASTER_BALANCE, **FORTY},
        },
        "A with 40 epochs, twice as heavy and balanced at 0.03: +0.7 and +1.0. With one old image in a batch, B mixes\n"
        "it with itself and with a new one, A with another old one and a new one, C with a new one alone.\n"
        "The rule, set before these runs: of all rows of this table and the one before whose sum of both read-outs is\n"
        "within 0.2 of the best, the one whose worse read-out is least below the paper's. Test images have seen five\n"
        "settings of this column, each chosen on held-out ones before, the first on those of CIFAR-100: 87.6 and 84.5\n"
        "(one seed), 91.7 and 89.3, 91.9 and 89.6, 91.4 and 89.7, and this one.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD, **TWO, **_epochs(30), **SLOWEST, **STRONG, **SOFT},
    ),
    Question(
        "CIFAR-10, 5 phases: epochs and rate of later tasks",
        "edbl",
        {
            "120; 0.1": {},
            "60; 0.03": {**_epochs(60), **SLOWER},
            "20; 0.1": _epochs(20),
            **SHORTER,
        },
        "120 at 0.1, as it was: 60 at 0.03 are 0.6 and 0.8 ahead, which one seed can hardly tell. 40 trade 0.4 or 0.8\n"
        "points of CNN for 1.6 or 1.0 of NME; fewer, which help with 2 phases, lose 3 points or more by CNN.",
        start={**DECIDED, **CIFAR_10, **FEW_OLD},
    ),
    Question(
        "Weight of distillation as the classes grow",
        "edbl",
        {"1": {}, "root of old over new classes": ROOT},
        "1, as it was: the root makes no difference that one seed could tell.",
        start=DECIDED,
    ),
    Question(
        "Base-half, 5 phases: weight of distillation and learning rate of later tasks",
        "edbl",
        {
            "1; 0.1": {},
            "old over new classes; 0.03": {**RATIO, **SLOWER},
            "old over new classes; 0.01": {**RATIO, **SLOWEST},
        },
        "Old over new classes and 0.01: +4.2 and +6.0. With a rate of 0.03 CNN is as good and NME 0.7 lower.",
        start={**DECIDED, **BASE_HALF},
    ),
    Question(
        "Base-half, 10 phases: weight of distillation",
        "edbl",
        {
            "root of old over new classes; 0.03": {**ROOT, **SLOWER, **TEN},
            "old over new classes; 0.03": {**RATIO, **SLOWER, **TEN},
        },
        "Old over new classes, as with 5 phases: it trades 0.9 points of CNN for 0.9 of NME. A rate of 0.01 was not\n"
        "tried here on held-out images.",
        start={**DECIDED, **BASE_HALF},
    ),
    Question(
        "Class means of NME (A18)",
        "edbl",
        {"exemplars": {}, "exemplars and their mirror images": {"evaluation.nme_flips": True}},
        "Exemplars: mirror images make no difference (less than 0.05 points).",
        start=FIRST_DECIDED,
    ),
    Question(
        "The first task (A12)",
        "edbl",
        {"mixed": {}, "plain": {"options.first_task": "plain"}},
        "Mixed, as Table 3 suggests: +1.5 and +0.5.",
        start=FIRST_DECIDED,
    ),
    Question(
        "Gradient through the factor (A10)",
        "edbl",
        {"detached": {}, "attached": {"options.detach": False}},
        "Detached: the other loses 5.6 and 5.8 points.",
        start=FIRST_DECIDED,
    ),
)


def experiment(question: Question) -> Experiment:
    """Return a question as an experiment whose rows are its answers."""
    settings = {**BASE, **(EDBL if question.method == "edbl" else {})}
    column = Column("CNN, NME", "calibration", settings)
    answers = {answer: {**question.start, **values} for answer, values in question.answers.items()}
    rows = [
        Row(answer, question.method, "cnn", ((),), options=values, tag=_tag(values))
        for answer, values in answers.items()
    ]
    return Experiment("calibration", question.text, "readouts", (column,), tuple(rows))


def _tag(values: Mapping[str, object]) -> str:
    """Return a folder's name for an answer; answers that mean the same share their runs, milestones go by epochs.

    What later questions have in common gets a short name.
    """
    later = {**COSINE, **UNMIXED, **HEAD}.items() <= values.items()
    told = {key: value for key, value in values.items() if not (later and THEN_DECIDED.get(key) == value)}
    words = ["unmixed-head"] if later else []
    words += [f"{key.rpartition('.')[2]}-{value}" for key, value in told.items() if not key.endswith("milestones")]
    return re.sub(r"[^\w.-]+", "_", "-".join(words)) or "base"
