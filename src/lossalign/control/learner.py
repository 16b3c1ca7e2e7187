"""REINFORCE on replayed steps (Eq. 2 and 3), for G policies at once."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from lossalign.control.policy import PolicyStack, policy_logits
from lossalign.control.replay import Batch, Replay
from lossalign.core import log_softmax

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def reinforce_gain(
    logits: Tensor,
    actions: Tensor,
    returns: Tensor,
    weights: Tensor,
    old_log_probs: Tensor | None = None,
    clip: float = 0.2,
    entropy_bonus: float = 0.0,
) -> Tensor:
    """What Eq. 3 asks a policy to increase, for each decision: log π(a|s) · Σ_k (r_k − b_k) + entropy bonus · H(π).

    A decision is the joint action on all parameters of a child; its log-probabilities are averaged with ``weights``.
    With ``old_log_probs`` each parameter's term becomes min(ρA, clip(ρ, 1 − c, 1 + c)A), ρ = π(a|s) / π_old(a|s), which
    corrects replayed steps for the current policy.

    Args:
        logits: of the current policy [..., M, 3].
        actions: the actions that were taken [..., M].
        returns: centred returns A [...].
        weights: of the parameters in a decision, summing to 1 [..., M].
        old_log_probs: log π of the actions when they were taken [..., M], or None for plain Eq. 3.
        clip: c.
        entropy_bonus: weight of the entropy.

    Returns:
        [...]; REINFORCE follows the gradient of its mean.

    Example:
        >>> logits = torch.zeros(1, 1, 3)
        >>> reinforce_gain(logits, torch.tensor([[2]]), torch.tensor([1.0]), torch.ones(1, 1))  # log ⅓
        tensor([-1.0986])
    """
    log_pi = log_softmax(logits)
    log_prob = log_pi.gather(-1, actions[..., None]).squeeze(-1)
    advantage = returns[..., None]
    if old_log_probs is None:
        gain = log_prob * advantage
    else:
        ratio = (log_prob - old_log_probs).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    return ((gain + entropy_bonus * entropy) * weights).sum(-1)


def adam_(
    weights: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    updates: Tensor,
    learning_rate: float,
    learns: Tensor,
) -> None:
    """One update of Adam (Kingma and Ba 2015) in place, of the policies that learn.

    Args:
        weights: [G, …].
        grads: as the weights.
        averages: of the gradients.
        squares: averages of the squared gradients.
        updates: how many updates each policy has had [G].
        learning_rate: the learning rate.
        learns: policies that are updated [G].
    """
    first, second = _BETAS
    updates += learns
    count = updates.double().clamp(min=1)
    rate = (learning_rate / (1 - first**count)).float()
    scale = (1 - second**count).sqrt().float()
    everybody = bool(learns.all())
    for weight, grad, average, square in zip(weights, grads, averages, squares, strict=True):
        shape = (-1, *[1] * (weight.ndim - 1))
        before = () if everybody else tuple(tensor.clone() for tensor in (weight, average, square))
        average.lerp_(grad, 1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second)
        size = (square.sqrt() / scale.to(weight.device).view(shape)).add_(_EPSILON)
        weight.sub_(average * rate.to(weight.device).view(shape) / size)
        for tensor, then in zip((weight, average, square), before, strict=False):
            tensor.copy_(torch.where(learns.to(weight.device).view(shape), tensor, then))


class Learner:
    """Adam on ``reinforce_gain`` over random experiences from the replay memory, for all policies of a stack."""

    def __init__(
        self,
        stack: PolicyStack,
        *,
        learning_rate: float,
        updates: int,
        batch: int,
        clip: float | None,
        entropy_bonus: float,
    ) -> None:
        self.stack, self.learning_rate = stack, learning_rate
        self.updates, self.batch, self.clip, self.entropy_bonus = updates, batch, clip, entropy_bonus
        self._updates = torch.zeros(len(stack.policies), dtype=torch.long)
        self._averages = [torch.zeros_like(weight) for weight in stack.weights]
        self._squares = [torch.zeros_like(weight) for weight in stack.weights]

    def learn(self, replay: Replay, generators: Sequence[torch.Generator]) -> None:
        """Update θ a few times; not if all returns are zero, as then only the entropy would grow."""
        for _ in range(self.updates):
            for drawn in replay.sample(self.batch, generators):
                self.update(drawn)

    def update(self, drawn: Batch) -> None:
        """One update of θ of the policies that the batch is for."""
        weights = self.stack.weights
        learns = torch.zeros(len(self._updates), dtype=torch.bool)
        learns[drawn.policies] = True
        some = slice(None) if learns.all() else drawn.policies.to(weights[0].device)
        leaves = [weight[some].detach().requires_grad_() for weight in weights]
        with torch.enable_grad():
            logits = policy_logits(leaves, drawn.states.flatten(1, 2), self.stack.prior)
            gain = reinforce_gain(
                logits.view(*drawn.actions.shape, -1),
                drawn.actions,
                drawn.returns,
                drawn.weights,
                old_log_probs=None if self.clip is None else drawn.log_probs,
                clip=self.clip or 0.0,
                entropy_bonus=self.entropy_bonus,
            )
            found = torch.autograd.grad(-gain.mean(1).sum(), leaves)
        grads = [torch.zeros_like(weight) for weight in weights]
        for grad, own in zip(grads, found, strict=True):
            grad[some] = own
        adam_(weights, grads, self._averages, self._squares, self._updates, self.learning_rate, learns)

    def state_dict(self) -> dict[str, Any]:
        """Copies of θ and Adam's moments, which later updates do not change."""
        return deepcopy(
            {
                "policies": self.stack.state_dict(),
                "updates": self._updates,
                "averages": self._averages,
                "squares": self._squares,
            }
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self.stack.load_state_dict(state["policies"])
        self._updates = state["updates"].cpu().clone()
        device = self.stack.weights[0].device
        self._averages, self._squares = (
            [tensor.to(device, copy=True) for tensor in state[name]] for name in ("averages", "squares")
        )
