"""The fused kernels against the network they replace, in float32, by Triton's interpreter: no GPU is needed."""

import copy
import os
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

if not find_spec("triton"):
    pytest.skip("Triton comes for Linux only", allow_module_level=True)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, with the kernels below

from edbl.data.augment import Transform
from edbl.data.kernels import move
from edbl.nets.backbones import ResNet, initialise
from edbl.nets.fused import FusedResNet
from edbl.nets.net import _linear

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/test_gpu.py runs the compiled kernels")


def resnet(channels: int, widths: tuple[int, ...], blocks: int, last_relu: bool = True) -> ResNet:
    generator = torch.Generator().manual_seed(0)
    net = ResNet(channels, widths, blocks, project=False, last_relu=last_relu)
    initialise(net, generator)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(-1.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.3, 0.3, generator=generator)
    return net


def close(mine: Tensor, right: Tensor) -> None:
    assert float((mine - right).norm()) < 1e-4 * float(right.norm()) + 1e-6


@pytest.mark.parametrize(
    ("channels", "widths", "side", "batch", "last_relu"),
    [
        (3, (16, 32), 8, 3, True),
        (1, (16, 32, 64), 8, 3, True),
        (3, (32, 64), 6, 4, False),
        (3, (16,), 7, 2, True),  # an odd side: no pixels in pairs, one product a row
        (3, (32,), 5, 2, True),  # the same, a row in pieces
    ],
)
def test_training_and_teaching(channels: int, widths: tuple[int, ...], side: int, batch: int, last_relu: bool) -> None:
    usual = resnet(channels, widths, 1, last_relu).train()
    ours = copy.deepcopy(usual)
    fused = FusedResNet(ours, side)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):  # twice: what one step leaves behind must not disturb the next
        x = torch.randn(batch, channels, side, side, generator=generator)
        target = torch.randn(batch, widths[-1], generator=generator)
        for net, features in ((usual, usual(x)), (ours, fused.train(x, torch.float32))):
            net.zero_grad()
            (features * target).sum().backward()
        close(fused.train(x, torch.float32).detach(), usual(x).detach())
        for parameter, same in zip(ours.parameters(), usual.parameters(), strict=True):
            assert parameter.grad is not None
            assert same.grad is not None
            close(parameter.grad, same.grad)
    for (name, mine), right in zip(ours.named_buffers(), usual.buffers(), strict=True):
        if "running" in name:
            close(mine, right)
    usual.eval()
    ours.load_state_dict(usual.state_dict())
    close(fused.infer(x, torch.float32), usual(x).detach())


def test_a_frozen_copy_has_kernels_of_its_own() -> None:
    net = resnet(3, (16, 32), 1)
    net.fused = FusedResNet(net, 8)
    copied = copy.deepcopy(net)
    assert copied.fused is not None
    assert copied.fused.layers[0].conv is copied.stem
    assert copied.fused.totals[0] is not net.fused.totals[0]


def test_a_net_that_learns_again_is_folded_anew() -> None:
    net = resnet(3, (16, 32), 1).eval()
    net.fused = FusedResNet(net, 8)
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for factor in (1.0, 0.7):
        net.train()
        net.stem.weight.data *= factor
        net.eval()
        close(net.fused.infer(x, torch.float32), net(x).detach())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augment", ["crop-flip-trivial", "crop-flip", "crop", "flip", "none"])
@pytest.mark.parametrize(("brightness", "cutout"), [(0.0, 0), (0.5, 0), (0.0, 4), (1.0, 5)])
def test_changed_pixels_are_the_same_bits(channels: int, augment: str, brightness: float, cutout: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (40, channels, 7, 18), dtype=torch.uint8, generator=generator)
    mean, std = (torch.rand(channels, generator=generator) + 0.01).tolist(), [0.3] * channels
    transform = Transform.of(augment, 2, mean, std, x.device, brightness, cutout)
    changes = transform.draw(x, generator)
    moved = move(x, changes, transform.mean, transform.std, pad=2, side=cutout)
    assert torch.equal(moved, transform.change(x, changes))


@pytest.mark.parametrize(("means", "stds"), [(1, 1), (1, 3), (3, 1)])
def test_one_mean_or_deviation_for_all_channels(means: int, stds: int) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, 256, (4, 3, 7, 18), dtype=torch.uint8, generator=generator)
    transform = Transform.of("crop-flip", 2, [0.1, 0.5, 0.7][:means], [0.2, 0.3, 0.4][:stds], x.device)
    changes = transform.draw(x, generator)
    moved = move(x, changes, transform.mean, transform.std, pad=2, side=0)
    assert torch.equal(moved, transform.change(x, changes))


@pytest.mark.parametrize(("batch", "width", "rows"), [(5, 33, 2), (40, 64, 20), (1, 1, 1), (17, 70, 35)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_layer(batch: int, width: int, rows: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = [(batch, width), (rows, width), *([(rows,)] if biased else [])]
    given = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    target = torch.randn(batch, rows, generator=generator)
    found = []
    for layer in (torch.nn.functional.linear, _linear):
        y = layer(given[0], given[1], given[2] if biased else None)
        first = torch.autograd.grad((y * y * target).sum(), given, create_graph=True)
        squares = torch.stack([(g * g).sum() for g in first]).sum()
        second = torch.autograd.grad(squares, given)  # as methods that unroll a step need it
        found.append([y, *first, *second])
    for right, mine in zip(*found, strict=True):
        close(mine.detach(), right.detach())


def test_a_linear_layer_does_not_care_how_its_tensors_lie() -> None:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(40, 9, generator=generator), torch.randn(40, 20, generator=generator)
    assert torch.equal(_linear(x.T, weight.T, None), _linear(x.T.contiguous(), weight.T.contiguous(), None))
