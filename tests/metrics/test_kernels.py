"""Our counting kernel counts as torch does: interpreted on the CPU, and for real where there is a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from lossalign.metrics import recall_at_k

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

INTERPRETED = """
import torch
from lossalign.metrics.kernels import count_below
g = torch.Generator().manual_seed(0)
for rows, columns in [(1, 1), (3, 100), (5, 4096), (2, 9000)]:
    values = torch.randn(rows, columns + 7, generator=g).round(decimals=1)[:, :columns]
    bounds = values[:, columns // 2 :][:, :1].clone()
    values[-1, 0] = torch.nan
    assert torch.equal(count_below(values, bounds).long(), (values < bounds).sum(-1)), (rows, columns)
    assert not count_below(values, torch.full_like(bounds, -torch.inf)).any()
    assert not count_below(values, torch.full_like(bounds, torch.nan)).any()
"""


@needs_triton
def test_counts_as_torch_does_with_ties_nan_and_rows_apart() -> None:
    told = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_recall_on_a_gpu_is_that_of_the_cpu() -> None:
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 900, (5000,), generator=g)
    embeddings = torch.randn(900, 16, generator=g)[labels] + 0.9 * torch.randn(5000, 16, generator=g)
    mine = recall_at_k(embeddings.cuda(), labels.cuda(), (1, 10, 100)).cpu()
    torch.testing.assert_close(mine, recall_at_k(embeddings, labels, (1, 10, 100)), atol=1e-3, rtol=0)
