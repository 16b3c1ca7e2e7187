"""Layers that compute N children at once. Activations carry the children in the batch: [N·B, …], child after child.

Operations that treat samples one by one (activations, pooling, padding, adding, concatenating channels, reshaping)
need no change; only layers with weights, batch statistics or random numbers are here. Weights and buffers keep their
names and gain a first axis: [N, …].
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import scaled_cosine

Stack = Callable[[Sequence[nn.Module], str], Tensor | None]
"""(the N layers, name of a parameter or buffer) → the stacked one."""


def per_child(x: Tensor, n: int) -> Tensor:
    """[N·B, …] → [N, B, …]."""
    return x.view(n, -1, *x.shape[1:])


def channelwise(values: Tensor, x: Tensor) -> Tensor:
    """Values [N, C], reshaped to broadcast over x [N, B, C, …]."""
    return values.view(values.shape[0], 1, values.shape[1], *[1] * (x.ndim - 3))


class Stacked(nn.Module):
    """Parameters and buffers of N layers, stacked under their own names, and the first layer's settings."""

    def __init__(self, layers: Sequence[nn.Module], stack: Stack) -> None:
        super().__init__()
        self.n = len(layers)
        self.settings: dict[str, Any] = {k: v for k, v in vars(layers[0]).items() if k[0] != "_" or "padding" in k}
        for name in layers[0]._parameters:
            self.register_parameter(name, stack(layers, name))  # type: ignore[arg-type]
        for name in layers[0]._buffers:
            self.register_buffer(name, stack(layers, name))

    def extra_repr(self) -> str:
        """The number of children."""
        return f"children={self.n}"


class FusedLinear(Stacked):
    """``nn.Linear``: one batched matrix product."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, …, in] → [N·B, …, out]."""
        flat, weight = x.reshape(self.n, -1, x.shape[-1]), self.weight.transpose(1, 2)
        y = torch.bmm(flat, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], flat, weight)
        return y.view(*x.shape[:-1], -1)


class FusedCosineLinear(Stacked):
    """``CosineLinear``: one batched matrix product of directions."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, …, in] → [N·B, …, out]."""
        y = scaled_cosine(x.reshape(self.n, -1, x.shape[-1]), self.weight, self.settings["scale"])
        return y.view(*x.shape[:-1], -1)


class FusedConv(Stacked):
    """``nn.Conv1d``, ``2d`` and ``3d``: one grouped convolution, or our own kernel where that is faster."""

    weight: Tensor
    bias: Tensor | None
    kernel: Callable[[Tensor, Tensor, int, int], Tensor] | None = None
    """``kernels.conv``, where it can be used."""

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, C, …] → [N·B, O, …]."""
        weight, settings = self.weight, self.settings
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        if self.kernel is not None and x.dtype in (torch.float16, torch.bfloat16):
            x = x.contiguous(memory_format=torch.channels_last)
            y = self.kernel(x, weight, settings["stride"][0], settings["padding"][0])
        else:
            y = grouped_conv(x, weight, settings)
        if self.bias is None:
            return y
        y = per_child(y, self.n)
        return (y + channelwise(self.bias.to(y.dtype), y)).flatten(0, 1)

    def use_own_kernel(self) -> None:
        """On a GPU: compute by ``kernels.conv``, if it can and if it is faster."""
        if importlib.util.find_spec("triton") is not None and self._own_kernel_serves():
            from lossalign.children.fused import kernels

            self.kernel = kernels.conv

    def _own_kernel_serves(self) -> bool:
        size, like = self.weight.shape, self.settings
        alike = all(len(set(like[name])) == 1 for name in ("stride", "padding", "dilation", "kernel_size"))
        plain = like["groups"] == 1 and like["dilation"][0] == 1 and like["padding_mode"] == "zeros"
        return size[0] > 1 and len(size) == 5 and alike and plain and max(size[1:3]) <= OWN_CHANNELS


OWN_CHANNELS = 128
"""Channels up to which a child's convolution is bound by memory, and our kernel is faster (docs/performance.md)."""


def grouped_conv(x: Tensor, weight: Tensor, settings: dict[str, Any]) -> Tensor:
    """[N·B, C, …] and [N, O, C/g, …] → [N·B, O, …], by one convolution with N·g groups."""
    n, padding = len(weight), settings["padding"]
    if settings["padding_mode"] != "zeros":
        x, padding = F.pad(x, settings["_reversed_padding_repeated_twice"], mode=settings["padding_mode"]), 0
    convolve: Callable[..., Tensor] = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    groups = n * settings["groups"]
    together = _to_channels(x, n)
    if x.is_cuda and x.ndim == 4:
        together = together.contiguous(memory_format=torch.channels_last)
    y = convolve(together, weight.flatten(0, 1), None, settings["stride"], padding, settings["dilation"], groups)
    return _to_batch(y, n)


def _to_channels(x: Tensor, n: int) -> Tensor:
    """[N·B, C, …] → [B, N·C, …], channels last in memory."""
    return per_child(x, n).movedim((0, 2), (-2, -1)).flatten(-2).movedim(-1, 1)


def _to_batch(x: Tensor, n: int) -> Tensor:
    """[B, N·C, …] → [N·B, C, …], channels last in memory."""
    children = x.view(x.shape[0], n, -1, *x.shape[2:])
    return children.movedim((1, 2), (0, -1)).flatten(0, 1).movedim(-1, 1)


class FusedBatchNorm(Stacked):
    """``nn.BatchNorm1d``, ``2d`` and ``3d``: statistics of every child's own samples."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, C, …], normalised."""
        y = per_child(x, self.n)
        y = y.float() if y.dtype in (torch.float16, torch.bfloat16) else y
        if self.training or self.running_mean is None or self.running_var is None:
            axes = [axis for axis in range(1, y.ndim) if axis != 2]
            variance, mean = torch.var_mean(y, axes, correction=0)
            samples = y.numel() // mean.numel()
            if samples < 2:
                raise ValueError(f"BatchNorm needs more than 1 value of a channel, got inputs {tuple(y.shape[1:])}")
            if self.training:
                self._track(mean, variance, samples)
        else:
            mean, variance = self.running_mean, self.running_var
        scale = (variance + self.settings["eps"]).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        y = (y - channelwise(mean, y)) * channelwise(scale, y)
        y = y if self.bias is None else y + channelwise(self.bias, y)
        return y.flatten(0, 1).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, samples: int) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = self.settings["momentum"]
        rate = self.num_batches_tracked.to(mean.dtype).reciprocal()[:, None] if momentum is None else momentum
        unbiased = variance.detach() * (samples / (samples - 1))
        self.running_mean.copy_(self.running_mean + rate * (mean.detach() - self.running_mean))
        self.running_var.copy_(self.running_var + rate * (unbiased - self.running_var))


class FusedGroupNorm(Stacked):
    """``nn.GroupNorm``, with weights of every child's own."""

    weight: Tensor | None
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, C, …], normalised."""
        y = per_child(F.group_norm(x, self.settings["num_groups"], eps=self.settings["eps"]), self.n)
        y = y if self.weight is None else y * channelwise(self.weight, y)
        y = y if self.bias is None else y + channelwise(self.bias, y)
        return y.flatten(0, 1)


class FusedLayerNorm(Stacked):
    """``nn.LayerNorm``, with weights of every child's own."""

    weight: Tensor | None
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, …, *shape], normalised."""
        shape = self.settings["normalized_shape"]
        y = per_child(F.layer_norm(x, shape, eps=self.settings["eps"]), self.n)
        view = (self.n, *[1] * (y.ndim - 1 - len(shape)), *shape)
        y = y if self.weight is None else y * self.weight.view(view)
        y = y if self.bias is None else y + self.bias.view(view)
        return y.flatten(0, 1)


class FusedEmbedding(Stacked):
    """``nn.Embedding``: one table, each child with rows of its own."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, …] → [N·B, …, D]."""
        size = self.weight.shape[1]
        first = torch.arange(self.n, device=x.device).view(-1, *[1] * x.ndim) * size
        rows = (per_child(x, self.n) + first).flatten(0, 1)
        rows = torch.where((x >= 0) & (x < size), rows, self.n * size)  # out of range: not a neighbour's row
        by_frequency = self.settings["scale_grad_by_freq"]
        y = F.embedding(rows, self.weight.flatten(0, 1), scale_grad_by_freq=by_frequency)
        fixed = self.settings["padding_idx"]
        return y if fixed is None else torch.where((x == fixed)[..., None], y.detach(), y)


class FusedPReLU(Stacked):
    """``nn.PReLU`` with slopes of every child's own."""

    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, C, …]."""
        y = per_child(x, self.n)
        slope = self.weight.view(self.n, *[1] * (y.ndim - 1)) if y.ndim < 3 else channelwise(self.weight, y)
        return torch.where(y > 0, y, slope.to(y.dtype) * y).flatten(0, 1)


def mixed(x: Tensor) -> Tensor:
    """A hash of whole numbers: splitmix64's finaliser."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def uniform(seeds: Tensor, clock: Tensor, layer: int, numbers: int) -> Tensor:
    """Numbers in [0, 1) that depend only on a child's seed, the iteration, the layer and the position.

    Args:
        seeds: one for each child [N].
        clock: the iteration, a whole number on the device.
        layer: number of the layer.
        numbers: how many to draw for each child.

    Returns:
        [N, numbers].

    Example:
        >>> seeds, clock = torch.tensor([7, 8, 7]), torch.tensor(3)
        >>> drawn = uniform(seeds, clock, 0, 4)
        >>> torch.equal(drawn[0], drawn[2]), torch.equal(drawn[0], drawn[1])
        (True, False)
    """
    stream = mixed(mixed(seeds + 0x632BE59BD9B4E019) + clock * 0x9E3779B97F4A7C + layer)
    at = torch.arange(numbers, device=seeds.device) * 0x1E3779B97F4A7C15
    return (mixed(stream[:, None] + at) & 0xFFFFFF) * (1.0 / 2**24)


class FusedDropout(nn.Module):
    """``nn.Dropout``, and ``1d`` to ``3d``, which drop whole channels: every child draws from a stream of its own.

    A layer that is used several times in one forward pass draws another mask each time.

    Args:
        layer: the layer.
        n: number of children.
        number: which of the model's dropout layers it is.
        whole: whether whole channels are dropped.
    """

    def __init__(self, layer: nn.Module, n: int, number: int, whole: bool) -> None:
        super().__init__()
        self.p, self.n, self.number, self.whole = float(layer.p), n, number, whole  # type: ignore[arg-type]
        self.uses = 0
        self.seeds: Tensor
        self.clock: Tensor
        self.register_buffer("seeds", torch.arange(n), persistent=False)
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N·B, …], with elements or channels set to zero in training."""
        if not self.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.ndim - 2)) if self.whole else tuple(x.shape)
        drawn = uniform(self.seeds, self.clock, self.number + (self.uses << 16), math.prod(shape) // self.n)
        self.uses += 1
        kept = (drawn >= self.p).view(shape)
        return torch.where(kept, x / (1 - self.p), torch.zeros_like(x)) if self.p < 1 else torch.zeros_like(x)
