"""Networks for embeddings of images, and a wrapper that normalises any network's outputs to length 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lossalign.core import InputError
from lossalign.models.init import kaiming_
from lossalign.models.registry import ENDINGS, MODELS, ModelEntry


def unit_length(x: Tensor) -> Tensor:
    """x / ‖x‖ over the last axis, at least in float32, also under autocast; zeros stay zeros.

    Example:
        >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    with torch.autocast(x.device.type, enabled=False):
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


class UnitOutput(nn.Module):
    """A network whose outputs are normalised to length 1: embeddings on the unit sphere.

    Args:
        network: maps inputs to [B, D].
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [B, D] of length 1."""
        return unit_length(self.network(x))


class EmbeddingCNN(nn.Module):
    """Four blocks of maxpool2(relu(bn(conv3×3))), then global average pooling and a linear layer.

    The network of few-shot learning on Omniglot (Vinyals et al. 2016, arXiv 1606.04080; Snell et al. 2017, arXiv
    1703.05175). A side of 1 pixel is not pooled further, so images may have any size.

    Args:
        in_channels: channels of the images.
        num_classes: D, the number of outputs.
        width: channels of every block.

    Example:
        >>> sum(p.numel() for p in EmbeddingCNN(in_channels=1).parameters())
        115840
    """

    def __init__(self, *, in_channels: int = 1, num_classes: int = 64, width: int = 64) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(before, width, 3, padding=1, bias=False) for before in (in_channels, width, width, width)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in self.convs)
        self.linear = nn.Linear(width, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, D] of images [B, in_channels, H, W]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
            if min(x.shape[-2:]) > 1:
                x = F.max_pool2d(x, 2)
        outputs: Tensor = self.linear(x.mean((-2, -1)))
        return outputs


def _conv_norm(before: int, after: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(after)]


class TrunkBlock(nn.Module):
    """relu(x + bn(conv(… relu(bn(conv(x)))))); where the size changes, bn(conv1×1(x)) takes the place of x.

    Args:
        before: input channels.
        widths: channels of the convolutions: two for a basic block, three for a bottleneck.
        kernels: their sizes.
        stride: of the first 3×3 convolution.
    """

    def __init__(self, before: int, widths: Sequence[int], kernels: Sequence[int], stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width, step = before, kernels.index(3)
        for position, (after, kernel) in enumerate(zip(widths, kernels, strict=True)):
            layers += [nn.ReLU()] if layers else []
            layers += _conv_norm(width, after, kernel, stride if position == step else 1)
            width = after
        self.change = nn.Sequential(*layers)
        changes = before != width or stride > 1
        self.project = nn.Sequential(*_conv_norm(before, width, 1, stride)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps [B, widths[-1], ⌈H / stride⌉, ⌈W / stride⌉]."""
        kept: Tensor = x if self.project is None else self.project(x)
        return F.relu(kept + self.change(x))


_UNITS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_SMALL = 64


class ResNetTrunk(nn.Module):
    """ResNet for photographs (He et al. 2016, arXiv 1512.03385, table 1), with a linear layer to the outputs.

    For images of at most 64×64 pixels, a 3×3 convolution replaces the 7×7 convolution of stride 2 and the pooling after
    it. In bottlenecks the 3×3 convolution has the stride.

    Args:
        depth: 18, of basic blocks, or 50, of bottlenecks.
        input_shape: (channels, height, width) of an image.
        num_classes: D, the number of outputs.
        width: channels of the first stage; each later stage has twice as many.

    Example:
        >>> sum(p.numel() for p in ResNetTrunk(18, num_classes=1000).parameters())
        11689512
    """

    def __init__(
        self, depth: int, *, input_shape: Sequence[int] = (3, 224, 224), num_classes: int = 64, width: int = 64
    ) -> None:
        super().__init__()
        if depth not in _UNITS:
            raise InputError(f"depth={depth}: a ResNet trunk has depth 18 or 50.")
        channels, *sides = input_shape
        if max(sides) <= _SMALL:
            stem = [*_conv_norm(channels, width, 3), nn.ReLU()]
        else:
            stem = [*_conv_norm(channels, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        blocks, before = [], width
        for stage, units in enumerate(_UNITS[depth]):
            inner = width * 2**stage
            widths, kernels = ([inner] * 2, [3, 3]) if depth == 18 else ([inner, inner, 4 * inner], [1, 3, 1])
            for position in range(units):
                blocks.append(TrunkBlock(before, widths, kernels, stride=2 if position == 0 and stage > 0 else 1))
                before = widths[-1]
        self.stem, self.blocks = nn.Sequential(*stem), nn.Sequential(*blocks)
        self.linear = nn.Linear(before, num_classes)
        kaiming_(self)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, D] of images [B, channels, H, W]."""
        features: Tensor = self.blocks(self.stem(x))
        outputs: Tensor = self.linear(features.mean((-2, -1)))
        return outputs


MODELS.add("embedding-cnn", "four convolutions, for embeddings", ModelEntry(pattern="embedding-cnn", make=EmbeddingCNN))
MODELS.add(
    "resnet18-trunk",
    "ResNet-18 or -50 as for ImageNet, for embeddings",
    ModelEntry(pattern=r"resnet(\d+)-trunk", make=ResNetTrunk),
)
ENDINGS.add("+unit", "outputs normalised to length 1", lambda name, model, outputs: UnitOutput(model))
