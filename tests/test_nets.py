import pytest
import torch
from torch import Tensor, nn

from edbl.errors import EdblError
from edbl.nets.backbones import BACKBONES, MLP, Block, ResNet, _pooled, build
from edbl.nets.net import LinearHead, Net
from tests.vectors import same, seeded, state


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def small_net(classes: int = 4, seed: int = 0) -> Net:
    backbone = build("small", (1, 6, 6), seeded(seed))
    net = Net(backbone, LinearHead(backbone.width))
    net.grow(classes, seeded(seed + 1))
    return net


def train_a_little(net: Net, steps: int = 3) -> None:
    net.train()
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step in range(steps):
        loss = net(torch.randn(8, 1, 6, 6, generator=seeded(step))).logits.square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def test_resnet32_has_the_known_size() -> None:
    backbone = build("resnet32", (3, 32, 32), seeded())
    assert parameters(backbone) == 463_504
    assert backbone.width == 64
    net = Net(backbone, LinearHead(64))
    net.grow(10, seeded())
    assert parameters(net) == 464_154
    net.grow(90, seeded())
    assert parameters(net) == 470_004


def test_resnet18_has_the_known_size() -> None:
    backbone = build("resnet18", (3, 64, 64), seeded())
    assert parameters(backbone) == 11_168_832
    assert backbone.width == 512
    kinds = [type(module) for module in backbone.modules()]
    assert nn.MaxPool2d not in kinds
    assert sum(kind is nn.Conv2d for kind in kinds) == 1 + 2 * 8 + 3


def test_resnet32_layers() -> None:
    backbone = build("resnet32", (3, 32, 32), seeded())
    convolutions = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 31  # and the head makes 32
    assert [m.out_channels for m in convolutions] == [16] * 11 + [32] * 10 + [64] * 10
    strides = [m.stride for m in convolutions]
    assert [k for k, stride in enumerate(strides) if stride == (2, 2)] == [11, 21]
    assert all(m.bias is None for m in convolutions)


@pytest.mark.parametrize(
    ("name", "shape", "width"),
    [("resnet32", (3, 32, 32), 64), ("resnet32", (1, 8, 8), 64), ("resnet18", (3, 16, 16), 512), ("mlp", (7,), 128)],
)
def test_features_have_their_width_and_are_not_negative(name: str, shape: tuple[int, ...], width: int) -> None:
    backbone = build(name, shape, seeded()).eval()
    with torch.no_grad():
        features = backbone(torch.randn(5, *shape, generator=seeded(1)))
    assert features.shape == (5, width)
    assert (features >= 0).all()  # the last ReLU is kept
    assert features.std() > 0


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_takes_images_of_its_shape(name: str) -> None:
    backbone = build(name, (2, 9, 7), seeded()).eval()
    with torch.no_grad():
        assert backbone(torch.randn(3, 2, 9, 7, generator=seeded())).shape == (3, backbone.width)


def test_features_are_pooled_means() -> None:
    backbone = build("small", (1, 8, 8), seeded()).eval()
    maps: list[Tensor] = []
    backbone.get_submodule("blocks.1").register_forward_hook(lambda module, args, out: maps.append(out.relu()))
    with torch.no_grad():
        features = backbone(torch.randn(2, 1, 8, 8, generator=seeded()))
    height, width = maps[0].shape[2:]
    for k in range(2):
        for c in range(backbone.width):
            total = sum(maps[0][k, c, i, j].item() for i in range(height) for j in range(width))
            assert features[k, c].item() == pytest.approx(total / (height * width), rel=1e-4, abs=1e-6)


def zeroed_block(inputs: int, outputs: int, stride: int) -> Block:
    """Return a block whose convolutions add nothing, so that its shortcut shows."""
    block = Block(inputs, outputs, stride, project=False)
    nn.init.zeros_(block.norm2.weight)
    return block.eval()


@pytest.mark.parametrize(
    ("inputs", "outputs", "stride", "size"), [(4, 8, 2, 6), (16, 32, 2, 8), (4, 8, 2, 7), (4, 4, 1, 5)]
)
def test_option_a_shortcut(inputs: int, outputs: int, stride: int, size: int) -> None:
    x = torch.randn(2, inputs, size, size, generator=seeded())
    out = zeroed_block(inputs, outputs, stride)(x)
    side = -(-size // stride)
    assert out.shape == (2, outputs, side, side)
    before = (outputs - inputs) // 2  # half of the zero channels on each side
    for k in range(2):
        for c in range(outputs):
            for i in range(side):
                for j in range(side):
                    source = c - before
                    value = x[k, source, stride * i, stride * j].item() if 0 <= source < inputs else 0.0
                    assert out[k, c, i, j].item() == value


def test_block_adds_its_shortcut_and_leaves_the_relu_to_the_net() -> None:
    block = Block(4, 8, 2, project=False)
    for parameter in block.parameters():
        nn.init.normal_(parameter, generator=seeded(2))
    block.eval()
    x = torch.randn(3, 4, 6, 6, generator=seeded())
    inner = block.norm2(block.conv2(block.norm1(block.conv1(x)).clamp(min=0)))
    shortcut = torch.zeros(3, 8, 3, 3)
    shortcut[:, 2:6] = x[:, :, [0, 2, 4]][:, :, :, [0, 2, 4]]
    torch.testing.assert_close(block(x), inner + shortcut)


def test_option_b_shortcut_projects_only_where_the_shape_changes() -> None:
    assert Block(4, 4, 1, project=True).shortcut is None
    block = Block(4, 8, 2, project=True).eval()
    assert isinstance(block.shortcut, nn.Sequential)
    nn.init.zeros_(block.norm2.weight)
    convolution = block.shortcut[0]
    assert isinstance(convolution, nn.Conv2d)
    assert convolution.weight.shape == (8, 4, 1, 1)
    x = torch.randn(2, 4, 6, 6, generator=seeded())
    expected = torch.einsum("oc,ncij->noij", convolution.weight[:, :, 0, 0], x[:, :, ::2, ::2]) / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(block(x), expected)


def test_head_growth_keeps_old_rows_bit_for_bit_and_their_logits() -> None:
    head = LinearHead(16)
    assert head.classes == 0
    head.grow(5, seeded(1))
    features = torch.randn(20, 16, generator=seeded())
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    logits = head(features).detach()
    head.grow(3, seeded(2))
    assert head.classes == 8
    assert head.weight.shape == (8, 16)
    assert head.bias.shape == (8,)
    assert torch.equal(head.weight[:5], weight)
    assert torch.equal(head.bias[:5], bias)
    # A matrix product of another width may round its last bit otherwise.
    torch.testing.assert_close(head(features)[:, :5].detach(), logits, rtol=0, atol=1e-6)
    assert isinstance(head.weight, nn.Parameter)
    assert head.weight.requires_grad
    assert not torch.equal(head.weight[5:], weight[:3])


def test_head_is_linear_with_bias() -> None:
    head = LinearHead(4)
    head.grow(3, seeded())
    features = torch.randn(2, 4, generator=seeded())
    logits = head(features)
    for s in range(2):
        for k in range(3):
            total = head.bias[k].item()
            for i in range(4):
                total += head.weight[k, i].item() * features[s, i].item()
            assert logits[s, k].item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("width", [64, 512])
def test_head_starts_on_the_scale_of_a_linear_layer(width: int) -> None:
    head = LinearHead(width)
    head.grow(400, seeded())
    bound = width**-0.5
    for part in (head.weight, head.bias):
        assert part.abs().max() <= bound
        assert part.max() > 0.95 * bound
        assert part.min() < -0.95 * bound
        assert part.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert part.mean().item() == pytest.approx(0, abs=0.15 * bound)


def test_backbone_starts_on_he_scale() -> None:
    backbone = build("resnet18", (3, 8, 8), seeded())
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            inputs = module.in_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.05)
    mlp = build("mlp", (50,), seeded())
    assert all((m.bias == 0).all() for m in mlp.modules() if isinstance(m, nn.Linear))


def test_frozen_copy_does_not_change_or_learn() -> None:
    net = small_net()
    train_a_little(net)
    teacher = net.frozen()
    before = state(teacher)
    assert same(before, state(net))
    x = torch.randn(4, 1, 6, 6, generator=seeded(9))
    logits = teacher(x).logits
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not any(module.training for module in teacher.modules())
    train_a_little(net)
    net.grow(2, seeded())
    assert same(state(teacher), before)  # running statistics included
    assert torch.equal(teacher(x).logits, logits)
    assert all(p.requires_grad for p in net.parameters())
    assert net.head.classes == teacher.head.classes + 2


def test_frozen_leaves_the_mode_of_the_net() -> None:
    net = small_net().train()
    net.frozen()
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("name", ["resnet32", "small", "mlp"])
def test_the_seed_decides_the_weights(name: str) -> None:
    first, again, other = (state(build(name, (1, 6, 6), seeded(seed))) for seed in (1, 1, 2))
    assert same(first, again)
    for key in first:
        if first[key].ndim > 1:
            assert not torch.equal(first[key], other[key])
    heads = []
    for seed in (1, 1, 2):
        head = LinearHead(8)
        head.grow(3, seeded(seed))
        heads.append(head.weight)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_building_leaves_the_global_generator_out_of_the_weights() -> None:
    torch.manual_seed(1)
    first = state(build("small", (1, 6, 6), seeded()))
    torch.manual_seed(2)
    assert same(first, state(build("small", (1, 6, 6), seeded())))


def test_restart_forgets_everything() -> None:
    net = small_net(seed=3)
    fresh = state(net.backbone)
    train_a_little(net)
    assert not same(state(net.backbone), fresh)
    net.restart(seeded(3))
    assert same(state(net.backbone), fresh)  # as built: weights, norms, running statistics
    assert net.head.classes == 0
    assert all(p.requires_grad for p in net.parameters())
    net.restart(seeded(4))
    assert not same(state(net.backbone), fresh)
    net.grow(2, seeded())
    assert net(torch.zeros(3, 1, 6, 6)).logits.shape == (3, 2)


def test_net_returns_logits_and_their_features() -> None:
    net = small_net().eval()
    x = torch.randn(4, 1, 6, 6, generator=seeded())
    logits, features, _ = net(x)
    assert torch.equal(features, net.backbone(x))
    assert torch.equal(logits, net.head(features))


def test_mlp_flattens_images() -> None:
    mlp = build("mlp", (2, 3, 4), seeded()).eval()
    assert isinstance(mlp, MLP)
    x = torch.randn(5, 2, 3, 4, generator=seeded())
    assert torch.equal(mlp(x), mlp(x.view(5, 24)))


def test_unknown_backbone_names_the_nearest() -> None:
    with pytest.raises(EdblError, match="unknown backbone 'resnet23': did you mean 'resnet32'"):
        build("resnet23", (3, 32, 32), seeded())


@pytest.mark.parametrize(
    ("widths", "project", "shape", "fits"),
    [
        ((16, 32, 64), False, (3, 32, 32), True),
        ((16, 32), False, (1, 8, 8), True),
        ((64, 128, 256, 512), True, (3, 64, 64), False),  # ResNet-18
        ((16, 32, 64), False, (3, 32, 64), False),  # not square
        ((16, 32, 64), False, (3, 30, 30), False),  # 15 is odd
        ((16, 64), False, (3, 32, 32), False),  # option A pads by half the channels only
    ],
)
def test_fused_kernels_are_used_only_where_they_fit(
    widths: tuple[int, ...], project: bool, shape: tuple[int, ...], fits: bool
) -> None:
    assert ResNet(shape[0], widths, 1, project).fusible(shape) == fits


def test_resnet18_for_large_images() -> None:
    """Known size; pooling as PyTorch's, which a GPU does without."""
    backbone = build("resnet18-large", (3, 64, 64), seeded())
    assert sum(p.numel() for p in backbone.parameters()) == 11_176_512  # torchvision's without its head
    with torch.no_grad():
        assert backbone.eval()(torch.rand(2, 3, 64, 64)).shape == (2, 512)
    for shape in ((2, 3, 7, 10), (1, 2, 8, 8), (1, 1, 9, 9)):
        x = torch.randn(shape, generator=seeded(sum(shape))).relu().requires_grad_()
        theirs = torch.nn.functional.max_pool2d(x, 3, 2, 1)
        assert torch.equal(_pooled(x), theirs)
        weights = torch.rand(theirs.shape, generator=seeded())
        ours, usual = (torch.autograd.grad((out * weights).sum(), x)[0] for out in (_pooled(x), theirs))
        # The ReLU before it lets no other gradient pass.
        torch.testing.assert_close(ours.where(x > 0, 0.0), usual.where(x > 0, 0.0))
