"""A user's model as names and tensors: what is unwrapped, read, measured and put back."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from lossalign.core import InputError, Ranks

Weights = dict[str, Tensor]


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside ``DistributedDataParallel``, ``DataParallel`` and ``torch.compile``.

    Example:
        >>> network = nn.Linear(2, 1)
        >>> unwrapped(DataParallel(network)) is network
        True
    """
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel | DataParallel) else None
        inner = getattr(model, "_orig_mod", None) if inner is None else inner  # of torch.compile
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_model(model: object) -> nn.Module:
    """The user's own module, unwrapped; whatever is no module, or holds no numbers, is refused."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"step: {type(model).__name__} is not a model; give the torch.nn.Module that trains, aligner.step(model)."
        )
    plain = unwrapped(model)
    if any(tensor.is_meta for tensor in chain(plain.parameters(), plain.buffers())):
        raise InputError(
            "step: the model is on the meta device and holds no numbers; load its weights before training."
        )
    return plain


def prefix_of(part: nn.Module, model: nn.Module) -> str | None:
    """Where ``part`` lies in ``model``, as a prefix of names; None if it is not in it.

    Example:
        >>> inner = nn.ReLU()
        >>> prefix_of(inner, nn.Sequential(nn.Linear(1, 1), inner)), prefix_of(inner, nn.Linear(1, 1))
        ('1.', None)
    """
    return next((f"{name}." for name, module in model.named_modules() if module is part), None)


def weights_of(model: nn.Module, without: str | None = None) -> Weights:
    """The tensors of a model's ``state_dict``, except those whose names begin with ``without``; they are its own."""
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and (without is None or not name.startswith(without))
    }


Slot = tuple[dict[str, Any], str]
"""Where a module keeps a tensor: its dictionary of parameters or buffers, and the key."""


class WatchedModel:
    """A model that is given at every iteration, with what is asked of it found once.

    It holds the model weakly and is not saved: an ``Aligner`` that is copied or pickled looks at its model again.

    Args:
        given: the model, perhaps wrapped or compiled.
        part: a module that may lie in it; its tensors are left out.
    """

    def __init__(self, given: object, part: nn.Module) -> None:
        plain = check_model(given)
        self._given, self._plain = weakref.ref(given), weakref.ref(plain)
        self.prefix = prefix_of(part, plain)
        named = weights_of(plain, self.prefix)
        self.names = tuple(named)
        self._slots = _slots(plain, named)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def is_of(self, given: object) -> bool:
        """Whether ``given`` is the same model."""
        return self._given() is given

    @property
    def plain(self) -> nn.Module:
        """The user's own module."""
        model = self._plain()
        assert model is not None, "the caller holds the model"
        return model

    def tensors(self) -> list[Tensor]:
        """The model's own tensors as they are now, in the order of ``names``."""
        if self._slots is None:
            return list(weights_of(self.plain, self.prefix).values())
        return [held[key] for held, key in self._slots]


def _slots(model: nn.Module, named: Weights) -> list[Slot] | None:
    """Where the tensors of a ``state_dict`` are kept; None if it gives others than those of its modules."""
    found: dict[str, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers):
            found |= {f"{prefix}.{key}" if prefix else key: (held, key) for key in held}
    for name, tensor in named.items():
        held, key = found.get(name, ({}, ""))
        own = held.get(key)
        if not isinstance(own, Tensor) or own.data_ptr() != tensor.data_ptr() or own.shape != tensor.shape:
            return None
    return [found[name] for name in named]


def check_same_weights(known: Mapping[str, Tensor] | None, current: Mapping[str, Tensor]) -> None:
    """Refuse another model than the one whose weights are ``known``.

    Example:
        >>> check_same_weights({"a": torch.zeros(2)}, {"a": torch.zeros(3)})
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: step: this is another model than before, 'a' has shape (3,), not (2,); give
        the same model at every step, or make another Aligner for this one.
    """
    if known is None:
        return
    for name in sorted(known.keys() | current.keys()):
        before, now = known.get(name), current.get(name)
        if before is None or now is None or before.shape != now.shape:
            raise InputError(
                f"step: this is another model than before, {_difference(name, before, now)}; give the same model at "
                "every step, or make another Aligner for this one."
            )


def _difference(name: str, before: Tensor | None, now: Tensor | None) -> str:
    if before is None:
        return f"{name!r} is new"
    if now is None:
        return f"{name!r} is missing"
    return f"{name!r} has shape {tuple(now.shape)}, not {tuple(before.shape)}"


def copy_into(live: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Write ``weights`` into the tensors of the same names."""
    for name, tensor in weights.items():
        live[name].copy_(tensor)


@contextmanager
def evaluating(model: nn.Module, weights: Weights | None, without: str | None = None) -> Iterator[None]:
    """Eval mode, no gradients, and ``weights`` in place of the model's own; everything is put back afterwards.

    So is torch's global random stream, from which every pass over a ``DataLoader`` draws.
    """
    gpus = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    modes = [(module, module.training) for module in model.modules()]
    live = weights_of(model, without)
    saved = {} if weights is None else {name: tensor.clone() for name, tensor in live.items()}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(gpus)):
            if weights is not None:
                copy_into(live, weights)
            model.eval()
            yield
    finally:
        with torch.no_grad():
            copy_into(live, saved)
        for module, mode in modes:
            module.training = mode


def buffers_of_first_rank(model: nn.Module, weights: Weights) -> Weights:
    """What ``weights`` holds beside the model's parameters, as rank 0 has it: such buffers may differ by rank."""
    buffers = sorted(weights.keys() - dict(model.named_parameters(remove_duplicate=False)).keys())
    sent = Ranks.current().on_first(lambda: {name: weights[name].detach().cpu() for name in buffers})
    return {name: tensor.to(weights[name].device) for name, tensor in sent.items()}
