"""What a decision is fitted to: outputs and labels in one of three forms, and whether the metric is about decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.decision.counts import SURE, as_outputs
from lossalign.metrics import Metric, PipelineMetric, as_metric

Form = Literal["classes", "binary", "column", "labels"]
"""Outputs [V, C]; binary outputs [V] or [V, 1]; one output for each of several labels [V, L]."""


class Problem(NamedTuple):
    """Checked arguments of ``Decision.fit``.

    Attributes:
        outputs: [V, C]; binary ones too, with C = 2; several labels [V, L].
        targets: [V]; several labels [V, L].
        metric: of those outputs.
        form: that of the outputs as they were given.
        note: why the outputs are left alone; empty: they are not.
        scale_free: whether more samples of the same shares leave the metric unchanged.
    """

    outputs: Tensor
    targets: Tensor
    metric: Metric
    form: Form
    note: str
    scale_free: bool


@final
class BinaryMetric(Metric):
    """A metric of binary outputs, as one of two classes.

    Args:
        metric: of outputs [V], or [V, 1] if ``column``.
        column: the form of its outputs.

    Example:
        >>> from lossalign.metrics import FunctionMetric
        >>> found = FunctionMetric(lambda o, t: ((o > 0) == (t > 0)).float().mean(), higher_is_better=True)
        >>> BinaryMetric(found, column=False)(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 1]))
        tensor(0.5000)
    """

    def __init__(self, metric: Metric, column: bool) -> None:
        self.name, self.higher_is_better, self.vectorised = metric.name, metric.higher_is_better, metric.vectorised
        self.percent, self.pairwise = metric.percent, metric.pairwise
        self._metric, self._column = metric, column

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric, a scalar, of outputs [V, 2] against labels [V]."""
        odds = outputs[..., 1] - outputs[..., 0]
        return self._metric(odds[:, None], targets[:, None]) if self._column else self._metric(odds, targets)


def as_classes(outputs: Tensor) -> Tensor:
    """Binary outputs [...] as those of two classes [..., 2]."""
    return torch.stack([torch.zeros_like(outputs), outputs], -1)


def read(outputs: object, targets: object, metric: object, higher_is_better: bool | None = None) -> Problem:
    """Check the arguments of ``Decision.fit``; an ``InputError`` says what to change."""
    z, y = _tensors(outputs, targets)
    wanted = as_metric(metric, higher_is_better)
    if isinstance(wanted, PipelineMetric):
        raise InputError("metric is a (model, loader) pipeline; a decision needs a metric of (outputs, targets).")
    form = _form(z, y)
    if wanted.pairwise:
        note = f"metric {wanted.name!r} compares samples with each other and not decisions; outputs are left alone."
        return Problem(z, y, wanted, form, note, True)
    if form in ("binary", "column"):
        z, y, wanted = as_classes(z.flatten()), y.flatten(), BinaryMetric(wanted, form == "column")
    _check_labels(z, y, form)
    return Problem(z, y, wanted, form, *_about_decisions(wanted, z, y, form))


def _tensors(outputs: object, targets: object) -> tuple[Tensor, Tensor]:
    z, y = torch.as_tensor(outputs).detach(), torch.as_tensor(targets).detach()
    if not z.is_floating_point():
        raise InputError(f"outputs are of type {z.dtype}; give logits or log-probabilities as floating-point numbers.")
    if z.ndim not in (1, 2) or not z.numel():
        raise InputError(f"outputs have shape {tuple(z.shape)}; give [V, C] for classes, [V] for binary outputs.")
    if len(y) != len(z) if y.ndim else True:
        raise InputError(
            f"targets have shape {tuple(y.shape)}, outputs {tuple(z.shape)}; give one label per output row."
        )
    if bool(z.isnan().any()):
        raise InputError("outputs hold NaN; find the samples where the model fails and leave them out.")
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise InputError("targets are not whole numbers; give class labels 0 … C − 1.")
    return z.float().clamp(-1e4, 1e4), y.to(z.device).long()


def _form(z: Tensor, y: Tensor) -> Form:
    if z.ndim == 1 and y.ndim == 1:
        return "binary"
    if z.ndim == 2 and z.shape[1] == 1 and y.numel() == len(z):
        return "column"
    if z.ndim == 2 and y.ndim == 1:
        return "classes"
    if y.shape == z.shape:
        return "labels"
    raise InputError(
        f"targets have shape {tuple(y.shape)}, outputs {tuple(z.shape)}; give labels [V] for classes, or 0 and 1 in "
        "the shape of the outputs for several labels."
    )


def _check_labels(z: Tensor, y: Tensor, form: Form) -> None:
    top = 1 if form == "labels" else z.shape[-1] - 1
    if int(y.min()) < 0 or int(y.max()) > top:
        bad = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise InputError(f"targets hold {bad}, outputs are for labels 0 … {top}; give labels of that range.")
    counts = y.sum(0).minimum(len(y) - y.sum(0)) if form == "labels" else y.bincount(minlength=z.shape[-1])
    missing = (counts == 0).nonzero().flatten().tolist()
    if missing and form == "labels":
        raise InputError(f"targets of label {missing[0]} are all alike; give samples with it and without it.")
    if missing:
        raise InputError(
            f"targets hold no sample of class {missing[0]}"
            + (f" ({len(missing)} classes are missing)" if len(missing) > 1 else "")
            + "; give validation samples of every class."
        )


def _about_decisions(metric: Metric, z: Tensor, y: Tensor, form: Form) -> tuple[str, bool]:
    """Why a metric is not one of decisions, or nothing; and whether it is scale-free."""
    sure = torch.where(z > 0, SURE, -SURE) if form == "labels" else as_outputs(z.argmax(-1), z.shape[-1])
    value = _valued(metric, z, y)
    if not _same(value, _valued(metric, sure, y)):
        note = f"metric {metric.name!r} depends on the scores and not on the decisions alone; outputs are left alone."
        return note, True
    turned = torch.arange(len(y) - 1, -1, -1, device=y.device)
    if not _same(value, _valued(metric, sure[turned], y[turned])):
        raise InputError(f"metric {metric.name!r} depends on the order of the samples; give one that does not.")
    return "", _same(value, _valued(metric, sure.repeat(2, 1), y.repeat(2, *[1] * (y.ndim - 1))))


def _valued(metric: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> float:
    try:
        return float(metric(outputs, targets))
    except InputError:
        raise
    except Exception as cause:  # anything the user's metric raises
        raise InputError(
            f"metric failed on outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}: "
            f"{type(cause).__name__}: {cause}"
        ) from cause


def _same(value: float, other: float) -> bool:
    return value == other or abs(value - other) <= 1e-5 * max(1.0, abs(value)) or (value != value and other != other)
