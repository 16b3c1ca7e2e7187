"""Rivals that observe the children and do not learn: rules on offsets, and the paper's two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.control import RuleController, clipped_scores, following
from lossalign.core import Observation, ParameterSpec


def proportional_move(statistics: Tensor, beta: Tensor) -> Tensor:
    """Moves that lower the offset of classes worse than the others: −β · z, z the standardised loss, |z| ≤ 1 [n, C].

    An offset b_c below the others makes the training loss ask for larger logits of class c, as logit adjustment does
    for rare classes.

    Example:
        >>> proportional_move(torch.tensor([[0.1, 0.3]]), torch.tensor([0.3, 0.3]))
        tensor([[ 0.3000, -0.3000]])
    """
    return -beta * clipped_scores(statistics, alike=1e-6)


def proportional_rule(spec: ParameterSpec, children: int) -> RuleController:
    """Offsets follow the validation loss of each class, so that all classes count equally."""
    offsets = spec.select(["offsets"])

    def rule(phi: Tensor, observation: Observation) -> Tensor:
        phi = phi.clone()
        phi[:, offsets] += proportional_move(observation.statistics[:, offsets, 0], spec.beta[offsets])
        return phi

    return RuleController(spec, children, rule)


def confusion_rule(spec: ParameterSpec, children: int) -> RuleController:
    """Offsets follow what the metric would gain without the errors out of, and into, each class (``confusion_move``).

    It is given the metric alone, as the two sensitivities of each class, and works for any metric that has them.
    """
    return following("confusion-rule", spec, children)


def metric_gradient(spec: ParameterSpec, children: int) -> RuleController:
    """Offsets follow the metric's gradient on soft predictions (``gradient_move``, ``metrics.class_gradient``)."""
    return following("metric-gradient", spec, children)


def random_matrix(spec: ParameterSpec, children: int, generator: torch.Generator, noise: float = 0.1) -> RuleController:
    """The paper's control "random matrix": Φ_t is the identity with 10 % noise, drawn again at every step."""

    def draw() -> Tensor:
        return spec.initial + noise * torch.randn(children, spec.size, generator=generator)

    return RuleController(spec, children, rule=lambda phi, observation: draw(), start=draw(), generator=generator)


def random_phi(spec: ParameterSpec, children: int, generator: torch.Generator) -> RuleController:
    """Each child trains under its own constant Φ, drawn uniformly from its range."""
    drawn = spec.low + (spec.high - spec.low) * torch.rand(children, spec.size, generator=generator)
    return RuleController(spec, children, rule=lambda phi, observation: phi, start=drawn)


def confusion_phi(statistics: Tensor) -> Tensor:
    """Eq. 7 as Φ: the mean of e^{−C_ij} and e^{−C_ji}, from log(1 + [C_ij, C_ji]) [n, P, 2].

    C_ij itself grows as classes separate and leaves [−1, 1]; e^{−C_ij} is the (geometric) mean probability of class j
    on samples of class i, and tends to the identity of Φ_0 as the network learns.

    Example:
        >>> confusion_phi(torch.zeros(1, 1, 2))
        tensor([[1.]])
    """
    return torch.exp(-torch.expm1(statistics)).mean(-1)


def confusion_matrix(spec: ParameterSpec, children: int) -> RuleController:
    """The paper's control "confusion matrix": Φ_t is the current confusion of the children."""
    return RuleController(spec, children, rule=lambda phi, observation: confusion_phi(observation.statistics))
