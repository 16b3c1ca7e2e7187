"""Layer by layer, fused children compute what separate models compute: outputs, gradients, statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from lossalign.children import Member
from lossalign.children.fused import FusedLift, why_not_fused

Check = Callable[..., None]
Factory = Callable[[], nn.Module]
DTYPES = [torch.float64, torch.float32]


def no_stream() -> None:
    raise AssertionError("nobody reads batches here")


LAYERS: dict[str, tuple[Factory, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (4, 5)),
    "linear on sequences": (lambda: nn.Linear(5, 3), (4, 6, 5)),
    "linear on grids": (lambda: nn.Linear(5, 3), (4, 2, 3, 5)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (3, 4, 11)),
    "conv1d same": (lambda: nn.Conv1d(2, 3, 4, padding="same"), (3, 2, 7)),
    "conv1d circular": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"), (3, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(3, 5, 3, stride=2, padding=1), (3, 3, 7, 6)),
    "conv2d 1×1": (lambda: nn.Conv2d(3, 5, 1, bias=False), (3, 3, 4, 5)),
    "conv2d oblong": (lambda: nn.Conv2d(2, 3, (3, 1), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), (3, 2, 7, 6)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, (2, 3), padding="same", dilation=2), (3, 2, 7, 6)),
    "conv2d valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (3, 2, 7, 6)),
    "conv2d reflected": (lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"), (3, 2, 7, 6)),
    "conv2d same replicated": (lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="replicate"), (3, 2, 7, 6)),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), (3, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 2, (1, 2, 3), stride=(1, 2, 1), padding=1, groups=2), (2, 4, 3, 4, 5)),
    "batch norm of rows": (lambda: nn.BatchNorm1d(5), (6, 5)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(5, momentum=0.3), (6, 5, 7)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(3, eps=1e-2), (6, 3, 4, 4)),
    "batch norm 3d": (lambda: nn.BatchNorm3d(3), (6, 3, 2, 2, 4)),
    "batch norm, cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (6, 3, 4, 4)),
    "batch norm, not affine": (lambda: nn.BatchNorm2d(3, affine=False), (6, 3, 4, 4)),
    "batch norm, not tracked": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (6, 3, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5, 5)),
    "group norm of rows": (lambda: nn.GroupNorm(2, 8), (3, 8)),
    "group norm, not affine": (lambda: nn.GroupNorm(2, 4, affine=False), (3, 4, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (3, 4, 5)),
    "layer norm of rows": (lambda: nn.LayerNorm(5, bias=False), (3, 5)),
    "layer norm over axes": (lambda: nn.LayerNorm((3, 4)), (5, 2, 3, 4)),
    "layer norm, not affine": (lambda: nn.LayerNorm(5, elementwise_affine=False), (3, 4, 5)),
    "instance norm": (lambda: nn.InstanceNorm2d(3), (4, 3, 5, 5)),
    "prelu": (lambda: nn.PReLU(), (4, 5)),
    "prelu with channels": (lambda: nn.PReLU(3), (4, 3, 5)),
    "max pooling": (lambda: nn.MaxPool2d(3, 2, 1), (4, 3, 7, 7)),
    "average pooling": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (4, 3, 7, 7)),
    "adaptive pooling": (lambda: nn.AdaptiveAvgPool2d(2), (4, 3, 7, 7)),
    "adaptive max pooling": (lambda: nn.AdaptiveMaxPool1d(2), (4, 3, 7)),
    "dropout of nothing": (lambda: nn.Dropout(0.0), (4, 5)),
}


def distinct(network: nn.Module) -> nn.Module:
    """Weights and statistics that differ between children: norms start equal, which would hide a mix-up."""
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor += 0.3 * torch.rand_like(tensor)
    return network


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer(layer: str, dtype: torch.dtype, assert_fused_equals_separate: Check) -> None:
    factory, shape = LAYERS[layer]

    def network() -> nn.Module:
        """Weights before and behind the layer too: gradients go through it, and activations are not random inputs."""
        before = nn.PReLU() if len(shape) == 2 else nn.PReLU(shape[1])
        return distinct(nn.Sequential(before, factory(), nn.PReLU()))

    assert_fused_equals_separate(network, shape, dtype)
    assert why_not_fused([network(), network()], torch.randn(8, *shape[1:])) is None


def test_the_model_may_be_one_layer(assert_fused_equals_separate: Check) -> None:
    assert_fused_equals_separate(lambda: nn.Linear(5, 3), (4, 5), torch.float64)


@pytest.mark.parametrize("children", [1, 2, 5])
def test_any_number_of_children(children: int, assert_fused_equals_separate: Check) -> None:
    def network() -> nn.Module:
        return distinct(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2)))

    assert_fused_equals_separate(network, (4, 2, 5, 5), torch.float64, children=children)


EMBEDDINGS: dict[str, Factory] = {
    "plain": lambda: nn.Embedding(7, 3),
    "padded": lambda: nn.Embedding(7, 3, padding_idx=2),
    "padded from the end": lambda: nn.Embedding(7, 3, padding_idx=-1),
    "by frequency": lambda: nn.Embedding(7, 3, padding_idx=0, scale_grad_by_freq=True),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_an_embedding(kind: str, dtype: torch.dtype, assert_fused_equals_separate: Check) -> None:
    def network() -> nn.Module:
        return distinct(nn.Sequential(EMBEDDINGS[kind](), nn.Linear(3, 2)))

    assert_fused_equals_separate(network, (4, 6), dtype, vocabulary=7)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_no_child_reads_a_row_of_its_neighbours_table(wrong: int) -> None:
    some = [Member(nn.Embedding(7, 3), seed, no_stream) for seed in range(3)]
    lift = FusedLift(some, torch.device("cpu"))
    with pytest.raises(IndexError):
        lift.train(lift.state, torch.full((3, 2), wrong))


def test_a_single_value_of_a_channel_is_refused_as_by_batch_norm() -> None:
    some = [Member(nn.BatchNorm1d(3), seed, no_stream) for seed in range(2)]
    lift = FusedLift(some, torch.device("cpu"))
    with pytest.raises(ValueError, match="more than 1 value"):
        lift.train(lift.state, torch.ones(2, 1, 3))


def test_prelu_has_torchs_slope_at_zero(assert_fused_equals_separate: Check) -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.PReLU(), nn.Linear(3, 2))

    assert_fused_equals_separate(network, (6, 3), torch.float64)
    lift = FusedLift([Member(nn.PReLU(), seed, no_stream) for seed in range(2)], torch.device("cpu"))
    zeros = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(lift.train(lift.state, zeros).sum(), zeros)
    torch.testing.assert_close(slope, torch.full_like(slope, 0.25))


@settings(max_examples=25)
@given(
    axes=st.integers(1, 3),
    size=st.integers(1, 6),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 3),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 3),
    bias=st.booleans(),
    mode=st.sampled_from(["zeros", "replicate", "circular"]),
)
def test_convolutions_of_any_shape(
    axes: int,
    size: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    bias: bool,
    mode: str,
    assert_fused_equals_separate: Check,
) -> None:
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    assume(mode != "circular" or padding <= size)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]

    def network() -> nn.Module:
        return kind(groups, 2 * groups, kernel, stride, padding, dilation, groups, bias, mode)

    assert_fused_equals_separate(network, (2, groups, *[size] * axes), torch.float64, children=2)
