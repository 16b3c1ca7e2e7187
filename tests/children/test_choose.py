"""The fastest engine that can compute the children is chosen, says its name, and can be forced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lossalign.children import (
    FusedChildren,
    Member,
    Optimisation,
    SequentialChildren,
    VmapChildren,
    choose_engine,
    make_children,
)
from lossalign.children.choose import SEVERAL, SMALL, SMALL_BATCH, TINY, candidates
from lossalign.children.compiled import CompiledChildren
from lossalign.core import InputError
from lossalign.losses import AlignedLoss

CPU = torch.device("cpu")


class Branching(nn.Sequential):
    """Asks its weights a question, which neither fused nor vmapped children can answer."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits if self[1].weight.sum() < 1e9 else -logits


class BranchingOnInputs(nn.Sequential):
    """Asks its inputs a question."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = super().forward(x)
        return logits if x.sum() < 1e9 else -logits


class Scaled(nn.Module):
    """A weight outside any layer: vmap lifts it, fused children do not know it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.scale = nn.Sequential(*layers), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x) * self.scale
        return logits


class Stream:
    """Batches of four."""

    def __init__(self, shape: tuple[int, ...] = (6,)) -> None:
        self.shape = shape

    def next(self) -> tuple[Tensor, Tensor]:
        return torch.ones(4, *self.shape), torch.tensor([0, 1, 2, 0])


def members(network: Callable[..., nn.Module] = nn.Sequential, count: int = 3) -> list[Member]:
    return [Member(network(nn.Flatten(), nn.Linear(6, 3)), seed, Stream) for seed in range(count)]


def images(network: Callable[[], nn.Module], count: int, size: int = 8) -> list[Member]:
    return [Member(network(), seed, lambda: Stream((1, size, size))) for seed in range(count)]


def made(some: list[Member], **options: Any) -> Any:
    optimisation = Optimisation(iterations=2, precision=options.pop("precision", "float32"))
    return make_children(some, AlignedLoss(3), optimisation, **options)


def test_auto_is_fused_for_several_tiny_networks_and_leaves_them_as_they_were() -> None:
    some = members()
    before = [{name: t.clone() for name, t in member.model.state_dict().items()} for member in some]
    state = torch.get_rng_state()
    children = made(some)
    assert isinstance(children, FusedChildren)
    assert children.engine == "fused, float32"
    assert torch.equal(torch.get_rng_state(), state)
    for member, weights in zip(some, before, strict=True):
        assert all(torch.equal(member.model.state_dict()[name], t) for name, t in weights.items())
        assert member.model.training


def test_what_cannot_be_fused_is_vmapped() -> None:
    children = made(members(Scaled))
    assert isinstance(children, VmapChildren)
    assert children.engine == "vmap, float32 (not fused: the model itself (Scaled) has no fused form)"
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()


def test_what_cannot_be_vmapped_either_trains_one_by_one() -> None:
    children = made(members(Branching))
    assert isinstance(children, SequentialChildren)
    assert children.engine.startswith("sequential, float32 (not fused: RuntimeError: it looks at values (__bool__)")
    assert "; not vmap: RuntimeError" in children.engine
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()


def test_branches_on_inputs_train_one_by_one() -> None:
    children = made(members(BranchingOnInputs))
    assert isinstance(children, SequentialChildren)
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()


class OneByOne(AlignedLoss):
    """Asks its outputs a question, and says so."""

    vectorised = False

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        losses = super().__call__(outputs, targets, phi)
        return losses if outputs.sum() < 1e9 else -losses


def test_a_loss_that_cannot_be_lifted_trains_one_by_one() -> None:
    children = make_children(members(), OneByOne(3), Optimisation(iterations=2), compile="on")
    assert isinstance(children, SequentialChildren)
    reason = "the loss is not vectorised, so children train one after another"
    assert children.engine == f"sequential, float32 (not fused: {reason})"
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()
    alone = make_children(members(count=1), OneByOne(3), Optimisation(iterations=2))
    assert alone.engine == "sequential, float32"


@pytest.mark.parametrize("engine", ["vmap", "fused"])
def test_forcing_an_engine_on_it_is_refused(engine: Any) -> None:
    with pytest.raises(
        InputError, match=f"engine='{engine}': it cannot compute this loss .*not vectorised.*; use auto"
    ):
        make_children(members(), OneByOne(3), Optimisation(iterations=2), engine=engine)


@pytest.mark.parametrize("engine", ["vmap", "fused"])
def test_forcing_it_says_why_not(engine: Any) -> None:
    with pytest.raises(InputError, match=f"engine='{engine}': it cannot compute this model .*; use auto"):
        made(members(Branching), engine=engine)


@pytest.mark.parametrize(
    ("engine", "kind"), [("sequential", SequentialChildren), ("vmap", VmapChildren), ("fused", FusedChildren)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_any_engine_can_be_forced(engine: Any, kind: type, count: int) -> None:
    children = made(members(count=count), engine=engine)
    assert type(children) is kind
    assert children.engine == f"{engine}, float32"


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InputError, match=r"engine='fastest': choose from auto, sequential, vmap, fused"):
        made(members(), engine="fastest")
    with pytest.raises(InputError, match=r"compile='maybe': choose from auto, on, whole, off"):
        made(members(), compile="maybe")


def test_the_choice_is_an_engine_and_reasons() -> None:
    assert choose_engine("auto", members(), "float32", CPU) == ("fused", "")
    assert choose_engine("auto", members(count=1), "float32", CPU) == ("sequential", "")
    assert choose_engine("sequential", members(Branching), "float32", CPU) == ("sequential", "")
    engine, reasons = choose_engine("auto", members(Scaled), "float32", CPU)
    assert (engine, reasons) == ("vmap", "not fused: the model itself (Scaled) has no fused form")


ALL = ("fused", "vmap", "sequential")


def dense(weights: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(weights, 1, bias=False)


def convolving(weights: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(1, 10, 1, bias=False), nn.Linear(weights - 10, 1, bias=False))


PIXELS = int((SMALL_BATCH // 4) ** 0.5)


@pytest.mark.parametrize(
    ("network", "count", "size", "expected"),
    [
        (dense(TINY), 1, 8, ("sequential",)),
        (dense(TINY), 2, 8, ALL),
        (dense(TINY + 1), 2, 8, ("sequential",)),
        (dense(TINY + 1), SEVERAL, 8, ("sequential",)),
        (convolving(TINY), 2, 64, ALL),
        (convolving(SMALL), SEVERAL, PIXELS, ("vmap", "sequential")),
        (convolving(SMALL), SEVERAL, PIXELS + 1, ("sequential",)),
        (convolving(SMALL), SEVERAL - 1, PIXELS, ("sequential",)),
        (convolving(SMALL + 1), SEVERAL, PIXELS, ("sequential",)),
    ],
)
def test_what_pays_on_a_cpu(network: Callable[[], nn.Module], count: int, size: int, expected: tuple[str, ...]) -> None:
    assert candidates(images(network, count, size), CPU) == expected


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("network", [dense(10), dense(SMALL), convolving(SMALL)])
def test_what_pays_on_a_gpu(network: Callable[[], nn.Module], count: int) -> None:
    assert candidates(images(network, count), torch.device("cuda")) == ALL


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize("engine", ["fused", "vmap"])
def test_batchnorm_trains_under_autocast(engine: Any) -> None:
    some = images(normed, 2)
    children, alone = (made(some, precision="bfloat16", engine=kind) for kind in (engine, "sequential"))
    assert children.engine == f"{engine}, bfloat16"
    assert torch.allclose(children.advance(2, torch.zeros(2, 3)), alone.advance(2, torch.zeros(2, 3)), rtol=0.02)


def test_steps_are_compiled_on_a_cpu_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert made(members()).engine == made(members(), compile="off").engine == "fused, float32"
    children = made(members(), compile="on")
    assert isinstance(children, CompiledChildren)
    assert children.engine == "fused, compiled, float32"
    one_by_one = made(members(), compile="on", engine="sequential")
    assert isinstance(one_by_one, SequentialChildren)
    assert one_by_one.engine == "sequential, float32"


class Unsaid(OneByOne):
    """The same, and does not say so."""

    vectorised = True


@pytest.mark.parametrize("engine", ["vmap", "fused"])
def test_a_loss_that_does_not_say_so_is_told_what_to_say(engine: Any) -> None:
    children = make_children(members(), Unsaid(3), Optimisation(iterations=2), engine=engine, compile="off")
    with pytest.raises(InputError, match=r"loss: torch.func.vmap cannot lift it .*; .* or set vectorised = False\."):
        children.advance(2, torch.zeros(3, 3))
