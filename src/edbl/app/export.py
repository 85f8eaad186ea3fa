"""Export: a model as one ONNX file, from pixels to probabilities, checked before it is written."""

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edbl
from edbl.app.bundle import settle
from edbl.app.description import EXEMPLARS, Bundle
from edbl.app.exact import Answers
from edbl.app.exact import answers as exact_answers
from edbl.app.inputs import inputs_of
from edbl.app.measuring import SURE
from edbl.app.model import Model
from edbl.app.opening import load, open_model
from edbl.app.predict import UNKNOWN
from edbl.data.augment import Transform
from edbl.engine.evaluate import class_means
from edbl.errors import EdblError
from edbl.methods.base import Method
from edbl.methods.closed import ClosedForm
from edbl.nets.backbones import ResNet
from edbl.nets.closed import linked, rooted
from edbl.nets.engines import Eight
from edbl.nets.expanding import ExpandingNet, FosterNet
from edbl.nets.heads import CorrectedHead, CosineHead, ProxyHead
from edbl.nets.net import Head, LinearHead, Net
from edbl.nets.sure import threshold
from edbl.store import write_output

FORMAT = "1"  # of the metadata
TOLERANCE = 1e-4  # most by which an output may differ from the model's own, of those above 1 as a share of them
CHECKED = 64  # most exemplars that it is checked on
LIMIT = 2_000_000_000  # bytes of weights; ONNX files end at 2 GiB
RESIZE = (
    "turn as EXIF says, convert to RGB with white for what is transparent and 16-bit grey scaled to 8 bits, "
    "cut out the centre square, scale it to the size with Pillow's BICUBIC"
)


class Scorer(NamedTuple):
    """What a head comes to once it learns no more: ``weight @ features + bias``."""

    weight: Tensor  # [classes * rows, width]
    bias: Tensor  # [classes * rows]
    unit: bool  # of features that are made unit vectors
    rows: int = 1  # for each class; more than one are weighted by their softmax
    root: bool = False  # of the square roots of features


class Served(nn.Module):
    """What is exported: images as a server has them in, both classifiers out."""

    mean: Tensor
    std: Tensor
    weight: Tensor
    bias: Tensor
    means: Tensor
    offsets: Tensor

    def __init__(self, model: Model, backbone: nn.Module | None, pixels: Transform | None) -> None:
        super().__init__()
        net = copy.deepcopy(model.learner.net)
        parts = [*net.old, net.backbone] if isinstance(net, ExpandingNet) else [net.backbone]
        for part in parts:
            if isinstance(part, ResNet):
                part.fused = None  # whose kernels have no translation
        self.before = copy.deepcopy(backbone)
        self.parts = nn.ModuleList(parts)
        self.pixels = pixels is not None
        if pixels is not None:
            self.register_buffer("mean", pixels.mean.clone())
            self.register_buffer("std", pixels.std.clone())
        scorer, self.factor = _scorer(model.method, net.head), model.factor
        self.unit, self.rows, self.root = scorer.unit, scorer.rows, scorer.root
        self.register_buffer("weight", scorer.weight)
        self.register_buffer("bias", scorer.bias)
        means = class_means(model.memory, model.learner.features, model.learner.training.evaluation.nme_flips)
        there = means.isfinite().all(1)
        means = means.where(there.unsqueeze(1), 0.0)
        # Minus the squared distance to a unit vector u is 2 <u, mean> - (1 + |mean|^2).
        self.register_buffer("means", 2 * means)
        self.register_buffer("offsets", (-1 - means.square().sum(1)).where(there, -torch.inf))
        self.cpu().eval().requires_grad_(False)

    def normalised(self, x: Tensor) -> Tensor:
        """Return images as the network takes them."""
        return (x.permute(0, 3, 1, 2).float() - self.mean) / self.std if self.pixels else x

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities and minus squared distances to class means, ``[n, classes]`` each, and sureness."""
        x = self.normalised(x)
        return self.after(x if self.before is None else self.before(x))

    def after(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the same of what a frozen backbone gives, if there is one."""
        features = [part(x) for part in self.parts]
        joined = features[0] if len(features) == 1 else torch.cat(features, 1)
        unit = F.normalize(joined)
        vectors = rooted(joined, self.unit) if self.root else unit if self.unit else joined
        logits = F.linear(vectors, self.weight, self.bias)
        if self.rows > 1:
            similarity = logits.unflatten(1, (-1, self.rows))
            logits = (similarity.softmax(2) * similarity).sum(2)
        probabilities = (self.factor * logits).softmax(1)
        return probabilities, F.linear(unit, self.means, self.offsets), probabilities.amax(1)


class ServedExact(nn.Module):
    """The same of a closed form on a frozen backbone."""

    mean: Tensor
    std: Tensor
    weight: Tensor
    bias: Tensor
    means: Tensor

    def __init__(self, answers: Answers, backbone: nn.Module, pixels: Transform) -> None:
        super().__init__()
        self.before = copy.deepcopy(backbone)
        sure = answers.sure
        for name, tensor in (("weight", answers.weight), ("bias", answers.bias), ("means", sure.means)):
            self.register_buffer(name, tensor.float())
        self.register_buffer("mean", pixels.mean.clone())
        self.register_buffer("std", pixels.std.clone())
        self.vectors, self.confidence = answers.vectors, answers.confidence
        self.link = None if answers.link is None else answers.link.tolist()
        self.middle, self.spread = sure.middle.tolist(), sure.spread.tolist()
        self.cpu().eval().requires_grad_(False)

    def normalised(self, x: Tensor) -> Tensor:
        """Return images as the network takes them."""
        return (x.permute(0, 3, 1, 2).float() - self.mean) / self.std

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities, ``[n, classes]``, and sureness, ``[n]``."""
        return self.after(self.before(self.normalised(x)))

    def after(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return the same of features."""
        vectors = self.vectors(features)
        logits = F.linear(vectors, self.weight, self.bias)
        cosine = F.linear(F.normalize(vectors), self.means).amax(1)
        parts = [(self.confidence(logits) - self.middle[0]) / self.spread[0]]
        parts.append((cosine - self.middle[1]) / self.spread[1])
        return linked(logits, self.link).softmax(1), parts[0] + parts[1]


class Part(nn.Module):
    """A part of what is exported."""

    def __init__(self, served: nn.Module, does: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.served, self.does = served, does

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Do it."""
        return self.does(x)


def _eight(served: Served | ServedExact) -> tuple[Eight | None, nn.Module]:
    """Return the backbone if it computes in eight bits, and what comes right after it."""
    first, *rest = served.before if isinstance(served.before, nn.Sequential) else [served.before]
    return (first if isinstance(first, Eight) else None), nn.Sequential(*rest)


@torch.no_grad()
def _scorer(method: Method, head: Head) -> Scorer:
    if isinstance(method, ClosedForm):
        return Scorer(method.weight, method.bias, method.config.unit, root=True)
    if type(head) in (LinearHead, CorrectedHead):
        assert isinstance(head, LinearHead)
        weight, bias = head.weight.clone(), head.bias.clone()
        if isinstance(head, CorrectedHead) and len(head.sizes) > 1:
            beta, gamma = head.correction
            old = head.classes - head.sizes[-1]
            weight[old:] *= beta
            bias[old:] = beta * bias[old:] + gamma
        return Scorer(weight, bias, unit=False)
    if isinstance(head, CosineHead | ProxyHead):
        rows = F.normalize(torch.cat([head.old, head.weight]))
        scale, shift = (head.scale, 0.0) if isinstance(head, CosineHead) else (2.0, -2.0)
        return Scorer(scale * rows, rows.new_full((len(rows),), shift), unit=True, rows=head.rows)
    raise EdblError(f"a network with head {type(head).__name__} cannot be exported")


def export(
    model: Model,
    path: Path | str,
    *,
    backbone: nn.Module | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    images: Tensor | None = None,
    readout: str | None = None,
    settings: Mapping[str, object] | None = None,
    least: float = -math.inf,
    unknown: float = UNKNOWN,
) -> float:
    """Write a model to ``path`` as ONNX and return the most by which an output differed from the model's own.

    Where a frozen ``backbone`` makes the vectors that the model learns from, ``mean`` and ``std`` (0 to 1) are those of
    its input, and ``images`` (uint8, ``[n, c, h, w]``) are exemplars to check on; else the model's own serve.
    The ``readout`` that predictions are made by, if it is not the method's, and ``settings`` go into the file's
    metadata, and so does the sureness up to which a photo counts as ``unknown``, at which rate.
    """
    path = Path(path)
    _refuse_place(path)
    _refuse_model(model)
    if images is None:
        images = model.memory.images.x
    images = images[torch.linspace(0, len(images) - 1, min(CHECKED, len(images))).long()].cpu()
    pixels = None
    if backbone is not None:
        pixels = Transform.of("none", 0, mean, std, torch.device("cpu"))
    elif isinstance(model.learner.transform, Transform) and images.ndim == 4:
        pixels = model.learner.transform
    x = images.permute(0, 2, 3, 1) if pixels else model.learner.transform.normalise(images)
    # On a GPU, convolutions would round their inputs to ten bits.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        served = Served(model, backbone, pixels)
        expected = _expected(model, served.before, pixels, images)
    recipe = model.learner.training
    own = {"method": model.method.name, "backbone": recipe.net.backbone, "memory": recipe.memory, "seed": recipe.seed}
    metadata = _metadata(model.names, x, readout or model.method.readout, own | dict(settings or {}), least, unknown)
    return _written(path, served, x, ["cnn", "nme", "sureness"], expected, metadata)


def _written(
    path: Path,
    served: Served | ServedExact,
    x: Tensor,
    outputs: Sequence[str],
    expected: Sequence[Tensor],
    metadata: Mapping[str, str],
) -> float:
    """Write the file if onnxruntime makes of it what is expected, and return the most by which an output differed."""
    data = _onnx(served, x, outputs, metadata)
    worst = _difference(data, x, outputs, expected)
    if not worst <= TOLERANCE:
        raise EdblError(
            f"the exported network differs from the model by {worst:.2g} on its exemplars, where {TOLERANCE} is "
            f"allowed; {path} was not written"
        )
    write_output(path, data)
    return worst


def export_folder(folder: Path | str, path: Path | str, unknown: float = UNKNOWN) -> tuple[list[str], float]:
    """Write the model in ``folder`` to ``path``; return its classes and the most by which an output differed."""
    folder, path = Path(folder), Path(path)
    _refuse_place(path)
    if not 0 <= unknown < 1:
        raise EdblError(f"unknown={unknown:g} must be a share of known photos from 0 to below 1")
    bundle = settle(folder)
    if bundle.settings.keep:
        return bundle.names, _export_exact(folder, bundle, path, unknown)
    contents, model = open_model(folder, "cpu", bundle, pixels=True)
    bundle = contents.bundle
    sure = contents.tensors.get(SURE, torch.zeros(0))
    worst = export(
        model,
        path,
        images=contents.pixels(EXEMPLARS),
        readout=bundle.readout,
        settings=asdict(bundle.settings),
        least=threshold(sure, unknown) if bundle.readout == "cnn" else -math.inf,
        unknown=unknown,
        **inputs_of(bundle.settings).front(),
    )
    return bundle.names, worst


def _export_exact(folder: Path, bundle: Bundle, path: Path, unknown: float) -> float:
    """Export a closed form; where it keeps no photos it is checked on noise."""
    contents = load(folder, bundle, also=[EXEMPLARS], predict=True)
    answers, front, side = exact_answers(contents), inputs_of(bundle.settings).front(), bundle.settings.image_size
    images = contents.pixels(EXEMPLARS)
    if not len(images):
        images = torch.randint(0, 256, (8, 3, side, side), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images = images[torch.linspace(0, len(images) - 1, min(CHECKED, len(images))).long()]
    pixels = Transform.of("none", 0, front["mean"], front["std"], torch.device("cpu"))
    served = ServedExact(answers, front["backbone"], pixels)
    with torch.no_grad():
        expected = [one.float() for one in answers(served.before(pixels.normalise(images)))]
    x = images.permute(0, 2, 3, 1)
    least = threshold(answers.sure.judged, unknown)
    metadata = _metadata(bundle.names, x, "probabilities", asdict(bundle.settings), least, unknown)
    return _written(path, served, x, ["probabilities", "sureness"], expected, metadata)


def _refuse_place(path: Path) -> None:
    """Refuse what can be seen to be wrong before any work."""
    if path.suffix != ".onnx":
        raise EdblError(f"'{path}' does not end in .onnx; name the file that is to be written, such as model.onnx")
    if not path.parent.is_dir():
        raise EdblError(f"cannot write '{path}': there is no folder {path.parent}")
    if path.is_dir():
        raise EdblError(f"cannot write '{path}': it is a folder")
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise EdblError(f"export needs {error.name}: run `pip install 'edbl[export]'`") from error


def _refuse_model(model: Model) -> None:
    if not model.names:
        raise EdblError("the model has no class yet; let it learn some before it is exported")
    method, net = type(model.method), model.learner.net
    if type(net) not in (Net, ExpandingNet, FosterNet) or method.scores not in (Method.scores, ClosedForm.scores):
        raise EdblError(
            f"models of method {method.name} cannot be exported: it has a network or a classifier of its own"
        )


def _expected(model: Model, backbone: nn.Module | None, pixels: Transform | None, images: Tensor) -> list[Tensor]:
    """Return what the model itself makes of images."""
    if backbone is not None and pixels is not None:
        with torch.no_grad():
            images = backbone(pixels.normalise(images)).unsqueeze(1)
    probabilities, nearness = model.readouts(images)
    return [probabilities, nearness, probabilities.amax(1)]


def _metadata(
    names: Sequence[str], x: Tensor, readout: str, settings: Mapping[str, object], least: float, unknown: float
) -> dict[str, str]:
    shape = {"height": x.shape[1], "width": x.shape[2], "resize": RESIZE} if x.ndim == 4 else {"length": x.shape[1]}
    # JSON escapes what is not ASCII: names of folders may hold what is no valid UTF-8.
    return {
        "format": FORMAT,
        "classes": json.dumps(list(names)),
        "input": json.dumps(shape),
        "readout": readout,
        "unknown": json.dumps({"rate": unknown, "at_most": least if math.isfinite(least) else None}),
        "settings": json.dumps(settings),
    }


def _onnx(served: Served | ServedExact, x: Tensor, outputs: Sequence[str], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of the file."""
    import onnx
    from onnx import helper

    from edbl.nets.graph import chained, translate

    size = sum(tensor.nbytes for tensor in served.state_dict().values())
    if size > LIMIT:
        raise EdblError(f"the network has {size / 1e9:.1f} GB of weights; ONNX files end at 2 GiB")
    # Two images, since PyTorch takes the number 1 to be meant.
    name, two = "images" if x.ndim == 4 else "vectors", torch.cat([x[:1], x[:1]])
    network, rest = _eight(served)
    if network is None:
        graph = translate(served, two, name, outputs)
    else:
        pixels = Part(served, lambda x: (served.normalised(x),))
        features = network(served.normalised(two))
        head = translate(Part(served, lambda x: served.after(rest(x))), features, "features", outputs)
        graph = chained([translate(pixels, two, name, ["pixels"]), onnx.load_from_string(network.graph), head])
    graph.producer_name, graph.producer_version = "edbl", edbl.__version__
    helper.set_model_props(graph, dict(metadata))
    data: bytes = graph.SerializeToString()
    return data


def _difference(data: bytes, x: Tensor, outputs: Sequence[str], expected: Sequence[Tensor]) -> float:
    """Return the most by which onnxruntime's outputs differ from what is expected; NaN if one is not a number.

    Of outputs above 1 it is the share: sureness has no bounds, and float32 a number of digits.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    found = []
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        for batch in (x, x[:1]):
            found += [torch.from_numpy(array) for array in session.run(outputs, {name: batch.numpy()})]
    except Exception as error:  # of every kind, and none of them documented
        raise EdblError(f"onnxruntime cannot run the exported network: {str(error).splitlines()[0]}") from error
    pairs = zip(found, [*expected, *(whole[:1] for whole in expected)], strict=True)
    return float(torch.stack([((f - e).abs() / e.abs().clamp(min=1)).where(f != e, 0.0).max() for f, e in pairs]).max())
