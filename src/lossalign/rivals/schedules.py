"""Rivals that use the class frequencies and not the metric: Φ depends on time only."""

from __future__ import annotations

import torch
from torch import Tensor

from lossalign.control import RuleController
from lossalign.core import ParameterSpec


def inverse_frequency(counts: Tensor) -> Tensor:
    """Log class weights u = −log π, centred so that they fit their range [C].

    Example:
        >>> inverse_frequency(torch.tensor([100, 1]))
        tensor([-2.3026,  2.3026])
    """
    u = -counts.double().log()
    return (u - u.mean()).float()


def effective_number(counts: Tensor, beta: float = 0.9999) -> Tensor:
    """Log class-balanced weights u = −log((1 − β^n) / (1 − β)), centred [C] (Cui et al., CVPR 2019)."""
    u = -torch.log1p(-(beta ** counts.double()))
    return (u - u.mean()).float()


def logit_adjustment(counts: Tensor, tau: float = 1.0) -> Tensor:
    """Logit offsets b = τ log π, centred [C] (Menon et al., ICLR 2021)."""
    return -tau * inverse_frequency(counts)


def cost_weights(costs: Tensor) -> Tensor:
    """Log class weights [C] from the mean cost of a mistake on each class, given costs [C, C], centred.

    Example:
        >>> cost_weights(torch.tensor([[0.0, 4.0], [1.0, 0.0]]))
        tensor([ 0.6931, -0.6931])
    """
    mistakes = (costs - costs.diagonal()[:, None]).sum(1) / (len(costs) - 1)
    u = mistakes.clamp(min=1e-3 * float(mistakes.max())).log()
    return u - u.mean()


def fixed(spec: ParameterSpec, children: int) -> RuleController:
    """Φ stays at its start: cross-entropy, under ``AlignedLoss``."""
    return RuleController(spec, children, rule=lambda phi, observation: phi)


def designed(spec: ParameterSpec, children: int, group: str, values: Tensor, since: float = 0.0) -> RuleController:
    """One group is at ``values`` from the fraction ``since`` of the run; all else is at its start.

    Values beyond the range of the group are clipped: classes that differ more than e^6-fold in size are treated as if
    they differed that much.
    """
    until, after = spec.initial, spec.initial.clone()
    after[spec.select([group])] = values

    def at(progress: float) -> Tensor:
        return after if progress >= since else until

    return RuleController(spec, children, rule=lambda phi, observation: at(observation.progress), start=at(0.0))
