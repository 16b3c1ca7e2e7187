"""Losses by name. Each loss is registered in the file that defines it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from lossalign.core import InputError, Registry, import_plug
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.distances import EmbeddingLoss


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The settings of a run that its loss depends on.

    Args:
        counts: training examples of each class [C].
        groups: parameter groups that are moved; empty: all of them.
        framework: metric learning: semi-hard triplets, or negatives weighted by distance.
        start: metric learning: Φ starts at the best known values, or at the paper's.
    """

    counts: Tensor
    groups: tuple[str, ...] = ()
    framework: Literal["triplet", "margin"] = "triplet"
    start: Literal["default", "paper"] = "default"

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.counts)


@dataclass(frozen=True, kw_only=True)
class LossEntry:
    """An entry of the registry.

    Args:
        make: makes the loss from a run's settings.
        groups: parameter groups that a policy moves by default; empty: all of them.
        embeds: whether the loss is on embeddings.
        stream: key of its random stream in ``minibatch`` evaluation, which must not change, to keep results
            reproducible; empty: its name.
    """

    make: Callable[[LossSettings], AdaptiveLoss]
    groups: tuple[str, ...] = ()
    embeds: bool = False
    stream: str = ""


LOSSES: Registry[LossEntry] = Registry(
    "loss", hint="pml-NAME for a loss of pytorch-metric-learning, or module:attribute for a loss of your own"
)
PREFIXES: dict[str, Callable[[str], LossEntry]] = {}
"""Prefixes of names that stand for a family of losses, each with a function from a name to its entry."""


def find_loss(name: str) -> LossEntry:
    """The entry called ``name``, or of a user's own loss ``module:attribute``.

    Example:
        >>> find_loss("aligned").groups
        ('offsets',)
    """
    if name in LOSSES:
        return LOSSES[name]
    for prefix, entry in PREFIXES.items():
        if name.startswith(prefix):
            return entry(name)
    return _own(name) if ":" in name else LOSSES[name]


def make_loss(name: str, settings: LossSettings) -> AdaptiveLoss:
    """The loss called ``name``, made for a run."""
    return find_loss(name).make(settings)


def _own(name: str) -> LossEntry:
    """A user's loss: an ``AdaptiveLoss``, or a class or function that makes one from the number of classes."""
    found = import_plug("loss", name)
    kind = found if inspect.isclass(found) else type(found)

    def make(settings: LossSettings) -> AdaptiveLoss:
        try:
            takes_classes = callable(found) and not isinstance(found, AdaptiveLoss | nn.Module)
            loss = _called(found, settings.num_classes) if takes_classes else found
        except Exception as error:  # anything the user's class raises
            raise InputError(f"loss {name!r}: making it failed: {type(error).__name__}: {error}") from error
        if not isinstance(loss, AdaptiveLoss):
            raise InputError(f"loss {name!r} is a {type(loss).__name__}; give a lossalign.AdaptiveLoss.")
        return loss

    return LossEntry(make=make, embeds=issubclass(kind, EmbeddingLoss))


def _called(factory: Callable[..., AdaptiveLoss], num_classes: int) -> AdaptiveLoss:
    """Call it with the number of classes, if it takes an argument without a default."""
    required = [
        each
        for each in inspect.signature(factory).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return factory(num_classes) if required else factory()
