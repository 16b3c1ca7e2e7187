"""Losses of the package pytorch-metric-learning, wrapped as embedding losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lossalign.core import InputError, ParameterGroup
from lossalign.losses.distances import check_embeddings
from lossalign.losses.embedding_rivals import Rival
from lossalign.losses.registry import PREFIXES, LossEntry

PREFIX = "pml-"
"""Prefix of the names of the package's losses; without it, e.g. ``multi-similarity``, the loss is lossalign's."""

_SOME = ", ".join(PREFIX + name for name in ("multi-similarity", "triplet-margin", "n-pairs", "circle", "nt-xent"))
_REMEMBERING = ("CrossBatchMemory", "DynamicSoftMarginLoss")


class MetricLearningLoss(Rival):
    """Any loss of pytorch-metric-learning that is a function of one batch's embeddings and labels.

        l_i = e^Φ · loss(embeddings, labels, miner(embeddings, labels)),   the same for every anchor i

    The package gives one number for a batch, reduced as the loss object says; the mean over the anchors is that number.
    It is computed in float32. The package's code branches on values, so children train one after another.

    Group: ``scale`` (log weight ∈ [log 0.1, log 10], from 0).

    Args:
        loss: the loss object, without weights of its own (proxies, class centres) and without a memory of earlier
            batches, which all children would share.
        miner: a miner object of the package; all pairs or triplets if None.
        beta: how far one action moves the log weight.

    Example:
        >>> from pytorch_metric_learning.losses import TripletMarginLoss
        >>> loss = MetricLearningLoss(TripletMarginLoss(margin=0.2))
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)
        tensor([0.2000, 0.2000, 0.2000, 0.2000])
    """

    vectorised = False

    def __init__(
        self, loss: nn.Module, miner: Callable[[Tensor, Tensor], Any] | None = None, beta: float = 0.1
    ) -> None:
        _check_stateless(loss)
        far = math.log(10.0)
        group = ParameterGroup(name="scale", labels=("log weight",), initial=0.0, low=-far, high=far, beta=beta)
        super().__init__(group)
        self._loss, self._miner = loss, miner

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """The loss of the batch for every anchor [B], from embeddings [B, D] and labels [B]."""
        check_embeddings(outputs, targets)
        with torch.autocast(outputs.device.type, enabled=False):
            embeddings = outputs.float()
            pairs = None if self._miner is None else self._miner(embeddings, targets)
            value: Tensor = self._loss(embeddings, targets, pairs)
        return (phi[0].exp() * value.reshape(())).expand(len(targets))


def metric_learning_loss(name: str) -> MetricLearningLoss:
    """The loss of pytorch-metric-learning called ``name``, with the package's default arguments.

    Args:
        name: ``pml-`` and the name of its class in lower case, without "Loss"; dashes within it are ignored:
            ``"pml-n-pairs"`` is ``NPairsLoss``.

    Example:
        >>> loss = metric_learning_loss("pml-multi-similarity")
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]), loss.spec.initial)  # log(1 + e) / 2
        tensor([0.6566, 0.6566, 0.6566, 0.6566])
    """
    try:
        from pytorch_metric_learning import losses
    except ModuleNotFoundError as error:
        raise InputError(
            f"loss {name!r} needs the package pytorch-metric-learning, which is not installed; "
            'run pip install "lossalign[metric]".'
        ) from error
    kinds = {kind.lower(): kind for kind in dir(losses)}
    kind = kinds.get(name.removeprefix(PREFIX).replace("-", "") + "loss")
    if kind is None:
        raise InputError(
            f"loss {name!r}: pytorch-metric-learning has no such loss; choose one of its losses, e.g. {_SOME}."
        )
    try:
        loss = getattr(losses, kind)()
        loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    except Exception as error:  # anything the package raises if arguments are missing
        raise InputError(
            f"loss {name!r}: {kind} needs more than embeddings and labels, such as weights for the training classes; "
            f"choose another, e.g. {_SOME}."
        ) from error
    return MetricLearningLoss(loss)


def _check_stateless(loss: nn.Module) -> None:
    name = type(loss).__name__
    if next(loss.parameters(), None) is not None:
        raise InputError(f"loss={name}: it has trainable weights, which would not be trained; choose a loss of pairs.")
    if any(type(part).__name__ in _REMEMBERING for part in loss.modules()):
        raise InputError(
            f"loss={name}: it keeps earlier batches, which all children would share; choose a loss of one batch."
        )


PREFIXES[PREFIX] = lambda name: LossEntry(
    make=lambda run: metric_learning_loss(name), embeds=True, stream="MetricLearningLoss"
)
