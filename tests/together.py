"""Runs by several processes at once, for tests: ``python -m tests.together FOLDER`` is one of them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parents[1]


def environment(size: int) -> dict[str, str]:
    """Return what the processes of a group find in their environment, but for their rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "EDBL_PATIENCE": "60"}
    return {**os.environ, **shared}


def together(
    size: int,
    folder: Path,
    runs: Mapping[str, Mapping[str, object]],
    *,
    stop: Sequence[str] = (),
    resumed: Sequence[Path] = (),
    gradients: bool = False,
    seconds: float = 280,
) -> None:
    """Make runs below a folder, each by so many processes, and resume others; those of ``stop`` end after a task."""
    folder.mkdir()
    told = {"runs": runs, "stop": stop, "resumed": list(map(str, resumed)), "gradients": gradients}
    (folder / "plan.json").write_text(json.dumps(told))
    shared = environment(size)
    command = [sys.executable, "-m", "tests.together", str(folder)]
    processes = [subprocess.Popen(command, env={**shared, "RANK": str(rank)}, cwd=ROOT) for rank in range(size)]
    assert [process.wait(seconds) for process in processes] == [0] * size


def gradients() -> dict[str, Tensor]:
    """Return gradients of losses that look at a batch in every way, in float64, by one process or by several."""
    from edbl import group
    from edbl.nets.backbones import Backbone, build
    from edbl.nets.shared import share

    found: dict[str, Tensor] = {}

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(len(found)), dtype=torch.float64)

    for name in ("mlp", "small"):
        net: Backbone = build(name, (1, 8, 8), torch.Generator().manual_seed(0)).double()
        if group.size() > 1:
            share(net)
        weights, x = list(net.parameters()), draw(7, 1, 8, 8).requires_grad_()
        seen: list[Tensor] = []

        def watch(number: int, maps: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(maps)
            return maps * (1 + F.softmax(maps.flatten(1).sum(1), 0).view(-1, *[1] * (maps.ndim - 1)))

        def keep(what: str, *gradients: Tensor, name: str = name) -> None:
            found[f"{name}: {what}"] = torch.cat([gradient.flatten() for gradient in gradients])

        features = net(x)
        pairs = torch.cdist(features, features).square().mean() + features.max(0).values.sum()
        keep("pairs, and pixels", *torch.autograd.grad(pairs, [*weights, x]))
        features = net(x.detach(), watch)
        blocks = torch.stack([(maps * maps.roll(1, 0)).mean() for maps in seen]).sum() + features.std()
        keep("blocks that are watched", *torch.autograd.grad(blocks, weights))
        penalty = sum((p.square().sum() for p in weights), torch.zeros((), dtype=torch.float64))
        (net(x.detach()).mean() + penalty + net(x.detach()[:4]).var()).backward()
        keep("weights themselves, and two passes", *(p.grad for p in weights if p.grad is not None))
        keep("statistics", *(b.double() for b in net.buffers()))
        net.eval()
        keep("one image", *torch.autograd.grad(net(x.detach()[:1]).square().sum(), weights))
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.weight.requires_grad_(False)
        learning = [p for p in weights if p.requires_grad]
        keep("frozen in part", *torch.autograd.grad(net(x.detach()).var(), learning))
    return found


def main() -> None:
    """Be one of the processes."""
    from edbl import Recipe, group, resume, run
    from edbl.engine.callbacks import Callback, Stop, TaskEnd

    class Once(Callback):
        def on_task(self, task: TaskEnd) -> None:
            raise Stop

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    with group.joined("cpu"):
        if plan["gradients"]:
            torch.save(gradients(), folder / f"gradients-{os.environ['RANK']}.pt")
        for name, values in plan["runs"].items():
            run(Recipe.of(values), folder / name, callbacks=[Once()] if name in plan["stop"] else [])
        for place in plan["resumed"]:
            resume(place)


if __name__ == "__main__":
    main()
