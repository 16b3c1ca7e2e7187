"""What may be decided: every candidate is a matrix of gains on calibrated probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lossalign.decision.calibration import calibrate
from lossalign.decision.counts import CountsScore
from lossalign.decision.search import Evidence, frank_wolfe, search_offsets, standardised

_SHRINKAGES = (0.5, 1.0)
_POWERS = (0.0, 0.5, 1.0, 1.5)
_SPREAD = 2.0
"""Standard deviation of the prior on calibration offsets; that of the log scale is 1."""
_DOUBT = 4.0
"""Samples of a class at which its labels and the probabilities count the same in a fit."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a fit may spend.

    Args:
        steps: gradients that Frank–Wolfe takes.
        rounds: passes of the coordinate search.
        grid: moves that it tries.
        searched: most classes for which it is done.
    """

    steps: int = 12
    rounds: int = 3
    grid: int = 33
    searched: int = 256


BLACK_BOX = Effort(steps=4, rounds=2, grid=17, searched=32)
"""For a metric that is called once for each confusion matrix."""


class Candidate(NamedTuple):
    """One way to decide, for F fits.

    Attributes:
        name: what it is.
        shrinkage: how far it goes from doing nothing, 0 … 1; of ``prior`` the power.
        gains: [F, C, C].
    """

    name: str
    shrinkage: float
    gains: Tensor


class Calibrated(NamedTuple):
    """Outputs as probabilities, by F calibrations: softmax(scale · z + bias).

    Attributes:
        scale: [F].
        bias: [F, C].
        probabilities: [F, V, C].
    """

    scale: Tensor
    bias: Tensor
    probabilities: Tensor


def calibrations(outputs: Tensor, targets: Tensor, seen: Tensor) -> Calibrated:
    """The calibrations of outputs [V, C] whose fits see the samples ``seen`` [F, V]; fewer samples move them less.

    The penalties of ``calibrate`` are those of Gaussian priors on offsets and log scale: they fall as 1/samples.

    Example:
        >>> outputs, targets = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> calibrations(outputs, targets, torch.ones(1, 3)).probabilities.shape
        torch.Size([1, 3, 2])
    """
    number, classes = float(seen.sum(-1).mean()), outputs.shape[-1]
    prior, scale_prior = classes / (2 * number * _SPREAD**2), 1 / (2 * number)
    scale, bias = calibrate(outputs, targets, prior, scale_prior=scale_prior, weights=seen)
    return Calibrated(scale, bias, (scale[:, None, None] * outputs + bias[:, None]).softmax(-1))


def find_candidates(
    score: CountsScore, calibrated: Calibrated, targets: Tensor, seen: Tensor, draws: Tensor, effort: Effort
) -> list[Candidate]:
    """All candidates of F fits, the simplest first.

    ``none`` decides as the outputs do; ``prior`` divides the probabilities by the classes' shares to some power, which
    with power 0 is the most probable class; ``gains`` are found by Frank–Wolfe, ``offsets`` by coordinate search. Those
    take the labels as the truth, mixed with the probabilities where labels are few; ``expected-…`` take the
    probabilities alone, which are less noisy and as good as the calibration.

    Args:
        score: the metric, more is better.
        calibrated: the calibrations of the fits.
        targets: labels [V].
        seen: which samples a fit sees [F, V].
        draws: how often each sample counts in B resampled sets [B, V]; the metric is smoothed over them.
        effort: what may be spent.
    """
    p, classes = calibrated.probabilities, calibrated.probabilities.shape[-1]
    hard = torch.nn.functional.one_hot(targets, classes).to(p)
    nothing = torch.diag_embed(_scaled(-calibrated.bias))
    found = [*_priors(hard, seen), Candidate("none", 0.0, nothing)]
    starts = torch.stack([each.gains for each in found])
    found = [found[-1], *found[:-1]]
    belief = seen.sum(-1)[:, None, None] / classes
    belief = belief / (belief + _DOUBT)
    for name, truth in (("expected-", p), ("", belief * hard + (1 - belief) * p)):
        evidence = Evidence(p, truth * seen[..., None], draws)
        start = _best(score, evidence, starts)
        gains = frank_wolfe(score, evidence, start, effort.steps)
        found += [Candidate(f"{name}gains", share, _mixed(nothing, gains, share)) for share in _SHRINKAGES]
        if classes <= effort.searched:
            least = evidence._replace(draws=torch.ones_like(draws[:1]))
            offsets = start.diagonal(dim1=-2, dim2=-1).log()
            offsets = search_offsets(score, least, offsets, effort.rounds, effort.grid)
            for share in _SHRINKAGES:
                shrunk = torch.diag_embed(_scaled(share * offsets - (1 - share) * calibrated.bias))
                found.append(Candidate(f"{name}offsets", share, shrunk))
    return found


def _priors(hard: Tensor, seen: Tensor) -> list[Candidate]:
    """Probabilities divided by powers of the classes' shares; half a sample is added to every class."""
    shares = (hard * seen[..., None]).sum(1) + 0.5
    return [Candidate("prior", power, torch.diag_embed(_scaled(-power * shares.log()))) for power in _POWERS]


def _mixed(nothing: Tensor, gains: Tensor, share: float) -> Tensor:
    """Gains between doing nothing and ``gains``, on a common scale."""
    return gains if share == 1 else (1 - share) * standardised(nothing) + share * standardised(gains)


def _scaled(offsets: Tensor) -> Tensor:
    """exp of offsets [..., C] whose mean is taken off."""
    return (offsets - offsets.mean(-1, keepdim=True)).exp()


def _best(score: CountsScore, evidence: Evidence, gains: Tensor) -> Tensor:
    """The gains [F, C, C] of the best score for each fit, among [n, F, C, C]."""
    values = torch.stack([score(evidence.decided(each)).mean(-1) for each in gains])
    return gains[values.argmax(0), torch.arange(values.shape[1], device=gains.device)]
