"""A cosine layer sees directions only."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lossalign.core import CosineLinear, InputError

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 5, generator=G)


def test_outputs_are_scaled_cosines() -> None:
    layer = CosineLinear(5, 3, scale=16.0)
    cosines = [[float(F.cosine_similarity(x, w, dim=0)) for w in layer.weight.detach()] for x in X]
    torch.testing.assert_close(layer(X), 16 * torch.tensor(cosines))


def test_lengths_do_not_matter() -> None:
    layer = CosineLinear(5, 3)
    before = layer(X)
    with torch.no_grad():
        layer.weight *= torch.tensor([[0.1], [2.0], [300.0]])
    torch.testing.assert_close(layer(X * torch.logspace(-2, 2, 6)[:, None]), before)


def test_any_axes_before_the_features() -> None:
    layer = CosineLinear(5, 3)
    torch.testing.assert_close(layer(X.view(2, 3, 5)), layer(X).view(2, 3, 3))


def test_directions_start_at_length_one_and_there_is_no_bias() -> None:
    layer = CosineLinear(5, 3)
    torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(3))
    assert list(dict(layer.named_parameters())) == ["weight"]


def test_features_that_are_all_zero_have_logits_zero_and_finite_gradients() -> None:
    layer = CosineLinear(5, 3)
    x = torch.zeros(2, 5, requires_grad=True)
    outputs = layer(x)
    assert torch.equal(outputs, torch.zeros(2, 3))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(outputs.sum(), [x, layer.weight]))


def test_logits_keep_float32_under_autocast() -> None:
    layer = CosineLinear(5, 3)
    rounded = X.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = layer(rounded)
    assert torch.equal(outputs, layer(rounded.float()))


def test_a_scale_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"scale=-1: logits are scale · cos; give a positive number"):
        CosineLinear(5, 3, scale=-1)
