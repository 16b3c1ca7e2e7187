"""Conversion of N plain models into one module that computes them all, or the reason why they cannot be converted."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lossalign.children.fused import layers as fused
from lossalign.core import CosineLinear

_STACKED: dict[type[nn.Module], type[fused.Stacked]] = {
    nn.Linear: fused.FusedLinear,
    CosineLinear: fused.FusedCosineLinear,
    nn.Conv1d: fused.FusedConv,
    nn.Conv2d: fused.FusedConv,
    nn.Conv3d: fused.FusedConv,
    nn.BatchNorm1d: fused.FusedBatchNorm,
    nn.BatchNorm2d: fused.FusedBatchNorm,
    nn.BatchNorm3d: fused.FusedBatchNorm,
    nn.GroupNorm: fused.FusedGroupNorm,
    nn.LayerNorm: fused.FusedLayerNorm,
    nn.Embedding: fused.FusedEmbedding,
    nn.PReLU: fused.FusedPReLU,
}
_DROPOUT: dict[type[nn.Module], bool] = {
    nn.Dropout: False,
    nn.Dropout1d: True,
    nn.Dropout2d: True,
    nn.Dropout3d: True,
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unfusable(model: nn.Module) -> str | None:
    """The first layer that has weights, buffers or hooks of its own and is not one we know; None if there is none.

    Example:
        >>> unfusable(nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2)))
        'layer 1 (LSTM) has no fused form'
    """
    for name, module in model.named_modules():
        why = _unknown(module)
        if why is not None:
            return f"{f'layer {name}' if name else 'the model itself'} ({type(module).__name__}) {why}"
    return None


def _unknown(layer: nn.Module) -> str | None:
    if any(getattr(layer, kind) for kind in _HOOKS):
        return "has hooks"
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.sparse):
        return "has no fused form with max_norm or sparse"
    known = type(layer) in _STACKED or type(layer) in _DROPOUT
    own = any(tensor is not None for tensor in (*layer._parameters.values(), *layer._buffers.values()))
    return "has no fused form" if own and not known else None


def fuse(models: Sequence[nn.Module]) -> nn.Module:
    """One module that takes inputs [N·B, …] of N models, child after child, and gives outputs [N·B, …].

    Its parameters and buffers have the names of the models', each [N, …]; tied weights stay tied. Dropout layers draw
    from their ``seeds`` [N] and ``clock``, the iteration.
    """
    stacked: dict[int, Tensor] = {}
    replaced: dict[int, nn.Module] = {}
    drawing = 0

    def stack(same: Sequence[nn.Module], name: str) -> Tensor | None:
        first = getattr(same[0], name)
        if first is None:
            return None
        if id(first) not in stacked:
            tensor = torch.stack([getattr(layer, name).detach() for layer in same])
            stacked[id(first)] = (
                nn.Parameter(tensor, first.requires_grad) if isinstance(first, nn.Parameter) else tensor
            )
        return stacked[id(first)]

    def converted(same: Sequence[nn.Module]) -> nn.Module:
        nonlocal drawing
        first = same[0]
        if id(first) in replaced:
            return replaced[id(first)]
        if type(first) in _STACKED:
            made: nn.Module = _STACKED[type(first)](same, stack)
        elif type(first) in _DROPOUT:
            made = fused.FusedDropout(first, len(same), drawing, _DROPOUT[type(first)])
            drawing += 1
        else:
            made = _shell(first)
            for name in first._modules:
                parts = [layer._modules[name] for layer in same]
                made._modules[name] = None if parts[0] is None else converted(parts)  # type: ignore[arg-type]
        replaced[id(first)] = made
        return made

    joint = converted(models)
    if drawing:
        joint.register_forward_pre_hook(_restart)
    return joint


def _restart(joint: nn.Module, inputs: Any) -> None:
    """At the start of a forward pass, reset the count of uses of every dropout layer."""
    for dropout in dropouts(joint):
        dropout.uses = 0


def _shell(module: nn.Module) -> nn.Module:
    """A copy of a module without weights, to be filled with converted parts."""
    shell = copy.copy(module)
    own = {name: copy.copy(value) if isinstance(value, dict) else value for name, value in vars(module).items()}
    shell.__dict__ = {**own, "_modules": {}}
    return shell


def dropouts(model: nn.Module) -> Iterator[fused.FusedDropout]:
    """The dropout layers of a fused model."""
    return (module for module in model.modules() if isinstance(module, fused.FusedDropout))


_LOOKS = {"__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__", "item", "tolist", "numpy"}
_LOOKS |= {"equal", "allclose", "is_nonzero", "nonzero", "unique"}


class _Watched(TorchFunctionMode):
    """Raises in forward passes where children would share a random stream or a decision on values."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in _LOOKS:
            raise RuntimeError(f"it looks at values ({name}) to decide what to compute")
        before = torch.get_rng_state()
        result = function(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):
            raise RuntimeError(f"it draws random numbers itself ({name}); use nn.Dropout")
        return result


def why_not_fused(models: Sequence[nn.Module], inputs: Tensor) -> str | None:
    """Why models cannot be fused; None if the fused outputs and gradients are those of the plain models.

    Tried on samples of each model's own, in training and in eval mode, in float64, on the CPU, with dropout off.
    """
    reason = unfusable(models[0])
    if reason is not None:
        return reason
    plain = [_without_dropout(model) for model in models]
    batches = [_samples(inputs, number) for number in range(len(plain))]
    try:
        with torch.random.fork_rng([]):
            joint = fuse(plain)
            with _Watched():
                outputs, grads = _trial(joint, torch.cat(batches))
            theirs = [_trial(model, batch) for model, batch in zip(plain, batches, strict=True)]
    except Exception as error:  # anything a user's model raises
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    expected = [torch.cat(parts) for parts in zip(*(outputs for outputs, _ in theirs), strict=True)]
    expected_grads = [torch.stack(parts) for parts in zip(*(grads for _, grads in theirs), strict=True)]
    if not (_close(outputs, expected) and _close(grads, expected_grads)):
        return (
            "its fused outputs or gradients are not those of the plain models: samples of a batch depend on each other"
        )
    return None


def _samples(inputs: Tensor, number: int) -> Tensor:
    """At most four samples, others for every ``number``: a batch's mean would hide that children are mixed."""
    few = min(4, len(inputs))
    some = inputs[(number * few + torch.arange(few)) % len(inputs)].detach().cpu()
    if not some.is_floating_point():
        return some
    drawn = torch.rand(some.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
    return some.double() * (1 + 0.5 * number * drawn)


def _trial(model: nn.Module, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs in training and then in eval mode, and gradients of the trained weights."""
    outputs = model.train()(inputs)
    weights = [p for p in model.parameters() if p.requires_grad]
    ramp = torch.linspace(1, 2, outputs.shape[-1], dtype=outputs.dtype)  # outputs of length 1 need it
    grads = torch.autograd.grad((ramp * outputs.square()).sum(), weights, materialize_grads=True)
    with torch.no_grad():
        return [outputs.detach(), model.eval()(inputs)], list(grads)


def _close(mine: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether all tensors are equal up to rounding; some are only rounding, e.g. a bias's gradient before BatchNorm."""
    rounding = 1e-12 * max(float(other.norm()) for other in others)
    return all(
        one.shape == other.shape and bool((one - other).norm() <= 1e-9 * other.norm() + rounding)
        for one, other in zip(mine, others, strict=True)
    )


def _without_dropout(model: nn.Module) -> nn.Module:
    plain = copy.deepcopy(model).double().cpu()
    for module in plain.modules():
        if type(module) in _DROPOUT:
            module.p = 0.0  # type: ignore[assignment]
    return plain
