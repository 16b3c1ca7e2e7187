"""What only a GPU can show: our kernels in bfloat16, and the captured step. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.children import CompiledChildren, FusedChildren, Member, Optimisation, SequentialChildren, VmapChildren
from lossalign.children.fused import FusedLift
from lossalign.children.vmapped import VmapLift
from lossalign.core import InputError, generator
from lossalign.data import BatchStream, Dataset, fit_transform
from lossalign.losses import AlignedLoss, DistanceMixtureLoss, FocalWeightingLoss
from lossalign.losses.distances import EmbeddingLoss
from lossalign.models import build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def members(model: str = "resnet8", batch: int = 64, count: int = 3) -> list[Member]:
    draw = generator(0, "gpu")
    inputs = torch.randint(256, (500, 3, 32, 32), generator=draw, dtype=torch.uint8)
    data = Dataset(name="x", inputs=inputs, targets=torch.arange(500) % 10, class_names=tuple("abcdefghij"))
    transform = fit_transform(data, crop=4, flip=True)

    def member(child: int) -> Member:
        network = build_model(model, input_shape=(3, 32, 32), num_classes=10, generator=generator(1, child))
        return Member(network, child, lambda: BatchStream(data, batch, transform, generator(2, child), device="cuda"))

    return [member(child) for child in range(count)]


def optimisation(precision: str = "bfloat16") -> Optimisation:
    return Optimisation(iterations=100, learning_rate=0.02, precision=precision)  # type: ignore[arg-type]


def offsets(count: int = 3) -> Tensor:
    return torch.linspace(-0.5, 0.5, 10) * torch.arange(count)[:, None]


def difference(one: Tensor, other: Tensor) -> float:
    return float((one.detach().double() - other.detach().double()).norm() / other.detach().double().norm())


@pytest.mark.parametrize(
    ("side", "c", "o", "kernel", "stride"),
    [
        (32, 16, 16, 3, 1),
        (16, 32, 32, 3, 1),
        (8, 64, 64, 3, 1),
        (32, 16, 32, 3, 2),
        (32, 3, 16, 3, 1),
        (8, 64, 128, 1, 1),
    ],
)
def test_our_kernels_are_torchs_convolution_in_bfloat16(side: int, c: int, o: int, kernel: int, stride: int) -> None:
    from lossalign.children.fused.kernels import conv

    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(3, 40, side, side, c, device="cuda", dtype=torch.bfloat16, generator=draw).requires_grad_()
    w = torch.randn(3, kernel, kernel, c, o, device="cuda", dtype=torch.bfloat16, generator=draw).requires_grad_()
    y = conv(x.flatten(0, 1).permute(0, 3, 1, 2), w.permute(0, 4, 3, 1, 2), stride, kernel // 2)
    y = y.permute(0, 2, 3, 1).unflatten(0, (3, 40))
    wide = [t.detach().float().requires_grad_() for t in (x, w)]
    each = [
        F.conv2d(wide[0][i].permute(0, 3, 1, 2), wide[1][i].permute(3, 2, 0, 1), stride=stride, padding=kernel // 2)
        for i in range(3)
    ]
    expected = torch.stack(each).permute(0, 1, 3, 4, 2)
    dy = torch.randn(expected.shape, device="cuda", generator=draw)
    mine = torch.autograd.grad(y, (x, w), dy.to(torch.bfloat16))
    theirs = torch.autograd.grad(expected, wide, dy.to(torch.bfloat16).float())
    for a, b in zip((y, *mine), (expected, *theirs), strict=True):
        assert difference(a, b) < 5e-3


@pytest.mark.parametrize("model", ["resnet8", "densenet-22-12", "small-cnn"])
def test_fused_children_are_the_separate_ones_in_float32(model: str) -> None:
    torch.backends.cudnn.allow_tf32 = False
    some = members(model)
    fused, plain = (
        kind(some, AlignedLoss(10), optimisation("float32"), "cuda") for kind in (FusedChildren, SequentialChildren)
    )
    for _ in range(2):
        assert torch.allclose(fused.advance(2, offsets()), plain.advance(2, offsets()), rtol=1e-3)


def test_the_captured_step_trains_as_the_eager_one_does() -> None:
    some, loss = members(), AlignedLoss(10).to("cuda")
    said: list[str] = []
    compiled = CompiledChildren(some, loss, optimisation(), "cuda", lift=FusedLift, say=said.append)
    eager, plain = (
        FusedChildren(some, loss, optimisation(), "cuda"),
        SequentialChildren(some, loss, optimisation(), "cuda"),
    )
    for phi in (offsets(), -offsets(), 0 * offsets()):
        losses = [children.advance(10, phi) for children in (compiled, eager, plain)]
        assert torch.allclose(losses[0], losses[1], rtol=0.03)
        assert torch.allclose(losses[0], losses[2], rtol=0.03)
    assert len(said) == 2
    replay = compiled._replay
    inputs = torch.randn(130, 3, 32, 32, device="cuda")
    mine, theirs = (children.outputs([inputs] * 3, "averaged") for children in (compiled, eager))
    assert difference(mine, theirs) < 0.1
    assert compiled._replay is replay
    state = compiled.state_dict()
    resumed = CompiledChildren(members(), loss, optimisation(), "cuda", lift=FusedLift)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.advance(5, offsets()), compiled.advance(5, offsets()))


def test_vmapped_children_can_be_captured_too() -> None:
    some, loss = members("mlp-32"), AlignedLoss(10).to("cuda")
    compiled = CompiledChildren(some, loss, optimisation("float32"), "cuda", lift=VmapLift)
    eager = VmapChildren(some, loss, optimisation("float32"), "cuda")
    assert torch.allclose(compiled.advance(10, offsets()), eager.advance(10, offsets()), rtol=1e-3)


@pytest.mark.parametrize("framework", ["triplet", "margin"])
@pytest.mark.parametrize("kind", [DistanceMixtureLoss, FocalWeightingLoss])
def test_the_captured_step_trains_embeddings_too(kind: type[EmbeddingLoss], framework: str) -> None:
    some, loss, said = members("embedding-cnn+unit"), kind(framework), list[str]()  # type: ignore[call-arg]
    compiled = CompiledChildren(some, loss, optimisation("float32"), "cuda", lift=FusedLift, say=said.append)
    eager, phi = FusedChildren(some, loss, optimisation("float32"), "cuda"), loss.spec.initial.expand(3, -1)
    assert torch.allclose(compiled.advance(3, phi), eager.advance(3, phi), rtol=1e-2)  # later, rounding picks others
    assert said[-1].startswith("compiled in")


def test_children_that_are_trained_give_their_memory_back() -> None:
    children = CompiledChildren(
        members("resnet32", 128, 8), AlignedLoss(10).to("cuda"), optimisation(), "cuda", lift=FusedLift
    )
    children.advance(1, offsets(8))
    while_training = torch.cuda.memory_reserved()
    children.release_memory()
    assert torch.cuda.memory_reserved() < while_training / 2


def test_too_many_children_are_told_how_many_would_fit() -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(3 * 2**30 / total)
    try:
        with pytest.raises(InputError, match=r"children: 60 at once .* do not fit into .* about \d+ would"):
            FusedChildren(members("resnet32", 128, 60), AlignedLoss(10).to("cuda"), optimisation(), "cuda").advance(
                1, offsets(60)
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
