"""DenseNet-BC for small images (Huang et al. 2017, arXiv 1608.06993)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.init import kaiming_
from lossalign.models.registry import MODELS, ModelEntry


class DenseLayer(nn.Module):
    """[x, conv3×3(relu(bn(conv1×1(relu(bn(x))))))]: k channels are appended, through a bottleneck of 4k."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, before + growth, H, W]."""
        narrow = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(narrow)))], 1)


class Transition(nn.Module):
    """avgpool2(conv1×1(relu(bn(x)))): half the height and width, ``after`` channels."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, after, ⌊H / 2⌋, ⌊W / 2⌋]."""
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """DenseNet-BC of depth L = 6n + 4: three blocks of n layers, compressed between them.

    Args:
        depth: L, number of weight layers: 40, 100, 190, 250 …
        growth: k, the channels each layer adds.
        in_channels: channels of the images.
        num_classes: C.
        compression: θ, the fraction of the channels kept between two blocks.

    Example:
        >>> sum(p.numel() for p in DenseNet(100, 12).parameters())
        769162
    """

    def __init__(
        self, depth: int, growth: int, *, in_channels: int = 3, num_classes: int = 10, compression: float = 0.5
    ) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise InputError(f"depth={depth}: a DenseNet-BC has depth 6n + 4; choose 40, 100, 190 or 250.")
        if growth < 1:
            raise InputError(f"growth={growth}: each layer adds at least 1 channel; the paper uses 12 to 40.")
        if not 0 < compression <= 1:
            raise InputError(f"compression={compression}: give a share in (0, 1]; the paper uses 0.5.")
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)]
        for block in range(3):
            for _ in range((depth - 4) // 6):
                layers.append(DenseLayer(channels, growth))
                channels += growth
            if block < 2:
                kept = int(channels * compression)
                layers.append(Transition(channels, kept))
                channels = kept
        self.layers = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images [B, in_channels, H, W]."""
        features = F.relu(self.norm(self.layers(x)))
        logits: Tensor = self.linear(features.mean((-2, -1)))
        return logits


MODELS.add("densenet-100-12", "DenseNet: depth, growth", ModelEntry(pattern=r"densenet-(\d+)-(\d+)", make=DenseNet))
