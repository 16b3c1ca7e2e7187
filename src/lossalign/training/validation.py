"""A user's validation loader: looked at before training, read whole or batch by batch, and scored."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from lossalign.core import InputError, Ranks
from lossalign.losses import AdaptiveLoss, EmbeddingLoss
from lossalign.metrics import FunctionMetric, Metric, PipelineMetric, error
from lossalign.training.notices import Once
from lossalign.training.observe import check_finite, check_validation, measure

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""(model, batch of the validation loader) → (outputs, targets). The model comes without the wrappers of DDP,
DataParallel and torch.compile."""

_EMPTY = "val_loader: it is empty; give at least two validation samples."


def forward_pair(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a batch ``(inputs, targets)``, on the model's device."""
    inputs, targets = batch
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    outputs = model(inputs.to(device))
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"model: it returns {described(outputs)}, not one tensor of outputs; pass forward=…, a function "
            "(model, batch) -> (outputs, targets) that picks it."
        )
    return outputs, targets.to(device)


def described(thing: object) -> str:
    """What something is, for an error.

    Example:
        >>> described({"logits": 1}), described((1, 2)), described(None)
        ("a dict with the keys 'logits'", 'a tuple', 'None')
    """
    if isinstance(thing, dict):
        return f"a {type(thing).__name__} with the keys {', '.join(map(repr, thing))}"
    return "None" if thing is None else f"a {type(thing).__name__}"


FEW = 4
"""Samples of a class from which a set is split: two of them in each half."""


def halves(targets: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions of two halves of a set with the same classes: every second sample of each class, in its order.

    None if a class has fewer than ``FEW`` samples, or if the samples have several labels.

    Example:
        >>> [half.tolist() for half in halves(torch.tensor([0, 0, 1, 0, 1, 1, 0, 1, 0]))]
        [[0, 2, 3, 5, 8], [1, 4, 6, 7]]
        >>> halves(torch.tensor([0, 0, 0, 0, 1, 1, 1]))
    """
    if targets.ndim != 1 or targets.is_floating_point():
        return None
    sizes = targets.bincount()
    if int(sizes[sizes > 0].min()) < FEW:
        return None
    order = targets.argsort(stable=True)
    number = torch.arange(len(order), device=order.device) - (sizes.cumsum(0) - sizes)[targets[order]]
    return order[number % 2 == 0].sort().values, order[number % 2 == 1].sort().values


def whole_set(part: Tensor, loader: Any, ranks: Ranks) -> Tensor:
    """All ranks' parts of a sharded validation set, one after another.

    A ``DistributedSampler`` deals samples in turn and repeats the first ones until all ranks have as many: its order is
    restored and what it repeated is dropped, so that the set is the one that a single process would read.
    """
    sizes = ranks.exchange(lambda: len(part))
    whole = ranks.gather(part, sizes)
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != ranks.count or len(set(sizes)) > 1:
        return whole
    in_turn: Tensor = whole.unflatten(0, (ranks.count, -1)).transpose(0, 1).flatten(0, 1)
    return in_turn[: len(sampler.dataset)]  # type: ignore[arg-type]


def check_metric(metric: Metric | PipelineMetric, targets: Tensor) -> None:
    """Refuse a metric of one label a sample where ``targets`` [V, C] hold several.

    The metric scores outputs of zeros; a plain function is not tried, as it may count its calls.
    """
    if targets.ndim != 2 or isinstance(metric, FunctionMetric | PipelineMetric):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            metric(torch.zeros(targets.shape, device=targets.device), targets)
    except Exception as cause:  # whatever it raises when it indexes with several labels
        raise InputError(
            f"metric {metric.name!r} needs one label for each sample, but val_loader gives {targets.shape[1]} (targets "
            f"[samples, {targets.shape[1]}]); use a metric of several labels, such as lossalign.metrics.AUCPR()."
        ) from cause


def first_batch(loader: Any) -> Any:
    """The first batch of a loader that can be read again; torch's random stream is left as it was."""
    if not isinstance(loader, Iterable):
        raise InputError(f"val_loader: {type(loader).__name__} has no batches; give a list or a DataLoader.")
    with torch.random.fork_rng([]):
        batches = iter(loader)
        batch = next(batches, None)
    if batches is loader:
        raise InputError("val_loader: it can be read only once; give a list or a DataLoader, not an iterator.")
    if batch is None:
        raise InputError(_EMPTY)
    return batch


class Validation:
    """A validation loader and how a model is measured on it.

    Args:
        loader: batches, in the same order every time.
        forward: gives outputs and targets of a batch.
        loss: says which targets can be used.
        metric: scores outputs, or the model itself.
        sharded: whether each rank's loader holds a part of the set.
        split: whether one half of the set moves Φ and the other picks the best weights.
        once: speaks where the order of samples changes.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        forward: Forward,
        loss: AdaptiveLoss,
        metric: Metric | PipelineMetric,
        *,
        sharded: bool,
        split: bool,
        once: Once,
    ) -> None:
        self._loader, self._forward, self._loss, self._metric = loader, forward, loss, metric
        self._sharded, self._once = sharded, once
        self._split = split and not isinstance(loss, EmbeddingLoss)
        self.single_label = True
        """Whether samples have one class each, as far as the first batch shows."""
        self._batches: Iterator[Any] | None = None
        self._drawn, self._order, self._compared = 0, torch.empty(0), False

    def __deepcopy__(self, memo: object) -> Validation:
        twin = copy.copy(self)  # the loader is shared: its data is large, and an iterator cannot be copied
        twin._batches = None
        return twin

    @property
    def drawn(self) -> int:
        """How many batches ``batch`` has read since the loader's beginning; set it to resume there."""
        return self._drawn

    @drawn.setter
    def drawn(self, number: int) -> None:
        self._drawn, self._batches = number, None

    def check(self) -> None:
        """Find what is wrong with the loader before anything is trained."""
        batch = first_batch(self._loader)
        if self._forward is not forward_pair:
            return
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        if not pair or not all(isinstance(part, Tensor) for part in batch):
            raise InputError(
                "val_loader: its batches are not pairs of tensors (inputs, targets); pass forward=… to say how to "
                "get (outputs, targets) from one."
            )
        self._loss.check_targets(batch[1], "val_loader")
        check_metric(self._metric, batch[1])
        self.single_label = batch[1].ndim == 1 and not batch[1].is_floating_point()

    def whole(self, model: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Outputs [1, V, …] and targets [1, V] of the whole loader, after a look at the targets."""
        outputs, targets = self._outputs(model, self._loader, step)
        labels = targets[0].cpu()
        check_validation(self._loss, labels, "val_loader")
        self._compare_order(labels)
        return outputs, targets

    def batch(self, model: nn.Module, step: int) -> tuple[Tensor, Tensor]:
        """Outputs [1, B, …] and targets [1, B] of the loader's next batch, over and over."""
        outputs, targets = self._outputs(model, [self._next_batch()], step)
        self._loss.check_targets(targets[0], "val_loader")
        return outputs, targets

    def error(self, outputs: Tensor, targets: Tensor, step: int) -> Tensor:
        """The metric of outputs, as rank 0 measures it, as an error [1]."""
        metric = self._metric
        assert isinstance(metric, Metric)
        return Ranks.current().on_first(lambda: error(metric, measure(metric, outputs, targets, step)))

    def errors(self, outputs: Tensor, targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The metric as an error [1] on the half that moves Φ, and on the one that picks the best weights."""
        (moving, selecting) = (self._half(half, outputs, targets) for half in (0, 1))
        found = self.error(*moving, step)
        return found, found if selecting[0] is outputs else self.error(*selecting, step)

    def moving(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets of the half that moves Φ."""
        return self._half(0, outputs, targets)

    def _half(self, half: int, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        found = halves(targets[0]) if self._split else None
        return (outputs, targets) if found is None else (outputs[:, found[half]], targets[:, found[half]])

    def pipeline_error(self, model: nn.Module, step: int) -> Tensor:
        """A ``(model, loader)`` metric as an error [1]."""
        metric = self._metric
        assert isinstance(metric, PipelineMetric)
        values = Ranks.current().exchange(
            lambda: torch.as_tensor(metric(model, self._loader), dtype=torch.float32).reshape(1).cpu()
        )
        if self._sharded and any(not torch.equal(value, values[0]) for value in values):
            raise InputError(
                f"metric: ranks measured {[float(v) for v in values]}; a (model, loader) metric on parts of the "
                "validation set must gather them, or give every rank the whole set and val_sharded=False."
            )
        check_finite(values[0], "metric", step)
        return error(metric, values[0])

    def _outputs(self, model: nn.Module, batches: Iterable[Any], step: int) -> tuple[Tensor, Tensor]:
        ranks = Ranks.current()
        outputs, targets = ranks.guarded(lambda: self._forwarded(model, batches))
        if self._sharded:
            outputs, targets = (whole_set(part, batches, ranks) for part in (outputs, targets))
        check_finite(outputs[None], "outputs", step)
        return outputs[None], targets[None]

    def _forwarded(self, model: nn.Module, batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
        pairs = [self._pair(self._forward(model, batch)) for batch in batches]
        if not pairs:
            raise InputError(_EMPTY)
        return torch.cat([o for o, _ in pairs]).float(), torch.cat([t for _, t in pairs])

    @staticmethod
    def _pair(pair: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            raise InputError(f"forward: it returned {described(pair)}; return two tensors (outputs, targets).")
        return pair[0], pair[1]

    def _next_batch(self) -> Any:
        """Batches in turn, over and over; the first call after ``drawn`` was set reads up to there."""
        if self._batches is None:
            self._batches, missed = iter(self._loader), self._drawn
            for _ in range(missed):
                next(self._batches, None)
        batch = next(self._batches, None)
        if batch is None:
            self._batches, self._drawn = iter(self._loader), 0
            batch = next(self._batches, None)
        if batch is None:
            raise InputError(_EMPTY)
        self._drawn += 1
        return batch

    def _compare_order(self, targets: Tensor) -> None:
        """Look at the targets of the first two whole passes."""
        if not len(self._order):
            check_metric(self._metric, targets)
            self._order = targets
        elif not self._compared:
            self._compared = True
            if not torch.equal(self._order, targets):
                self._once.say(
                    "order",
                    "val_loader: a second pass gave its samples in another order, so that a run cannot be repeated "
                    "exactly; make the DataLoader with shuffle=False.",
                )
            self._order = targets[:1]
