"""Networks by name. Each network is registered in the file that defines it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lossalign.core import InputError, Registry


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A network, or a family of networks with numbers in their names.

    Args:
        pattern: regular expression of the names; each group is a number that the network takes first.
        make: makes the network from those numbers, and from those of ``input_shape``, ``num_classes`` and
            ``in_channels`` that it takes.
        images: whether it takes images (channels, height, width) only.
    """

    pattern: str
    make: Callable[..., nn.Module]
    images: bool = True


MODELS: Registry[ModelEntry] = Registry("model")

Ending = Callable[[str, nn.Module, int], nn.Module]
ENDINGS: Registry[Ending] = Registry("ending of a model's name")
"""Endings of a model's name, each with a function (name, model, number of outputs) → model."""


def find_model(name: str) -> tuple[ModelEntry, tuple[int, ...]]:
    """The entry that ``name`` fits, and the numbers in it.

    Example:
        >>> find_model("wrn-28-10")[1]
        (28, 10)
    """
    for entry in (MODELS[known] for known in MODELS):
        if match := re.fullmatch(entry.pattern, name):
            return entry, tuple(int(number) for group in match.groups() for number in re.findall(r"\d+", group or ""))
    raise InputError(
        f"model={name!r} is unknown; choose from {', '.join(MODELS)} (`lossalign list models` explains them), or give "
        f"module:factory for a model of your own; each may end in {' or '.join(ENDINGS)}."
    )
