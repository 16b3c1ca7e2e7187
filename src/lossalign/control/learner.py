"""REINFORCE on replayed steps (Eq. 2 and 3)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from lossalign.control.policy import Policy
from lossalign.control.replay import Batch, Replay


def reinforce_loss(
    logits: Tensor,
    actions: Tensor,
    returns: Tensor,
    weights: Tensor,
    old_log_probs: Tensor | None = None,
    clip: float = 0.2,
    entropy_bonus: float = 0.0,
) -> Tensor:
    """Eq. 3 as a loss: −E[ log π(a|s) · Σ_k (r_k − b_k) ] − entropy bonus · H(π).

    A decision is the joint action on all parameters of a child; its log-probabilities are averaged with ``weights``.
    With ``old_log_probs`` each parameter's term becomes min(ρA, clip(ρ, 1 − c, 1 + c)A), ρ = π(a|s) / π_old(a|s), which
    corrects replayed steps for the current policy.

    Args:
        logits: of the current policy [B, M, 3].
        actions: the actions that were taken [B, M].
        returns: centred returns A [B].
        weights: of the parameters in a decision, summing to 1 [B, M].
        old_log_probs: log π of the actions when they were taken [B, M], or None for plain Eq. 3.
        clip: c.
        entropy_bonus: weight of the entropy.

    Returns:
        A scalar.

    Example:
        >>> logits = torch.zeros(1, 1, 3)
        >>> reinforce_loss(logits, torch.tensor([[2]]), torch.tensor([1.0]), torch.ones(1, 1))  # −log ⅓
        tensor(1.0986)
    """
    log_pi = torch.log_softmax(logits, -1)
    log_prob = log_pi.gather(-1, actions[..., None]).squeeze(-1)
    advantage = returns[:, None]
    if old_log_probs is None:
        gain = log_prob * advantage
    else:
        ratio = (log_prob - old_log_probs).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    entropy = -(log_pi.exp() * log_pi).sum(-1)
    return -((gain + entropy_bonus * entropy) * weights).sum(-1).mean()


class Learner:
    """Adam on ``reinforce_loss`` over random experiences from the replay memory."""

    def __init__(
        self,
        policy: Policy,
        *,
        learning_rate: float,
        updates: int,
        batch: int,
        clip: float | None,
        entropy_bonus: float,
    ) -> None:
        self.policy = policy
        self.updates, self.batch, self.clip, self.entropy_bonus = updates, batch, clip, entropy_bonus
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=learning_rate)

    def learn(self, replay: Replay, generator: torch.Generator) -> None:
        """Update θ a few times; not if all returns are zero, as then only the entropy would grow."""
        for _ in range(self.updates):
            drawn = replay.sample(self.batch, generator)
            if drawn is not None:
                self.update(drawn)

    def update(self, drawn: Batch) -> None:
        """One update of θ."""
        with torch.enable_grad():
            loss = reinforce_loss(
                self.policy(drawn.states),
                drawn.actions,
                drawn.returns,
                drawn.weights,
                old_log_probs=None if self.clip is None else drawn.log_probs,
                clip=self.clip or 0.0,
                entropy_bonus=self.entropy_bonus,
            )
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Copies of θ and Adam's moments, which later updates do not change."""
        return deepcopy({"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))  # Adam would change the given moments in place
