"""A Triton kernel for one pass over a large matrix on a GPU; imported only on a GPU, where torch includes Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def _count_below(values, bounds, counts, columns, stride, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """counts[q] = #{v : values[q, v] < bounds[q]}, one row a program."""
    row = tl.program_id(0).to(tl.int64)
    bound = tl.load(bounds + row)
    found = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(values + row * stride + at, mask=at < columns, other=float("inf"))
        found += (value < bound).to(tl.int32)
    tl.store(counts + row, tl.sum(found))


def count_below(values: Tensor, bounds: Tensor) -> Tensor:
    """How many of each row of ``values`` [Q, V], float32, are below its bound [Q, 1], in one pass.

    Returns:
        Counts [Q], int32.
    """
    assert values.stride(1) == 1
    counts = torch.empty(len(values), dtype=torch.int32, device=values.device)
    with torch.cuda.device_of(values):  # Triton launches on the current GPU, not on that of the tensors
        _count_below[(len(values),)](
            values, bounds.contiguous(), counts, values.shape[1], values.stride(0), BLOCK=_BLOCK, num_warps=8
        )
    return counts
