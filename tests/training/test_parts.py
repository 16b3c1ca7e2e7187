"""A part of a population: who owns which child, what each controller sees, and whose weights are copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.core import InputError, Observation
from lossalign.losses import AlignedLoss
from lossalign.training import Owner, Part

LOSS = AlignedLoss(2)


class Told:
    """A controller that remembers what it saw."""

    def __init__(self, values: list[float], parents: list[int] | None = None) -> None:
        self.phi = torch.tensor(values)[:, None].expand(-1, 2).clone()
        self.parents = None if parents is None else torch.tensor(parents)
        self.seen: list[Observation] = []

    def move(self, observation: Observation) -> dict[str, Tensor]:
        self.seen.append(observation)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


def owner(rows: list[int], **options: Any) -> Owner:
    return Owner(Told([float(row) for row in rows], **options), torch.tensor(rows))


def test_phi_is_in_the_order_of_the_rows_whoever_owns_them() -> None:
    part = Part(LOSS, (owner([4, 7]), owner([5, 3]), owner([6])))
    assert part.rows == slice(3, 8)
    assert part.phi(torch.device("cpu"))[:, 0].tolist() == [3, 4, 5, 6, 7]


def test_each_child_needs_one_owner() -> None:
    for others in ([3], [6]):
        with pytest.raises(InputError, match="give each of a part's children one owner"):
            _ = Part(LOSS, (owner([3, 4]), owner(others))).rows


def test_parents_are_rows_of_the_population() -> None:
    part = Part(LOSS, (owner([4, 7], parents=[1, 1]), owner([5, 6])))
    assert [(rows.tolist(), of.tolist()) for rows, of in part.parents()] == [([4, 7], [7, 7])]


def test_a_controller_that_does_not_watch_sees_errors_and_time_alone() -> None:
    seen = owner([2, 0]).look_at_errors(torch.tensor([0.1, 0.2, 0.3]), statistics=3, progress=0.25)
    assert seen.error.tolist() == pytest.approx([0.3, 0.1])
    assert seen.progress == 0.25
    assert seen.statistics.shape == (2, 2, 3)
    assert seen.statistics.isnan().all()
    assert seen.sensitivity.isnan().all()
