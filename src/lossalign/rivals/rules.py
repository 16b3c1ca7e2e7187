"""Rivals that look at the children and do not learn: a rule of thumb, and the paper's two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.core import Observation, ParameterSpec
from lossalign.rivals.rule import RuleController


def proportional_move(statistics: Tensor, step: Tensor) -> Tensor:
    """Lower the offset of classes that are worse than the others: −β · z, z the standardised loss, |z| ≤ 1 [n, C].

    An offset b_c below the others makes the training loss ask for larger logits of class c, as logit adjustment does
    for rare classes.

    Example:
        >>> proportional_move(torch.tensor([[0.1, 0.3]]), torch.tensor([0.3, 0.3]))
        tensor([[ 0.3000, -0.3000]])
    """
    z = (statistics - statistics.mean(1, keepdim=True)) / statistics.std(1, keepdim=True, correction=0).clamp(min=1e-6)
    return -step * z.clamp(-1, 1)


def proportional_rule(spec: ParameterSpec, children: int) -> RuleController:
    """Told that classes matter equally: offsets follow the validation loss of each class."""
    offsets = spec.select(["offsets"])

    def rule(phi: Tensor, seen: Observation) -> Tensor:
        phi = phi.clone()
        phi[:, offsets] += proportional_move(seen.statistics[:, offsets, 0], spec.step[offsets])
        return phi

    return RuleController(spec, children, rule)


def random_matrix(spec: ParameterSpec, children: int, generator: torch.Generator, noise: float = 0.1) -> RuleController:
    """The paper's control "random matrix": Φ_t is the identity with 10 % noise, drawn anew at every step."""

    def draw() -> Tensor:
        return spec.initial + noise * torch.randn(children, spec.size, generator=generator)

    return RuleController(spec, children, rule=lambda phi, seen: draw(), start=draw(), generator=generator)


def random_phi(spec: ParameterSpec, children: int, generator: torch.Generator) -> RuleController:
    """Each child trains under another Φ, drawn evenly from its range: the room there is without any controller."""
    drawn = spec.low + (spec.high - spec.low) * torch.rand(children, spec.size, generator=generator)
    return RuleController(spec, children, rule=lambda phi, seen: phi, start=drawn)


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
    """The paper's control "confusion matrix": Φ_t is what the children confuse now."""
    return RuleController(spec, children, rule=lambda phi, seen: confusion_phi(seen.statistics))
