"""Normalisation and augmentation of inputs: random decisions are drawn on the CPU and applied on the data's device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Examples

_CHUNK = 1024


@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """Normalisation and augmentation of inputs.

    Args:
        mean: subtracted; [C, 1, 1] for images, [F] for tables.
        std: divides inputs; shaped like ``mean``.
        scale: multiplies inputs first; 1/255 for uint8.
        crop: in training, pad by this many pixels of 0 (the mean) and take a random crop of the original size.
        flip: in training, mirror images left to right with probability ½.
        noise: in training, σ of Gaussian noise, in units of ``std``.
    """

    mean: Tensor
    std: Tensor
    scale: float = 1.0
    crop: int = 0
    flip: bool = False
    noise: float = 0.0

    def __post_init__(self) -> None:
        if not bool((self.std > 0).all()):
            raise InputError("std: every value must be positive; use 1 for inputs that do not vary.")
        if self.crop < 0 or self.noise < 0:
            raise InputError(f"crop={self.crop}, noise={self.noise}: neither can be negative; 0 turns them off.")


def fit_transform(dataset: Examples, *, crop: int = 0, flip: bool = False, noise: float = 0.0) -> Transform:
    """The transform that gives ``dataset`` mean 0 and deviation 1, per channel of images or per column of tables.

    A channel or column that does not vary (beyond the resolution of float32) is not scaled.

    Args:
        dataset: the training set.
        crop: see :class:`Transform`, as for ``flip`` and ``noise``.
        flip: mirror images in training.
        noise: σ of Gaussian noise in training.

    Example:
        >>> from lossalign.data import Dataset
        >>> data = Dataset(
        ...     name="x",
        ...     inputs=torch.tensor([[1.0, 5.0], [3.0, 5.0]]),
        ...     targets=torch.tensor([0, 1]),
        ...     class_names=("a", "b"),
        ... )
        >>> normalise(data.inputs, fit_transform(data))
        tensor([[-1.,  0.],
                [ 1.,  0.]])
    """
    scale = 1 / 255 if dataset.dtype is torch.uint8 else 1.0
    axes = (0, 2, 3) if len(dataset.input_shape) == 3 else (0,)
    number = math.prod((len(dataset), *dataset.input_shape)[axis] for axis in axes)
    sums = [chunk.double().sum(axes, keepdim=True)[0] for chunk in dataset.chunks(_CHUNK)]
    mean = torch.stack(sums).sum(0) / number
    squares = [(chunk - mean).square().sum(axes, keepdim=True)[0] for chunk in dataset.chunks(_CHUNK)]
    spread = torch.stack(squares).sum(0)
    std = (spread / number).sqrt() * scale
    mean = mean * scale
    transform = Transform(
        mean=mean.float(),
        std=torch.where(std > 1e-6 * mean.abs(), std, torch.ones_like(std)).float(),
        scale=scale,
        crop=crop,
        flip=flip,
        noise=noise,
    )
    check_images(transform, dataset)
    return transform


def normalise(inputs: Tensor, transform: Transform) -> Tensor:
    """(inputs · scale − mean) / std in float32, the input of a model in evaluation.

    Example:
        >>> halves = Transform(mean=torch.tensor([0.5]), std=torch.tensor([0.5]), scale=1 / 255)
        >>> normalise(torch.tensor([[0], [255]], dtype=torch.uint8), halves)
        tensor([[-1.],
                [ 1.]])
    """
    mean, std = transform.mean.to(inputs.device), transform.std.to(inputs.device)
    return inputs.float().mul(transform.scale).sub_(mean).div_(std)


class Decision(NamedTuple):
    """One of the random decisions about a batch: its size, its type, and how it is drawn in place."""

    size: tuple[int, ...]
    dtype: torch.dtype
    draw: Callable[[Tensor, torch.Generator], Tensor]


def decisions(transform: Transform, batch_size: int, input_shape: tuple[int, ...]) -> dict[str, Decision]:
    """The decisions drawn for every batch, in this order; only those that ``transform`` uses.

    ``corner`` [2, B]: where crops begin, top and left, in the padded images; ``side`` [B]: uniform, an image below ½
    is mirrored; ``noise`` [B, ...]: standard normal.

    Example:
        >>> plain = Transform(mean=torch.zeros(1), std=torch.ones(1), crop=4)
        >>> {name: decision.size for name, decision in decisions(plain, 128, (3, 32, 32)).items()}
        {'corner': (2, 128)}
    """
    corners = 2 * transform.crop + 1
    drawn = {}
    if transform.crop or transform.flip:
        drawn["corner"] = Decision((2, batch_size), torch.int64, lambda out, g: out.random_(0, corners, generator=g))
    if transform.flip:
        drawn["side"] = Decision((batch_size,), torch.float32, lambda out, g: out.uniform_(generator=g))
    if transform.noise:
        drawn["noise"] = Decision((batch_size, *input_shape), torch.float32, lambda out, g: out.normal_(generator=g))
    return drawn


def apply(inputs: Tensor, transform: Transform, decided: dict[str, Tensor]) -> Tensor:
    """Normalised inputs, augmented: a pure function of the decisions.

    Args:
        inputs: images [..., B, C, H, W]; any shape [..., B, ...] if ``transform`` has neither crop nor flip.
        transform: gives the padding and the noise.
        decided: the decisions by name, with the leading axes of ``inputs``, on the same device.
    """
    if "corner" in decided:
        inputs = _crop(inputs, transform.crop, decided["corner"], decided.get("side"))
    return inputs.add(decided["noise"], alpha=transform.noise) if "noise" in decided else inputs


def _crop(images: Tensor, pad: int, corner: Tensor, side: Tensor | None) -> Tensor:
    """One gather for all images: pixel (i, j) is (i + top, j + left) of the padded image, or its mirror image's."""
    height, width = images.shape[-2:]
    top, left = corner.unbind(-2)
    rows = top[..., None] + torch.arange(height, device=images.device)
    columns = left[..., None] + torch.arange(width, device=images.device)
    if side is not None:
        columns = torch.where((side < 0.5)[..., None], columns.flip(-1), columns)
    at = (rows * (width + 2 * pad))[..., :, None] + columns[..., None, :]
    at = at.flatten(-2)[..., None, :].expand(*images.shape[:-2], -1)
    return F.pad(images, (pad, pad, pad, pad)).flatten(-2).gather(-1, at).view_as(images)


def augment(inputs: Tensor, transform: Transform, generator: torch.Generator) -> Tensor:
    """Random crops, mirror images and noise, for normalised inputs.

    Every draw is made on the CPU, so a seed gives the same batch on every device.

    Args:
        inputs: images [B, C, H, W]; any shape [B, ...] if ``transform`` has neither crop nor flip.
        transform: says which of the three, and how strong.
        generator: a CPU generator.

    Returns:
        The augmented inputs, in the same shape.
    """
    decided = {}
    for name, decision in decisions(transform, len(inputs), tuple(inputs.shape[1:])).items():
        decided[name] = decision.draw(torch.empty(decision.size, dtype=decision.dtype), generator).to(inputs.device)
    return apply(inputs, transform, decided)


def check_images(transform: Transform, dataset: Examples) -> None:
    """Raise ``InputError`` for crops and mirror images of inputs that are not images."""
    if (transform.crop or transform.flip) and len(dataset.input_shape) != 3:
        raise InputError(
            f"crop, flip: dataset {dataset.name!r} has inputs of shape {[len(dataset), *dataset.input_shape]}, not "
            "images [n, C, H, W]; turn both off."
        )
