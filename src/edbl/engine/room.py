"""What fits into the memory of a device: said when something did not."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from edbl.engine import environment
from edbl.nets.backbones import ResNet
from edbl.nets.net import Net
from edbl.training import Training

MARGIN = 1.5  # factor for what a step needs beside what is kept for the way back, and for memory in pieces


def told(net: Net, training: Training, shape: Sequence[int], device: torch.device, images: int, bf16: bool) -> str:
    """Return what to say when a step of so many images was too much for a device."""
    which = f"{training.net.backbone} with batches of {images or training.optim.batch:,} images of {list(shape)}"
    total = memory(device)
    size = f" ({total / 2**30:.1f} GiB)" if total else ""
    most = fitting(net, shape, total, bf16) if total else max(1, (images or training.optim.batch) // 2)
    fits = f"about {most:,} would fit an empty one" if total else f"try {most:,}"
    return (
        f"out of memory on {environment.describe(device)}{size}: {which}; {fits}\n"
        "lower optim.batch or, for mixing methods, options.max_rounds, or let less else use the device"
    )


def memory(device: torch.device) -> int:
    """Return the bytes of a device, 0 if they are not known."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def fitting(net: Net, shape: Sequence[int], total: int, bf16: bool) -> int:
    """Return about how many images of a step fit into so many bytes beside the net."""
    held = 4 * sum(tensor.nbytes for tensor in net.state_dict().values())  # net, teacher, gradients, momentum
    return max(1, int((total - held) / (MARGIN * per_image(net, shape, bf16))))


def per_image(net: Net, shape: Sequence[int], bf16: bool) -> float:
    """Return the bytes of one image that a forward pass keeps for the way back, counted on the CPU."""
    kept = 0
    seen: set[int] = set()
    plain = copy.deepcopy(net).cpu().train()
    for module in plain.modules():
        if isinstance(module, ResNet):
            module.fused = None  # which is for a GPU alone
    weights = {tensor.data_ptr() for tensor in plain.state_dict().values()}

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        if tensor.data_ptr() not in weights | seen:
            seen.add(tensor.data_ptr())
            kept += tensor.nbytes
        return tensor

    x = torch.zeros(2, *shape)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), torch.enable_grad():
        output = plain(x)
    del output  # till here what was kept had its memory to itself
    return (kept / 2 + x[0].nbytes) * (0.5 if bf16 else 1)
