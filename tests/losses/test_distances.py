"""Distances, masks and miners equal plain loops, and every loss over embeddings keeps the contract of its kind."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import (
    AdaptiveLoss,
    ContrastiveLoss,
    DistanceMixtureLoss,
    FocalWeightingLoss,
    MarginLoss,
    MultiSimilarityLoss,
    TripletLoss,
    pairwise_distances,
)
from lossalign.losses.distances import (
    anchor_shares,
    chosen_pairs,
    distance_weights,
    pair_masks,
    semi_hard,
    validation_pairs,
)
from lossalign.training import check_validation

ALL = ("positive", "negative", "ratio")
MAKERS: dict[str, Callable[[], AdaptiveLoss]] = {
    "mixture": DistanceMixtureLoss,
    "mixture, margin": lambda: DistanceMixtureLoss(framework="margin", normalised=True, groups=ALL),
    "focal": FocalWeightingLoss,
    "focal, margin": lambda: FocalWeightingLoss(framework="margin"),
    "triplet": TripletLoss,
    "margin": MarginLoss,
    "contrastive": ContrastiveLoss,
    "multi-similarity": MultiSimilarityLoss,
}
LOSSES = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
SETS = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(2, 6), st.integers(0, 1000))


def batch(samples: int = 12, classes: int = 3, dimensions: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Embeddings [B, D] of any length and labels [B], which are not 0 … C−1."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, classes, (samples,), generator=g)
    return torch.randn(samples, dimensions, generator=g) * 3, targets * 100 + 7


def anywhere(loss: AdaptiveLoss, seed: int = 0) -> Tensor:
    share = torch.rand(loss.spec.size, generator=torch.Generator().manual_seed(seed))
    return loss.spec.low + (loss.spec.high - loss.spec.low) * share


@settings(max_examples=30)
@given(SETS)
def test_distances_and_masks_equal_plain_loops(shape: tuple[int, int, int, int]) -> None:
    x, y = batch(*shape)
    d, (positive, negative) = pairwise_distances(x), pair_masks(y)
    for i, a in enumerate(x.tolist()):
        for j, b in enumerate(x.tolist()):
            gap = math.dist([v / math.hypot(*a) for v in a], [v / math.hypot(*b) for v in b])
            assert abs(float(d[i, j]) - max(gap, 1e-3)) < 1e-3
            assert bool(positive[i, j]) == (i != j and bool(y[i] == y[j]))
            assert bool(negative[i, j]) == bool(y[i] != y[j])


@settings(max_examples=30)
@given(SETS)
def test_the_semi_hard_negative_equals_a_plain_loop(shape: tuple[int, int, int, int]) -> None:
    x, y = batch(*shape)
    d, (positive, negative) = pairwise_distances(x), pair_masks(y)
    chosen = semi_hard(d, negative)
    for i, j in positive.nonzero().tolist():
        candidates = d[i][negative[i]].tolist()
        farther = [value for value in candidates if value > d[i, j]]
        if candidates:
            assert float(chosen[i, j]) == (min(farther) if farther else max(candidates))


def test_a_negative_as_far_as_the_positive_is_not_farther() -> None:
    d = torch.tensor([[0.0, 0.5, 0.5, 0.7]])
    assert semi_hard(d, torch.tensor([[False, False, True, True]]))[0, 1] == d[0, 3]


def test_the_semi_hard_negative_carries_the_gradient() -> None:
    d = torch.tensor([[0.0, 0.5, 0.4, 0.6]], requires_grad=True)
    semi_hard(d, torch.tensor([[False, False, True, True]]))[0, 1].backward()
    assert d.grad is not None
    assert d.grad.tolist() == [[0, 0, 0, 1]]


@settings(max_examples=30)
@given(SETS)
def test_distance_weights_equal_a_plain_loop(shape: tuple[int, int, int, int]) -> None:
    x, y = batch(*shape)
    d, (_, negative) = pairwise_distances(x), pair_masks(y)
    dimensions = x.shape[1]

    def inverse_density(distance: float) -> float:
        near = max(distance, 0.5)
        return 1 / (near ** (dimensions - 2) * (1 - near**2 / 4) ** ((dimensions - 3) / 2))

    weights = distance_weights(d, negative, dimensions)
    for i, row in enumerate(d.tolist()):
        plain = [inverse_density(v) if negative[i, j] and v < 1.4 else 0.0 for j, v in enumerate(row)]
        plain = [value / sum(plain) if sum(plain) else 0.0 for value in plain]
        torch.testing.assert_close(weights[i], torch.tensor(plain), rtol=1e-4, atol=1e-5)


def test_distance_weights_are_finite_in_many_dimensions_and_have_no_gradient() -> None:
    x, y = batch(dimensions=4)
    d = pairwise_distances(x.requires_grad_())
    weights = distance_weights(d, pair_masks(y)[1], 2048)
    assert not weights.requires_grad
    sums = weights.sum(1)
    assert (((sums - 1).abs() < 1e-5) | (sums == 0)).all()


@pytest.mark.parametrize("framework", ["triplet", "margin"])
def test_both_sides_are_means_over_an_anchors_positives(framework: str) -> None:
    x, y = batch(samples=24)
    pairs = chosen_pairs(x, y, framework)  # type: ignore[arg-type]
    torch.testing.assert_close(pairs.w_pos.sum(1), torch.ones(24))
    torch.testing.assert_close(pairs.w_neg.sum(1), torch.ones(24))


def test_the_mean_is_over_the_anchors_with_both_kinds_of_pairs() -> None:
    assert anchor_shares(*pair_masks(torch.tensor([0, 0, 1, 2]))).tolist() == [2, 2, 0, 0]
    assert anchor_shares(*pair_masks(torch.tensor([0, 0, 0]))).tolist() == [0, 0, 0]
    assert anchor_shares(*pair_masks(torch.tensor([0, 1, 2]))).tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", ["sorted", "round robin"])
def test_validation_anchors_meet_all_their_partners_whatever_the_order(order: str) -> None:
    targets = torch.arange(3000) // 5 if order == "sorted" else torch.arange(3000) % 600
    d, positive, negative = validation_pairs(torch.randn(3000, 3, generator=torch.Generator().manual_seed(0)), targets)
    assert d.numel() <= 2**20
    assert (positive.sum(1) == 4).all()
    assert (negative.sum(1) == 2995).all()


@LOSSES
def test_lengths_of_embeddings_and_names_and_order_of_classes_do_not_matter(make: Callable[[], AdaptiveLoss]) -> None:
    loss, (x, y) = make(), batch()
    phi = anywhere(loss)
    value = loss(x, y, phi)
    torch.testing.assert_close(loss(x * torch.linspace(0.5, 4, 12)[:, None], y, phi), value)
    torch.testing.assert_close(loss(x, 1000 - y, phi), value)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loss(x[order], y[order], phi), value[order])


@LOSSES
def test_samples_without_a_partner_add_nothing_as_anchors(make: Callable[[], AdaptiveLoss]) -> None:
    """A class of its own is a negative to the others; as an anchor it has a loss of 0, and the mean leaves it out."""
    loss, (x, _) = make(), batch(samples=5)
    value = loss(x, torch.tensor([0, 0, 1, 1, 2]), loss.spec.initial)
    assert value.shape == (5,)
    assert value[4] == 0
    for lonely in (torch.arange(5), torch.zeros(5, dtype=torch.long)):
        x = x.detach().requires_grad_()
        value = loss(x, lonely, loss.spec.initial)
        assert (value == 0).all()
        assert (torch.autograd.grad(value.sum(), x)[0] == 0).all()


@LOSSES
@pytest.mark.parametrize("case", ["one point", "two opposite points", "zeros", "nearly one point", "tiny", "huge"])
def test_finite_wherever_the_embeddings_lie(make: Callable[[], AdaptiveLoss], case: str) -> None:
    loss, (x, y) = make(), batch()
    x = {
        "one point": torch.ones_like(x),
        "two opposite points": torch.ones_like(x) * (1 - 2 * (torch.arange(12) % 2))[:, None],
        "zeros": torch.zeros_like(x),
        "nearly one point": torch.ones_like(x) + 1e-4 * x,
        "tiny": x * 1e-12,
        "huge": x * 1e12,
    }[case]
    for phi in (loss.spec.initial, loss.spec.low, loss.spec.high, anywhere(loss)):
        x, phi = x.detach().requires_grad_(), phi.clone().requires_grad_()
        value = loss(x, y, phi)
        assert value.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value.sum(), [x, phi]))
    assert loss.statistics(x, y).isfinite().all()


@LOSSES
def test_vmap_over_children_equals_a_loop(make: Callable[[], AdaptiveLoss]) -> None:
    loss = make()
    x, y = (torch.stack(rows) for rows in zip(*(batch(seed=n) for n in range(3)), strict=True))
    phi = torch.stack([anywhere(loss, n) for n in range(3)])

    def gradient(x: Tensor, y: Tensor, phi: Tensor) -> Tensor:
        return torch.func.grad(lambda x: loss(x, y, phi).mean())(x)

    for call in (loss, gradient):
        alone = torch.stack([call(x[n], y[n], phi[n]) for n in range(3)])
        torch.testing.assert_close(torch.func.vmap(call)(x, y, phi), alone)
    alone = torch.stack([loss.statistics(x[n], y[n]) for n in range(3)])
    torch.testing.assert_close(torch.func.vmap(loss.statistics)(x, y), alone)


@pytest.mark.parametrize("name", ["mixture", "mixture, margin", "focal, margin", "triplet", "multi-similarity"])
def test_is_one_graph_to_the_compiler(name: str) -> None:
    loss, (x, y) = MAKERS[name](), batch()
    phi = anywhere(loss)
    compiled = torch.compile(loss.__call__, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y, phi), loss(x, y, phi))


@pytest.mark.slow
@LOSSES
def test_compiled_children_have_the_gradients_of_the_loss(
    make: Callable[[], AdaptiveLoss], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    loss, (x, y) = make(), batch(samples=64, classes=16, dimensions=8)
    phi = torch.stack([anywhere(loss, seed) for seed in range(2)])
    inputs, targets = torch.stack([x, x.flip(1)]).requires_grad_(), torch.stack([y, y])

    def gradient(call: Callable[..., Tensor]) -> Tensor:
        return torch.autograd.grad(call(inputs, targets, phi).mean(), inputs)[0]

    lifted = torch.func.vmap(loss.__call__)
    torch.testing.assert_close(gradient(torch.compile(lifted, dynamic=False)), gradient(lifted), rtol=1e-3, atol=1e-6)


@LOSSES
def test_half_precision_and_autocast_are_computed_in_float32(make: Callable[[], AdaptiveLoss]) -> None:
    loss, (x, y) = make(), batch()
    x, phi = x.bfloat16(), anywhere(loss)
    value, statistics = loss(x.float(), y, phi), loss.statistics(x.float(), y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(x, y, phi), value)
        assert torch.equal(loss.statistics(x, y), statistics)


@LOSSES
def test_training_at_the_start_pulls_classes_together_and_apart(make: Callable[[], AdaptiveLoss]) -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(6).repeat_interleave(5)
    x = torch.randn(6, 8, generator=g)[y] + 1.5 * torch.randn(30, 8, generator=g)
    net, loss = torch.nn.Linear(8, 4, bias=False), make()
    with torch.no_grad():
        net.weight.copy_(torch.randn(4, 8, generator=g))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    positive, negative = pair_masks(y)

    def gap() -> float:
        d = pairwise_distances(net(x)).detach()
        return float(d[negative].mean() - d[positive].mean())

    before = gap()
    for _ in range(60):
        optimizer.zero_grad()
        loss(net(x), y, loss.spec.initial).mean().backward()
        optimizer.step()
    assert gap() > before + 0.1


@LOSSES
def test_statistics_are_one_row_a_parameter_of_order_one(make: Callable[[], AdaptiveLoss]) -> None:
    loss, (x, y) = make(), batch(samples=60)
    table = loss.statistics(x, y)
    assert table.shape == (loss.spec.size, loss.num_statistics)
    assert ((table > 0) & (table < 4)).all()
    assert (loss.spec.classes == -1).all()


@LOSSES
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.0, 0.0, 1.0]), r"val_loader: labels have type torch.float32; convert them with \.long\(\)"),
        (torch.tensor([0.3, 0.7, 1.0]), r"labels have type torch.float32; give class indices; for soft labels"),
        (torch.tensor([True, False, True]), "labels have type torch.bool"),
        (torch.tensor([[0, 1, 1]]), r"val_loader: labels have shape \(1, 3\); give one class for each example"),
        (torch.tensor([0, 0, -1]), "val_loader: label -1 is negative; number the classes from 0"),
    ],
)
def test_labels_it_cannot_use(make: Callable[[], AdaptiveLoss], targets: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make().check_targets(targets, "val_loader")


@LOSSES
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([5, 5, 5]), "val_loader: 3 samples of 1 classes make no positive and negative pairs; give at"),
        (torch.tensor([1, 2, 3]), "val_loader: 3 samples of 3 classes make no"),
    ],
)
def test_a_validation_set_without_pairs_is_refused_and_a_batch_is_not(
    make: Callable[[], AdaptiveLoss], targets: Tensor, message: str
) -> None:
    loss = make()
    with pytest.raises(InputError, match=message):
        check_validation(loss, targets, "val_loader")
    loss.check_targets(targets, "targets")
    assert not loss(torch.eye(3), targets, loss.spec.initial).any()


@LOSSES
def test_labels_that_fit_pass(make: Callable[[], AdaptiveLoss]) -> None:
    make().check_targets(torch.tensor([900, 900, 4]), "val_loader")
    make().check_targets(torch.tensor([1, 1, 0], dtype=torch.uint8), "val_loader")


@LOSSES
def test_shapes_that_do_not_fit(make: Callable[[], AdaptiveLoss]) -> None:
    loss = make()
    for wrong in (torch.zeros(4, 2), torch.zeros(3)):
        with pytest.raises(InputError, match=r"outputs have shape \(.*\) for 3 labels; give one embedding for each"):
            loss(wrong, torch.tensor([0, 0, 1]), loss.spec.initial)
