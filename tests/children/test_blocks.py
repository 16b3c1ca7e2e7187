"""Repeated blocks are found in any network, compiled once for each shape, and train the same numbers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lossalign.children import Children
from lossalign.children.compiled import CompiledChildren
from lossalign.children.fused import FusedLift
from lossalign.children.fused.blocks import compile_blocks, repeated_blocks, uncompile
from lossalign.losses import Narrowed
from lossalign.losses.registry import LossSettings, make_loss
from lossalign.models import MLP, DenseNet, ResNet, SmallCNN, WideResNet

Build = Callable[..., Children]
real_compile = torch.compile


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Blocks are traced and differentiated ahead of time as on a GPU; no machine code is made of them."""
    monkeypatch.setattr(torch, "compile", lambda *a, **k: real_compile(*a, **{"backend": "aot_eager", **k}))
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Stage(nn.Sequential):
    """A container of a class of its own."""


class Twin(nn.Module):
    """Two equal stages of three equal blocks: the six blocks save more than the two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(*(Block() for _ in range(3))) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for stage in self.stages:
            x = stage(x)
        return x[:, :3]


class Block(nn.Module):
    """A block with one layer."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).relu()


def test_the_blocks_of_known_networks() -> None:
    assert len(repeated_blocks(ResNet(20))) == 9
    assert len(repeated_blocks(WideResNet(28, 2))) == 12
    assert [type(block) for block in repeated_blocks(Twin())] == [Block] * 6


@pytest.mark.parametrize(
    "network", [MLP(64), SmallCNN(in_channels=1), ResNet(8), DenseNet(22, 12)], ids=lambda n: type(n).__name__
)
def test_networks_without_equal_blocks_are_compiled_as_a_whole(network: nn.Module) -> None:
    assert repeated_blocks(network) == []
    assert compile_blocks(network) == []


def test_blocks_of_other_shapes_or_settings_are_not_equal() -> None:
    assert repeated_blocks(nn.Sequential(*(Block(size) for size in (3, 4, 5, 6)))) == []
    blocks = [Block() for _ in range(4)]
    for number, block in enumerate(blocks):
        block.number = number
    assert repeated_blocks(nn.Sequential(*blocks)) == []


def test_a_block_whose_forward_is_its_own_is_left_alone() -> None:
    network = nn.Sequential(*(Block() for _ in range(4)))
    for block in network:
        block.forward = torch.relu
    assert repeated_blocks(network) == []


def test_compiling_can_be_undone() -> None:
    network = Twin()
    modules = compile_blocks(network)
    assert len(modules) == 6
    assert all("forward" in vars(module) for module in modules)
    uncompile(modules)
    assert not any("forward" in vars(module) for module in network.modules())


@pytest.mark.parametrize("model", [Twin, "resnet20"])
def test_children_compiled_by_blocks_train_and_are_judged_alike(
    build: Build, model: Any, offsets: Callable[..., Tensor], inputs: Tensor
) -> None:
    network = (lambda: ResNet(20, in_channels=1, num_classes=3)) if model == "resnet20" else model
    compiled = build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift), network, dtype=torch.float64)
    eager = build("fused", network, dtype=torch.float64)
    for phi in (offsets(3), -offsets(3)):
        torch.testing.assert_close(compiled.advance(3, phi), eager.advance(3, phi), rtol=1e-6, atol=1e-6)
    given = [inputs] * 3
    mine, theirs = (some.outputs(given, "averaged") for some in (compiled, eager))
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert isinstance(compiled, CompiledChildren)
    assert compiled._by_blocks


def test_a_network_may_be_compiled_as_a_whole(build: Build, inputs: Tensor, offsets: Callable[..., Tensor]) -> None:
    whole = build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift, whole=True), Twin)
    eager = build("fused", Twin)
    torch.testing.assert_close(whole.advance(2, offsets(3)), eager.advance(2, offsets(3)))
    given = [inputs.float()] * 3
    torch.testing.assert_close(whole.outputs(given, "averaged"), eager.outputs(given, "averaged"))
    assert isinstance(whole, CompiledChildren)
    assert not whole._by_blocks
    assert whole._lift._compiled == []


def test_a_deeper_network_has_no_more_graphs(build: Build, offsets: Callable[..., Tensor]) -> None:
    def graphs(depth: int) -> int:
        torch._dynamo.reset()
        counters.clear()
        network = lambda: ResNet(depth, in_channels=1, num_classes=3)  # noqa: E731
        build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift), network).advance(1, offsets(3))
        return int(counters["stats"]["unique_graphs"])

    assert graphs(20) == graphs(32)


def test_what_was_evaluated_first_is_still_compared_with_the_eager_iteration(
    build: Build, inputs: Tensor, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(function: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            result = function(*args)
            return 1.5 * result if isinstance(result, Tensor) else result

        return call

    compiled = build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift), Twin)
    monkeypatch.setattr(torch, "compile", wrong)
    compiled.outputs([inputs.float()] * 3, "averaged")
    with pytest.warns(UserWarning, match="training is not compiled .*its losses differ from the eager iteration's"):
        losses = compiled.advance(1, offsets(3))
    torch.testing.assert_close(losses, build("fused", Twin).advance(1, offsets(3)))


@pytest.mark.slow
def test_a_second_start_says_how_much_was_cached(
    build: Build, offsets: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no compiler")
    monkeypatch.setattr(torch, "compile", real_compile)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    said: list[str] = []
    for _ in range(2):
        torch._dynamo.reset()
        build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift, say=said.append), Twin).advance(
            1, offsets(3)
        )
    first, second = (line for line in said if line.startswith("compiled in"))
    assert "from the cache" not in first
    assert re.search(r"compiled in \d+ s, (\d+) of \1 graphs from the cache", second)


def test_children_of_several_losses_are_compiled_without_a_warning(
    build: Build, offsets: Callable[..., Tensor], recwarn: pytest.WarningsRecorder
) -> None:
    counts = torch.full((3,), 10)
    losses = [make_loss(name, LossSettings(counts=counts)) for name in ("aligned", "class-correlation", "pairwise")]
    widest = max(loss.spec.size for loss in losses)
    given = [Narrowed(loss) for loss in losses]
    phi = torch.stack([F.pad(loss.spec.initial, (0, widest - loss.spec.size)) for loss in losses])
    compiled = build(lambda *args: CompiledChildren(*args, "cpu", lift=FusedLift), Twin, losses=given)
    eager = build("fused", Twin, losses=given)
    torch.testing.assert_close(compiled.advance(3, phi), eager.advance(3, phi), rtol=1e-5, atol=1e-6)
    assert not [str(warning.message) for warning in recwarn if "compiled" in str(warning.message)]
    assert not [str(warning.message) for warning in recwarn if "Dynamo" in str(warning.message)]
