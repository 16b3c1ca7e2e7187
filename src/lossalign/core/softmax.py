"""The logarithm of the softmax, fast for few classes too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor

_LANES = 16
"""Numbers in a vector register. On a CPU, torch's own is ten times slower over a last axis that is shorter."""
_SMALL = 4096
"""Below this number of logits, torch's own is faster. Logits of one child do not tell how many children there are."""


def log_softmax(logits: Tensor) -> Tensor:
    """log softmax over the last axis [..., C]: torch's, but with the classes first in memory where they are few.

    Rows are filled up to whole registers: the numbers left over would be rounded differently. Gradients have the memory
    layout of torch's, so that what is computed from them is rounded alike.

    Example:
        >>> logits = torch.randn(100, 10)
        >>> torch.equal(log_softmax(logits), torch.log_softmax(logits, -1))
        True
    """
    few = logits.shape[-1] < _LANES and logits.dtype is torch.float32 and logits.device.type == "cpu"
    if not few or torch.compiler.is_compiling() or (logits.numel() < _SMALL and not is_batchedtensor(logits)):
        return torch.log_softmax(logits, -1)
    rows = logits.reshape(-1, logits.shape[-1])
    filled = F.pad(torch.stack(rows.unbind(-1)), (0, -len(rows) % _LANES))
    return torch.log_softmax(filled, 0).t()[: len(rows)].reshape(logits.shape).contiguous()
