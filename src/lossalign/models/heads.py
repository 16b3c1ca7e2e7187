"""Replacement of a network's last layer."""

from __future__ import annotations

from torch import nn

from lossalign.core import CosineLinear, InputError
from lossalign.models.registry import ENDINGS


def with_cosine_head(name: str, model: nn.Module, num_classes: int) -> nn.Module:
    """``model`` with its last ``nn.Linear``, in the order of its layers, replaced by a ``CosineLinear``.

    Weights are drawn from PyTorch's global stream. ``name`` is the model's name in errors.

    Example:
        >>> with_cosine_head("mine", nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), num_classes=3)
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): CosineLinear(in_features=8, out_features=3, scale=30.0)
        )
    """
    linears = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    path, last = linears[-1] if linears else ("", None)
    if last is None or last.out_features != num_classes:
        found = "it has no nn.Linear" if last is None else f"its last nn.Linear has {last.out_features} outputs"
        raise InputError(
            f"model={name!r}: +cosine replaces a last nn.Linear with {num_classes} outputs, one for each class, but "
            f"{found}; leave +cosine out, or use lossalign.core.CosineLinear in the model."
        )
    head = CosineLinear(last.in_features, num_classes).to(last.weight).train(last.training)
    if last is model:
        return head
    model.set_submodule(path, head)
    return model


ENDINGS.add("+cosine", "cosine head, for LDAM and L-Softmax", with_cosine_head)
