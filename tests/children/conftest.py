"""A small problem of three classes, and children on either engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import Children, FusedChildren, Member, Optimisation, SequentialChildren, VmapChildren
from lossalign.children.base import Losses
from lossalign.children.fused import FusedLift
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
ENGINES: dict[str, Callable[..., Children]] = {
    "sequential": SequentialChildren,
    "vmap": VmapChildren,
    "fused": FusedChildren,
}


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
    engine: str | Callable[..., Children],
    model: str | Callable[[], nn.Module] = "mlp",
    seeds: Sequence[int] = (0, 1, 2),
    dtype: torch.dtype = torch.float32,
    streams: list[Batches] | None = None,
    losses: Losses | None = None,
    **optimisation: Any,
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

    settings = {"iterations": 20, "average_decay": 0.8, **optimisation}
    make = ENGINES[engine] if isinstance(engine, str) else engine
    return make([member(seed) for seed in seeds], losses or loss, Optimisation(**settings))


def offsets(children: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A Φ of its own for every child [n, 3]."""
    return torch.linspace(-1, 1, 3, dtype=dtype) * torch.arange(children, dtype=dtype)[:, None]


ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
"""The per-tensor relative norm that is still rounding."""


def _no_stream() -> None:
    raise AssertionError("nobody reads batches here")


def _assert_close(mine: Tensor, other: Tensor, tolerance: float, scale: float, what: str) -> None:
    """Relative to the tensor's own norm, or to ``scale`` if there is nothing but rounding in it."""
    assert mine.dtype == other.dtype, what
    assert mine.shape == other.shape, what
    if not other.is_floating_point():
        assert torch.equal(mine, other), what
        return
    norm = float(other.detach().norm())
    assert float((mine - other).detach().norm()) <= tolerance * (norm if norm > 1e-6 * scale else scale), what


def assert_fused_equals_separate(
    network: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype, vocabulary: int = 0, children: int = 3
) -> None:
    """Three iterations of training on own batches, compared in every tensor; then eval; then split back."""
    tolerance, generator = ROUNDING[dtype], torch.Generator().manual_seed(0)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        plain = [network().to(dtype).train() for _ in range(children)]
    lift = FusedLift([Member(model, seed, _no_stream) for seed, model in enumerate(plain)], torch.device("cpu"))

    def batches(*leading: int) -> Tensor:
        if vocabulary:
            return torch.randint(vocabulary, (*leading, *shape), generator=generator)
        return torch.randn(*leading, *shape, generator=generator, dtype=torch.float64).to(dtype)

    weights = {name: lift.state[name].requires_grad_() for name in lift.trained}
    for _ in range(3):
        inputs = batches(children)
        outputs = lift.train(lift.state, inputs)
        slopes = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(dtype) / outputs[0].numel()
        grads = torch.autograd.grad(outputs, list(weights.values()), slopes, materialize_grads=True)
        size = max(float(grad.norm()) for grad in grads) if grads else 0.0
        for child, model in enumerate(plain):
            expected = model(inputs[child])
            _assert_close(outputs[child], expected, tolerance, 0, f"outputs of child {child}")
            own = {name: p for name, p in model.named_parameters() if p.requires_grad}
            assert list(own) == lift.trained
            theirs = torch.autograd.grad(expected, list(own.values()), slopes[child], materialize_grads=True)
            for name, grad, other in zip(own, grads, theirs, strict=True):
                _assert_close(grad[child], other, tolerance, size, f"gradient of {name}")
            with torch.no_grad():
                for parameter, other in zip(own.values(), theirs, strict=True):
                    parameter -= 0.1 * other
        with torch.no_grad():
            for weight, grad in zip(weights.values(), grads, strict=True):
                weight -= 0.1 * grad
        _assert_same_states(lift, plain, tolerance)
    own_inputs, shared = batches(children), batches()
    with torch.no_grad():
        evaluated = lift.evaluate(lift.state, own_inputs, False), lift.evaluate(lift.state, shared, True)
        for child in range(children):
            split = network().to(dtype).eval()
            split.load_state_dict({name: lift.state[at][child] for name, at in lift.names.items()}, strict=True)
            for mine, inputs in zip(evaluated, (own_inputs[child], shared), strict=True):
                _assert_close(mine[child], plain[child].eval()(inputs), tolerance, 0, f"eval outputs of child {child}")
                _assert_close(mine[child], split(inputs), tolerance, 0, f"eval outputs of split child {child}")
    _assert_same_states(lift, plain, tolerance)


def _assert_same_states(lift: FusedLift, plain: list[nn.Module], tolerance: float) -> None:
    """Weights and buffers, BatchNorm's statistics among them, under the plain models' names."""
    for child, model in enumerate(plain):
        state = model.state_dict()
        assert list(state) == list(lift.names)
        for name, tensor in state.items():
            _assert_close(lift.state[lift.names[name]][child], tensor, tolerance, 0, f"{name} of child {child}")


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


@pytest.fixture(name="engine", params=["sequential", "vmap", "fused"])
def engine_fixture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="assert_fused_equals_separate", scope="session")
def assert_fused_equals_separate_fixture() -> Callable[..., None]:
    return assert_fused_equals_separate
