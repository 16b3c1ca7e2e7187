"""AlignedLoss is cross-entropy at its start, never negative, and safe to explore."""

from __future__ import annotations

import math
import shutil
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.losses import AlignedLoss, aligned_loss, confusion

ALL = ("weights", "offsets", "pairs", "focus", "smoothing")
GROUPS = pytest.mark.parametrize("groups", [*((name,) for name in ALL), ("offsets", "pairs"), ALL], ids="·".join)


@st.composite
def cases(draw: st.DrawFn) -> tuple[AlignedLoss, Tensor, Tensor, Tensor]:
    """A loss with all groups, logits [B, C], labels [B], and Φ [P] anywhere in its range."""
    size, samples = draw(st.integers(2, 6)), draw(st.integers(1, 12))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    counts = torch.rand(size, generator=g) * 100 + 1
    loss = AlignedLoss(size, groups=ALL, frequencies=counts, kappa=draw(st.sampled_from([1.0, 2.5])))
    logits = torch.randn(samples, size, generator=g) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    return loss, logits, torch.randint(0, size, (samples,), generator=g), anywhere(loss, g)


def anywhere(loss: AlignedLoss, g: torch.Generator) -> Tensor:
    return loss.spec.low + (loss.spec.high - loss.spec.low) * torch.rand(loss.spec.size, generator=g)


def parts(loss: AlignedLoss, phi: Tensor) -> dict[str, list[Any]]:
    """u, b, the matrix Φ, γ and ε, read off the labels of the parameters."""
    size, named = loss.num_classes, {name: phi[where].tolist() for name, where in loss.spec.slices.items()}
    matrix = [[0.0] * size for _ in range(size)]
    pairs = next((group for group in loss.spec.groups if group.name == "pairs"), None)
    for label, value in zip(pairs.labels if pairs else (), named.get("pairs", ()), strict=True):
        i, j = map(int, label.split("·"))
        matrix[i][j] = matrix[j][i] = value
    names = {"u": "weights", "b": "offsets", "gamma": "focus", "epsilon": "smoothing"}
    return {"phi": matrix, **{letter: named.get(name, [0.0] * size) for letter, name in names.items()}}


def plain_loss(loss: AlignedLoss, logits: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
    u, b, matrix, gamma, epsilon = (parts(loss, phi)[name] for name in ("u", "b", "phi", "gamma", "epsilon"))
    mean = sum(pi * math.exp(v) for pi, v in zip(loss.frequencies.tolist(), u, strict=True))
    losses = []
    for z, y in zip(logits.tolist(), targets.tolist(), strict=True):
        terms = [z[j] + b[j] - b[y] - loss.kappa * matrix[y][j] * (j != y) for j in range(len(z))]
        top = max(terms)
        surprises = [top + math.log(sum(math.exp(t - top) for t in terms)) - term for term in terms]  # −log p_j
        focal = max(-math.expm1(-surprises[y]), 1e-6) ** gamma[y] * surprises[y]
        value = (1 - epsilon[y]) * focal + epsilon[y] * sum(surprises) / len(z)
        losses.append(math.exp(u[y]) / mean * value)
    return torch.tensor(losses)


@given(cases())
def test_equals_a_plain_loop(case: tuple[AlignedLoss, Tensor, Tensor, Tensor]) -> None:
    loss, logits, targets, phi = case
    torch.testing.assert_close(loss(logits, targets, phi), plain_loss(loss, logits, targets, phi), rtol=1e-4, atol=1e-5)


@GROUPS
@pytest.mark.parametrize("size", [2, 3, 10, 100])
def test_is_cross_entropy_at_its_start(groups: tuple[str, ...], size: int) -> None:
    g = torch.Generator().manual_seed(size)
    logits = (torch.randn(64, size, generator=g) * 5).requires_grad_()
    targets = torch.randint(0, size, (64,), generator=g)
    for frequencies in (None, torch.rand(size, generator=g) + 0.01):
        loss = AlignedLoss(size, groups=groups, frequencies=frequencies)
        ours, theirs = loss(logits, targets, loss.spec.initial), F.cross_entropy(logits, targets, reduction="none")
        assert torch.equal(ours, theirs)
        our_gradient, their_gradient = (torch.autograd.grad(value.mean(), logits)[0] for value in (ours, theirs))
        torch.testing.assert_close(our_gradient, their_gradient, atol=1e-6, rtol=0)


@given(cases())
def test_is_never_negative(case: tuple[AlignedLoss, Tensor, Tensor, Tensor]) -> None:
    loss, logits, targets, phi = case
    assert loss(logits, targets, phi).min() >= 0


@given(cases(), st.integers(0, 10_000))
def test_is_never_negative_for_a_phi_that_is_not_symmetric_either(case, seed: int) -> None:
    _, logits, targets, _ = case
    size, g = logits.shape[1], torch.Generator().manual_seed(seed)
    u, b = torch.randn(2, size, generator=g) * 3
    assert aligned_loss(logits, targets, u, b, torch.randn(size, size, generator=g) * 3).min() >= 0


@given(cases())
def test_logit_gradients_are_bounded(case: tuple[AlignedLoss, Tensor, Tensor, Tensor]) -> None:
    """By twice the weight, and (1 + γ/e) times that where focus is positive: p · −log p is at most 1/e."""
    loss, logits, targets, phi = case
    gradient = torch.func.grad(lambda z: loss(z, targets, phi).sum())(logits)
    w = phi[loss.spec.slices["weights"]].exp()
    weight = (w / (loss.frequencies * w).sum())[targets]
    gamma = phi[loss.spec.slices["focus"]][targets].clamp(min=0)
    assert (gradient.abs().sum(-1) <= 2 * weight * (1 + gamma / math.e) + 1e-5).all()
    assert (weight <= 1 / loss.frequencies[targets] + 1e-4).all()


@given(cases(), st.randoms(use_true_random=False))
def test_class_names_do_not_matter(case: tuple[AlignedLoss, Tensor, Tensor, Tensor], random: Random) -> None:
    loss, logits, targets, phi = case
    order = list(range(loss.num_classes))
    random.shuffle(order)
    ours = {name: torch.tensor(values) for name, values in parts(loss, phi).items()}
    theirs = {name: values[order] if name != "phi" else values[order][:, order] for name, values in ours.items()}
    renamed = torch.tensor(order).argsort()[targets]
    torch.testing.assert_close(
        aligned_loss(logits[:, order], renamed, frequencies=loss.frequencies[order], kappa=loss.kappa, **theirs),
        aligned_loss(logits, targets, frequencies=loss.frequencies, kappa=loss.kappa, **ours),
        rtol=1e-5,
        atol=1e-5,
    )


@given(cases(), st.integers(0, 12))
def test_examples_do_not_see_each_other(case: tuple[AlignedLoss, Tensor, Tensor, Tensor], cut: int) -> None:
    loss, logits, targets, phi = case
    whole = loss(logits, targets, phi)
    torch.testing.assert_close(
        torch.cat([loss(logits[:cut], targets[:cut], phi), loss(logits[cut:], targets[cut:], phi)]), whole
    )
    mask = torch.arange(len(targets)) % 2 == 0
    torch.testing.assert_close(loss(logits[mask], targets[mask], phi), whole[mask])


@GROUPS
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_finite_for_extreme_logits(groups: tuple[str, ...], scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    logits = ((torch.rand(64, 5, generator=g) * 2 - 1).sign() * scale).requires_grad_()
    targets = torch.randint(0, 5, (64,), generator=g)
    loss = AlignedLoss(5, groups=groups)
    for phi in (loss.spec.initial, loss.spec.low, loss.spec.high, anywhere(loss, g)):
        phi = phi.clone().requires_grad_()
        value = loss(logits, targets, phi)
        assert value.isfinite().all()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(value.sum(), [logits, phi]))
    assert loss.statistics(logits, targets).isfinite().all()


@pytest.mark.parametrize("group", ALL[:-1])
@pytest.mark.parametrize("size", [2, 10, 100, 1000])
def test_a_step_up_and_a_step_down_weigh_nearly_the_same(group: str, size: int) -> None:
    """Class 0 is hard and under-predicted, so that its parameters all matter. Smoothing cannot go down from 0."""
    g = torch.Generator().manual_seed(0)
    targets = torch.arange(size).repeat(max(2, 2000 // size))
    logits = torch.randn(len(targets), size, generator=g) + 3.0 * F.one_hot(targets, size)
    logits[:, 0] -= 2.0
    loss = AlignedLoss(size, groups=(group,))
    start, step = loss.spec.initial, torch.zeros(loss.spec.size)
    step[0] = loss.spec.beta[0]
    base = loss(logits, targets, start).double().mean()
    up, down = (loss(logits, targets, start + s).double().mean() - base for s in (step, -step))
    assert up * down < 0
    assert 2 / 3 < abs(up / down) < 3 / 2


def test_the_designs_people_make_by_hand_are_inside() -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=g), torch.arange(3).repeat(10)
    pi = torch.tensor([0.7, 0.2, 0.1])
    torch.testing.assert_close(
        aligned_loss(logits, targets, b=pi.log()), F.cross_entropy(logits + pi.log(), targets, reduction="none")
    )
    w = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(
        aligned_loss(logits, targets, u=w.log(), frequencies=pi),
        F.cross_entropy(logits, targets, weight=w, reduction="none") / (pi * w).sum(),
    )
    merge = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    first_two = targets < 2
    assert (aligned_loss(logits, targets, phi=merge) < aligned_loss(logits, targets))[first_two].all()
    assert (aligned_loss(logits, targets, phi=-merge) > aligned_loss(logits, targets))[first_two].all()
    torch.testing.assert_close(
        aligned_loss(logits, targets, epsilon=torch.full((3,), 0.1)),
        F.cross_entropy(logits, targets, label_smoothing=0.1, reduction="none"),
    )
    p = logits.softmax(-1).gather(1, targets[:, None]).squeeze(1)
    focal = -((1 - p) ** 2) * p.log()  # FL(p) of Lin et al. 2017
    torch.testing.assert_close(aligned_loss(logits, targets, gamma=torch.full((3,), 2.0)), focal)


def test_focus_and_smoothing_see_the_adjusted_logits_and_weights_come_last() -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=g), torch.arange(3).repeat(10)
    b, phi = torch.tensor([1.0, 0.0, -2.0]), torch.tensor([[0.0, 1.0, 0.5], [1.0, 0.0, -1.0], [0.5, -1.0, 0.0]])
    u, gamma, epsilon = torch.tensor([[1.0, 0.0, -1.0], [2.0, -0.5, 0.0], [0.1, 0.0, 0.5]])
    plain = aligned_loss(logits + b - phi[targets], targets, gamma=gamma, epsilon=epsilon)
    weight = (u.exp() / u.exp().mean())[targets]
    torch.testing.assert_close(aligned_loss(logits, targets, u, b, phi, gamma=gamma, epsilon=epsilon), weight * plain)


@pytest.mark.parametrize("gamma", [-0.5, -0.1, 0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_a_certain_model_gets_finite_and_small_gradients(gamma: float, epsilon: float) -> None:
    """Down to p_y = 1 exactly, where the loss itself is 0; focus does not lift a gradient that has vanished."""
    lead = torch.tensor([5.0, 10.0, 14.0, 16.0, 20.0, 50.0, 200.0, 1e4])
    logits = torch.stack([lead, torch.zeros(8), torch.zeros(8)], 1).requires_grad_()
    exponents = torch.full((3,), gamma, requires_grad=True)
    loss = aligned_loss(logits, torch.zeros(8, dtype=torch.long), gamma=exponents, epsilon=torch.full((3,), epsilon))
    slopes, wanted = torch.autograd.grad(loss.sum(), [logits, exponents])
    assert loss.isfinite().all()
    assert slopes.isfinite().all()
    assert wanted.isfinite().all()
    smoothing = epsilon * 4 / 3  # mean_j |p_k − 1[j=k]| summed over k, at p = (1, 0, 0)
    miss = 2 * (-lead).exp()  # 1 − p_y, from above
    assert (slopes.abs().sum(1) <= 2 * miss.sqrt() + smoothing + 1e-3).all()


@pytest.mark.parametrize("groups", [("focus",), ("smoothing",), ALL], ids="·".join)
def test_classes_that_are_ruled_out_stay_ruled_out(groups: tuple[str, ...]) -> None:
    """A logit of −∞ neither changes the start nor brings infinity or NaN later."""
    logits = torch.tensor([[1.0, 0.0, -torch.inf, -torch.inf], [0.5, -torch.inf, 2.0, -torch.inf]], requires_grad=True)
    targets = torch.tensor([0, 2])
    loss = AlignedLoss(4, groups=groups)
    assert torch.equal(loss(logits, targets, loss.spec.initial), F.cross_entropy(logits, targets, reduction="none"))
    value = loss(logits, targets, loss.spec.high)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def test_ranges_and_steps_are_these() -> None:
    spec = AlignedLoss(3, groups=ALL[::-1], beta=0.6).spec
    assert tuple(spec.slices) == ALL
    assert [(group.low, group.high, group.beta) for group in spec.groups] == [
        (-3.0, 3.0, 0.6),
        (-3.0, 3.0, 0.6),
        (-1.0, 1.0, pytest.approx(0.2)),
        (-0.5, 3.0, 0.6),
        (0.0, 0.5, pytest.approx(0.1)),
    ]
    assert spec.initial.count_nonzero() == 0
    for name in ("focus", "smoothing"):
        assert spec.classes[spec.slices[name]].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_the_diagonal_of_phi_is_not_used() -> None:
    logits, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(aligned_loss(logits, targets, phi=torch.eye(3)), aligned_loss(logits, targets))


@GROUPS
def test_groups_that_are_off_have_no_parameters_and_stay_at_zero(groups: tuple[str, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(20, 4, generator=g), torch.randint(0, 4, (20,), generator=g)
    loss, everything = AlignedLoss(4, groups=groups), AlignedLoss(4, groups=ALL)
    assert tuple(loss.spec.slices) == groups
    phi, padded = anywhere(loss, g), everything.spec.initial.clone()
    padded[everything.spec.select(groups)] = phi
    torch.testing.assert_close(loss(logits, targets, phi), everything(logits, targets, padded))


def test_statistics_are_the_own_confusion_of_a_class_and_both_directions_of_a_pair() -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=g), torch.arange(3).repeat(10)
    matrix = confusion(logits.log_softmax(-1), targets).log1p()
    offsets = AlignedLoss(3)
    assert offsets.num_statistics == 1
    torch.testing.assert_close(offsets.statistics(logits, targets), matrix.diagonal()[:, None])
    both = AlignedLoss(3, groups=("offsets", "pairs"))
    assert both.num_statistics == 2
    expected = [[matrix[i, j], matrix[j, i]] for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]]
    torch.testing.assert_close(both.statistics(logits, targets), torch.tensor(expected))


@GROUPS
def test_vmap_over_children_equals_a_loop(groups: tuple[str, ...]) -> None:
    g = torch.Generator().manual_seed(0)
    loss = AlignedLoss(4, groups=groups, frequencies=[4, 3, 2, 1])
    logits, targets = torch.randn(3, 20, 4, generator=g), torch.arange(4).repeat(3, 5)
    phi = torch.stack([anywhere(loss, g) for _ in range(3)])
    torch.testing.assert_close(
        torch.func.vmap(loss)(logits, targets, phi),
        torch.stack([loss(logits[n], targets[n], phi[n]) for n in range(3)]),
    )
    torch.testing.assert_close(
        torch.func.vmap(loss.statistics)(logits, targets),
        torch.stack([loss.statistics(logits[n], targets[n]) for n in range(3)]),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(20, 4, generator=g).to(dtype), torch.arange(4).repeat(5)
    loss = AlignedLoss(4, groups=ALL)
    phi = anywhere(loss, g)
    assert torch.equal(loss(logits, targets, phi), loss(logits.float(), targets, phi))
    assert torch.equal(loss.statistics(logits, targets), loss.statistics(logits.float(), targets))


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no compiler")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_compiled_over_children_equals_eager() -> None:
    """Children with different Φ: inductor has mixed up children that were filled into one tensor."""
    g = torch.Generator().manual_seed(0)
    loss = AlignedLoss(4, groups=ALL, frequencies=[4, 3, 2, 1])
    logits, targets = torch.randn(3, 20, 4, generator=g), torch.arange(4).repeat(3, 5)
    phi = torch.stack([anywhere(loss, g) for _ in range(3)])
    together = torch.func.vmap(loss)
    expected = together(logits, targets, phi)
    torch.testing.assert_close(torch.compile(together, fullgraph=True)(logits, targets, phi), expected)
