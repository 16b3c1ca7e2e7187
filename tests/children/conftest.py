"""A small problem of three classes, and children on either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Children, Member, Recipe, SequentialChildren, VmapChildren
from lossalign.losses.aligned import aligned_loss
from lossalign.models import MLP, ResNet, SmallCNN

G = torch.Generator().manual_seed(0)
INPUTS = torch.randn(40, 1, 8, 8, generator=G, dtype=torch.float64)
TARGETS = torch.arange(40) % 3

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(64, hidden=(8,), num_classes=3),
    "small-cnn": lambda: SmallCNN(in_channels=1, num_classes=3, widths=(4, 6)),
    "resnet8": lambda: ResNet(8, in_channels=1, num_classes=3),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 3)),
}
ENGINES: dict[str, Callable[..., Children]] = {"sequential": SequentialChildren, "vmap": VmapChildren}


class Batches:
    """Endless random batches of eight; remembers what it gave."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.given: list[Tensor] = []

    def next(self) -> tuple[Tensor, Tensor]:
        at = torch.randint(len(INPUTS), (8,), generator=self.generator)
        self.given.append(at)
        return INPUTS[at].to(self.dtype), TARGETS[at]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def build(
    engine: str,
    model: str | Callable[[], nn.Module] = "mlp",
    seeds: Sequence[int] = (0, 1, 2),
    dtype: torch.dtype = torch.float32,
    streams: list[Batches] | None = None,
    **recipe: Any,
) -> Children:
    """Children with initial weights and batches of their own, given by ``seeds``."""

    def member(seed: int) -> Member:
        def stream() -> Batches:
            batches = Batches(seed, dtype)
            if streams is not None:
                streams.append(batches)
            return batches

        with torch.random.fork_rng([]):
            torch.manual_seed(100 + seed)
            network = (MODELS[model] if isinstance(model, str) else model)().to(dtype)
        return Member(network, seed, stream)

    def loss(outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        return aligned_loss(outputs, targets, b=phi)

    settings = {"iterations": 20, "average": 0.8, **recipe}
    return ENGINES[engine]([member(seed) for seed in seeds], loss, Recipe(**settings))


def offsets(children: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A Φ of its own for every child [n, 3]."""
    return torch.linspace(-1, 1, 3, dtype=dtype) * torch.arange(children, dtype=dtype)[:, None]


@pytest.fixture(name="build")
def build_fixture() -> Callable[..., Children]:
    return build


@pytest.fixture(name="offsets")
def offsets_fixture() -> Callable[..., Tensor]:
    return offsets


@pytest.fixture(name="inputs")
def inputs_fixture() -> Tensor:
    return INPUTS


@pytest.fixture(name="networks")
def networks_fixture() -> dict[str, Callable[[], nn.Module]]:
    return MODELS


@pytest.fixture(name="engine", params=["sequential", "vmap"])
def engine_fixture(request: pytest.FixtureRequest) -> str:
    return str(request.param)
