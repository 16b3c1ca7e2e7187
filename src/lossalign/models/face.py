"""The networks of SphereFace (Liu et al. 2017, arXiv 1704.08063), for embeddings of faces."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.registry import MODELS, ModelEntry

_UNITS = {20: (1, 2, 4, 1), 64: (3, 8, 16, 3)}


class FaceUnit(nn.Module):
    """x + prelu(conv3×3(prelu(conv3×3(x)))), without BatchNorm, so initial weights must be small."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        convs = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)]
        for conv in convs:
            nn.init.normal_(conv.weight, std=0.01)
        self.change = nn.Sequential(convs[0], nn.PReLU(channels), convs[1], nn.PReLU(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, channels, H, W]."""
        change: Tensor = self.change(x)
        return x + change


class FaceResNet(nn.Module):
    """Four stages of prelu(conv3×3) with stride 2 and residual units, then a linear layer.

    Weights start as in the authors' network: N(0, 0.01²) in the residual units, uniform with variance 1 / fan_in
    elsewhere, biases 0.

    Args:
        depth: number of convolutions, 20 or 64.
        input_shape: (channels, height, width) of an image; the paper's are 112×96.
        num_classes: D, the number of outputs.
        width: channels of the first stage; each later stage has twice as many.

    Example:
        >>> sum(p.numel() for p in FaceResNet(20).parameters())
        22666944
    """

    def __init__(
        self, depth: int, *, input_shape: Sequence[int] = (3, 112, 96), num_classes: int = 512, width: int = 64
    ) -> None:
        super().__init__()
        if depth not in _UNITS:
            raise InputError(f"depth={depth}: a face network has depth 20 or 64.")
        before, *sides = input_shape
        layers: list[nn.Module] = []
        for stage, units in enumerate(_UNITS[depth]):
            channels = width * 2**stage
            layers += [_uniform_(nn.Conv2d(before, channels, 3, stride=2, padding=1)), nn.PReLU(channels)]
            layers += [FaceUnit(channels) for _ in range(units)]
            before = channels
        self.layers = nn.Sequential(*layers)
        self.linear = _uniform_(nn.Linear(before * math.prod(math.ceil(side / 16) for side in sides), num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, D] of images [B, channels, height, width]."""
        outputs: Tensor = self.linear(self.layers(x).flatten(1))
        return outputs


def _uniform_(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


MODELS.add("face20", "SphereFace network of 20 or 64 layers", ModelEntry(pattern=r"face(\d+)", make=FaceResNet))
