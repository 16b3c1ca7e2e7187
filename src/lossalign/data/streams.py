"""What feeds one child: normalised, augmented batches that can be resumed bit for bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Transform:
    """What happens to inputs before a model sees them.

    Args:
        mean: subtracted; [C, 1, 1] for images, [F] for tables.
        std: divided by; shaped like ``mean``.
        scale: inputs are multiplied by it first; 1/255 for uint8.
        crop: in training, pad by this many pixels of 0 (the mean) and cut the old size out again at random.
        flip: in training, mirror every other image left to right, at random.
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


def fit_transform(dataset: Dataset, *, crop: int = 0, flip: bool = False, noise: float = 0.0) -> Transform:
    """The transform that gives ``dataset`` mean 0 and deviation 1, per channel of images or per column of tables.

    What does not vary (beyond float32's resolution) keeps deviation 1.

    Args:
        dataset: the training set.
        crop: see :class:`Transform`, as for ``flip`` and ``noise``.
        flip: mirror images in training.
        noise: σ of Gaussian noise in training.

    Example:
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
    inputs, chunks = dataset.inputs, dataset.inputs.split(1024)
    scale = 1 / 255 if inputs.dtype is torch.uint8 else 1.0
    axes = (0, 2, 3) if inputs.ndim == 4 else (0,)
    number = math.prod(inputs.shape[axis] for axis in axes)
    mean = torch.stack([chunk.double().sum(axes, keepdim=True)[0] for chunk in chunks]).sum(0) / number
    spread = torch.stack([(chunk - mean).square().sum(axes, keepdim=True)[0] for chunk in chunks]).sum(0)
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
    _check_images(transform, dataset)
    return transform


def normalise(inputs: Tensor, transform: Transform) -> Tensor:
    """(inputs · scale − mean) / std, float32; what evaluation feeds to a model.

    Example:
        >>> halves = Transform(mean=torch.tensor([0.5]), std=torch.tensor([0.5]), scale=1 / 255)
        >>> normalise(torch.tensor([[0], [255]], dtype=torch.uint8), halves)
        tensor([[-1.],
                [ 1.]])
    """
    mean, std = transform.mean.to(inputs.device), transform.std.to(inputs.device)
    return (inputs.float() * transform.scale - mean) / std


def augment(inputs: Tensor, transform: Transform, generator: torch.Generator) -> Tensor:
    """Random crops, mirror images and noise, for normalised inputs.

    Every draw is made on the CPU, so a seed gives the same batch on every device.

    Args:
        inputs: images [B, C, H, W]; any shape [B, ...] if ``transform`` has neither crop nor flip.
        transform: which of the three, and how much.
        generator: a CPU generator.

    Returns:
        The inputs, changed, in the same shape.
    """
    if transform.crop or transform.flip:
        inputs = _crop_and_flip(inputs, transform, generator)
    if transform.noise:
        noise = torch.randn(inputs.shape, generator=generator).to(inputs.device)
        inputs = inputs.add(noise, alpha=transform.noise)
    return inputs


def _crop_and_flip(images: Tensor, transform: Transform, generator: torch.Generator) -> Tensor:
    """One gather for the whole batch: pixel (i, j) is (i + top, j + left) of the padded image, or its mirror."""
    batch, channels, height, width = images.shape
    pad = transform.crop
    top, left = torch.randint(0, 2 * pad + 1, (2, batch, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    if transform.flip:
        mirrored = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    at = (rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]).view(batch, 1, -1).to(images.device)
    padded = F.pad(images, (pad, pad, pad, pad)).flatten(2)
    return padded.gather(2, at.expand(-1, channels, -1)).view_as(images)


def _check_images(transform: Transform, dataset: Dataset) -> None:
    if (transform.crop or transform.flip) and dataset.inputs.ndim != 4:
        raise InputError(
            f"crop, flip: dataset {dataset.name!r} has inputs of shape {list(dataset.inputs.shape)}, not images "
            "[n, C, H, W]; turn both off."
        )


class BatchStream:
    """Endless training batches, all of one size, reshuffled every epoch.

    An epoch's remainder that does not fill a batch is dropped. Float inputs are normalised once, uint8 images batch
    by batch, as they take a quarter of the memory.

    Args:
        dataset: the training set.
        batch_size: examples in a batch; the whole set if it is smaller.
        transform: normalisation and augmentation.
        generator: a CPU generator that nobody else draws from; its state is part of the stream's.
        device: where the data is kept and batches are made.

    Example:
        >>> data = Dataset(name="x", inputs=torch.eye(5), targets=torch.arange(5) % 2, class_names=("a", "b"))
        >>> stream = BatchStream(data, 2, fit_transform(data, noise=0.1), torch.Generator())
        >>> inputs, targets = stream.next()
        >>> inputs.shape, targets.shape
        (torch.Size([2, 5]), torch.Size([2]))
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        transform: Transform,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: a batch needs at least 1 example.")
        _check_images(transform, dataset)
        self.batch_size = min(batch_size, len(dataset))
        self.transform = replace(transform, mean=transform.mean.to(device), std=transform.std.to(device))
        self.generator = generator
        self._ready = dataset.inputs.is_floating_point()
        inputs = dataset.inputs.to(device)
        self._inputs = normalise(inputs, self.transform) if self._ready else inputs
        self._targets = dataset.targets.to(device)
        self._shuffle()

    def _shuffle(self) -> None:
        order = torch.randperm(len(self._targets), generator=self.generator)
        self._permutation = order.to(self._targets.device)
        self._position = 0

    def next(self) -> tuple[Tensor, Tensor]:
        """The next inputs [batch_size, ...], float32, and targets [batch_size]."""
        if self._position + self.batch_size > len(self._permutation):
            self._shuffle()
        at = self._permutation[self._position : self._position + self.batch_size]
        self._position += self.batch_size
        inputs = self._inputs.index_select(0, at)
        if not self._ready:
            inputs = normalise(inputs, self.transform)
        return augment(inputs, self.transform, self.generator), self._targets.index_select(0, at)

    def state_dict(self) -> dict[str, Tensor]:
        """Where the stream stands: the generator's state, the epoch's order, and the position in it."""
        return {
            "generator": self.generator.get_state(),
            "permutation": self._permutation.cpu().clone(),
            "position": torch.tensor(self._position),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``, which a stream over the same data set gave."""
        if state["permutation"].shape != self._targets.shape:
            raise InputError(
                f"state: it is from a stream over {len(state['permutation'])} examples, this one has "
                f"{len(self._targets)}; load it into a stream over the same data set."
            )
        self.generator.set_state(state["generator"].cpu())
        self._permutation = state["permutation"].to(self._targets.device).clone()
        self._position = int(state["position"])
