"""L-Softmax is the published loss on scaled cosines: an angle m times smaller is asked of the true class."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError
from lossalign.losses import LSoftmaxLoss, angular_margin, l_softmax_loss


def plain_margin(theta: float, m: int) -> float:
    k = min(int(theta * m / math.pi), m - 1)
    return (-1) ** k * math.cos(m * theta) - 2 * k


@given(st.floats(0.0, math.pi), st.integers(1, 5))
def test_the_margin_is_the_published_piecewise_cosine(theta: float, m: int) -> None:
    value = angular_margin(torch.tensor(math.cos(theta), dtype=torch.float64), m)
    assert float(value) == pytest.approx(plain_margin(theta, m), abs=1e-6)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_margin_is_monotone_with_finite_slopes_to_both_ends(m: int) -> None:
    cosine = torch.linspace(-1, 1, 2001, dtype=torch.float64).requires_grad_()
    value = angular_margin(cosine, m)
    (slope,) = torch.autograd.grad(value.sum(), cosine)
    assert value.diff().min() >= 0
    assert slope.isfinite().all()
    assert (value <= cosine + 1e-12).all()


def test_the_loss_is_cross_entropy_at_its_start_and_asks_for_more_with_strength() -> None:
    g = torch.Generator().manual_seed(0)
    logits, targets = 30 * (2 * torch.rand(50, 4, generator=g) - 1), torch.arange(50) % 4
    loss = LSoftmaxLoss(num_classes=4)
    start = loss(logits, targets, loss.spec.initial)
    torch.testing.assert_close(start, F.cross_entropy(logits, targets, reduction="none"))
    values = [l_softmax_loss(logits, targets, torch.tensor(a)) for a in (0.0, 1 / 6, 1.0)]
    assert (values[0] <= values[1] + 1e-5).all()
    assert (values[1] <= values[2] + 1e-5).all()


def test_full_strength_is_the_published_formula_by_a_plain_loop() -> None:
    g = torch.Generator().manual_seed(1)
    cosines, targets = 2 * torch.rand(20, 3, generator=g, dtype=torch.float64) - 1, torch.arange(20) % 3
    expected = []
    for row, y in zip(cosines.tolist(), targets.tolist(), strict=True):
        z = [30 * (plain_margin(math.acos(c), 4) if j == y else c) for j, c in enumerate(row)]
        expected.append(max(z) + math.log(sum(math.exp(v - max(z)) for v in z)) - z[y])
    value = l_softmax_loss(30 * cosines, targets, torch.tensor(1.0), multiple=4)
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("changes", "message"), [({"scale": 0}, "scale=0"), ({"multiple": 0}, "multiple=0")])
def test_bad_settings_are_refused_by_name(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LSoftmaxLoss(num_classes=3, **changes)
