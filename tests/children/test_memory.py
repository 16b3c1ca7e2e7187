"""Children that do not fit get an error that says how many would, and whether it is others who take the room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossalign.children import Children, Member
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedLift
from lossalign.children.stacked import StackedChildren
from lossalign.core import InputError

Build = Callable[..., Children]
GB = 2**30


class Memory:
    """A GPU of 10 GB with 1 GB in use, on which one child needs ``need`` more and other programs hold ``others``."""

    def __init__(self, need: float) -> None:
        self.need, self.peak, self.others = int(need * GB), GB, 0

    def fits(self, children: int) -> bool:
        self.peak = max(self.peak, GB + children * self.need)
        return self.peak + self.others <= 10 * GB

    def reset(self, device: Any = None) -> None:
        self.peak = GB


@pytest.fixture(name="memory")
def memory_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Memory]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def of(need: float) -> Memory:
        memory = Memory(need)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: GB)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9 * GB, 10 * GB))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", memory.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory.peak)
        return memory

    return of


def on(memory: Memory) -> Callable[[Sequence[Member], torch.device], FusedLift]:
    """Fused children on that GPU."""

    class Lift(FusedLift):
        def train(self, state: Any, inputs: Tensor) -> Tensor:
            if not memory.fits(len(inputs)):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().train(state, inputs)

    return Lift


ENGINES: list[Callable[..., Children]] = [StackedChildren, CompiledChildren]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("need", "fitting"), [(4.0, 2), (3.5, 2), (8.9, 1)])
def test_the_error_says_how_many_would_fit(
    engine: Callable[..., Children], need: float, fitting: int, build: Build, memory: Callable[[float], Memory]
) -> None:
    lift = on(memory(need))
    children = build(lambda *args: engine(*args, "cpu", lift=lift))
    with pytest.raises(InputError) as error:
        children.advance(2, torch.zeros(3, 3))
    assert str(error.value) == (
        "children: 3 at once (of all methods and seeds) do not fit into 10 GB of GPU memory; "
        f"about {fitting} would fit: train fewer, or use smaller batches."
    )
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


def test_what_would_fit_alone_is_told_so(build: Build, memory: Callable[[float], Memory]) -> None:
    some = memory(2.9)
    some.others = 1 * GB
    lift = on(some)
    children = build(lambda *args: StackedChildren(*args, "cpu", lift=lift))
    with pytest.raises(InputError, match="about 3 would fit in a free GPU: end other processes that use it, train"):
        children.advance(2, torch.zeros(3, 3))


def test_what_fits_trains(build: Build, memory: Callable[[float], Memory]) -> None:
    lift = on(memory(2.0))
    children = build(lambda *args: StackedChildren(*args, "cpu", lift=lift))
    assert children.advance(2, torch.zeros(3, 3)).isfinite().all()


def test_not_even_one_child_fits(build: Build, memory: Callable[[float], Memory]) -> None:
    lift = on(memory(20.0))
    children = build(lambda *args: StackedChildren(*args, "cpu", lift=lift))
    with pytest.raises(InputError, match="not even one fits: use a smaller model, or use smaller batches"):
        children.advance(2, torch.zeros(3, 3))
