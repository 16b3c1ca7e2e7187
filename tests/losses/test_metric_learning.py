"""Losses of pytorch-metric-learning keep their values here, and ours equal theirs wherever both define the same thing.

Where conventions differ, the test says how: the package often means over pairs whose loss is above 0 (here all pairs
count: ``MeanReducer``, or single values through ``DoNothingReducer``), and over all anchors, also those without a pair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.orders import PerClass
from lossalign.losses import (
    ContrastiveLoss,
    MarginLoss,
    MetricLearningLoss,
    MultiSimilarityLoss,
    metric_learning_loss,
    pairwise_distances,
    triplet_loss,
)
from lossalign.losses.distances import distance_weights, pair_masks, semi_hard

pytest.importorskip("pytorch_metric_learning")

from pytorch_metric_learning import distances, losses, miners, reducers, samplers
from pytorch_metric_learning.utils import common_functions
from pytorch_metric_learning.utils import loss_and_miner_utils as pairs_of_package

SEEDS = pytest.mark.parametrize("seed", range(4))
PHI = torch.zeros(1)


def batch(seed: int = 0, classes: int = 6, per_class: int = 4, size: int = 6) -> tuple[Tensor, Tensor]:
    """Overlapping clusters, as many samples of each class."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)[torch.randperm(classes * per_class, generator=g)]
    spread = torch.randn(classes, size, generator=g)[labels] + torch.randn(len(labels), size, generator=g)
    return spread.requires_grad_(), labels


def uneven(seed: int = 0) -> tuple[Tensor, Tensor]:
    """The same with two classes of one sample each."""
    x, _ = batch(seed)
    return x, torch.tensor([0] * 9 + [1] * 8 + [2] * 5 + [3, 4])


def same_with_gradient(ours: Tensor, theirs: Tensor, x: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    mine, other = (torch.autograd.grad(value, x, retain_graph=True)[0] for value in (ours, theirs))
    assert mine.any()
    torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


# --- theirs, wrapped -------------------------------------------------------------------------------------------------


NAMES = {
    "pml-multi-similarity": losses.MultiSimilarityLoss,
    "pml-triplet-margin": losses.TripletMarginLoss,
    "pml-n-pairs": losses.NPairsLoss,
    "pml-npairs": losses.NPairsLoss,
    "pml-circle": losses.CircleLoss,
    "pml-nt-xent": losses.NTXentLoss,
    "pml-sup-con": losses.SupConLoss,
    "pml-nca": losses.NCALoss,
    "pml-fast-ap": losses.FastAPLoss,
    "pml-margin": losses.MarginLoss,
    "pml-angular": losses.AngularLoss,
    "pml-signal-to-noise-ratio-contrastive": losses.SignalToNoiseRatioContrastiveLoss,
}


@pytest.mark.parametrize(("name", "kind"), NAMES.items(), ids=NAMES)
def test_a_wrapped_loss_is_the_packages_number_for_every_anchor(name: str, kind: Callable[[], Any]) -> None:
    (x, y), loss = batch(), metric_learning_loss(name)
    each = loss(x, y, loss.spec.initial)
    assert each.shape == (24,)
    same_with_gradient(each.mean(), kind()(x, y), x)


def test_the_scale_weighs_it_and_starts_at_1() -> None:
    (x, y), loss = batch(), metric_learning_loss("pml-circle")
    at_start, far = loss(x, y, loss.spec.initial), loss(x, y, loss.spec.high)
    torch.testing.assert_close(far, 10 * at_start)
    assert list(loss.spec.slices) == ["scale"]


def test_a_miner_picks_the_pairs() -> None:
    (x, y), loss, miner = batch(), losses.TripletMarginLoss(), miners.BatchHardMiner()
    mined = MetricLearningLoss(loss, miner)(x, y, PHI).mean()
    torch.testing.assert_close(mined, loss(x, y, miner(x, y)))
    assert mined != MetricLearningLoss(loss)(x, y, PHI).mean()


def test_a_batch_in_which_nothing_is_mined_has_a_loss_and_a_gradient_of_0() -> None:
    x, y = torch.eye(4).repeat_interleave(2, 0).requires_grad_(), torch.arange(4).repeat_interleave(2)
    loss = MetricLearningLoss(losses.TripletMarginLoss(), miners.TripletMarginMiner(type_of_triplets="hard"))
    each = loss(x, y, PHI)
    assert each.tolist() == [0.0] * 8
    assert not torch.autograd.grad(each.sum(), x)[0].any()


def test_it_is_worked_out_in_float32_whatever_autocast_says() -> None:
    (x, y), loss = batch(), metric_learning_loss("pml-triplet-margin")
    rough = x.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = loss(rough, y, PHI)
    assert under_autocast.dtype == torch.float32
    assert torch.equal(under_autocast, loss(rough.float(), y, PHI))


def test_statistics_are_the_mean_distances_of_positive_and_negative_pairs() -> None:
    (x, y), (positive, negative) = batch(), pair_masks(batch()[1])
    statistics, d = metric_learning_loss("pml-circle").statistics(x, y), pairwise_distances(x)
    torch.testing.assert_close(statistics, torch.stack([d[positive].mean(), d[negative].mean()])[None])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.ProxyAnchorLoss(6, 6), "loss=ProxyAnchorLoss: it has trainable weights"),
        (lambda: losses.ArcFaceLoss(6, 6), "loss=ArcFaceLoss: it has trainable weights"),
        (lambda: losses.MarginLoss(learn_beta=True), "loss=MarginLoss: it has trainable weights"),
        (lambda: losses.DynamicSoftMarginLoss(), "loss=DynamicSoftMarginLoss: it keeps earlier batches"),
        (lambda: losses.CrossBatchMemory(losses.CircleLoss(), 6), "loss=CrossBatchMemory: it keeps earlier"),
    ],
)
def test_losses_with_weights_or_a_memory_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MetricLearningLoss(make())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pml-quadruplet", "'pml-quadruplet': pytorch-metric-learning has no such loss; .*pml-multi-similarity"),
        ("pml-arc-face", "'pml-arc-face': ArcFaceLoss needs more than embeddings and labels.*pml-multi-similarity"),
        ("pml-sub-center-arc-face", "SubCenterArcFaceLoss needs more"),
        ("pml-vic-reg", "VICRegLoss needs more"),
        ("pml-dynamic-soft-margin", "it keeps earlier batches"),
    ],
)
def test_names_that_give_no_loss_say_so(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metric_learning_loss(name)


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(InputError, match=r'pip install "lossalign\[metric\]"'):
        metric_learning_loss("pml-circle")


# --- ours against theirs ---------------------------------------------------------------------------------------------


@SEEDS
@pytest.mark.parametrize("margin", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("make", [batch, uneven])
def test_semi_hard_is_the_nearest_of_their_semi_hard_negatives(make: Any, margin: float, seed: int) -> None:
    """They keep all semi-hard negatives of a pair, we the nearest; pairs without one they drop, where our loss is 0 or,
    if no negative is farther than the positive, takes the farthest."""
    x, y = make(seed)
    squared = distances.LpDistance(power=2)
    a, p, n = miners.TripletMarginMiner(margin, type_of_triplets="semihard", distance=squared)(x, y)
    d, (positive, negative) = pairwise_distances(x), pair_masks(y)
    mined = torch.full((len(y), len(y), len(y)), torch.inf)
    mined[a, p, n] = d.detach()[a, n]
    nearest, who = mined.min(-1)
    found, chosen = nearest.isfinite(), semi_hard(d, negative)
    torch.testing.assert_close(chosen[found], nearest[found])
    a, p = found.nonzero().T
    theirs = losses.TripletMarginLoss(margin, distance=squared, reducer=reducers.SumReducer())
    ours = triplet_loss(d, chosen, margin)
    same_with_gradient(ours[found].sum(), theirs(x, y, (a, p, who[found])), x)
    farther = (d[:, None, :] > d[:, :, None]) & negative[:, None, :]
    left = positive & negative.any(-1)[:, None] & farther.any(-1) & ~found
    assert not ours[left].any()


def weights_of(miner: Any, x: Tensor, y: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The probabilities [B, B] that their miner draws negatives with."""
    seen: list[Tensor] = []
    with monkeypatch.context() as patch:
        patch.setattr(pairs_of_package, "get_random_triplet_indices", lambda *a, weights, **k: seen.append(weights))
        miner.mine(x.detach(), y, x.detach(), y)
    return seen[0]


@SEEDS
@pytest.mark.parametrize("size", [3, 6, 16])
@pytest.mark.parametrize("make", [batch, uneven])
def test_distance_weights_are_theirs(make: Any, size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a negative nearer than 1.4 are 0 here, and 0 / 0 there: they are not drawn from either way."""
    x, y = make(seed)
    x = x.detach()[:, :1].expand(-1, size) + torch.randn(len(y), size, generator=torch.Generator().manual_seed(seed))
    theirs = weights_of(miners.DistanceWeightedMiner(), x, y, monkeypatch)
    ours = distance_weights(pairwise_distances(x), pair_masks(y)[1], size)
    drawn_from = ~theirs.isnan().any(1)
    assert drawn_from.sum() > 12
    torch.testing.assert_close(ours[drawn_from], theirs[drawn_from], rtol=1e-3, atol=1e-6)
    assert not ours[~drawn_from].any()


def test_distance_weights_are_the_frequencies_of_their_draws() -> None:
    (x, y), counts = batch(), torch.zeros(24, 24)
    miner = miners.DistanceWeightedMiner()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(300):
            anchors, _, negatives = miner(x, y)
            counts.index_put_((anchors, negatives), torch.ones(()), accumulate=True)
    frequencies, p = counts / counts.sum(1, keepdim=True), distance_weights(pairwise_distances(x), pair_masks(y)[1], 6)
    assert counts.sum(1).min() >= 1200
    assert (frequencies - p).abs().max() < 5 * (0.25 / 1200) ** 0.5
    assert not frequencies[p == 0].any()


@SEEDS
def test_margin_loss_is_the_mean_of_what_theirs_gives_with_their_miner(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They draw one negative for each positive, we take the mean over the draws: all their triplets, each weighed by
    the probability of its negative. They divide by the number of losses above 0, we by that of pairs of positives."""
    x, y = batch(seed)
    p = weights_of(miners.DistanceWeightedMiner(), x, y, monkeypatch)
    theirs = losses.MarginLoss(margin=0.2, beta=1.0, reducer=reducers.DoNothingReducer())(x, y)["margin_loss"]
    anchors, _, negatives = theirs["indices"]
    mean = (p[anchors, negatives] * theirs["losses"]).sum() / (24 * 3)
    ours = MarginLoss(margin=0.2, boundary=1.0)
    same_with_gradient(ours(x, y, ours.spec.initial).mean(), mean, x)


@SEEDS
@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_contrastive_loss_is_the_mean_of_their_losses_squared(margin: float, seed: int) -> None:
    """Hadsell et al. square both sides, d² and max(0, m − d)²; the package neither. With as many samples of each class
    our mean over anchors is that over pairs; theirs is over pairs with a loss above 0."""
    x, y = batch(seed)
    theirs = losses.ContrastiveLoss(neg_margin=margin, reducer=reducers.DoNothingReducer())(x, y)
    mean = sum(theirs[side]["losses"].square().mean() for side in ("pos_loss", "neg_loss"))
    ours = ContrastiveLoss(margin)
    same_with_gradient(ours(x, y, ours.spec.initial).mean(), mean, x)
    squared = losses.ContrastiveLoss(distance=distances.LpDistance(power=2), reducer=reducers.MeanReducer())
    without_negatives = ContrastiveLoss(0.0)
    only_positives = squared(x, y, (*pair_masks(y)[0].nonzero().T, *torch.zeros(2, 0, dtype=torch.long)))
    same_with_gradient(without_negatives(x, y, without_negatives.spec.initial).mean(), only_positives, x)


@SEEDS
@pytest.mark.parametrize("make", [batch, uneven])
def test_multi_similarity_loss_is_theirs_with_their_miner(make: Any, seed: int) -> None:
    """Anchor by anchor; we mean over the anchors that have a positive and a negative, they over all."""
    x, y = make(seed)
    miner = miners.MultiSimilarityMiner(epsilon=0.1)
    theirs = losses.MultiSimilarityLoss(2, 50, 0.5, reducer=reducers.DoNothingReducer())(x, y, miner(x, y))
    usable = torch.stack([mask.any(1) for mask in pair_masks(y)]).all(0)
    ours = MultiSimilarityLoss()
    each = ours(x, y, ours.spec.initial)
    torch.testing.assert_close(each, theirs["loss"]["losses"].squeeze(1) * len(y) / usable.sum(), rtol=1e-4, atol=1e-5)
    mean = losses.MultiSimilarityLoss(2, 50, 0.5)(x, y, miner(x, y))
    same_with_gradient(each.mean(), mean * len(y) / usable.sum(), x)


@pytest.mark.parametrize(("batch_size", "per_class"), [(8, 4), (16, 4), (12, 2), (24, 4)])
def test_batches_hold_what_their_sampler_guarantees(
    batch_size: int, per_class: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M of each of P classes, none twice in a batch where a class has M, and repeated where it has fewer."""
    monkeypatch.setattr(common_functions, "NUMPY_RANDOM", np.random.RandomState(0))
    targets = torch.tensor([0] * 9 + [1] * 8 + [2] * 5 + [3, 3, 4, 4, 5, 5, 5])
    rare = torch.bincount(targets) < per_class
    order = PerClass(targets, batch_size, per_class, torch.Generator().manual_seed(0))
    ours = torch.cat([order.take(1) for _ in range(50)])
    sampler = samplers.MPerClassSampler(targets, per_class, batch_size, length_before_new_iter=50 * batch_size)
    theirs = torch.tensor(list(sampler)).view(50, batch_size)
    for batches in (ours, theirs):
        for rows in batches:
            counts = torch.bincount(targets[rows], minlength=6)
            assert counts[counts > 0].tolist() == [per_class] * (batch_size // per_class)
            common = rows[~rare[targets[rows]]]
            assert len(common.unique()) == len(common)
        assert set(targets[batches].flatten().tolist()) == set(range(6))
