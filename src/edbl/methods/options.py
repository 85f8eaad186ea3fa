"""Settings of the parts that EDBL and its ablations are made of: what a method's ``Config`` lacks, it does without.

Defaults are the paper's where it prints one. A1 to A22 are in docs/ambiguities.md.
"""

from dataclasses import dataclass
from typing import Literal

from edbl.config import Search, magnitude, option
from edbl.schedule import Schedule


class Options:
    """A method's own settings."""


@dataclass(frozen=True)
class Distilling(Options):
    """Knowledge distillation: Eq. 3. The paper prints neither its temperature, nor its weight, nor a scale (A4)."""

    temperature: float = option(2.0, "temperature of distillation (A4)", least=1e-3, search=Search(1, 8))
    kd_weight: float = magnitude(1.0, "weight gamma_1 of distillation in phase 1 (A4)", 0.3, 30)
    kd_growth: float = option(0.0, "power of old over new classes by which kd_weight grows", least=0, most=1)
    kd_scale: Literal["t2", "none"] = option("t2", "t2: distillation times the squared temperature; none: not (A4)")


@dataclass(frozen=True)
class NormStatistics(Options):
    """Statistics of batch normalisation while a network is used: of what it learnt from, or of the same unmixed."""

    clean_norm: bool = option(False, "classifiers and herding use statistics of unmixed images in batch normalisation")
    norm_share: Literal["drawn", "classes"] = option(
        "drawn", "clean_norm: share of old images as drawn, or the share that old classes have"
    )


@dataclass(frozen=True)
class Mixing(Options):
    """Mixup: Eq. 1."""

    # Section 5.3: "sampled from the Beta function B=(1,1)".
    beta: float = option(1.0, "mixing ratio lambda ~ Beta(beta, beta)", least=1e-3, search=Search(0.1, 4, log=True))
    ratio_per: Literal["pass", "sample"] = option(
        "pass", "one lambda for each pass over a batch, or for each sample (A3)"
    )
    first_task: Literal["mixup", "plain"] = option("mixup", "the first task with vanilla mixup, or plain (A12)")


@dataclass(frozen=True)
class Resampling(Options):
    """Re-sampling of what is mixed: Section 4.1."""

    reading: Literal["batch", "epoch", "concat"] = option(
        "batch",
        "mix N/2 times within each batch, over the epoch, or old and new once together (concat) (A2)",
    )
    # Section 4.1: the number of old samples in a batch "isn't less than a fixed number (32 in this work)".
    min_old: int = option(
        32, "least old images in a batch before mixing (A2)", least=1, most=4096, search=Search(1, 32, log=True)
    )
    rounds: int = option(0, "passes r over the old images; 0: N/2, rounded, at least 1 (A1)", least=0, most=1000)
    max_rounds: int = option(
        16, "most passes if rounds is 0; 0: no limit (A2)", least=0, most=1000, search=Search(1, 16, log=True)
    )


@dataclass(frozen=True)
class Balancing(Options):
    """The balancing phase: Eq. 7, 14 and 16. Its schedule is that of Appendix C for CIFAR."""

    gamma: float = magnitude(100.0, "scale of the class weights lambda_k; Table 6 (A5)", 10, 1000)
    epsilon: float = option(1e-3, "added to the influence factor before dividing by it (A9)", least=0)
    detach: bool = option(False, "treat the influence factor as a constant in the gradient (A10)")
    counts: Literal["raw", "effective"] = option(
        "effective", "n_k: raw images, or effective label mass after re-sampling (A6)"
    )
    weight_sum: Literal["classes", "one"] = option(
        "classes", "lambda_k sum to gamma times the number of classes, or to gamma (A5)"
    )
    weight_place: Literal["inside", "outside"] = option(
        "inside", "class weights of a mixed label inside or outside its cross-entropy (A7)"
    )
    balance_kd_weight: float = option(
        1.0, "weight gamma_2 of distillation in phase 2 (A4)", least=0, search=Search(0, 3)
    )
    balance_layers: Literal["all", "head"] = option("all", "phase 2 trains all layers, or the head (A13)")
    balance_norm: Literal["train", "eval"] = option(
        "train", "statistics in phase 2: of the batch (train), or those kept (A13)"
    )
    balance: Schedule = Schedule(epochs=100, lr=0.01, milestones=(30, 60, 80))


@dataclass(frozen=True)
class IncrementalInfluence(Options):
    """The factor of Eq. 13 and 15 in place of that of Eq. 6 in the balancing phase."""

    alpha: float = magnitude(
        5e-6, "weight of the distillation part of the factor, Eq. 13 and 15; Table 6 (A11)", 1e-7, 1e-3
    )
    factor_over: Literal["old", "all"] = option(
        "old", "old part of f^t in the factor: softmax over old logits, or over all (A8)"
    )
