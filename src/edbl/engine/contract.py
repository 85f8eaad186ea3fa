"""What a method gives is looked at before it is used: what would end in other numbers without a word is refused."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edbl import users
from edbl.data.stream import Task
from edbl.errors import EdblError
from edbl.memory import Budget, Memory
from edbl.methods.base import Draw, Method, Phase
from edbl.nets.net import Head, Net
from edbl.schedule import Optim, Schedule

GROUP = "group."  # begins the names of what an optimiser's groups keep
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


def numbers_of(groups: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return the numbers that an optimiser's groups have, but learning rates, by number of the group and name."""
    return {
        f"{GROUP}{number}.{name}": torch.tensor(value, dtype=None if isinstance(value, int) else torch.float64)
        for number, group in enumerate(groups)
        for name, value in group.items()
        if isinstance(value, int | float) and name != "lr"
    }


def with_numbers(groups: Sequence[Mapping[str, Any]], kept: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return groups with what `numbers_of` gave of them; it may come from anywhere."""
    found = [dict(group) for group in groups]
    for place, value in kept.items():
        if place.startswith(GROUP):
            number, _, name = place.removeprefix(GROUP).partition(".")
            if not number.isdecimal() or int(number) >= len(found) or name in ("lr", "params") or value.ndim:
                raise ValueError(f"'{place}' is no number of {len(found)} groups")
            found[int(number)][name] = value.item()
    return found


def check_resumes(phase: Phase, used: Any, fresh: Any, kept: Mapping[str, Tensor]) -> None:
    """Refuse an optimiser of which another one, made anew, does not become the same by what a checkpoint has of it."""
    what = f"the optimiser of phase '{phase.name}'"
    try:
        fresh.load(kept)
    except (TypeError, ValueError, RuntimeError) as error:
        raise EdblError(f"{what} cannot take over its state from a checkpoint: {error}") from error
    one, other = (_told(optimiser) for optimiser in (used, fresh.optimiser))
    if odd := [name for name in {**one, **other} if not _alike(one.get(name), other.get(name))]:
        raise EdblError(
            f"{what} keeps `{odd[0]}`, which a kill would lose; keep tensors of parameters, or numbers of groups"
        )


def _told(optimiser: Any) -> dict[str, Any]:
    """Return what an optimiser holds, but learning rates, by name."""
    whole = optimiser.state_dict()
    parts = {f"state.{number}": own for number, own in whole["state"].items()}
    parts |= {f"group.{number}": own for number, own in enumerate(whole["param_groups"])}
    found = {f"{part}.{k}": v for part, own in parts.items() for k, v in own.items() if k not in ("lr", "params")}
    return found | {k: v for k, v in vars(optimiser).items() if isinstance(v, int | float | Tensor) and k[0] != "_"}


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two values are the same; a number may have become a tensor."""
    if not isinstance(one, Tensor | int | float) or not isinstance(other, Tensor | int | float):
        return type(one) is type(other) and bool(one == other)
    one, other = (torch.as_tensor(value, dtype=torch.float64).nan_to_num().cpu() for value in (one, other))
    return torch.equal(one, other)


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


def check_end(method: Method, task: Task, budget: Budget, device: torch.device, held: Mapping[str, object]) -> None:
    """Refuse what the record would not tell, or what a kill would lose, of what ``held`` was before the task too."""
    seen = task.seen
    check_net(method, seen, "end")
    if not isinstance(method.memory, Memory):
        raise EdblError(f"`self.memory` of {method.name} is {_kind(method.memory)}; `self.memory.replace` changes it")
    method.memory.check(budget, seen)
    method.state = _settled(method, device)
    if method.logged:
        name = next(iter(method.logged))
        raise EdblError(f"'{name}' is logged outside of a loss; `self.log` notes numbers of training steps")
    now = users.held(type(method))
    if odd := sorted(k for k in {**held, **now} if held.get(k) != now.get(k)):
        what = f"`{odd[0]}` has changed in task {task.index + 1}, and a kill would lose what classes and files hold"
        raise EdblError(f"{what}; keep tensors in `self.state`")


def _settled(method: Method, device: torch.device) -> dict[str, Tensor]:
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


def _kind(thing: object) -> str:
    return "None" if thing is None else f"an object of type {type(thing).__name__}"
