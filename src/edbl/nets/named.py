"""Backbones by name: ours, those that others have trained, and those of users; these two keep their weights."""

import copy
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Generator, Tensor, nn

from edbl import users
from edbl.errors import EdblError
from edbl.nets import backbones, pretrained
from edbl.nets.backbones import BACKBONES, Backbone, Foreign, refuse_width
from edbl.nets.efficientnet import EfficientNetLite0
from edbl.nets.pretrained import LITES, TIMM

Make = Callable[[Generator, int], Backbone]  # of a width; 0 means its own


def is_pretrained(name: str) -> bool:
    """Tell whether a name means a network that others have trained."""
    return name in LITES or name.startswith(TIMM)


def check(name: str) -> None:
    """Refuse a name that no backbone has, without running anybody's code."""
    if not is_pretrained(name):
        users.check(users.BACKBONE, name, [*BACKBONES, *LITES])


def defaults(name: str) -> Mapping[str, object]:
    """Return the settings that suit a backbone, by dotted key: what a pretrained one expects of images."""
    if not is_pretrained(name):
        return {}
    found = pretrained.find(name)
    return {"data.mean": found.mean, "data.std": found.std, "data.image_size": found.image_size}


def digest(name: str) -> str:
    """Return what tells a pretrained or a user's backbone from others of that name; nothing for ours."""
    if is_pretrained(name):
        return pretrained.find(name).digest
    found = users.find(users.BACKBONE, name, BACKBONES)
    if not isinstance(found, nn.Module):
        return users.digest(users.BACKBONE, name, BACKBONES)
    return hashlib.sha256(f"{found}\n{pretrained.checksum(found)}".encode()).hexdigest()


def maker(name: str, shape: Sequence[int], last_relu: bool = True, image_size: int = 0) -> Make:
    """Return what makes a backbone for inputs of ``shape``; with ``image_size``, images are scaled to it first."""
    inner = (shape[0], image_size, image_size) if image_size else tuple(shape)
    if image_size and len(shape) != 3:
        raise EdblError("net.image_size scales images, and these are vectors; leave it out")
    if is_pretrained(name):
        make = _pretrained(name, inner, last_relu)
    else:
        found = users.find(users.BACKBONE, name, BACKBONES)
        make = _ours(name, inner, last_relu) if name in BACKBONES else _of_user(found, name, inner)
    return _scaled(make, image_size) if image_size else make


def _ours(name: str, shape: Sequence[int], last_relu: bool) -> Make:
    return lambda generator, width: backbones.build(name, shape, generator, last_relu, width)


def _pretrained(name: str, shape: Sequence[int], last_relu: bool) -> Make:
    """Return what makes a network with the weights that others have given it."""
    found = pretrained.find(name)
    if len(shape) != 3 or shape[0] != 3:
        raise EdblError(f"{name} takes images in colour, [3, height, width], not {list(shape)}; use another backbone")
    found.check(max(shape[1:]))

    def make(generator: Generator, width: int) -> Backbone:
        refuse_width(name, width)
        made = found.load()
        if isinstance(made, EfficientNetLite0):
            made.last_relu = last_relu
        made.fresh = found.load
        return made

    return make


def _of_user(given: object, name: str, shape: Sequence[int]) -> Make:
    """Return what makes a user's network: copies of a module, or what a function makes, with the weights they have."""
    if isinstance(given, ModuleType):
        raise EdblError(f"say which class or function of {name} makes the backbone, as in `{name}:Net`")
    if isinstance(given, nn.Module):
        kept = copy.deepcopy(given)  # which nobody trains meanwhile

        def module(width: int) -> object:
            refuse_width(name, width)
            return copy.deepcopy(kept)
    elif callable(given):
        function: Any = given

        def module(width: int) -> object:
            return _call(function, name, shape, width)
    else:
        raise EdblError(f"backbone {name} is an object of type {type(given).__name__}, neither a module nor a function")

    def made(width: int) -> nn.Module:
        with users.calling(name):
            net = module(width)
        if not isinstance(net, nn.Module):
            raise EdblError(f"backbone {name} makes an object of type {type(net).__name__}, not a torch.nn.Module")
        return net

    def make(generator: Generator, width: int) -> Backbone:
        net = made(width)
        return Foreign(net, _width(net, name, shape), lambda: Foreign(made(width), 0))

    return make


def _call(function: Callable[..., object], name: str, shape: Sequence[int], width: int) -> object:
    """Call a user's function, with shape and width if it takes what is called so.

    What it must be given beside a width, whatever it is called, is the shape.
    """
    try:
        bound = inspect.signature(function).bind_partial()
    except (TypeError, ValueError):  # of a class that is not written in Python
        refuse_width(name, width)
        return function()
    takes, anything = bound.signature.parameters, inspect.Parameter.empty
    positional = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    needed = [key for key, one in takes.items() if one.default is anything and one.kind in positional]
    for key in ["shape"] if "shape" in takes else [key for key in needed if key != "width"][:1]:
        bound.arguments[key] = tuple(shape)
    if width and "width" not in takes:
        raise EdblError(f"backbone {name} takes no `width`; give its function a parameter of that name")
    if width:
        bound.arguments["width"] = width
    elif "width" in takes and takes["width"].default is anything:
        raise EdblError(f"backbone {name} must be given a width; set net.width")
    return function(*bound.args, **bound.kwargs)


def _width(net: nn.Module, name: str, shape: Sequence[int]) -> int:
    """Return how many features a network gives, by asking it for those of two images."""
    mode = net.training
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            features = net.eval()(torch.zeros(2, *shape, device=device))
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EdblError(f"backbone {name} fails for two images of shape {list(shape)}: {why}") from error
    net.train(mode)
    if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
        what = list(features.shape) if isinstance(features, Tensor) else f"an object of type {type(features).__name__}"
        raise EdblError(f"backbone {name} returns {what} for two images; it must return [2, width], a vector for each")
    return features.shape[1]


def _scaled(make: Make, size: int) -> Make:
    """Return what makes such a backbone for images of any size, which it scales first."""

    def scaled(generator: Generator, width: int) -> Backbone:
        inner = make(generator, width)
        fresh = getattr(inner, "fresh", None)
        return around(inner, inner.width, fresh and (lambda: around(fresh(), 0)))

    def around(inner: nn.Module, width: int, fresh: Callable[[], nn.Module] | None = None) -> Foreign:
        return Foreign(nn.Sequential(nn.Upsample((size, size), mode="bilinear"), inner), width, fresh)

    return scaled
