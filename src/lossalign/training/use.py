"""What can be wrong with how an ``Aligner`` is used, each with one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lossalign.core import InputError
from lossalign.losses import AdaptiveLoss
from lossalign.training.validation import described

_RENAMED = {
    "policy": "policy is now called controller; write controller=…",
    "device": "device was removed: the aligner follows aligner.to(device)",
}


def refuse_renamed(given: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that ``Aligner`` no longer takes, and unknown ones.

    Example:
        >>> refuse_renamed({"policy": "fresh"})
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: policy is now called controller; write controller=….
    """
    for name in given:
        if name not in _RENAMED:
            raise TypeError(f"Aligner() got an unexpected keyword argument {name!r}")
        raise InputError(f"{_RENAMED[name]}.")


def checked_every(loss: object, total_steps: int, every: int | None) -> int:
    """K, after a look at what an ``Aligner`` is made of; a hundredth of the run, 10 to 200, if not given.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> [checked_every(AlignedLoss(3), total, None) for total in (5, 50, 3_000, 100_000)]
        [5, 10, 30, 200]
    """
    if not isinstance(loss, AdaptiveLoss):
        raise InputError(f"loss: {type(loss).__name__} is not an AdaptiveLoss; try AlignedLoss(num_classes=…).")
    if total_steps < 1:
        raise InputError(f"total_steps={total_steps}: give the number of optimiser iterations of the whole run.")
    every = min(200, max(10, total_steps // 100), total_steps) if every is None else every
    if not 1 <= every <= total_steps:
        raise InputError(f"every={every}: K must be between 1 and total_steps={total_steps}.")
    return every


def check_batch(outputs: object, targets: object) -> None:
    """Refuse outputs and targets that are not tensors with numbers in them.

    Example:
        >>> import torch
        >>> check_batch({"logits": torch.zeros(1, 2)}, torch.zeros(1))
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: outputs: a dict with the keys 'logits', not a tensor; give the tensor alone,
        and pass forward=… to Aligner so that validation finds it too.
    """
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"outputs: {described(outputs)}, not a tensor; give the tensor alone, and pass forward=… to Aligner so "
            "that validation finds it too."
        )
    if not isinstance(targets, Tensor):
        raise InputError(f"targets: {described(targets)}, not a tensor; give the tensor alone.")
    for name, given in (("outputs", outputs), ("targets", targets)):
        if given.is_meta:
            raise InputError(f"{name}: a tensor on the meta device holds no numbers; load the model's weights first.")


def looks_like_probabilities(loss: AdaptiveLoss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs [B, C] of a loss of classes are distributions, which says that a softmax was applied.

    Example:
        >>> from lossalign.losses import AlignedLoss
        >>> import torch
        >>> logits, targets = torch.randn(4, 3), torch.zeros(4).long()
        >>> [looks_like_probabilities(AlignedLoss(3), outputs, targets) for outputs in (logits, logits.softmax(-1))]
        [False, True]
    """
    of_classes = any(group.classes is not None for group in loss.spec.groups)
    if not of_classes or outputs.ndim != 2 or targets.ndim != 1 or not outputs.numel():
        return False
    rows = outputs.detach().float().sum(-1)
    return bool((outputs.detach() >= 0).all() & ((rows - 1).abs() < 1e-2).all())


STATE_VERSION = 2
"""Version of an aligner's state; another one is refused."""
_HELD = (
    *("total_steps", "iteration", "drawn", "values", "history", "averaged", "kept", "best", "best_error", "held_as"),
    "controller",
)
"""What a state holds besides what it must agree in."""


def check_state(state: Any, own: Mapping[str, Any]) -> None:
    """Refuse the state of another version, or of an aligner with another loss, metric, direction, K or options.

    Args:
        state: what ``get_extra_state`` gave.
        own: what it must agree in; ``options`` are compared one by one.

    Example:
        >>> own = {"parameters": {"offsets": 3}, "every": 10, "options": {"horizon": 5}}
        >>> state = {"version": STATE_VERSION, **own, "every": 5, **dict.fromkeys(_HELD)}
        >>> check_state(state, own)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: state: it was saved with every=5, this aligner has every=10; make the Aligner
        with the same one.
    """
    if not isinstance(state, Mapping) or not state:
        raise InputError("state: it holds no state of an Aligner; give what aligner.state_dict() returned.")
    if state.get("version") != STATE_VERSION:
        raise InputError(
            f"state: it has version {state.get('version')!r}, this lossalign reads version {STATE_VERSION}; resume "
            "with the lossalign that saved it."
        )
    missing = [name for name in (*own, *_HELD) if name not in state]
    if missing:
        raise InputError(f"state: {missing[0]!r} is missing; give all that aligner.state_dict() returned.")
    if state["parameters"] != own["parameters"]:
        raise InputError(
            f"state: it belongs to a loss with other parameters ({_listed(state['parameters'])}) than this aligner's "
            f"({_listed(own['parameters'])}); use the same loss and groups."
        )
    saved = _one_by_one(state)
    for name, mine in _one_by_one(own).items():
        if saved.get(name) != mine:
            raise InputError(
                f"state: it was saved with {name}={saved.get(name)!r}, this aligner has {name}={mine!r}; make the "
                "Aligner with the same one."
            )


def _one_by_one(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in identity.items() if name != "options"}, **identity["options"]}


def _listed(sizes: Mapping[str, int] | None) -> str:
    return ", ".join(f"{size} {group}" for group, size in (sizes or {}).items()) or "unknown"
