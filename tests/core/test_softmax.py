"""log_softmax is torch's, bit for bit: values, gradients, and the layout of both."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap

from lossalign.core import log_softmax


def torchs(logits):
    return torch.log_softmax(logits, -1)


@given(rows=st.integers(1, 3000), classes=st.integers(1, 20), seed=st.integers(0, 99))
def test_values_are_torchs(rows, classes, seed):
    logits = 3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(log_softmax(logits), torchs(logits), rtol=1e-6, atol=1e-6)
    assert log_softmax(logits).stride() == torchs(logits).stride()


@pytest.mark.parametrize("shape", [(7, 3), (2000, 3), (800, 10), (4, 500, 10)])
def test_gradients_are_torchs_and_laid_out_alike(shape):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    (log_softmax(ours) * weights).sum().backward()
    (torchs(theirs) * weights).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-7)
    assert ours.grad.stride() == theirs.grad.stride()


def test_children_side_by_side_are_torchs():
    logits = torch.randn(6, 50, 10, generator=torch.Generator().manual_seed(0))

    def first(function):
        return vmap(grad(lambda some: function(some)[:, 0].sum()))(logits)

    torch.testing.assert_close(first(log_softmax), first(torchs), rtol=1e-5, atol=1e-7)


def test_what_is_no_number_stays_none():
    logits = torch.zeros(500, 10)
    logits[3, 2] = torch.nan
    assert log_softmax(logits).isnan().any(1).nonzero().flatten().tolist() == [3]
