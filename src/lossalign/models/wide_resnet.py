"""Wide ResNet (Zagoruyko & Komodakis 2016, arXiv 1605.07146)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.init import kaiming_
from lossalign.models.registry import MODELS, ModelEntry


class WideBlock(nn.Module):
    """Pre-activation block B(3, 3): conv(dropout(relu(bn(conv(relu(bn(x))))))) + x.

    Where the number of channels changes, a 1×1 convolution of relu(bn(x)) takes the place of x in the sum.
    """

    def __init__(self, before: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.project = nn.Conv2d(before, channels, 1, stride=stride, bias=False) if before != channels else None

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, channels, ⌈H / stride⌉, ⌈W / stride⌉]."""
        active = F.relu(self.norm1(x))
        kept: Tensor = x if self.project is None else self.project(active)
        change: Tensor = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(active)))))
        return change + kept


class WideResNet(nn.Module):
    """WRN-d-k: depth d = 6n + 4, three stages of n blocks with 16k, 32k and 64k channels.

    Args:
        depth: d, number of convolutions, the three 1×1 included: 10, 16, 22, 28, 40 …
        widen: k, how many times wider than a ResNet.
        in_channels: channels of the images.
        num_classes: C.
        dropout: probability of dropping a value between the two convolutions of a block.

    Example:
        >>> sum(p.numel() for p in WideResNet(16, 2).parameters())
        691674
    """

    def __init__(
        self, depth: int, widen: int, *, in_channels: int = 3, num_classes: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise InputError(f"depth={depth}: a wide ResNet has depth 6n + 4; choose 10, 16, 22, 28, 34 or 40.")
        if widen < 1:
            raise InputError(f"widen={widen}: a wide ResNet is at least 1 times as wide; the paper uses 2 to 12.")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}: give a probability in [0, 1); the paper uses 0.3.")
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        blocks, before = [], 16
        for stage, channels in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for position in range((depth - 4) // 6):
                stride = 2 if position == 0 and stage > 0 else 1
                blocks.append(WideBlock(before, channels, stride, dropout))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(before)
        self.linear = nn.Linear(before, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images [B, in_channels, H, W]."""
        features = F.relu(self.norm(self.blocks(self.conv(x))))
        logits: Tensor = self.linear(features.mean((-2, -1)))
        return logits


MODELS.add("wrn-28-10", "wide ResNet: depth 6n + 4, width", ModelEntry(pattern=r"wrn-(\d+)-(\d+)", make=WideResNet))
