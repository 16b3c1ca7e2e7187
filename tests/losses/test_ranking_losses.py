"""RankingLoss is cross-entropy at its start, has parameters that a ranking metric sees, and is safe to explore."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import AdaptiveLoss, PairwiseLoss, RankingLoss, SmoothAPLoss, pairwise_ranking, smooth_ap
from lossalign.losses.ranking import members, ordering_errors, ranking_scores, ranking_statistics
from lossalign.losses.ranking_losses import base_loss

ALL = ("ranking", "margins", "focus", "temperature")
GROUPS = pytest.mark.parametrize("groups", [("ranking",), ("focus",), ("ranking", "margins", "focus"), ALL])
LOSSES = pytest.mark.parametrize("make", [lambda c: RankingLoss(c, groups=ALL), PairwiseLoss, SmoothAPLoss])
SEVERAL = pytest.mark.parametrize("several", [False, True], ids=["one label", "several labels"])
SIZES = pytest.mark.parametrize("size", [2, 3, 10])


def batch(several: bool, size: int = 3, samples: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [B, C] and labels [B], or [B, C] of 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, size, generator=g) * 3
    if several:
        return outputs, (torch.rand(samples, size, generator=g) < 0.3).long()
    return outputs, torch.randint(0, size, (samples,), generator=g)


def anywhere(loss: AdaptiveLoss, seed: int = 0) -> Tensor:
    share = torch.rand(loss.spec.size, generator=torch.Generator().manual_seed(seed))
    return loss.spec.low + (loss.spec.high - loss.spec.low) * share


def plain_ranking_loss(outputs: Tensor, targets: Tensor, named: dict[str, list[float]]) -> Tensor:
    """The docstring's formula, one example, one class and one pair at a time."""
    z, samples, size = outputs.double(), *outputs.shape
    several = targets.ndim == 2
    log_p = F.logsigmoid(z) if several else z.log_softmax(-1)
    s = z if several else z - z.flip(1) if size == 2 else log_p
    positive = members(targets, size).tolist()
    counts = [sum(row[c] for row in positive) for c in range(size)]
    present, tau = sum(n > 0 for n in counts), math.exp(named["temperature"][0])
    losses = []
    for i in range(samples):
        total = 0.0
        for c in range(size):
            gamma = named["focus"][c]
            if positive[i][c]:
                p = math.exp(log_p[i, c])
                total += (1 - p) ** gamma * -math.log(p) / (size if several else 1)
                leads = [float(s[i, c] - s[j, c]) for j in range(samples) if not positive[j][c]]
                pairs = [tau * math.log1p(math.exp((named["margins"][c] - lead) / tau)) for lead in leads]
                mean = sum(pairs) / max(len(pairs), 1)
                total += named["ranking"][c] * samples / (present * counts[c]) * mean
            elif several:
                p = math.exp(F.logsigmoid(-z[i, c]))
                total += (1 - p) ** gamma * -math.log(p) / size
        losses.append(total)
    return torch.tensor(losses)


@given(st.booleans(), st.integers(2, 5), st.integers(1, 10), st.integers(0, 1000))
def test_equals_a_plain_loop(several: bool, size: int, samples: int, seed: int) -> None:
    outputs, targets = batch(several, size, samples, seed)
    loss = RankingLoss(size, groups=ALL)
    phi = anywhere(loss, seed)
    named = {name: phi[where].tolist() for name, where in loss.spec.slices.items()}
    plain = plain_ranking_loss(outputs, targets, named)
    torch.testing.assert_close(loss(outputs, targets, phi), plain, rtol=1e-3, atol=1e-4)


@GROUPS
@SIZES
def test_is_cross_entropy_at_its_start(groups: tuple[str, ...], size: int) -> None:
    outputs, targets = batch(False, size, samples=64)
    outputs.requires_grad_()
    loss = RankingLoss(size, groups=groups)
    ours, theirs = loss(outputs, targets, loss.spec.initial), F.cross_entropy(outputs, targets, reduction="none")
    assert torch.equal(ours, theirs)
    our_gradient, their_gradient = (torch.autograd.grad(value.mean(), outputs)[0] for value in (ours, theirs))
    torch.testing.assert_close(our_gradient, their_gradient, atol=1e-7, rtol=0)


@GROUPS
@SIZES
@pytest.mark.parametrize("dtype", [torch.bool, torch.long, torch.float32])
def test_is_the_mean_binary_cross_entropy_at_its_start(groups: tuple[str, ...], size: int, dtype: torch.dtype) -> None:
    outputs, targets = batch(True, size, samples=64)
    loss = RankingLoss(size, groups=groups)
    theirs = F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none").mean(-1)
    assert torch.equal(loss(outputs, targets.to(dtype), loss.spec.initial), theirs)


@GROUPS
@SEVERAL
def test_groups_that_are_off_have_no_parameters_and_stay_at_their_start(groups: tuple[str, ...], several: bool) -> None:
    outputs, targets = batch(several)
    loss, everything = RankingLoss(3, groups=groups), RankingLoss(3, groups=ALL)
    assert tuple(loss.spec.slices) == groups
    phi, padded = anywhere(loss), everything.spec.initial.clone()
    padded[everything.spec.select(groups)] = phi
    torch.testing.assert_close(loss(outputs, targets, phi), everything(outputs, targets, padded))


@SEVERAL
def test_every_class_has_the_same_say_in_the_pairs_however_rare(several: bool) -> None:
    """λ_c adds (mean over class c's pairs) / (classes present) to the batch's mean."""
    outputs, targets = batch(several, samples=200)
    positive = members(targets, 3)
    if several:
        targets = (positive & (torch.arange(200)[:, None] < torch.tensor([200, 200, 40]))).long()
    else:
        targets = torch.where((targets == 2) & (torch.arange(200) >= 20), 0, targets)
    positive, loss = members(targets, 3), RankingLoss(3, groups=("ranking",))
    pairs = pairwise_ranking(ranking_scores(outputs, targets), positive)
    start = loss(outputs, targets, torch.zeros(3)).mean()
    for c in range(3):
        added = loss(outputs, targets, F.one_hot(torch.tensor(c), 3).float()).mean() - start
        torch.testing.assert_close(added, pairs[positive[:, c], c].mean() / 3, rtol=1e-4, atol=1e-5)


@LOSSES
@SEVERAL
@pytest.mark.parametrize("scale", [1.0, 20.0, 100.0, 1e4])
def test_finite_where_the_model_is_certain(make: Callable[[int], AdaptiveLoss], several: bool, scale: float) -> None:
    _, targets = batch(several)
    right = (members(targets, 3).float() * 2 - 1) * scale
    loss = make(3)
    for outputs in (right, -right, torch.zeros(24, 3)):
        outputs = outputs.clone().requires_grad_()
        for phi in (loss.spec.initial, loss.spec.low, loss.spec.high, anywhere(loss)):
            phi = phi.clone().requires_grad_()
            value = loss(outputs, targets, phi)
            assert value.isfinite().all()
            assert (value >= 0).all()
            assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value.sum(), [outputs, phi]))
        assert loss.statistics(outputs, targets).isfinite().all()


@pytest.mark.parametrize("make", [lambda c: RankingLoss(c, groups=ALL), PairwiseLoss, SmoothAPLoss])
@SEVERAL
def test_vmap_over_children_equals_a_loop(make: Callable[[int], AdaptiveLoss], several: bool) -> None:
    loss = make(3)
    outputs, targets = (torch.stack(rows) for rows in zip(*(batch(several, seed=n) for n in range(3)), strict=True))
    phi = torch.stack([anywhere(loss, n) for n in range(3)])

    def gradient(o: Tensor, t: Tensor, p: Tensor) -> Tensor:
        return torch.func.grad(lambda o: loss(o, t, p).mean())(o)

    for call in (loss, gradient):
        together = torch.func.vmap(call)(outputs, targets, phi)
        alone = torch.stack([call(outputs[n], targets[n], phi[n]) for n in range(3)])
        torch.testing.assert_close(together, alone)
    torch.testing.assert_close(
        torch.func.vmap(loss.statistics)(outputs, targets),
        torch.stack([loss.statistics(outputs[n], targets[n]) for n in range(3)]),
    )


@LOSSES
@SEVERAL
def test_is_one_graph_to_the_compiler(make: Callable[[int], AdaptiveLoss], several: bool) -> None:
    loss = make(3)
    outputs, targets = batch(several)
    phi = anywhere(loss)
    compiled = torch.compile(loss.__call__, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(outputs, targets, phi), loss(outputs, targets, phi))


@LOSSES
@SEVERAL
def test_half_precision_outputs_are_computed_in_float32(make: Callable[[int], AdaptiveLoss], several: bool) -> None:
    outputs, targets = batch(several)
    outputs, loss = outputs.bfloat16(), make(3)
    phi = anywhere(loss)
    assert torch.equal(loss(outputs, targets, phi), loss(outputs.float(), targets, phi))
    assert torch.equal(loss.statistics(outputs, targets), loss.statistics(outputs.float(), targets))


@SEVERAL
def test_statistics_are_those_of_the_class_and_their_mean_for_the_temperature(several: bool) -> None:
    outputs, targets = batch(several)
    loss, table = RankingLoss(3, groups=ALL), ranking_statistics(*batch(several))
    assert loss.num_statistics == 3
    torch.testing.assert_close(
        loss.statistics(outputs, targets), torch.cat([table, table, table, table.mean(0, keepdim=True)])
    )
    torch.testing.assert_close(PairwiseLoss(3).statistics(outputs, targets), table.mean(0, keepdim=True))


@pytest.mark.parametrize(("make", "term"), [(PairwiseLoss, pairwise_ranking), (SmoothAPLoss, smooth_ap)])
@SEVERAL
def test_a_rival_goes_from_cross_entropy_to_the_mean_of_its_term_over_classes(make, term, several: bool) -> None:
    outputs, targets = batch(several)
    loss, options = make(3), {"temperature": 0.3} if make is SmoothAPLoss else {}
    of_class = term(ranking_scores(outputs, targets), members(targets, 3), **options)
    by_class = torch.stack([of_class[members(targets, 3)[:, c], c].mean() for c in range(3)])
    base = base_loss(outputs, targets).mean()
    for w in (0.0, 0.25, 1.0):
        mixed = loss(outputs, targets, torch.tensor([w])).mean()
        torch.testing.assert_close(mixed, (1 - w) * base + w * by_class.mean(), rtol=1e-5, atol=1e-6)


def rare_class(seed: int, samples: int = 300) -> tuple[Tensor, Tensor]:
    """Points [V, 2], of which one in ten is of class 1: to the right, and some of them far up to the left."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.arange(samples) < samples // 10).long()
    far = (torch.rand(samples, 1, generator=g) < 0.15) & (y[:, None] == 1)
    x = torch.randn(samples, 2, generator=g) + torch.tensor([1.0, 0.0]) * y[:, None]
    return x + torch.tensor([-1.0, 4.0]) * far, y


def trained(net: torch.nn.Module, x: Tensor, y: Tensor, loss: AdaptiveLoss, phi: Tensor, size: int = 0) -> Tensor:
    """Outputs [V, C] on the training points after 200 iterations, on batches of ``size`` or on all."""
    g = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    for _ in range(200):
        rows = torch.randint(0, len(x), (size,), generator=g) if size else torch.arange(len(x))
        optimizer.zero_grad()
        loss(net(x[rows]), y[rows], phi).mean().backward()
        optimizer.step()
    return net(x).detach()


def wrong_pairs(outputs: Tensor, y: Tensor) -> float:
    return float(ordering_errors(outputs[:, 1] - outputs[:, 0], y == 1)[0])


def test_with_pairs_fewer_pairs_are_wrong_than_under_cross_entropy() -> None:
    """Linear models of 16 data sets trained to their end, where a larger loss is not a larger step."""
    x, y = (torch.stack(rows) for rows in zip(*map(rare_class, range(16)), strict=True))
    loss = torch.func.vmap(RankingLoss(2, groups=("ranking",)))
    wrong = []
    for weight in (0.0, 1.0):
        w = torch.zeros(16, 3, 2, requires_grad=True)
        inputs, phi = F.pad(x, (0, 1), value=1.0), torch.full((16, 2), weight)
        optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
        for _ in range(60):
            optimizer.zero_grad()
            loss(inputs @ w, y, phi).mean(1).sum().backward()
            optimizer.step()
        outputs = (inputs @ w).detach()
        wrong.append(ordering_errors(outputs[..., 1] - outputs[..., 0], y == 1)[0])
    assert wrong[1].mean() < wrong[0].mean()
    assert (wrong[1] <= wrong[0]).sum() >= 11


@pytest.mark.parametrize("make", [PairwiseLoss, SmoothAPLoss])
def test_a_rival_trains_from_scratch_at_its_start(make: Callable[[int], AdaptiveLoss]) -> None:
    x, y = rare_class(0)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    loss = make(2)
    before = wrong_pairs(net(x), y)
    after = wrong_pairs(trained(net, x, y, loss, loss.spec.initial, size=32), y)
    assert after < 0.25 < before


def test_several_labels_an_example_from_targets_to_statistics() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=g)
    y = (x @ torch.randn(4, 3, generator=g) + torch.randn(300, 3, generator=g) > 2.0).float()
    loss = RankingLoss(3)
    loss.check_targets(y, "train_loader")
    phi = loss.spec.initial.clone()
    phi[loss.spec.slices["ranking"]] = 1.0
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    before = loss.statistics(net(x), y)
    after = loss.statistics(trained(net, x, y, loss, phi, size=32), y)
    assert (after[:, 1:] < before[:, 1:]).all()
    assert (after[:, 1] < 0.2).all()


@LOSSES
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.0, 1.0]), r"val_loader: labels have type torch.float32; convert them with \.long\(\)"),
        (torch.tensor([0, 3]), "label 3 is out of range for num_classes=3"),
        (torch.zeros(2, 2), r"val_loader: labels have shape \(2, 2\); give one class index .* for each of 3 classes"),
        (torch.tensor([[0.0, 0.5, 1.0]]), r"val_loader: label 0\.5 .* must be 0 or 1, e\.g\. \(targets > 0\.5\)"),
        (torch.tensor([[0, 2, 1]]), r"label 2 in a matrix"),
        (torch.tensor([[0.0, float("nan"), 1.0]]), r"label nan in a matrix"),
    ],
)
def test_labels_it_cannot_use(make: Callable[[int], AdaptiveLoss], targets: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(3).check_targets(targets, "val_loader")


@LOSSES
@SEVERAL
def test_labels_that_fit_pass(make: Callable[[int], AdaptiveLoss], several: bool) -> None:
    _, targets = batch(several)
    make(3).check_targets(targets, "val_loader")
    if several:
        make(3).check_targets(targets.bool(), "val_loader")
        make(3).check_targets(targets.float(), "val_loader")


@LOSSES
def test_shapes_that_do_not_fit(make: Callable[[int], AdaptiveLoss]) -> None:
    loss = make(3)
    with pytest.raises(InputError, match=r"outputs have shape \(4, 2\)"):
        loss(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), loss.spec.initial)
    with pytest.raises(InputError, match=r"targets have shape \(4, 2\) for outputs \(4, 3\); give labels \(4,\), or 0"):
        loss(torch.zeros(4, 3), torch.zeros(4, 2), loss.spec.initial)


def test_groups() -> None:
    with pytest.raises(InputError, match=r"groups=\('offsets',\): choose one or more from"):
        RankingLoss(3, groups=("offsets",))
    with pytest.raises(InputError, match=r"'margins' acts through 'ranking'; add it"):
        RankingLoss(3, groups=("margins", "focus"))
    for make in (RankingLoss, PairwiseLoss, SmoothAPLoss):
        with pytest.raises(InputError, match="num_classes=1: a classification loss needs at least 2"):
            make(1)
