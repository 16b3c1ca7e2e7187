"""Decisions by cost: calibrate the outputs after training, then choose the class with the lowest expected cost."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def calibrate(outputs: Tensor, targets: Tensor, prior: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Scale a and offsets b [C] that make softmax(a z + b) fit the labels: bias-corrected temperature scaling.

    Minimises the mean of −log p_y, plus ``prior`` · |b|² for few samples, by L-BFGS (Alexandari et al., ICML 2020).

    Args:
        outputs: logits of one child [V, C].
        targets: labels [V].
        prior: weight of the penalty on the offsets.

    Example:
        >>> outputs, targets = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1])
        >>> scale, _ = calibrate(outputs, targets)
        >>> bool(scale < 1)  # one of three is wrong: it was too sure
        True
    """
    logits = outputs.detach().double()
    log_scale = torch.zeros((), dtype=torch.double, device=logits.device, requires_grad=True)
    bias = torch.zeros(logits.shape[1], dtype=torch.double, device=logits.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_scale, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(log_scale.exp() * logits + bias, targets) + prior * bias.square().mean()
        loss.backward()
        return loss

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
