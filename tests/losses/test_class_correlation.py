"""Eq. 6 and 7 against plain loops, and the invariances they must have."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lossalign.losses import ClassCorrelationLoss, class_correlation_loss, confusion

FORMS = pytest.mark.parametrize("form", ["sigmoid", "log-sigmoid"])


@st.composite
def cases(draw: st.DrawFn, smallest: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [B, C], labels [B], and a symmetric Φ [C, C] in [−1, 1]."""
    size, samples = draw(st.integers(smallest, 6)), draw(st.integers(1, 12))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    logits = torch.randn(samples, size, generator=g) * draw(st.sampled_from([0.1, 1.0, 10.0]))
    upper = torch.rand(size, size, generator=g) * 2 - 1
    return logits, torch.randint(0, size, (samples,), generator=g), upper.triu() + upper.triu(1).T


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def plain_loss(log_probs: Tensor, targets: Tensor, phi: Tensor, form: str) -> Tensor:
    losses = []
    for row, y in zip(log_probs.tolist(), targets.tolist(), strict=True):
        evidence = sum(phi[y, j].item() * row[j] for j in range(len(row)))
        log_sigmoid = min(evidence, 0.0) - math.log1p(math.exp(-abs(evidence)))
        losses.append(-sigmoid(evidence) if form == "sigmoid" else -log_sigmoid)
    return torch.tensor(losses)


def plain_confusion(log_probs: Tensor, targets: Tensor) -> Tensor:
    size = log_probs.shape[1]
    matrix = torch.full((size, size), math.nan)
    for i in range(size):
        rows = [row for row, y in zip(log_probs.tolist(), targets.tolist(), strict=True) if y == i]
        for j in range(size):
            if rows:
                matrix[i, j] = -sum(row[j] for row in rows) / len(rows)
    return matrix


@FORMS
@given(case=cases())
def test_eq_6_equals_a_plain_loop(form: str, case: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, phi = case
    log_probs = logits.log_softmax(-1)
    expected = plain_loss(log_probs, targets, phi, form)
    torch.testing.assert_close(class_correlation_loss(log_probs, targets, phi, form), expected)  # type: ignore[arg-type]


@given(cases())
def test_eq_7_equals_a_plain_loop_and_an_absent_class_is_nan(case: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, _ = case
    log_probs = logits.log_softmax(-1)
    torch.testing.assert_close(confusion(log_probs, targets), plain_confusion(log_probs, targets), equal_nan=True)


@FORMS
@given(case=cases(), random=st.randoms(use_true_random=False))
def test_class_names_do_not_matter(form: str, case: tuple[Tensor, Tensor, Tensor], random: Random) -> None:
    logits, targets, phi = case
    order = list(range(logits.shape[1]))
    random.shuffle(order)
    renamed, log_probs = torch.tensor(order).argsort()[targets], logits.log_softmax(-1)
    torch.testing.assert_close(
        class_correlation_loss(log_probs[:, order], renamed, phi[order][:, order], form),  # type: ignore[arg-type]
        class_correlation_loss(log_probs, targets, phi, form),  # type: ignore[arg-type]
    )
    matrix = confusion(log_probs, targets)
    torch.testing.assert_close(confusion(log_probs[:, order], renamed), matrix[order][:, order], equal_nan=True)


@FORMS
@given(case=cases(), cut=st.integers(0, 12))
def test_examples_do_not_see_each_other(form: str, case: tuple[Tensor, Tensor, Tensor], cut: int) -> None:
    logits, targets, phi = case
    loss = ClassCorrelationLoss(logits.shape[1], form=form)  # type: ignore[arg-type]
    flat = phi[tuple(loss.spec.classes.T)]
    whole = loss(logits, targets, flat)
    torch.testing.assert_close(
        torch.cat([loss(logits[:cut], targets[:cut], flat), loss(logits[cut:], targets[cut:], flat)]), whole
    )
    mask = torch.arange(len(targets)) % 2 == 0
    torch.testing.assert_close(loss(logits[mask], targets[mask], flat), whole[mask])


@given(cases())
def test_the_class_is_the_function_with_phi_as_a_matrix(case: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, phi = case
    loss = ClassCorrelationLoss(logits.shape[1])
    flat = phi[tuple(loss.spec.classes.T)]
    assert torch.equal(loss.matrix(flat), phi)
    assert torch.equal(loss(logits, targets, flat), class_correlation_loss(logits.log_softmax(-1), targets, phi))


def test_phi_starts_at_the_identity_and_a_group_that_is_off_stays_there() -> None:
    for groups in (("diagonal", "pairs"), ("diagonal",), ("pairs",)):
        loss = ClassCorrelationLoss(3, groups=groups)
        assert tuple(loss.spec.slices) == groups
        assert torch.equal(loss.matrix(loss.spec.initial), torch.eye(3))
    moved = ClassCorrelationLoss(3, groups=("pairs",)).matrix(torch.tensor([0.1, 0.2, -0.3]))
    assert torch.equal(moved, torch.tensor([[1.0, 0.1, 0.2], [0.1, 1.0, -0.3], [0.2, -0.3, 1.0]]))
    moved = ClassCorrelationLoss(2, groups=("diagonal",)).matrix(torch.tensor([0.5, -0.5]))
    assert torch.equal(moved, torch.tensor([[0.5, 0.0], [0.0, -0.5]]))


@pytest.mark.parametrize(
    ("form", "factor"), [("sigmoid", lambda p: p / (1 + p) ** 2), ("log-sigmoid", lambda p: 1 / (1 + p))]
)
def test_gradients_at_the_start_are_those_the_docstring_gives(form, factor) -> None:
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(4).repeat(5)

    def gradient(loss) -> Tensor:
        return torch.func.grad(lambda z: loss(z).sum())(logits)

    ours = gradient(lambda z: class_correlation_loss(z.log_softmax(-1), targets, torch.eye(4).double(), form))
    theirs = gradient(lambda z: F.cross_entropy(z, targets, reduction="sum"))
    p = logits.softmax(-1).gather(-1, targets[:, None])
    torch.testing.assert_close(ours, theirs * factor(p))


@FORMS
def test_finite_for_probabilities_of_zero_and_one(form: str) -> None:
    log_probs = torch.tensor([[0.0, -torch.inf, -torch.inf], [-torch.inf, 0.0, -torch.inf]], requires_grad=True)
    phis = [torch.eye(3), -torch.eye(3), torch.ones(3, 3), -torch.ones(3, 3), torch.zeros(3, 3)]
    for phi in phis:
        for targets in (torch.tensor([0, 1]), torch.tensor([1, 2])):
            phi = phi.clone().requires_grad_()
            loss = class_correlation_loss(log_probs, targets, phi, form)  # type: ignore[arg-type]
            assert loss.isfinite().all()
            assert all(g.isfinite().all() for g in torch.autograd.grad(loss.sum(), [log_probs, phi]))
    assert confusion(log_probs.repeat(2, 1), torch.tensor([0, 1, 2, 0])).isfinite().all()


@FORMS
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_finite_for_extreme_logits(form: str, scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    logits = ((torch.rand(64, 5, generator=g) * 2 - 1).sign() * scale).requires_grad_()
    targets = torch.randint(0, 5, (64,), generator=g)
    loss = ClassCorrelationLoss(5, form=form)  # type: ignore[arg-type]
    for phi in (loss.spec.initial, loss.spec.low, loss.spec.high):
        value = loss(logits, targets, phi)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
    assert loss.statistics(logits, targets).isfinite().all()


def test_log_sigmoid_still_learns_from_a_sample_as_wrong_as_logits_of_1e4_make_it() -> None:
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = ClassCorrelationLoss(2, form="log-sigmoid")
    (gradient,) = torch.autograd.grad(loss(logits, torch.tensor([1]), loss.spec.initial).sum(), logits)
    assert gradient.tolist() == [[1.0, -1.0]]


@given(cases())
def test_the_sigmoid_form_lies_between_minus_one_and_zero(case: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, phi = case
    loss = class_correlation_loss(logits.log_softmax(-1), targets, phi)
    assert ((loss >= -1) & (loss <= 0)).all()


def test_statistics_are_both_directions_of_each_pair() -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=g), torch.arange(3).repeat(10)
    loss, matrix = ClassCorrelationLoss(3), plain_confusion(logits.log_softmax(-1), targets)
    expected = [
        [matrix[i, j].log1p(), matrix[j, i].log1p()] for i, j in [(0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)]
    ]
    assert loss.num_statistics == 2
    torch.testing.assert_close(loss.statistics(logits, targets), torch.tensor(expected))


def test_vmap_over_children_equals_a_loop() -> None:
    g = torch.Generator().manual_seed(0)
    loss = ClassCorrelationLoss(4)
    logits, targets = torch.randn(3, 20, 4, generator=g), torch.randint(0, 4, (3, 20), generator=g)
    phi = torch.rand(3, loss.spec.size, generator=g) * 2 - 1
    torch.testing.assert_close(
        torch.func.vmap(loss)(logits, targets, phi),
        torch.stack([loss(logits[n], targets[n], phi[n]) for n in range(3)]),
    )
    torch.testing.assert_close(
        torch.func.vmap(loss.statistics)(logits, targets),
        torch.stack([loss.statistics(logits[n], targets[n]) for n in range(3)]),
        equal_nan=True,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_outputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(20, 4, generator=g).to(dtype), torch.arange(4).repeat(5)
    loss = ClassCorrelationLoss(4)
    assert torch.equal(loss(logits, targets, loss.spec.initial), loss(logits.float(), targets, loss.spec.initial))
    assert torch.equal(loss.statistics(logits, targets), loss.statistics(logits.float(), targets))
