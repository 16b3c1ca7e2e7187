"""A small loss and what a controller might see of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lossalign.core import Observation, ParameterGroup, ParameterSpec, generator

Look = Callable[..., Observation]


@pytest.fixture
def spec() -> ParameterSpec:
    """Two groups of their own ranges and steps, five parameters."""
    first = ParameterGroup(name="first", labels=("a", "b", "c"), initial=0.0, low=-1.0, high=1.0, beta=0.3)
    second = ParameterGroup(name="second", labels=("d", "e"), initial=(1.0, 2.0), low=0.0, high=2.0, beta=0.5)
    return ParameterSpec((first, second))


@pytest.fixture
def look() -> Look:
    """What is seen at step ``t``: random, and the same for the same ``t``; the metric may be given."""

    def seen(t: int, metric: Tensor | None = None, children: int = 5, parameters: int = 5) -> Observation:
        g = generator(t, "seen")
        return Observation(
            error=torch.rand(children, generator=g) if metric is None else metric,
            statistics=torch.rand(children, parameters, 2, generator=g),
            sensitivity=torch.rand(children, parameters, 2, generator=g),
            progress=min(1.0, (t + 1) / 20),
        )

    return seen
