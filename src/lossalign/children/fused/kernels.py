"""Convolutions of N children with weights of their own, as three Triton kernels, fast enough to be bound by memory.

cuDNN's grouped convolution with 16 to 64 channels a group runs far below the memory's bandwidth (docs/performance.md).
Here each child is a plain implicit matrix product over [B·H·W, taps·C] × [taps·C, O] in channels-last layout, and all
children are one launch. Triton comes with torch's CUDA builds; without it nothing here is imported.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    w,
    y,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BO: tl.constexpr,
):
    """y[b, oh, ow, :] = Σ_{kh, k} x[b, ih, iw, k] w[kh, k, :], for one child and BM pixels.

    ih = SH·oh + kh − PH. With channels last, the KW·C numbers k of one row of taps lie side by side in memory, from
    pixel SW·ow − PW on.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    child = tl.program_id(2).to(tl.int64)
    x += child * (B * H * W * C)
    w += child * (KH * KW * C * CO)
    y += child * (B * OH * OW * CO)
    left = (rows % OW) * SW - PW
    top = ((rows // OW) % OH) * SH - PH
    image = rows // (OW * OH) * H
    inside = rows < B * OH * OW
    blocks: tl.constexpr = (KW * C + BK - 1) // BK
    acc = tl.zeros((BM, BO), dtype=tl.float32)
    for step in range(KH * blocks):
        kh = step // blocks
        k = (step % blocks) * BK + tl.arange(0, BK)
        ih = top + kh
        iw = left[:, None] + (k // C)[None, :]
        ok = (inside & (ih >= 0) & (ih < H))[:, None] & (iw >= 0) & (iw < W) & (k < KW * C)[None, :]
        xs = tl.load(x + (((image + ih) * W + left) * C)[:, None] + k[None, :], mask=ok, other=0.0)
        some = (k < KW * C)[:, None] & (o < CO)[None, :]
        ws = tl.load(w + (kh * KW * C + k)[:, None] * CO + o[None, :], mask=some, other=0.0)
        acc = tl.dot(xs, ws, acc)
    at = rows[:, None] * CO + o[None, :]
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=inside[:, None] & (o < CO)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _weight_product(  # type: ignore[no-untyped-def]
    x,
    dy,
    dw,
    children,
    chunk,
    B: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    CO: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    BO: tl.constexpr,
):
    """dw[split, child, tap·C + c, o] = Σ_pixels x[b, ih, iw, c] dy[b, oh, ow, o], over one split of the pixels."""
    blocks: tl.constexpr = (KH * KW * C + BK - 1) // BK
    k = (tl.program_id(0) % blocks) * BK + tl.arange(0, BK)
    o = (tl.program_id(0) // blocks) * BO + tl.arange(0, BO)
    split = tl.program_id(1)
    child = tl.program_id(2).to(tl.int64)
    x += child * (B * H * W * C)
    dy += child * (B * OH * OW * CO)
    dw += (split * children + child) * (KH * KW * C * CO)
    c = k % C
    kh = (k // C) // KW
    kw = (k // C) % KW
    acc = tl.zeros((BK, BO), dtype=tl.float32)
    last = tl.minimum((split + 1) * chunk, B * OH * OW)
    for start in range(split * chunk, last, BM):
        rows = start + tl.arange(0, BM)
        inside = rows < last
        ow = rows % OW
        oh = (rows // OW) % OH
        b = rows // (OW * OH)
        ih = (oh * SH - PH)[:, None] + kh[None, :]
        iw = (ow * SW - PW)[:, None] + kw[None, :]
        ok = inside[:, None] & (k < KH * KW * C)[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        xs = tl.load(x + ((b[:, None] * H + ih) * W + iw) * C + c[None, :], mask=ok, other=0.0)
        ys = tl.load(dy + rows[:, None] * CO + o[None, :], mask=inside[:, None] & (o < CO)[None, :], other=0.0)
        acc = tl.dot(tl.trans(xs), ys, acc)
    at = k[:, None] * CO + o[None, :]
    tl.store(dw + at, acc, mask=(k < KH * KW * C)[:, None] & (o < CO)[None, :])


def _block(size: int, most: int) -> int:
    return max(16, min(most, int(triton.next_power_of_2(size))))


def product(x: Tensor, taps: Tensor, height: int, width: int, group: int, stride: int, padding: int) -> Tensor:
    """Convolution of N children, without a gradient.

    Args:
        x: [N·B, C, H, W], channels last in memory; zero outside.
        taps: [N, K, K + group − 1, C, group · O], of :func:`grouped`.
        height: of the output.
        width: of the output.
        group: pixels that are computed as one.
        stride: the same in both directions.
        padding: above and to the left.

    Returns:
        [N·B, O, height, width], channels last in memory.
    """
    x = x.permute(0, 2, 3, 1).contiguous()
    (images, h, w, c), (n, kh, kw, _, o) = x.shape, taps.shape
    y = x.new_empty(images, height, width, o // group)
    blocks = 128, _block(kw * c, 64), _block(o, 64)
    pixels = images // n * height * width // group
    grid = (triton.cdiv(pixels, blocks[0]), triton.cdiv(o, blocks[2]), n)
    sizes = (images // n, h, w, c, height, width // group, o, kh, kw, stride, stride * group, padding, padding)
    _product[grid](x, taps, y, *sizes, *blocks, num_warps=4, num_stages=3)
    return y.permute(0, 3, 1, 2)


PROGRAMS = 1056
"""Number of programs that share the pixels of a weight gradient: eight for each of 132 multiprocessors."""

PIXELS = 64
"""Number of pixels that a weight gradient multiplies at once."""


def weight_product(x: Tensor, dy: Tensor, n: int, size: int, group: int, stride: int, padding: int) -> Tensor:
    """Gradient of ``product`` with respect to its taps, in float32.

    Args:
        x: [N·B, C, H, W], channels last in memory.
        dy: [N·B, O, OH, OW], channels last in memory.
        n: N.
        size: K.
        group: pixels that are computed as one.
        stride: the same in both directions.
        padding: above and to the left.

    Returns:
        [N, K, K + group − 1, C, group · O].
    """
    x, dy = x.permute(0, 2, 3, 1).contiguous(), dy.permute(0, 2, 3, 1).contiguous()
    (images, h, w, c), (_, oh, ow, o) = x.shape, dy.shape
    wide = size + group - 1
    rows, pixels = size * wide * c, images // n * oh * ow // group
    block_k, block_o = _block(rows, 128 if rows % 128 == 0 else 64), _block(group * o, 64)
    blocks = triton.cdiv(rows, block_k) * triton.cdiv(group * o, block_o)
    chunk, splits = _splits(pixels, n * blocks)
    dw = torch.empty(splits, n, size, wide, c, group * o, device=x.device)
    sizes = (images // n, h, w, c, oh, ow // group, group * o, size, wide, stride, stride * group, padding, padding)
    _weight_product[(blocks, splits, n)](
        x, dy, dw, n, chunk, *sizes, PIXELS, block_k, block_o, num_warps=4, num_stages=3
    )
    return dw.sum(0)


def _splits(pixels: int, programs: int) -> tuple[int, int]:
    """Pixels of one split, whole blocks of them, and how many splits."""
    wanted = max(1, min(-(-PROGRAMS // programs), -(-pixels // PIXELS)))
    chunk = -(-pixels // (wanted * PIXELS)) * PIXELS
    return chunk, -(-pixels // chunk)


def grouped(taps: Tensor, group: int) -> Tensor:
    """Taps [N, K, K, C, O] that give ``group`` neighbouring pixels at once: [N, K, K + group − 1, C, group · O].

    A row of taps then reads K + group − 1 pixels for ``group`` outputs, instead of K for each.
    """
    if group == 1:
        return taps.contiguous()
    moved = [F.pad(taps, (0, 0, 0, 0, at, group - 1 - at)) for at in range(group)]
    return torch.stack(moved, -2).flatten(-2)


def _group(channels: int, size: int, width: int, stride: int) -> int:
    """How many neighbouring pixels are computed as one: two, where channels are few."""
    return 2 if stride == 1 and width % 2 == 0 and channels <= 32 and size > 1 else 1


def conv(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution of N children.

    Args:
        x: [N·B, C, H, W], channels last in memory.
        w: [N, O, C, K, K].
        stride: the same in both directions.
        padding: the same on all sides.

    Returns:
        [N·B, O, OH, OW], channels last in memory.
    """
    channels, size, width = max(w.shape[1:3]), w.shape[3], _side(x.shape[3], w.shape[3], stride, padding)
    taps = w.detach().permute(0, 3, 4, 2, 1)
    ahead = grouped(taps, _group(channels, size, width, stride))
    back = grouped(taps.flip(1, 2).transpose(3, 4), _group(channels, size, x.shape[3], 1))
    y: Tensor = _conv(x, w, ahead, back, stride, padding)
    return y


def _side(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


@torch.library.custom_op("lossalign::conv", mutates_args=())
def _conv(x: Tensor, w: Tensor, ahead: Tensor, back: Tensor, stride: int, padding: int) -> Tensor:
    """``conv`` by the taps ``ahead``, grouped from w; ``back``, from w turned and transposed, are for its gradient."""
    height, width = (_side(x.shape[axis], w.shape[3], stride, padding) for axis in (2, 3))
    y: Tensor = product(x, ahead, height, width, ahead.shape[4] // w.shape[1], stride, padding)
    return y


@_conv.register_fake
def _(x: Tensor, w: Tensor, ahead: Tensor, back: Tensor, stride: int, padding: int) -> Tensor:
    height, width = (_side(x.shape[axis], w.shape[3], stride, padding) for axis in (2, 3))
    return x.new_empty(x.shape[0], height, width, w.shape[1]).permute(0, 3, 1, 2)


@torch.library.custom_op("lossalign::conv_gradients", mutates_args=())
def _conv_gradients(
    x: Tensor, dy: Tensor, back: Tensor, size: int, ahead: int, stride: int, padding: int, inner: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of ``conv`` with respect to x (empty unless ``inner``) and to the taps ``ahead``; one op, so that a
    compiler stores dy once."""
    n, group = len(back), back.shape[4] // x.shape[1]
    dx = x.new_empty(0)
    if inner:
        dx = product(_spread(dy, stride), back, x.shape[2], x.shape[3], group, 1, size - 1 - padding)
    return dx, weight_product(x, dy, n, size, ahead, stride, padding)


@_conv_gradients.register_fake
def _(
    x: Tensor, dy: Tensor, back: Tensor, size: int, ahead: int, stride: int, padding: int, inner: bool
) -> tuple[Tensor, Tensor]:
    images, c, height, width = x.shape
    dx = x.new_empty(images, height, width, c).permute(0, 3, 1, 2) if inner else x.new_empty(0)
    taps = (len(back), size, size + ahead - 1, c, ahead * dy.shape[1])
    return dx, x.new_empty(taps, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ahead, back, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, back)
    ctx.size, ctx.dtype, ctx.ahead = w.shape[3], w.dtype, ahead.shape[4] // w.shape[1]


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, back = ctx.saved_tensors
    dy, inner = dy.contiguous(memory_format=torch.channels_last), ctx.needs_input_grad[0]
    dx, taps = _conv_gradients(x, dy, back, ctx.size, ctx.ahead, ctx.stride, ctx.padding, inner)
    taps = taps.unflatten(-1, (ctx.ahead, -1))
    each = [taps[:, :, at : at + ctx.size, :, at] for at in range(ctx.ahead)]
    dw = torch.stack(each).sum(0).permute(0, 4, 3, 1, 2).to(ctx.dtype)
    return dx if inner else None, dw, None, None, None, None


def _spread(dy: Tensor, stride: int) -> Tensor:
    """dy [N·B, O, H, W] with stride − 1 zeros between pixels: the gradient as if the stride were 1."""
    if stride == 1:
        return dy
    images, o, h, w = dy.shape
    wide = dy.new_zeros(images, h, stride, w, stride, o)
    wide[:, :, 0, :, 0] = dy.permute(0, 2, 3, 1)
    return wide.view(images, h * stride, w * stride, o).permute(0, 3, 1, 2)


_conv.register_autograd(_backward, setup_context=_setup)
