"""Calibration: outputs become probabilities. And the decision of lowest expected cost, given the costs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    ICML 2020, with penalties for few samples). Rows of ``weights`` give one calibration each.

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


def expected_costs(outputs: Tensor, costs: Tensor) -> Tensor:
    """Expected cost of each decision j, Σ_i p_i c_ij [V, C], p = softmax of the outputs [V, C].

    Example:
        >>> expected_costs(torch.zeros(1, 2), torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
        tensor([[0.5000, 5.0000]])
    """
    return outputs.softmax(-1) @ costs.to(outputs)
