"""The Triton kernels, run by Triton's interpreter on the CPU, against torch's convolution in float64.

Triton must be told to interpret before it is imported, so the work is done by this file as a script of its own.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.children.fused import fuse
from lossalign.children.fused.layers import FusedConv

SHAPES = {
    "3×3": (2, 3, 8, 8, 16, 16, 3, 1, 1),
    "images": (2, 2, 8, 8, 3, 16, 3, 1, 1),
    "oblong, channels not a power of two": (2, 2, 5, 9, 20, 12, 3, 1, 1),
    "stride 2, even": (2, 3, 8, 6, 16, 32, 3, 2, 1),
    "stride 2, odd": (2, 2, 7, 5, 24, 10, 3, 2, 1),
    "stride 3, a rest": (1, 2, 9, 8, 5, 4, 3, 3, 0),
    "1×1, more than 64 out": (3, 2, 5, 5, 20, 70, 1, 1, 0),
    "1×1, stride 2": (2, 2, 7, 6, 16, 16, 1, 2, 0),
    "5×5, little padding": (2, 2, 9, 8, 6, 8, 5, 1, 1),
    "5×5, stride 2": (2, 2, 8, 9, 6, 8, 5, 2, 2),
    "more than 64 in, one channel out": (2, 2, 6, 6, 80, 1, 3, 1, 1),
    "more padding than kernel": (2, 2, 4, 4, 3, 5, 1, 1, 1),
    "many pixels": (1, 4, 20, 20, 4, 4, 3, 1, 1),
    "one child, one image": (1, 1, 4, 4, 1, 1, 3, 1, 1),
}
"""Children, batch, height, width, channels in and out, kernel, stride, padding."""
WHAT = ("outputs", "input gradient", "weight gradient")


def main() -> None:
    """Relative errors of every shape, as JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(json.dumps({name: errors_of(*shape) for name, shape in SHAPES.items()} | {"layer": [error_of_a_layer()]}))


def errors_of(n: int, b: int, h: int, w: int, c: int, o: int, k: int, stride: int, padding: int) -> list[float]:
    """Of outputs, input gradient and weight gradient."""
    from lossalign.children.fused.kernels import conv

    x, weight = torch.randn(n, b, h, w, c, requires_grad=True), torch.randn(n, k, k, c, o, requires_grad=True)
    last = x.flatten(0, 1).permute(0, 3, 1, 2)
    y = conv(last, weight.permute(0, 4, 3, 1, 2), stride, padding).permute(0, 2, 3, 1).unflatten(0, (n, b))
    images = x.double().permute(0, 1, 4, 2, 3).contiguous()
    filters = weight.double().permute(0, 4, 3, 1, 2).contiguous()
    each = [F.conv2d(images[i], filters[i], stride=stride, padding=padding) for i in range(n)]
    expected = torch.stack(each).permute(0, 1, 3, 4, 2)
    assert y.shape == expected.shape
    slopes = torch.randn_like(y)
    mine = (y, *torch.autograd.grad(y, (x, weight), slopes))
    others = (expected, *torch.autograd.grad(expected, (x, weight), slopes.double()))
    return [relative(one, other) for one, other in zip(mine, others, strict=True)]


def error_of_a_layer() -> float:
    """Of a fused layer in float16, and of its copy, which computes by our kernel too."""
    plain = [nn.Conv2d(3, 8, 3, stride=2, padding=1) for _ in range(2)]
    layer = fuse(plain).half()
    assert isinstance(layer, FusedConv)
    layer.use_own_kernel()
    again = copy.deepcopy(layer)
    assert again.kernel is layer.kernel is not None
    x = torch.randn(6, 3, 7, 5)
    expected = torch.cat([one(some) for one, some in zip(plain, x.chunk(2), strict=True)])
    return max(relative(layer(x.half()), expected), relative(again(x.half()), expected))


def relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().norm() / other.detach().norm())


@pytest.fixture(scope="module")
def errors() -> dict[str, list[float]]:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    told = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("shape", SHAPES)
def test_our_kernels_are_torchs_convolution(shape: str, what: str, errors: dict[str, list[float]]) -> None:
    assert errors[shape][WHAT.index(what)] < 2e-6


def test_a_layer_and_its_copy_compute_by_our_kernel(errors: dict[str, list[float]]) -> None:
    assert errors["layer"][0] < 2e-3


@pytest.mark.parametrize(
    ("layer", "served"),
    [
        (nn.Conv2d(16, 32, 3, stride=2, padding=1), True),
        (nn.Conv2d(16, 32, 1, bias=False), True),
        (nn.Conv2d(16, 32, (3, 1)), False),
        (nn.Conv2d(16, 32, 3, stride=(2, 1)), False),
        (nn.Conv2d(16, 32, 3, padding=(1, 0)), False),
        (nn.Conv2d(16, 32, 3, padding="same"), False),
        (nn.Conv2d(16, 32, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv2d(16, 32, 3, dilation=2), False),
        (nn.Conv2d(16, 32, 3, groups=2), False),
        (nn.Conv2d(16, 129, 3), False),
        (nn.Conv1d(16, 32, 3), False),
    ],
    ids=str,
)
def test_it_serves_only_what_it_can(layer: nn.Module, served: bool) -> None:
    joint = fuse([layer, layer])
    assert isinstance(joint, FusedConv)
    if importlib.util.find_spec("triton") is None:
        served = False
    joint.use_own_kernel()
    assert (joint.kernel is not None) == served


def test_one_child_is_left_to_torch() -> None:
    alone = fuse([nn.Conv2d(16, 32, 3)])
    assert isinstance(alone, FusedConv)
    alone.use_own_kernel()
    assert alone.kernel is None


if __name__ == "__main__":
    main()
