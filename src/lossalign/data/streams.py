"""Training batches of one stream, or of many at once; streams can be resumed bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Dataset, Examples
from lossalign.data.orders import Order, PerClass, Shuffled
from lossalign.data.transforms import Transform, apply, check_images, decisions, normalise

_CACHED = 2**18
"""Values of batches that are made at once on a CPU; many more exceed its caches, which is three times slower."""


class Draws:
    """All random decisions of one stream, on the CPU: the examples, and their augmentation.

    Args:
        dataset: the training set.
        batch_size: see :class:`BatchStream`.
        transform: the augmentation, which is drawn too.
        generator: a CPU generator used by nothing else; its state is part of the stream's.
        per_class: see :class:`BatchStream`.
    """

    def __init__(
        self,
        dataset: Examples,
        batch_size: int,
        transform: Transform,
        generator: torch.Generator,
        per_class: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size}: a batch needs at least 1 example.")
        check_images(transform, dataset)
        self._order: Order = (
            Shuffled(len(dataset), batch_size, generator)
            if per_class is None
            else PerClass(dataset.targets, batch_size, per_class, generator)
        )
        self.batch_size, self.generator = self._order.batch_size, generator
        self.decisions = decisions(transform, self.batch_size, dataset.input_shape)

    def next(self) -> list[Tensor]:
        """The next batch: example indices [B], and every decision about them."""
        drawn = [self._order.take(1)[0]]
        for decision in self.decisions.values():
            drawn.append(decision.draw(torch.empty(decision.size, dtype=decision.dtype), self.generator))
        return drawn

    def empty(self, *leading: int, pinned: bool = False) -> list[Tensor]:
        """Empty tensors for the example indices [..., B] and decisions [..., B or 2, ...] of ``leading`` batches."""
        sizes = [((self.batch_size,), torch.int64), *((d.size, d.dtype) for d in self.decisions.values())]
        return [torch.empty(*leading, *size, dtype=dtype, pin_memory=pinned) for size, dtype in sizes]

    def fill(self, out: Sequence[Tensor]) -> None:
        """Draw many batches into ``out``, shaped like ``empty(iterations)``: the same as many calls of ``next``."""
        indices, draws = out[0], [decision.draw for decision in self.decisions.values()]
        rows = list(zip(*(tensor.unbind(0) for tensor in out[1:]), strict=True))
        start = 0
        while start < len(indices):
            taken = self._order.take(len(indices) - start)
            stop = start + len(taken)
            indices[start:stop] = taken
            for row in rows[start:stop]:
                for draw, tensor in zip(draws, row, strict=True):
                    draw(tensor, self.generator)
            start = stop

    def state(self) -> dict[str, Tensor]:
        """The generator's state and the order's, in tensors that are not written to afterwards."""
        return {"generator": self.generator.get_state(), **self._order.state()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``, which a stream over the same data set gave."""
        if state.keys() != self.state().keys():
            raise InputError(
                "state: of this stream and the one it is from, one alone has per_class; load it into a stream with the "
                "same per_class."
            )
        self._order.load(state)
        self.generator.set_state(state["generator"].cpu())


_moved: WeakKeyDictionary[Dataset, dict[object, tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def _on_device(dataset: Dataset, transform: Transform, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs, normalised if float32, and targets on the device: one copy for all streams of the data set."""
    floats = dataset.inputs.is_floating_point()
    values = [transform.mean.shape, *transform.mean.flatten().tolist(), *transform.std.flatten().tolist()]
    key = (device, transform.scale, *values) if floats else device
    copies = _moved.setdefault(dataset, {})
    if key not in copies:
        inputs = dataset.inputs.to(device)
        copies[key] = normalise(inputs, transform) if floats else inputs, dataset.targets.to(device)
    return copies[key]


def make_batch(
    inputs: Tensor, targets: Tensor, transform: Transform, names: Sequence[str], drawn: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Batches from random decisions: a pure function that does not read values.

    Args:
        inputs: the data [n, ...], on the device: normalised float32, or uint8, which is normalised here.
        targets: its classes [n].
        transform: with tensors on the device.
        names: of the decisions.
        drawn: indices [..., B], and the decisions in the order of ``names``; all on the device.

    Returns:
        Inputs [..., B, ...], float32, and targets [..., B].
    """
    indices, decided = drawn[0], dict(zip(names, drawn[1:], strict=True))
    chosen = _rows(inputs, indices)
    if not chosen.is_floating_point():
        chosen = normalise(chosen, transform)
    return apply(chosen, transform, decided), _rows(targets, indices)


def _rows(tensor: Tensor, indices: Tensor) -> Tensor:
    """``tensor[indices]``, in a form that copies row by row."""
    if indices.ndim == 1:
        return tensor.index_select(0, indices)
    return tensor.index_select(0, indices.flatten()).view(*indices.shape, *tensor.shape[1:])


class BatchStream:
    """Endless training batches, all of one size, reshuffled every epoch.

    An epoch's remainder that does not fill a batch is dropped. With ``per_class``, batches are class-balanced instead:
    see :class:`lossalign.data.orders.PerClass`.

    The data is kept on the device, once for all streams over the same data set. Float inputs are normalised once,
    uint8 images batch by batch, as they take a quarter of the memory.

    Args:
        dataset: the training set.
        batch_size: examples in a batch; the whole set if it is smaller.
        transform: normalisation and augmentation.
        generator: a CPU generator used by nothing else; its state is part of the stream's.
        device: where the data is kept and batches are made.
        per_class: M, if each batch is to hold batch_size / M different classes with M examples of each; None draws
            examples whatever their classes.

    Example:
        >>> from lossalign.data import fit_transform
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
        *,
        per_class: int | None = None,
    ) -> None:
        self.drawing = Draws(dataset, batch_size, transform, generator, per_class)
        self.batch_size, self.generator = self.drawing.batch_size, generator
        self.dataset, self.device = dataset, torch.device(device)
        self.transform = replace(transform, mean=transform.mean.to(device), std=transform.std.to(device))
        self.data = _on_device(dataset, transform, self.device)

    def next(self) -> tuple[Tensor, Tensor]:
        """The next inputs [batch_size, ...], float32, and targets [batch_size]."""
        drawn = [tensor.to(self.device) for tensor in self.drawing.next()]
        return make_batch(*self.data, self.transform, tuple(self.drawing.decisions), drawn)

    def state_dict(self) -> dict[str, Tensor]:
        """The generator's state, and the order of examples with the position in it."""
        return {name: tensor.clone() for name, tensor in self.drawing.state().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state``, which a stream over the same data set gave."""
        self.drawing.load(state)

    @staticmethod
    def together(streams: Sequence[BatchStream]) -> JointStream | None:
        """The streams as one, or None if their batches do not stack (other sizes, types, devices or augmentation)."""
        kinds = {stream._kind() if isinstance(stream, BatchStream) else None for stream in streams}
        return JointStream(streams) if len(kinds) == 1 and None not in kinds else None

    def _kind(self) -> tuple[object, ...]:
        """The properties that streams must share to be joined."""
        t, data = self.transform, self.dataset
        batch = (self.device, self.batch_size, data.input_shape, data.dtype)
        return (*batch, t.mean.shape, t.std.shape, t.scale, t.crop, t.flip, t.noise)


class _Run(NamedTuple):
    """Consecutive streams whose batches are made together."""

    rows: slice
    inputs: Tensor
    targets: Tensor
    transform: Transform


class JointStream:
    """N streams at once: the same batches as their ``next``, drawn for many iterations ahead and made together.

    It has no state: ``draws`` advances the streams, whose states are saved and loaded.

    Args:
        streams: of one kind, each with its own generator; see :meth:`BatchStream.together`.

    Example:
        >>> from lossalign.data import fit_transform
        >>> data = Dataset(name="x", inputs=torch.eye(5), targets=torch.arange(5) % 2, class_names=("a", "b"))
        >>> streams = [BatchStream(data, 2, fit_transform(data), torch.Generator().manual_seed(i)) for i in range(3)]
        >>> joint = BatchStream.together(streams)
        >>> drawn = joint.draws(10)
        >>> inputs, targets = joint.make(*(tensor[0] for tensor in drawn))
        >>> inputs.shape, targets.shape
        (torch.Size([3, 2, 5]), torch.Size([3, 2]))
    """

    def __init__(self, streams: Sequence[BatchStream]) -> None:
        self._streams = list(streams)
        self._names = tuple(streams[0].drawing.decisions)
        self._cuda = streams[0].device.type == "cuda"
        self._runs = _runs(streams)

    def draws(self, iterations: int) -> tuple[Tensor, ...]:
        """All random decisions of the next ``iterations``; every stream advances by as many batches.

        Noise, if there is any, takes as much memory as the batches themselves: ask for few iterations at a time.

        Returns:
            CPU tensors [iterations, N, ...], pinned if the data is on a GPU: indices [..., B] of examples, then what
            :func:`lossalign.data.transforms.decisions` names.
        """
        out = self._streams[0].drawing.empty(iterations, len(self._streams), pinned=self._cuda)
        for i, stream in enumerate(self._streams):
            stream.drawing.fill([tensor[:, i] for tensor in out])
        return tuple(out)

    def make(self, *drawn: Tensor) -> tuple[Tensor, Tensor]:
        """The batches of one iteration: a pure function of its slices [N, ...] of ``draws``, on the device.

        Returns:
            Inputs [N, B, ...], float32, and targets [N, B].
        """
        made = [
            make_batch(run.inputs, run.targets, run.transform, self._names, [tensor[run.rows] for tensor in drawn])
            for run in self._runs
        ]
        if len(made) == 1:
            return made[0]
        return torch.cat([inputs for inputs, _ in made]), torch.cat([targets for _, targets in made])


def _runs(streams: Sequence[BatchStream]) -> list[_Run]:
    """Consecutive streams with the same data; on a CPU no more of them than fit its caches."""
    size = streams[0].batch_size * math.prod(streams[0].dataset.input_shape)
    most = max(1, _CACHED // size) if streams[0].device.type == "cpu" else len(streams)
    groups: list[list[BatchStream]] = []
    for stream in streams:
        if groups and groups[-1][0].data is stream.data and len(groups[-1]) < most:
            groups[-1].append(stream)
        else:
            groups.append([stream])
    starts = accumulate((len(group) for group in groups), initial=0)
    return [
        _Run(slice(start, start + len(group)), *group[0].data, _stacked(group))
        for start, group in zip(starts, groups, strict=False)
    ]


def _stacked(streams: list[BatchStream]) -> Transform:
    """One transform with every stream's mean and deviation [N, 1, ...]."""
    axes = len(streams[0].dataset.input_shape)

    def stack(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).view(len(tensors), *[1] * (1 + axes - tensors[0].ndim), *tensors[0].shape)

    return replace(
        streams[0].transform,
        mean=stack([stream.transform.mean for stream in streams]),
        std=stack([stream.transform.std for stream in streams]),
    )
