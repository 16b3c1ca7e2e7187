"""ResNet for small images (He et al. 2016, arXiv 1512.03385, section 4.2)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.init import kaiming_
from lossalign.models.registry import MODELS, ModelEntry


def shortcut(x: Tensor, channels: int, stride: int) -> Tensor:
    """Option A of the paper: keep every ``stride``-th pixel and fill the new channels with zeros; no parameters.

    Args:
        x: feature maps [B, c, H, W].
        channels: how many channels to return, at least c.
        stride: the step between the pixels that are kept.

    Returns:
        [B, channels, ⌈H / stride⌉, ⌈W / stride⌉].

    Example:
        >>> import torch
        >>> shortcut(torch.ones(1, 2, 4, 4), channels=4, stride=2)[0, :, 0, 0]
        tensor([0., 1., 1., 0.])
    """
    new = channels - x.shape[1]
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, new // 2, new - new // 2))


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, channels, ⌈H / stride⌉, ⌈W / stride⌉]."""
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + shortcut(x, self.channels, self.stride))


class ResNet(nn.Module):
    """ResNet of depth 6n + 2: three stages of n blocks with 16, 32 and 64 channels.

    Args:
        depth: number of weight layers: 8, 20, 32, 44, 56, 110 …
        in_channels: channels of the images.
        num_classes: C.

    Example:
        >>> sum(p.numel() for p in ResNet(20).parameters())
        269722
    """

    def __init__(self, depth: int, *, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise InputError(f"depth={depth}: a ResNet has depth 6n + 2; choose 8, 20, 32, 44, 56 or 110.")
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        blocks, before = [], 16
        for channels in (16, 32, 64):
            for position in range((depth - 2) // 6):
                stride = 2 if position == 0 and channels > 16 else 1
                blocks.append(ResidualBlock(before, channels, stride))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images [B, in_channels, H, W]."""
        features: Tensor = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: Tensor = self.linear(features.mean((-2, -1)))
        return logits


MODELS.add("resnet32", "ResNet for 32×32 images, any depth 6n + 2", ModelEntry(pattern=r"resnet(\d+)", make=ResNet))
