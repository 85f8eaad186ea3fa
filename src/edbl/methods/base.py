"""What a method is: which images, drawn and mixed how, with which loss over which parameters.

A method never trains. It yields phases, and the engine trains them. Its losses run inside the training step, so they
hold no branch on a tensor's value and never bring a tensor to the host.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from torch import Generator, Tensor, nn

from edbl.config import Unfit
from edbl.data.far import near
from edbl.data.images import Images, without
from edbl.data.mixing import Batch, Mixing, unmixed
from edbl.data.samplers import OldNew, Sampler, Uniform
from edbl.data.stream import KINDS, Kind, Task
from edbl.losses import cross_entropy
from edbl.memory import Memory
from edbl.methods.options import NormStatistics, Options
from edbl.nets.backbones import Maker
from edbl.nets.net import Head, LinearHead, Net, Output, Teacher
from edbl.schedule import FirstTask, Optim, Schedule
from edbl.store import check_tensors

if TYPE_CHECKING:
    from torch.optim import Optimizer

# What is kept of old images.
Keeps = Literal["exemplars", "reservoir", "none", "all images"]


@dataclass(frozen=True)
class Draw:
    """The images of a phase and how batches of them are drawn, changed and mixed."""

    data: Images  # what is drawn from: exemplars first, then the new images
    sampler: Sampler  # `(generator) -> [steps, batch]`: places in `data`, called once an epoch
    mixing: Mixing = unmixed  # `(batch, generator) -> batch`, after augmentation
    old_share: float | None = None  # share of the label mass that falls on old classes; None: as in the data
    # `(x, generator) -> x`: changes stored images at random, as the network takes them; None: as the recipe says.
    augment: Callable[[Tensor, Generator], Tensor] | None = None


@dataclass(frozen=True)
class Phase:
    """One stretch of training."""

    name: str  # one of its own within the task: draws are seeded by it
    draw: Draw  # images, sampler, mixing
    schedule: Schedule  # epochs and learning rate
    loss: Callable[[Batch], Tensor]  # a scalar
    params: Sequence[nn.Parameter]  # what learns, all of it of the network
    optim: Optim  # the optimiser's settings
    teacher: Teacher | None = None  # whose output for the batch the loss takes
    backbone: Sequence[nn.Parameter] = ()  # those of `params` that learn `optim.backbone_lr` times as fast
    adjust: Callable[[Generator], None] | None = None  # changes gradients between backward pass and update
    finish: Callable[[], None] | None = None  # changes values of the network after the last update, not its structure
    train_mode: bool = True  # False: batch normalisation uses and keeps its running statistics
    # Makes an optimiser of one's own, whose learning rates follow the schedule: times `lr_scale`, if a group has one.
    optimiser: "Callable[[Sequence[nn.Parameter]], Optimizer] | None" = None
    logged: dict[str, Tensor] = field(default_factory=dict)  # the method's own `logged`: leave it as `phase` gives it
    watched: Callable[[Output], Tensor] | None = None  # scores by which accuracy within it is measured; None: logits


@dataclass(frozen=True)
class Tools:
    """What the engine lends to a method."""

    outputs: Callable[[Net, Images], Output]  # of a network in evaluation mode, for any number of images
    normalise: Callable[[Tensor], Tensor] = Tensor.float  # images on the device, as the network takes them
    # The same, changed at random as the recipe says.
    augment: Callable[[Tensor, Generator], Tensor] = lambda x, generator: x.float()
    # A fresh generator on the host, seeded by run, task and name.
    generator: Callable[[str], Generator] = lambda name: Generator().manual_seed(0)


class Method:
    """Cross-entropy on new images and exemplars; the base of all methods."""

    name: ClassVar[str]  # what commands, records and reports call it
    title: ClassVar[str] = ""  # one line about it
    source: ClassVar[str]  # the paper
    year: ClassVar[int | None] = None  # of its publication
    distils: ClassVar[bool] = False  # learns from the old network: `begin` makes a teacher from the second task on
    # What is kept of old images: exemplars, reservoir, none (what is kept all the same is for NME) or all images.
    keeps: ClassVar[Keeps] = "exemplars"
    readout: ClassVar[str] = "cnn"  # the classifier that its authors report, one of those measured
    our_reading: ClassVar[bool] = False  # the publication leaves so much open that much is ours
    head: ClassVar[type[Head]] = LinearHead  # the head that `build` makes
    last_relu: ClassVar[bool] = True  # whether backbones end with a ReLU
    # What it needs of a network: features, or it changes pixels, or it reads the backbone's blocks.
    needs: ClassVar[Literal["features", "pixels", "blocks"]] = "features"
    streams: ClassVar[frozenset[Kind]] = frozenset()  # which it can learn beside those of new classes in each task
    paper: ClassVar[Mapping[str, object]] = {}  # values of preset `paper`, by dotted key
    # Patterns of names in `state` and in exemplars' extras, each with the axis that has a row for each class.
    class_axes: ClassVar[tuple[tuple[str, int], ...]] = ()
    # Settings of every method, by dotted key, that `edbl tune` searches beside the method's own options.
    searched: ClassVar[tuple[str, ...]] = ("schedule.lr", "optim.weight_decay")

    @dataclass(frozen=True)
    class Config(Options):
        """None of its own."""

    config: Options  # the method's own options

    def __init_subclass__(cls) -> None:
        """Refuse a fact about a method that is none."""
        super().__init_subclass__()
        if cls.keeps not in get_args(Keeps):
            raise TypeError(f"{cls.__name__}.keeps is {cls.keeps!r}; it may be {', '.join(get_args(Keeps))}")
        if isinstance(cls.head, type) and not issubclass(cls.head, Head):
            raise TypeError(f"{cls.__name__}.head is {cls.head.__name__}; derive a head from edbl.nets.net.Head")
        if not isinstance(cls.streams, Set) or cls.streams - KINDS:
            raise TypeError(f"{cls.__name__}.streams is {cls.streams!r}; it is a set of {', '.join(sorted(KINDS))}")

    @classmethod
    def build(cls, make: Maker, generator: Generator) -> Net:
        """Return the network that the method trains, of a backbone or several that ``make`` makes."""
        backbone = make(generator)
        return Net(backbone, cls.head(backbone.width))

    def __init__(
        self,
        net: Net,
        memory: Memory,
        config: Options,
        schedule: Schedule,
        optim: Optim,
        tools: Tools,
        first: FirstTask | None = None,
    ) -> None:
        self.net = net  # the network; another may take its place
        self.memory = memory  # the exemplars
        self.config = config
        self.schedule = schedule  # epochs and learning rate, by the recipe or the rule
        self.optim = optim  # the optimiser's settings
        self.first = first or FirstTask()  # what a first task does otherwise
        self.tools = tools  # what the engine lends
        self.generator = tools.generator  # of `tools`
        self.teacher: Teacher | None = None  # the network before the task, frozen; None in a first task
        self.logged: dict[str, Tensor] = {}  # what `log` noted in the last step; `phase` hands it to the engine
        # What is kept from task to task beside network and memory: tensors by name, in every checkpoint. A method is
        # made anew for each task, and has no other attributes then.
        self.state: dict[str, Tensor] = {}

    def begin(self, task: Task, generator: Generator) -> None:
        """Prepare for a task: the old network becomes the teacher, if it distils; the head grows."""
        self.teacher = Teacher(self.net) if task.old and self.distils else None
        self.net.grow(task.new, generator)

    def draw(self, task: Task) -> Draw:
        """Return the images to learn from, exemplars and new ones, shuffled evenly."""
        data = Images.cat([self.memory.images, task.train]) if task.old and self.keeps != "none" else task.train
        return Draw(data, Uniform(len(data), self.optim.batch))

    def phases(self, task: Task) -> Iterator[Phase]:
        """Yield the phases of a task. What stands between two yields runs between two phases."""
        yield self.main_phase(task, self.draw(task))

    def main_phase(self, task: Task, draw: Draw) -> Phase:
        """Return the phase `train` of the whole network by `loss`; of a first task, `first_phase`."""
        return self.phase("train", draw, self.schedule, self.loss) if task.old else self.first_phase(draw)

    def first_phase(self, draw: Draw) -> Phase:
        """Return the same with the schedule and weight decay that a recipe has for first tasks."""
        phase = self.phase("train", draw, self.first.schedule(self.schedule), self.loss)
        return replace(phase, optim=self.first.optim(self.optim))

    def phase(self, name: str, draw: Draw, schedule: Schedule, loss: Callable[[Batch], Tensor]) -> Phase:
        """Return a phase of all parameters of the network that can learn."""
        params = [p for p in self.net.parameters() if p.requires_grad]
        slow = set(self.net.backbone.parameters())
        backbone = [p for p in params if p in slow]
        train_mode = not self.optim.fixed_norm
        return Phase(
            name,
            draw,
            schedule,
            loss,
            params,
            self.optim,
            self.teacher,
            backbone,
            train_mode=train_mode,
            logged=self.logged,
        )

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch, a scalar."""
        return cross_entropy(self.net(batch.x).logits, batch.y).mean()

    def log(self, name: str, value: Tensor) -> None:
        """Note a number of a step, from within a loss: the record has its mean over each epoch beside the loss."""
        self.logged[name] = value.detach() if isinstance(value, Tensor) else value  # which the engine refuses

    def normalise(self, x: Tensor) -> Tensor:
        """Return images of a data set or of the memory, wherever they are, as the network takes them."""
        return self.tools.normalise(near(x))

    def augment(self, x: Tensor, generator: Generator) -> Tensor:
        """Return the same, changed at random as the recipe says."""
        return self.tools.augment(near(x), generator)

    def outputs(self, images: Images) -> Output:
        """Return what the network gives for many images, in evaluation mode, without gradients."""
        return self.tools.outputs(self.net, images)

    def features(self, images: Images) -> Tensor:
        """Return the features of the same."""
        return self.outputs(images).features

    def teach(self, x: Tensor) -> Output:
        """Return the teacher's output; its logits are ``[batch, old]``."""
        if self.teacher is None:
            raise RuntimeError("there is no teacher in the first task, nor for a method that does not distil")
        return self.teacher.answer(x)

    def norm_statistics(self, task: Task, draw: Draw) -> Draw | None:
        """Return the images whose statistics batch normalisation has after training; None: as trained.

        ``draw`` is what the first phase of the task learns from. With `NormStatistics` among the options it is asked
        for unmixed.
        """
        c = self.config
        if not isinstance(c, NormStatistics) or not c.clean_norm or self.optim.fixed_norm:
            return None
        unmixed_draw = replace(draw, mixing=unmixed)
        if c.norm_share == "drawn" or not task.old:
            return unmixed_draw
        new = len(task.train)
        shared = OldNew.shared(len(draw.data) - new, new, self.optim.batch, task.old / task.seen)
        return replace(unmixed_draw, sampler=shared)

    def end(self, task: Task) -> None:
        """Finish a task: refresh the memory."""
        self.memory.update(task.train, self.features)

    def refresh(self, task: Task) -> Iterator[Phase]:
        """Yield the phases in which models learn known classes again: the first of `phases`."""
        yield from islice(self.phases(task), 1)

    def more(self, images: Images) -> None:
        """Take in more images of known classes; by default they are in the memory while these are learnt, and go."""

    def forget(self, number: int) -> None:
        """Forget a class; those after it move up, along the axes of classes of state and extras too."""
        self.net.remove(number)
        self.memory.remove(number, self.class_axes)
        self.state = without(self.state, number, self.class_axes)

    def check_state(self, state: Mapping[str, Tensor]) -> None:
        """Refuse a state from disk that the method cannot continue with, by a `ValueError`."""
        if (wanted := self.state_like()) is not None:
            check_tensors(state, wanted)
            if odd := [name for name, tensor in state.items() if not tensor.isfinite().all()]:
                raise Unfit(f"tensor '{odd[0]}' is not finite")

    def state_like(self) -> dict[str, Tensor] | None:
        """Return tensors with names, shapes and types of the state after a task; None lets any state pass."""
        return None

    def scores(self, output: Output) -> Tensor:
        """Return the scores whose largest is the CNN classifier's answer, ``[batch, seen]``."""
        return output.logits

    def classifiers(self, output: Output) -> dict[str, Tensor]:
        """Return the scores of classifiers beside CNN and NME by name, each ``[batch, seen]``."""
        return {}
