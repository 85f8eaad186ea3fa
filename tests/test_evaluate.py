from functools import partial

import pytest
import torch
from torch import Tensor

from edbl.data.augment import Transform, Views
from edbl.data.images import Images
from edbl.engine import evaluate as evaluation
from edbl.engine.evaluate import class_means, confusion, evaluate, nearest, outputs
from edbl.memory import Budget, Memory
from edbl.methods.base import Method, Tools
from edbl.nets.backbones import build
from edbl.nets.net import LinearHead, Net, Output
from edbl.schedule import Optim, Schedule
from tests.vectors import seeded, unit

CPU = torch.device("cpu")
PIXELS = 2 * 3 * 4  # of the images below


def random_images(counts: list[int], seed: int = 0) -> Images:
    n = sum(counts)
    x = torch.randint(256, (n, 2, 3, 4), generator=seeded(seed), dtype=torch.uint8)
    return Images(x, torch.tensor([k for k, count in enumerate(counts) for _ in range(count)]))


def memory_of(images: Images) -> Memory:
    memory = Memory(Budget("total", len(images)))
    memory.replace(images)
    return memory


def features(images: Images) -> Tensor:
    """A fixed map whose lengths differ from image to image."""
    matrix = torch.randn(PIXELS, 5, generator=seeded(7), dtype=torch.float64)
    return (images.x.flatten(1).double() / 255 - 0.4) @ matrix


def mirror(x: Tensor) -> Tensor:
    mirrored = x.clone()
    for j in range(x.shape[3]):
        mirrored[:, :, :, j] = x[:, :, :, x.shape[3] - 1 - j]
    return mirrored


def slow_means(images: Images, classes: int, flips: bool) -> list[list[float]]:
    """iCaRL's class means: normalised features, averaged (with the mirror images), normalised again."""
    means = []
    for k in range(classes):
        own = images.x[images.y == k]
        pictures = torch.cat([own, mirror(own)]) if flips else own
        vectors = [unit(v) for v in features(Images(pictures, torch.zeros(len(pictures)))).tolist()]
        means.append(unit([sum(v[i] for v in vectors) / len(vectors) for i in range(5)]))
    return means


@pytest.mark.parametrize("flips", [False, True])
@pytest.mark.parametrize("counts", [[1], [4, 4, 4], [1, 7, 3, 2]])
def test_class_means(counts: list[int], flips: bool) -> None:
    images = random_images(counts)
    means = class_means(memory_of(images), lambda i: features(i).float(), flips)
    torch.testing.assert_close(means, torch.tensor(slow_means(images, len(counts), flips)))


def test_flips_change_the_means() -> None:
    memory = memory_of(random_images([3, 5]))
    plain, flipped = (class_means(memory, lambda i: features(i).float(), flips) for flips in (False, True))
    assert (plain - flipped).abs().max() > 1e-2


def test_vectors_have_no_mirror_images() -> None:
    vectors = Images(torch.randn(6, 4, generator=seeded()), torch.tensor([0, 0, 0, 1, 1, 1]))
    plain, flipped = (class_means(memory_of(vectors), lambda i: i.x, flips) for flips in (False, True))
    assert torch.equal(plain, flipped)


def slow_nearest(means: list[list[float]], vectors: list[list[float]]) -> list[int]:
    found = []
    for vector in vectors:
        v = unit(vector)
        distances = [sum((v[i] - mean[i]) ** 2 for i in range(len(v))) for mean in means]
        found.append(distances.index(min(distances)))
    return found


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_nearest(scale: float) -> None:
    means = torch.randn(7, 5, generator=seeded(), dtype=torch.float64) * torch.linspace(0.3, 1.5, 7).unsqueeze(1)
    vectors = scale * torch.randn(200, 5, generator=seeded(1), dtype=torch.float64)
    found = nearest(means, vectors).tolist()
    assert found == slow_nearest(means.tolist(), vectors.tolist())
    assert len(set(found)) > 3


def slow_confusion(truth: list[int], predicted: list[int], seen: int) -> list[list[int]]:
    matrix = [[0] * seen for _ in range(seen)]
    for t, p in zip(truth, predicted, strict=True):
        matrix[t][p] += 1
    return matrix


@pytest.mark.parametrize(("n", "seen", "classes"), [(1, 1, 1), (200, 6, 6), (50, 9, 4), (0, 3, 3)])
def test_confusion(n: int, seen: int, classes: int) -> None:
    truth, predicted = torch.randint(classes, (2, n), generator=seeded())
    matrix = confusion(truth, predicted, seen)
    assert matrix.tolist() == slow_confusion(truth.tolist(), predicted.tolist(), seen)
    assert int(matrix.sum()) == n


def test_confusion_has_truth_in_rows() -> None:
    assert confusion(torch.tensor([0, 0, 2]), torch.tensor([1, 1, 0]), 3).tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 0]]


def small_method(net: Net, images: Images, transform: Transform, kind: type[Method] = Method) -> Method:
    return kind(
        net, memory_of(images), Method.Config(), Schedule(), Optim(), Tools(partial(outputs, transform=transform))
    )


def small_net(classes: int) -> Net:
    backbone = build("mlp", (2, 3, 4), seeded())
    net = Net(backbone, LinearHead(backbone.width))
    net.grow(classes, seeded(1))
    net.train()
    net(torch.randn(64, PIXELS, generator=seeded(2)))  # running statistics that are not the initial ones
    return net


def test_outputs_are_those_of_each_image_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net, transform = small_net(3), Transform.of("crop-flip", 1, (0.4,), (0.3,), CPU)
    batch = 40
    images = random_images([batch, 13, 2])
    monkeypatch.setattr(evaluation, "PIXELS", batch * images.x[0, 0].numel())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()
    output = outputs(net, images, transform)
    assert output.logits.shape == (batch + 15, 3)
    assert not output.logits.requires_grad
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    for k in (0, 1, batch - 1, batch, batch + 14):
        alone = net((images.x[k : k + 1].float() / 255 - 0.4) / 0.3)
        torch.testing.assert_close(output.logits[k], alone.logits[0].detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(output.features[k], alone.features[0].detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("views", [1, 5])
def test_batches_of_vectors_are_as_large_as_of_pixels(views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "PIXELS", 10 * PIXELS)
    net = small_net(3)
    vectors = torch.randn(25, views, PIXELS, generator=seeded())
    passed: list[int] = []
    net.register_forward_pre_hook(lambda _, inputs: passed.append(len(inputs[0])))
    outputs(net, Images(vectors, torch.zeros(25, dtype=torch.int64)), Views())
    assert passed == [10, 10, 5]


@pytest.mark.parametrize("flips", [False, True])
def test_evaluate_gives_both_readouts(flips: bool) -> None:
    net, transform = small_net(4), Transform.of("none", 0, (0.4,), (0.3,), CPU)
    exemplars, test = random_images([3, 5, 2, 4], 1), random_images([30, 20, 25, 40], 2)
    method = small_method(net, exemplars, transform)
    matrices = evaluate(method, test, flips)
    assert set(matrices) == {"cnn", "nme"}
    output = outputs(net, test, transform)
    truth = test.y.tolist()
    cnn = [row.index(max(row)) for row in output.logits.tolist()]
    assert matrices["cnn"].tolist() == slow_confusion(truth, cnn, 4)
    means = class_means(method.memory, method.features, flips).double().tolist()
    nme = slow_nearest(means, output.features.double().tolist())
    assert matrices["nme"].tolist() == slow_confusion(truth, nme, 4)
    assert matrices["cnn"].tolist() != matrices["nme"].tolist()


def test_cnn_readout_takes_the_methods_scores() -> None:
    class Contrary(Method):
        def scores(self, output: Output) -> Tensor:
            return -output.logits

    net, transform = small_net(3), Transform.of("none", 0, (0.4,), (0.3,), CPU)
    images = random_images([5, 5, 5])
    method = small_method(net, images, transform, Contrary)
    least = outputs(net, images, transform).logits.argmin(1)
    matrix = evaluate(method, images, flips=False)["cnn"]
    assert matrix.tolist() == slow_confusion(images.y.tolist(), least.tolist(), 3)
