"""Eq. 6 and 7 of the paper: the loss with class correlations, and its statistic, the confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from lossalign.core import InputError, ParameterGroup, ParameterSpec, log_softmax
from lossalign.losses.base import AdaptiveLoss
from lossalign.losses.classes import check_groups, check_labels, check_shapes, class_pairs, symmetric
from lossalign.losses.registry import LOSSES, LossEntry

Form = Literal["sigmoid", "log-sigmoid"]

_LOWEST_LOG_PROB = -1e5  # keeps 0 · log 0 at 0; log-softmax of logits up to ±1e4 never reaches it


def class_correlation_loss(log_probs: Tensor, targets: Tensor, phi: Tensor, form: Form = "sigmoid") -> Tensor:
    """Eq. 6: l_Φ = −σ(yᵀ Φ log f(x)); the ``log-sigmoid`` form is −log σ(yᵀ Φ log f(x)).

    At Φ = I the first has cross-entropy's gradient times p/(1+p)², the second cross-entropy's times 1/(1+p).

    Args:
        log_probs: log f(x) [B, C].
        targets: labels [B].
        phi: class correlations Φ [C, C].
        form: ``sigmoid`` or ``log-sigmoid``.

    Returns:
        The loss of every example [B], in (−1, 0) for ``sigmoid``.

    Example:
        >>> log_probs = torch.tensor([[0.5, 0.5]]).log()
        >>> class_correlation_loss(log_probs, torch.tensor([0]), torch.eye(2))  # σ(log p) = p / (1 + p)
        tensor([-0.3333])
    """
    evidence = (phi[targets] * log_probs.clamp(min=_LOWEST_LOG_PROB)).sum(-1)
    return -torch.sigmoid(evidence) if form == "sigmoid" else -F.logsigmoid(evidence)


def confusion(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Eq. 7: C_ij = mean over samples of class i of −log f^j(x).

    Args:
        log_probs: log f(x) [V, C].
        targets: labels [V].

    Returns:
        C [C, C]; the row of a class without samples is NaN, as the equation divides by their number.

    Example:
        >>> log_probs = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> confusion(log_probs, torch.tensor([0, 1]))
        tensor([[0.1054, 2.3026],
                [0.6931, 0.6931]])
    """
    member = (targets[:, None] == torch.arange(log_probs.shape[1], device=targets.device)).to(log_probs.dtype)
    return -(member.T @ log_probs.clamp(min=_LOWEST_LOG_PROB)) / member.sum(0)[:, None]


class ClassCorrelationLoss(AdaptiveLoss):
    """The paper's classification loss, Eq. 6: Φ ∈ [−1, 1]^{C×C}, symmetric, Φ_0 = I.

    Groups: ``diagonal`` (Φ_ii) and ``pairs`` (Φ_ij = Φ_ji, i < j). A group that is off stays at its start.

    Args:
        num_classes: C.
        groups: which groups the controller may move.
        form: ``sigmoid`` (the printed equation) or ``log-sigmoid``.
        beta: β.
    """

    statistics_name = "ClassCorrelationLoss"

    def __init__(
        self,
        num_classes: int,
        groups: Sequence[str] = ("diagonal", "pairs"),
        form: Form = "sigmoid",
        beta: float = 0.1,
    ) -> None:
        check_groups(groups, ("diagonal", "pairs"), num_classes)
        if form not in get_args(Form):
            raise InputError(f"form={form!r}: choose from {get_args(Form)}.")
        self.num_classes = num_classes
        self.form = form
        layout = class_pairs(num_classes, diagonal="diagonal" in groups, pairs="pairs" in groups)
        self.spec = ParameterSpec(
            tuple(
                ParameterGroup(
                    name=name,
                    labels=tuple(f"{i}·{j}" for i, j in pairs),
                    initial=1.0 if name == "diagonal" else 0.0,
                    low=-1.0,
                    high=1.0,
                    beta=beta,
                    classes=pairs,
                )
                for name, pairs in layout.items()
            )
        )
        self.num_statistics = 2

    def matrix(self, phi: Tensor) -> Tensor:
        """Φ as the matrix of Eq. 6 [C, C]; groups that are off keep their start."""
        size, classes = self.num_classes, self.classes.to(phi.device)
        given = symmetric(phi, classes, size)
        known = symmetric(torch.ones_like(phi), classes, size)
        return given + (1 - known) * torch.eye(size, dtype=phi.dtype, device=phi.device)

    def __call__(self, outputs: Tensor, targets: Tensor, phi: Tensor) -> Tensor:
        """Eq. 6 of every example [B], from logits [B, C]."""
        check_shapes(outputs, targets, self.num_classes)
        return class_correlation_loss(log_softmax(outputs.float()), targets, self.matrix(phi), self.form)

    def statistics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + [C_ij, C_ji]) of Eq. 7 for every parameter [P, 2]."""
        i, j = self.classes.to(outputs.device).unbind(-1)
        matrix = confusion(log_softmax(outputs.float()), targets).log1p()
        return torch.stack([matrix[i, j], matrix[j, i]], -1)

    def check_targets(self, targets: Tensor, name: str) -> None:
        """Refuse labels that are not 0 … C−1."""
        check_labels(targets, self.num_classes, name)


_BOTH = ("diagonal", "pairs")
LOSSES.add(
    "class-correlation",
    "the paper's classification loss, Eq. 6",
    LossEntry(
        make=lambda run: ClassCorrelationLoss(run.num_classes, run.groups or _BOTH),
        groups=_BOTH,
        stream="ClassCorrelationLoss",
    ),
)
LOSSES.add(
    "log-class-correlation",
    "Eq. 6 with log σ instead of σ",
    LossEntry(
        make=lambda run: ClassCorrelationLoss(run.num_classes, run.groups or _BOTH, form="log-sigmoid"),
        groups=_BOTH,
        stream="ClassCorrelationLoss",
    ),
)
