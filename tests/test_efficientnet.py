import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from edbl.nets.backbones import Foreign, initialise
from edbl.nets.efficientnet import INNER, OUTER, EfficientNetLite0, EfficientNetLite2, Inverted, Layer, renamed
from edbl.nets.net import LinearHead, Net
from tests.vectors import seeded


def fresh(last_relu: bool = True, kind: type[EfficientNetLite0] = EfficientNetLite0) -> EfficientNetLite0:
    """Return a net whose norms have something to do."""
    net = kind(last_relu)
    initialise(net, seeded())
    for key, tensor in net.state_dict().items():
        if ".norm." in key and tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=seeded(tensor.numel() + len(key)))
            if key.endswith(("bias", "mean")):
                tensor.sub_(1)
    return net.eval()


def images(n: int = 2, size: int = 40, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, size, size, generator=seeded(seed)) * 2 - 1


def test_it_has_the_published_size() -> None:
    net = EfficientNetLite0()
    assert sum(p.numel() for p in net.parameters()) + 1281 * 1000 == 4_652_008  # with its classifier
    assert (net.width, len(net.blocks)) == (1280, 16)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}
    assert len(norms) == 1 + 2 + 15 * 3 + 1


def test_sizes_and_channels_of_the_blocks() -> None:
    shapes: dict[int, tuple[int, ...]] = {}

    def watch(number: int, out: Tensor) -> Tensor:
        shapes[number] = tuple(out.shape[1:])
        return out

    net = fresh()
    net(images(1, 64), watch)
    channels = [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320, 1280]
    sides = [32, 16, 16, 8, 8, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2]
    assert shapes == {k: (c, s, s) for k, (c, s) in enumerate(zip(channels, sides, strict=True))}
    last_of_each_size = [k for k in shapes if k == 16 or shapes[k][1] != shapes[k + 1][1]]
    assert list(net.ends) == last_of_each_size


def test_the_larger_one() -> None:
    shapes: dict[int, tuple[int, ...]] = {}

    def watch(number: int, out: Tensor) -> Tensor:
        shapes[number] = tuple(out.shape[1:])
        return out

    net = fresh(kind=EfficientNetLite2)
    net(images(1, 64), watch)
    assert sum(p.numel() for p in net.parameters()) + 1281 * 1000 == 6_092_072  # with its classifier
    channels = [16, *[24] * 3, *[48] * 3, *[88] * 4, *[120] * 4, *[208] * 5, 352, 1280]
    assert [shapes[k][0] for k in range(22)] == channels
    last_of_each_size = [k for k in shapes if k == 21 or shapes[k][1] != shapes[k + 1][1]]
    assert list(net.ends) == last_of_each_size


@pytest.mark.parametrize(("kernel", "size"), [(3, 6), (3, 7), (5, 6), (5, 7), (3, 1), (5, 1), (5, 2)])
def test_strides_pad_as_the_published_net_does(kernel: int, size: int) -> None:
    layer = Layer(1, 1, kernel, 2).eval()
    nn.init.normal_(layer.conv.weight, generator=seeded())
    x = torch.randn(1, 1, size, size, generator=seeded(1))
    out = layer(x)
    side = -(-size // 2)
    assert out.shape == (1, 1, side, side)
    # Output k starts at input 2k less half, rounded down, of what is missing for the last output's window.
    before = max(2 * (side - 1) + kernel - size, 0) // 2
    for i in range(side):
        for j in range(side):
            total = 0.0
            for a in range(kernel):
                for b in range(kernel):
                    row, column = 2 * i + a - before, 2 * j + b - before
                    if 0 <= row < size and 0 <= column < size:
                        total += layer.conv.weight[0, 0, a, b].item() * x[0, 0, row, column].item()
            assert out[0, 0, i, j].item() == pytest.approx(total / 1.001**0.5, abs=1e-5)


def test_even_sizes_are_padded_at_the_far_side_only() -> None:
    layer = Layer(1, 1, 3, 2).eval()
    nn.init.zeros_(layer.conv.weight)
    layer.conv.weight.data[0, 0, 0, 0] = 1.0  # sees the first pixel of each window
    x = torch.arange(16.0).view(1, 1, 4, 4)
    torch.testing.assert_close(layer(x)[0, 0], torch.tensor([[0.0, 2.0], [8.0, 10.0]]) / 1.001**0.5)


@pytest.mark.parametrize(("outputs", "stride", "shortcut"), [(8, 1, True), (8, 2, False), (16, 1, False)])
def test_the_shortcut_is_where_the_shape_stays(outputs: int, stride: int, shortcut: bool) -> None:
    block = Inverted(8, outputs, 3, stride, 6).eval()
    nn.init.zeros_(block.project.conv.weight)
    x = torch.randn(2, 8, 5, 5, generator=seeded())
    out = block(x)
    assert torch.equal(out, x if shortcut else torch.zeros_like(out))


def test_a_block_widens_looks_and_narrows() -> None:
    block = Inverted(4, 6, 3, 1, 6).eval()
    for parameter in block.parameters():
        nn.init.normal_(parameter, generator=seeded(parameter.numel()))
    x = 3 * torch.randn(2, 4, 5, 5, generator=seeded())
    assert block.expand is not None
    wide = block.expand(x).clamp(0, 6)
    assert wide.shape[1] == 24
    deep = block.depthwise(wide).clamp(0, 6)
    assert block.depthwise.conv.groups == 24
    assert deep.max() == 6  # so that ReLU6 shows
    torch.testing.assert_close(block(x), block.project(deep))
    assert Inverted(4, 6, 3, 1, 1).expand is None


@pytest.mark.parametrize("size", [1, 31, 32, 50, 65])
def test_any_image_size_works(size: int) -> None:
    with torch.no_grad():
        features = fresh()(images(2, size))
    assert features.shape == (2, 1280)
    assert features.isfinite().all()


def test_the_last_relu_can_be_left_out() -> None:
    maps: list[Tensor] = []

    def watch(number: int, out: Tensor) -> Tensor:
        if number == 16:
            maps.append(out)
        return out

    x = images()
    with torch.no_grad():
        capped, plain = fresh()(x, watch), fresh(last_relu=False)(x, watch)
    assert torch.equal(maps[0], maps[1])
    torch.testing.assert_close(capped, maps[0].clamp(0, 6).mean((2, 3)))
    torch.testing.assert_close(plain, maps[0].mean((2, 3)))
    assert plain.min() < 0


@pytest.mark.parametrize("number", [0, 7, 16])
def test_what_a_watcher_gives_back_goes_on(number: int) -> None:
    net, x = fresh(), images(4)

    def turned(at: int, out: Tensor) -> Tensor:
        return out.roll(1, 0) if at == number else out

    with torch.no_grad():
        torch.testing.assert_close(net(x, turned), net(x).roll(1, 0))


def test_it_trains() -> None:
    net = Net(fresh().train(), LinearHead(1280))
    net.grow(2, seeded())
    x, y = images(8, 32), torch.tensor([0, 1] * 4)
    before = copy.deepcopy(net.state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(16):
        loss = nn.functional.cross_entropy(net(x).logits, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    after = net.state_dict()
    assert [key for key in before if torch.equal(before[key], after[key])] == []  # statistics and counts included


def test_folding_the_norms_changes_nothing_but_the_time() -> None:
    net, x = fresh(), images()
    folded = net.folded()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(p.requires_grad for p in folded.parameters())
    assert any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    assert all(p.requires_grad for p in net.parameters())
    with torch.no_grad():
        torch.testing.assert_close(folded(x), net(x), rtol=1e-4, atol=1e-5)


def usual(net: EfficientNetLite0) -> dict[str, Tensor]:
    """Return a net's state under the usual names, with a classifier."""
    outer, inner = ({ours: theirs for theirs, ours in table.items()} for table in (OUTER, INNER))
    state = {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}
    for key, tensor in net.state_dict().items():
        layer, kind = key.rsplit(".", 1)
        if layer.startswith("blocks."):
            _, number, layer = layer.split(".", 2)
            state[f"_blocks.{number}.{inner[layer]}.{kind}"] = tensor
        else:
            state[f"{outer[layer]}.{kind}"] = tensor
    return state


def test_usual_names_are_translated() -> None:
    net = fresh()
    theirs = usual(net)
    assert {"_conv_stem.weight", "_blocks.0._depthwise_conv.weight", "_blocks.15._bn2.running_var"} <= theirs.keys()
    assert "_blocks.0._expand_conv.weight" not in theirs
    ours = renamed(theirs)
    assert ours.keys() == net.state_dict().keys()
    other = EfficientNetLite0().eval()
    other.load_state_dict(ours)
    assert torch.equal(other(images()), net(images()))


@pytest.mark.parametrize("key", ["_se_reduce.weight", "_blocks.3._se_expand.weight", "module._bn0.weight", "step"])
def test_a_tensor_without_a_place_is_refused(key: str) -> None:
    with pytest.raises(KeyError):
        renamed({key: torch.zeros(1)})


def test_a_missing_tensor_is_refused() -> None:
    theirs = usual(EfficientNetLite0())
    del theirs["_blocks.7._bn1.bias"]
    with pytest.raises(RuntimeError, match=r"blocks\.7\.depthwise\.norm\.bias"):
        EfficientNetLite0().load_state_dict(renamed(theirs))


@pytest.mark.parametrize("watch", [None, lambda number, out: out])
def test_a_foreign_net_is_a_backbone(watch: Callable[[int, Tensor], Tensor] | None) -> None:
    inner = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    net = Foreign(inner, 5)
    x = images(3, 2)
    assert torch.equal(net(x, watch), inner(x))
    assert (net.width, net.ends) == (5, ())
