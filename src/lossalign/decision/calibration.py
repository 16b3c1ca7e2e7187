"""Calibration: outputs become probabilities. And the decision of lowest expected cost, given the costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_NEWTON = 128
"""Most classes for which several calibrations take Newton's steps, whose cost grows with the square of the classes."""
_STEPS, _HALVINGS, _STATIONARY, _DAMPING = 50, 20, 1e-7, 1e-9


def calibrate(
    outputs: Tensor,
    targets: Tensor,
    prior: float = 1e-2,
    *,
    scale_prior: float = 0.0,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scale a and offsets b [C] that make softmax(a z + b) fit the labels: bias-corrected temperature scaling.

    Minimises the mean of −log p_y + ``prior`` · mean_c b_c² + ``scale_prior`` · (log a)² by L-BFGS (Alexandari et al.,
    ICML 2020, with penalties for few samples). Rows of ``weights`` give one calibration each, by Newton's method where
    classes are few.

    Args:
        outputs: logits of one child [V, C].
        targets: labels [V].
        prior: weight of the penalty on the offsets.
        scale_prior: weight of the penalty on the scale.
        weights: how often each sample counts, [F, V] for F calibrations at once; None: once, for one.

    Returns:
        Scale, a scalar, and offsets [C]; with ``weights`` [F] and [F, C].

    Example:
        >>> outputs, targets = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> scale, _ = calibrate(outputs, targets)
        >>> bool(scale < 1)  # one of three is wrong: it was too sure
        True
    """
    logits = outputs.detach().double()
    if weights is not None and logits.shape[1] <= _NEWTON:
        theta = _newton(logits, targets, prior, scale_prior, weights)
        return theta[:, 0].exp().to(outputs.dtype), theta[:, 1:].to(outputs.dtype)
    lead = () if weights is None else (len(weights),)
    log_scale = torch.zeros(lead, dtype=torch.double, device=logits.device, requires_grad=True)
    bias = torch.zeros(*lead, logits.shape[1], dtype=torch.double, device=logits.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale, bias], max_iter=100, line_search_fn="strong_wolfe")

    def surprise() -> Tensor:
        if weights is None:
            return F.cross_entropy(log_scale.exp() * logits + bias, targets)
        changed = log_scale.exp()[:, None, None] * logits + bias[:, None]
        each = F.cross_entropy(changed.flatten(0, 1), targets.repeat(len(weights)), reduction="none")
        return (each.view(weights.shape) * weights).sum(-1) / weights.sum(-1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = surprise() + prior * bias.square().mean(-1)
        if scale_prior:
            loss = loss + scale_prior * log_scale.square()
        total = loss.sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(closure)
    return log_scale.detach().exp().to(outputs.dtype), bias.detach().to(outputs.dtype)


def _newton(logits: Tensor, targets: Tensor, prior: float, scale_prior: float, weights: Tensor) -> Tensor:
    """The minimum (log a, b) [F, 1 + C] of every row of ``weights``: Gauss–Newton steps, halved until none is worse.

    With x = a z and the weighted mean over samples ⟨·⟩, the curvature in (log a, b) is ⟨J (diag p − p pᵀ) Jᵀ⟩ for
    J = (x; 1), plus that of the penalties; it leaves out a term that vanishes at the minimum.
    """
    classes = logits.shape[1]
    share = (weights / weights.sum(-1, keepdim=True)).to(logits)
    hard = F.one_hot(targets, classes).to(logits)
    ridge = logits.new_tensor([2 * scale_prior, *[2 * prior / classes] * classes])
    theta = logits.new_zeros(len(weights), 1 + classes)

    def changed(theta: Tensor) -> Tensor:
        return theta[:, :1, None].exp() * logits + theta[:, None, 1:]

    def value(theta: Tensor) -> Tensor:
        surprise = -(changed(theta).log_softmax(-1) * hard).sum(-1)
        return (surprise * share).sum(-1) + (ridge * theta.square()).sum(-1) / 2

    now = value(theta)
    for _ in range(_STEPS):
        x, p = theta[:, :1, None].exp() * logits, changed(theta).softmax(-1)
        missing = (p - hard) * share[..., None]
        slope = torch.cat([(missing * x).sum((1, 2))[:, None], missing.sum(1)], 1) + ridge * theta
        if float(slope.abs().max()) < _STATIONARY:
            break
        weighed = p * share[..., None]
        spread = weighed * (x - (p * x).sum(-1, keepdim=True))
        curvature = torch.diag(ridge + _DAMPING).repeat(len(theta), 1, 1)
        curvature[:, 0, 0] += (spread * x).sum((1, 2))
        curvature[:, 0, 1:] += spread.sum(1)
        curvature[:, 1:, 0] += spread.sum(1)
        curvature[:, 1:, 1:] += torch.diag_embed(weighed.sum(1)) - weighed.mT @ p
        step = torch.linalg.solve(curvature, slope)
        size = torch.ones_like(now)
        for _ in range(_HALVINGS):
            tried = theta - size[:, None] * step
            reached = value(tried)
            worse = ~(reached <= now + 1e-12)
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        theta, now = torch.where(worse[:, None], theta, tried), torch.where(worse, now, reached)
    return theta


def expected_costs(outputs: Tensor, costs: Tensor) -> Tensor:
    """Expected cost of each decision j, Σ_i p_i c_ij [V, C], p = softmax of the outputs [V, C].

    Example:
        >>> expected_costs(torch.zeros(1, 2), torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
        tensor([[0.5000, 5.0000]])
    """
    return outputs.softmax(-1) @ costs.to(outputs)
