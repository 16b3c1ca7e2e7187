"""A small noisy problem of three classes for the user's own loop, and how to compare two states."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lossalign as la


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested dicts and lists as one dict of leaves."""
    if isinstance(value, dict):
        return {k: v for key, part in value.items() for k, v in flat(part, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, part in enumerate(value) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: value}


def assert_equal(one: Any, other: Any) -> None:
    """Two states are the same, bit for bit."""
    mine, theirs = flat(one), flat(other)
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=0, equal_nan=True, msg=key)
        else:
            assert value == theirs[key], key


def copied(state: Any) -> Any:
    """A state after a journey through a file that holds no code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@dataclass
class Problem:
    """Training batches, a validation loader, a network with all that evaluation could disturb."""

    inputs: Tensor
    targets: Tensor
    val_loader: DataLoader[Any]

    def network(self) -> nn.Sequential:
        with torch.random.fork_rng([]):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def batches(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        for iteration in range(start, stop):
            at = torch.randint(60, (12,), generator=torch.Generator().manual_seed(iteration))
            yield self.inputs[at], self.targets[at]

    def aligner(self, every: int = 3, total_steps: int = 60, **options: Any) -> la.Aligner:
        fresh: dict[str, Any] = {"loss": la.AlignedLoss(3), "metric": la.metrics.BalancedError(), "controller": "fresh"}
        fresh["split_validation"] = False
        given: dict[str, Any] = {**fresh, **options}
        loader: Iterable[Any] = given.pop("val_loader", self.val_loader)
        return la.Aligner(given.pop("loss"), given.pop("metric"), loader, total_steps, every=every, **given)

    def train(
        self, aligner: la.Aligner, iterations: int, start: int = 0, model: nn.Module | None = None, lr: float = 0.1
    ) -> nn.Module:
        """The loop of the README."""
        model = self.network() if model is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for x, y in self.batches(start, start + iterations):
            loss = aligner(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            aligner.step(model)
        return model


@pytest.fixture
def problem() -> Problem:
    g = torch.Generator().manual_seed(0)
    targets = torch.arange(102) % 3
    inputs = torch.randn(102, 4, generator=g) + targets[:, None]
    loader = DataLoader(TensorDataset(inputs[60:], targets[60:]), batch_size=16)
    return Problem(inputs, targets, loader)


@pytest.fixture
def still() -> la.Preset:
    """A preset whose policy never moves Φ."""
    return la.default(zero_bias=1e4, entropy_bonus=0.0)


@pytest.fixture(name="assert_equal")
def assert_equal_fixture() -> Callable[[Any, Any], None]:
    return assert_equal


@pytest.fixture(name="copied")
def copied_fixture() -> Callable[[Any], Any]:
    return copied
