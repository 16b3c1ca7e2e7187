"""Networks that train in seconds: a small convolutional network and a multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.init import kaiming_
from lossalign.models.registry import MODELS, ModelEntry


class SmallCNN(nn.Module):
    """Blocks of relu(bn(conv3×3)), each after the first at half the resolution, then global average pooling.

    Args:
        in_channels: channels of the images, which may have any size from 8×8 up.
        num_classes: C.
        widths: channels of each block.

    Example:
        >>> sum(p.numel() for p in SmallCNN(in_channels=1).parameters())
        94186
    """

    def __init__(self, *, in_channels: int = 3, num_classes: int = 10, widths: Sequence[int] = (32, 64, 128)) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise InputError(f"widths={tuple(widths)}: give a positive number of channels for at least one block.")
        sizes = list(pairwise((in_channels, *widths)))
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=1 if block == 0 else 2, padding=1, bias=False)
            for block, (before, after) in enumerate(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.linear = nn.Linear(widths[-1], num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of images [B, in_channels, H, W]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        logits: Tensor = self.linear(x.mean((-2, -1)))
        return logits


class MLP(nn.Module):
    """Linear layers with ReLU between them, on the flattened input.

    Args:
        inputs: number of values in one input, over all its axes.
        hidden: sizes of the hidden layers; with none, the model is linear.
        num_classes: C.

    Example:
        >>> MLP(64, hidden=(16,), num_classes=10)
        MLP(
          (layers): ModuleList(
            (0): Linear(in_features=64, out_features=16, bias=True)
            (1): Linear(in_features=16, out_features=10, bias=True)
          )
        )
    """

    def __init__(self, inputs: int, *, hidden: Sequence[int] = (64, 64), num_classes: int = 10) -> None:
        super().__init__()
        if min(inputs, *hidden, num_classes) < 1:
            raise InputError(
                f"inputs={inputs}, hidden={tuple(hidden)}, num_classes={num_classes}: every layer needs at least one "
                "unit."
            )
        sizes = (inputs, *hidden, num_classes)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, C] of inputs [B, …]."""
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        logits: Tensor = self.layers[-1](x)
        return logits


MODELS.add("small-cnn", "three convolutions, for small images", ModelEntry(pattern="small-cnn", make=SmallCNN))


def _mlp(*hidden: int, input_shape: tuple[int, ...], num_classes: int) -> MLP:
    sizes = {"hidden": hidden} if hidden else {}
    return MLP(math.prod(input_shape), num_classes=num_classes, **sizes)


MODELS.add(
    "mlp-64-32",
    "fully connected: sizes of the hidden layers; `mlp` alone has its default sizes",
    ModelEntry(pattern=r"mlp((?:-\d+)*)", make=_mlp, images=False),
)
