"""What a method gives is looked at before it is used: what would end in other numbers without a word is refused."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edbl.errors import EdblError
from edbl.memory import Memory
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.net import Head, Net
from edbl.schedule import Optim, Schedule

NAME = re.compile(r"\w[\w.-]{0,60}")  # of phases and of what is logged, as records and reports have them


def check_net(method: Method, classes: int, after: str) -> None:
    """Refuse what is no net with a head for so many classes."""
    net: Any = method.net
    if not isinstance(net, nn.Module) or not hasattr(net, "head") or not hasattr(net, "backbone"):
        raise EdblError(
            f"after `{after}` the network of {method.name} is {_kind(net)}, which lacks a backbone or a head"
        )
    if not isinstance(net.head, Head):
        raise EdblError(f"the head of {method.name} is {_kind(net.head)}; derive it from edbl.nets.net.Head")
    if net.head.classes != classes:
        has = f"the head of {method.name} has {net.head.classes} classes after `{after}`, and {classes} were seen"
        raise EdblError(f"{has}; `self.net.grow(task.new, generator)` in `begin` adds those of a task")


def check_phase(method: Method, net: Net, phase: object) -> None:
    """Refuse what is no phase, and one that trains what no checkpoint has."""
    if not isinstance(phase, Phase):
        raise EdblError(f"`phases` of {method.name} yields {_kind(phase)}; make phases with `self.phase(...)`")
    if not isinstance(phase.name, str) or not NAME.fullmatch(phase.name):
        raise EdblError(f"a phase of {method.name} is named {phase.name!r}; use letters, digits and hyphens")
    for member, kind in (("draw", Draw), ("schedule", Schedule), ("optim", Optim), ("params", Sequence)):
        if not isinstance(value := getattr(phase, member), kind):
            hint = "; give a function that makes it as `optimiser`" if hasattr(value, "param_groups") else ""
            raise EdblError(f"`{member}` of phase '{phase.name}' is {_kind(value)}, not of type {kind.__name__}{hint}")
    made: Any = phase.optimiser
    if made is not None and not callable(made):
        what = f"`optimiser` of phase '{phase.name}' is {_kind(made)}"
        raise EdblError(f"{what}; give a function that makes one of parameters")
    own = set(net.parameters())
    if strangers := [p for p in phase.params if p not in own]:
        what = f"phase '{phase.name}' trains {len(strangers)} parameters that are not in `self.net`"
        raise EdblError(f"{what}, so that a kill would lose them; make them part of the network")
    if not any(p.requires_grad for p in phase.params):
        raise EdblError(f"phase '{phase.name}' has no parameter that can learn; leave it out")


def check_optimiser(phase: Phase, optimiser: object) -> None:
    """Refuse what is no optimiser of the parameters of a phase."""
    groups = getattr(optimiser, "param_groups", None)
    if groups is None:
        raise EdblError(f"`optimiser` of phase '{phase.name}' makes {_kind(optimiser)}, not a torch.optim.Optimizer")
    held = {p for group in groups for p in group["params"]}
    if odd := held ^ set(phase.params):
        raise EdblError(f"the optimiser of phase '{phase.name}' and its `params` differ in {len(odd)} parameters")


def check_batches(phase: Phase, batches: object) -> None:
    """Refuse what are no numbers of images, ``[steps, batch]``; it waits for the device."""
    if not isinstance(batches, Tensor) or batches.dtype != torch.int64 or batches.ndim != 2 or not batches.numel():
        what = f"{batches.dtype} {list(batches.shape)}" if isinstance(batches, Tensor) else _kind(batches)
        raise EdblError(f"the sampler of phase '{phase.name}' gives {what}; it must give int64 [steps, batch]")
    low, high = torch.stack([batches.min(), batches.max()]).tolist()
    if low < 0 or high >= len(phase.draw.data):
        count = len(phase.draw.data)
        raise EdblError(f"the sampler of phase '{phase.name}' gives image {high if low >= 0 else low} of {count}")


def check_loss(phase: Phase, loss: object) -> None:
    """Refuse a loss that is no scalar, or hangs on nothing that learns."""
    name = getattr(phase.loss, "__name__", "loss")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else _kind(loss)
        raise EdblError(f"`{name}` of phase '{phase.name}' returns {what}; return a scalar, as `.mean()` gives")
    if not loss.requires_grad:
        raise EdblError(f"`{name}` of phase '{phase.name}' does not hang on any parameter that learns")
    for what, value in phase.logged.items():
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise EdblError(f"`{name}` logs {_kind(value)} as '{what}'; log a scalar tensor")
        if not NAME.fullmatch(what):
            raise EdblError(f"`{name}` logs under the name {what!r}; use letters, digits and hyphens")


def versions(params: Sequence[Tensor]) -> int:
    """Return a number that grows with every change of parameters."""
    return sum(p._version for p in params)


def settled(method: Method, device: torch.device) -> dict[str, Tensor]:
    """Return a method's state as a checkpoint gives it back: tensors of their own, which nothing else changes."""
    state: Any = method.state
    if not isinstance(state, dict):
        raise EdblError(f"`self.state` of {method.name} is {_kind(state)}; it holds tensors by name")
    for name, value in state.items():
        if not isinstance(name, str):
            raise EdblError(f"`self.state` of {method.name} has {name!r} as a name; use texts")
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            what = f"a {value.layout} tensor" if isinstance(value, Tensor) else _kind(value)
            raise EdblError(f"`self.state[{name!r}]` of {method.name} is {what}; keep dense tensors there")
        state[name] = value.detach().to(device).clone(memory_format=torch.contiguous_format)
    return state


def check_memory(method: Method) -> None:
    """Refuse a memory that is none."""
    if not isinstance(method.memory, Memory):
        raise EdblError(f"`self.memory` of {method.name} is {_kind(method.memory)}; `self.memory.replace` changes it")


def _kind(thing: object) -> str:
    return "None" if thing is None else f"an object of type {type(thing).__name__}"
