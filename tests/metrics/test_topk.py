"""Top-k error agrees with sorting the classes, and with the error rate at k = 1."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossalign.core import InputError
from lossalign.metrics import ErrorRate, TopKError, top_k_error


@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 20), st.integers(0, 3), st.integers(1, 6))
def test_equals_a_stable_sort_of_the_classes(seed: int, size: int, samples: int, decimals: int, k: int) -> None:
    g = torch.Generator().manual_seed(seed)
    outputs = torch.randn(samples, size, generator=g).round(decimals=decimals)
    targets = torch.randint(0, size, (samples,), generator=g)
    wrong = 0
    for row, truth in zip(outputs.tolist(), targets.tolist(), strict=True):
        best_first = sorted(range(size), key=lambda c: -row[c])  # stable: a tie goes to the earlier class
        wrong += truth not in best_first[:k]
    assert float(top_k_error(outputs, targets, k)) == pytest.approx(wrong / samples)
    assert torch.allclose(top_k_error(outputs, targets, 1), ErrorRate()(outputs, targets))


def test_batched_over_leading_axes() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 3, 8, 5, generator=g), torch.randint(0, 5, (2, 3, 8), generator=g)
    batched = top_k_error(outputs, targets, 2)
    assert batched.shape == (2, 3)
    assert batched[1, 2] == top_k_error(outputs[1, 2], targets[1, 2], 2)


def test_nan_is_never_among_the_best() -> None:
    outputs = torch.tensor([[float("nan"), 0.0, 1.0], [float("nan")] * 3])
    assert top_k_error(outputs, torch.tensor([0, 0]), 2) == 1


def test_k_that_cannot_be_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="choose a smaller k"):
        TopKError(3)(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(InputError, match="at least one guess"):
        TopKError(0)
