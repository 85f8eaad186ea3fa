"""FOSTER: a second backbone boosts the old network, and both are compressed into one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Generator, Tensor

from edbl.config import Search, magnitude, option
from edbl.data.images import Images
from edbl.data.mixing import Batch
from edbl.data.stream import KINDS, Task
from edbl.losses import cross_entropy, distillation
from edbl.methods.base import Method, Phase
from edbl.nets.backbones import Maker
from edbl.nets.expanding import FosterNet
from edbl.nets.net import Net, Output, Teacher
from edbl.schedule import Schedule

BOOSTED = "boosted"  # the classifier


class FOSTER(Method):
    """Feature boosting by a second backbone, then compression of both into one by balanced distillation."""

    name, title, source, year = "foster", "Feature boosting and compression", "Wang et al. 2022", 2022
    readout = BOOSTED
    streams = KINDS
    paper: ClassVar[Mapping[str, object]] = {
        **{"schedule.epochs": 170, "schedule.shape": "cosine", "first.task_epochs": 200, "optim.weight_decay": 5e-4},
        **{"data.augment": "crop-flip-auto", "data.cutout": 16, "data.brightness": 63 / 255},
    }
    net: FosterNet

    @dataclass(frozen=True)
    class Config(Method.Config):
        """Settings."""

        temperature: float = option(2.0, "temperature of both distillations", least=1e-3, search=Search(1, 8))
        kd_weight: float = magnitude(1.0, "weight of the distillation from the old network while boosting", 0.1, 10)
        boost_betas: tuple[float, ...] = option(
            (0.94,),
            "beta of boosting's class weights in each later task; the last one stays",
            least=0,
            most=0.9999,
            search=Search(among=((0.9,), (0.94,), (0.97,), (0.99,))),
        )
        compress_beta: float = option(0.97, "beta of compression", least=0, most=0.9999, search=Search(0.9, 0.995))
        compress: Schedule = Schedule(epochs=130, lr=0.1, milestones=(60, 90, 110), shape="cosine")

    config: Config
    weights: Tensor  # of classes, in the phase that is trained

    @classmethod
    def build(cls, make: Maker, generator: Generator) -> Net:
        """Return a net that will ask ``make`` for more backbones."""
        return FosterNet(make, generator)

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the first task, or boosting, of the new backbone and the boosted heads, and then compression."""
        draw, boosted = self.draw(task), self.net.boosted
        if not task.old or boosted is None:
            yield self.first_phase(draw)
            return
        counts, betas = draw.data.counts(task.seen), self.config.boost_betas
        self.weights = class_weights(counts, betas[min(task.index, len(betas)) - 1])
        params = [p for p in boosted.parameters() if p.requires_grad]
        boost = self.phase("boost", draw, self.schedule, self.boost_loss)
        slow = list(boosted.backbone.parameters())
        yield replace(boost, params=params, backbone=slow, watched=lambda output: output.more[BOOSTED])
        self.weights = class_weights(counts, self.config.compress_beta)
        self.boosted = Teacher(boosted)
        params = [*self.net.backbone.parameters(), *self.net.head.parameters()]
        compress = self.phase("compress", draw, self.config.compress, self.compress_loss)
        yield replace(compress, params=params, teacher=self.boosted, optim=replace(self.optim, weight_decay=0.0))

    def boost_loss(self, batch: Batch) -> Tensor:
        """Return the loss of the boosted net, of the new backbone alone, and of distillation from the old net."""
        boosted, old = self.net.boosted, self.net.head.classes - self.net.head.sizes[-1]
        assert boosted is not None
        assert boosted.aux is not None
        logits, features, _ = boosted(batch.x)
        width = boosted.backbone.width
        then = self.net.head(features[:, :width])[:, :old]  # the head is the old net's while the boosted one learns
        kd = distillation(logits, then, self.config.temperature, "none")
        alone = cross_entropy(boosted.aux(features[:, -width:]), batch.y)
        return (cross_entropy(logits / self.weights, batch.y) + alone + self.config.kd_weight * kd).mean()

    def compress_loss(self, batch: Batch) -> Tensor:
        """Return balanced distillation from the boosted net."""
        logits, teacher = self.net(batch.x).logits, self.boosted.answer(batch.x).logits
        return balanced_distillation(logits, teacher, self.weights, self.config.temperature).mean()

    def outputs(self, images: Images) -> Output:
        """Return what the compressed net gives, and the logits of the boosted one."""
        output, boosted = super().outputs(images), self.net.boosted
        logits = output.logits if boosted is None else self.tools.outputs(boosted, images).logits
        return output._replace(more={BOOSTED: logits})

    def features(self, images: Images) -> Tensor:
        """Return the features of the compressed net, without asking the boosted one."""
        return self.tools.outputs(self.net, images).features

    def classifiers(self, output: Output) -> dict[str, Tensor]:
        """Return the logits of the boosted net."""
        return {BOOSTED: output.more[BOOSTED]}


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Return ``(1 - beta) / (1 - beta^n)`` of each class's number of images, scaled to a mean of 1, ``[seen]``."""
    weights = 1 / (1 - beta ** counts.clamp(min=1).double())
    return (weights / weights.mean()).float()


def balanced_distillation(logits: Tensor, teacher: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy to the teacher's softmax times class weights, scaled to a sum of 1, ``[batch]``."""
    target = (teacher / temperature).softmax(1) * weights
    return cross_entropy(logits / temperature, target / target.sum(1, keepdim=True))
