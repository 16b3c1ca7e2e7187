"""Convolutions of N children with weights of their own, as three Triton kernels: memory-bound, as they should be.

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


@torch.library.custom_op("lossalign::product", mutates_args=())
def product(x: Tensor, taps: Tensor, height: int, width: int, stride: list[int], padding: list[int]) -> Tensor:
    """Convolution of N children, channels last, without a gradient.

    Args:
        x: [N, B, H, W, C], contiguous; zero outside.
        taps: [N, KH, KW, C, O], contiguous.
        height: of the output.
        width: of the output.
        stride: downwards and to the right.
        padding: above and to the left.

    Returns:
        [N, B, height, width, O].
    """
    n, b, h, w, c = x.shape
    _, kh, kw, _, o = taps.shape
    y = x.new_empty(n, b, height, width, o)
    blocks = 128, _block(kw * c, 64), _block(o, 64)
    grid = (triton.cdiv(b * height * width, blocks[0]), triton.cdiv(o, blocks[2]), n)
    sizes = (b, h, w, c, height, width, o, kh, kw, *stride, *padding)
    _product[grid](x, taps, y, *sizes, *blocks, num_warps=4, num_stages=3)
    return y


@product.register_fake
def _(x: Tensor, taps: Tensor, height: int, width: int, stride: list[int], padding: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], height, width, taps.shape[4])


def _group(taps: Tensor, width: int, stride: int) -> int:
    """How many neighbouring pixels are computed as one: two, where channels are few."""
    return 2 if stride == 1 and width % 2 == 0 and max(taps.shape[3:]) <= 32 and taps.shape[2] > 1 else 1


def grouped(taps: Tensor, group: int) -> Tensor:
    """Taps [N, KH, KW, C, O] that give ``group`` neighbouring pixels at once: [N, KH, KW + group − 1, C, group · O].

    A row of taps then reads KW + group − 1 pixels for ``group`` outputs, instead of KW for each.
    """
    if group == 1:
        return taps.contiguous()
    moved = [F.pad(taps, (0, 0, 0, 0, at, group - 1 - at)) for at in range(group)]
    return torch.stack(moved, -2).flatten(-2)


def conv(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Convolution of N children, channels last.

    Args:
        x: [N, B, H, W, C], contiguous.
        w: [N, K, K, C, O].
        stride: the same in both directions.
        padding: the same on all sides.

    Returns:
        [N, B, OH, OW, O].
    """
    width = (x.shape[3] + 2 * padding - w.shape[2]) // stride + 1
    turned = w.detach().flip(1, 2).transpose(3, 4)
    ahead = grouped(w.detach(), _group(w, width, stride))
    y: Tensor = _conv(x, w, ahead, grouped(turned, _group(turned, x.shape[3], 1)), stride, padding)
    return y


@torch.library.custom_op("lossalign::conv", mutates_args=())
def _conv(x: Tensor, w: Tensor, ahead: Tensor, back: Tensor, stride: int, padding: int) -> Tensor:
    """``conv`` by the taps ``ahead``, grouped from w; ``back``, from w turned and transposed, are for its gradient."""
    return _multiplied(x, ahead, *_sides(x, w, stride, padding), w.shape[4], stride, padding)


@_conv.register_fake
def _(x: Tensor, w: Tensor, ahead: Tensor, back: Tensor, stride: int, padding: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *_sides(x, w, stride, padding), w.shape[4])


def _sides(x: Tensor, w: Tensor, stride: int, padding: int) -> tuple[int, int]:
    height, width = ((x.shape[axis] + 2 * padding - w.shape[1]) // stride + 1 for axis in (2, 3))
    return height, width


def _multiplied(x: Tensor, taps: Tensor, height: int, width: int, o: int, stride: int, padding: int) -> Tensor:
    """[N, B, height, width, o], by taps that were grouped."""
    group = taps.shape[4] // o
    y: Tensor = product(x, taps, height, width // group, [stride, stride * group], [padding, padding])
    return y.view(*x.shape[:2], height, width, o)


PROGRAMS = 1056
"""About so many programs share the pixels of a weight gradient: eight for each of 132 multiprocessors."""


@torch.library.custom_op("lossalign::weight_product", mutates_args=())
def weight_product(x: Tensor, dy: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    """Gradient of ``product`` with respect to its taps, in float32, in parts that are still to be summed.

    Args:
        x: [N, B, H, W, C], contiguous.
        dy: [N, B, OH, OW, O], contiguous.
        kernel: KH and KW.
        stride: downwards and to the right.
        padding: above and to the left.

    Returns:
        [S, N, KH, KW, C, O].
    """
    n, b, h, w, c = x.shape
    oh, ow, o = dy.shape[2:]
    block_k, block_o, blocks, chunk, splits = _parts(x, dy, kernel)
    dw = torch.empty(splits, n, *kernel, c, o, device=x.device)
    sizes = (b, h, w, c, oh, ow, o, *kernel, *stride, *padding)
    _weight_product[(blocks, splits, n)](
        x, dy, dw, n, chunk, *sizes, PIXELS, block_k, block_o, num_warps=4, num_stages=3
    )
    return dw


@weight_product.register_fake
def _(x: Tensor, dy: Tensor, kernel: list[int], stride: list[int], padding: list[int]) -> Tensor:
    splits = _parts(x, dy, kernel)[-1]
    return x.new_empty(splits, x.shape[0], *kernel, x.shape[4], dy.shape[4], dtype=torch.float32)


PIXELS = 64
"""Pixels that a weight gradient multiplies at once."""


def _parts(x: Tensor, dy: Tensor, kernel: list[int]) -> tuple[int, int, int, int, int]:
    """How a weight gradient is shared out: sizes of a block, blocks, pixels of one split, and splits."""
    rows, o, pixels = kernel[0] * kernel[1] * x.shape[4], dy.shape[4], dy.shape[1] * dy.shape[2] * dy.shape[3]
    block_k, block_o = _block(rows, 128 if rows % 128 == 0 else 64), _block(o, 64)
    blocks = triton.cdiv(rows, block_k) * triton.cdiv(o, block_o)
    wanted = max(1, min(-(-PROGRAMS // (len(x) * blocks)), -(-pixels // PIXELS)))
    chunk = -(-pixels // (wanted * PIXELS)) * PIXELS
    return block_k, block_o, blocks, chunk, -(-pixels // chunk)


def _weight_gradient(x: Tensor, dy: Tensor, size: int, stride: int, padding: int, group: int) -> Tensor:
    """Gradient of ``conv`` with respect to w [N, size, size, C, O]: that of the grouped taps, put together again."""
    n, b, height, width, o = dy.shape
    pairs = dy.view(n, b, height, width // group, group * o)
    parts = weight_product(x, pairs, [size, size + group - 1], [stride, stride * group], [padding, padding])
    taps = parts.sum(0).unflatten(-1, (group, o))
    return torch.stack([taps[:, :, at : at + size, :, at] for at in range(group)]).sum(0)


def _spread(dy: Tensor, stride: int) -> Tensor:
    """dy [N, B, H, W, O] with stride − 1 zeros between pixels: what stride 1 would have given back."""
    if stride == 1:
        return dy
    n, b, h, w, o = dy.shape
    wide = dy.new_zeros(n, b, h, stride, w, stride, o)
    wide[:, :, :, 0, :, 0] = dy
    return wide.view(n, b, h * stride, w * stride, o)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, ahead, back, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, back)
    ctx.kernel, ctx.dtype, ctx.group = w.shape[1], w.dtype, ahead.shape[4] // w.shape[4]


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, back = ctx.saved_tensors
    dy, size = dy.contiguous(), ctx.kernel
    dx = dw = None
    if ctx.needs_input_grad[0]:
        height, width, channels = x.shape[2:]
        dx = _multiplied(_spread(dy, ctx.stride), back, height, width, channels, 1, size - 1 - ctx.padding)
    if ctx.needs_input_grad[1]:
        dw = _weight_gradient(x, dy, size, ctx.stride, ctx.padding, ctx.group).to(ctx.dtype)
    return dx, dw, None, None, None, None


_conv.register_autograd(_backward, setup_context=_setup)
