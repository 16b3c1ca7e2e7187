"""Replay memory D: states, actions and returns of the children at the last steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 0.01  # rewards are measured in deviations


@dataclass(kw_only=True)
class Transition:
    """One step of all children: s_t, a_t, and the return, the sum of the next T rewards.

    REINFORCE does not need s_t+1, so it is not kept. ``returns`` and ``valid`` stay on the CPU, where the rewards
    are; the rest is on the policy's device.

    Args:
        states: s_t of the kept parameters [n, M, F].
        actions: 0, 1, 2 for −β, 0, +β [n, M].
        log_probs: log π(a_t|s_t) when the action was taken [n, M].
        weights: how much each kept parameter counts in a decision; sums to 1 [M].
        returns: Σ of centred rewards so far [n].
        valid: children whose Φ was moved by this action, not replaced [n].
        age: number of rewards added so far.
    """

    states: Tensor
    actions: Tensor
    log_probs: Tensor
    weights: Tensor
    returns: Tensor
    valid: Tensor
    age: int = 0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Experiences drawn at random: B child-steps of M parameters."""

    states: Tensor
    actions: Tensor
    log_probs: Tensor
    weights: Tensor
    returns: Tensor


class Replay:
    """The last ``steps`` matured steps of all children; a step matures when it has received ``horizon`` rewards."""

    def __init__(self, steps: int, horizon: int) -> None:
        self.horizon = horizon
        self.pending: list[Transition] = []
        self.matured: deque[Transition] = deque(maxlen=steps)

    def add(self, transition: Transition) -> None:
        """Add the step that begins now."""
        self.pending.append(transition)

    def add_reward(self, rewards: Tensor) -> None:
        """Add the newest rewards [n] to every step that has fewer than ``horizon`` rewards."""
        for transition in self.pending:
            transition.returns = transition.returns + rewards
            transition.age += 1
        self.matured.extend(t for t in self.pending if t.age == self.horizon)
        self.pending = [t for t in self.pending if t.age < self.horizon]

    def forget(self, children: Tensor) -> None:
        """Drop the pending steps of ``children`` [n], whose rewards were not decided by their actions."""
        for transition in self.pending:
            transition.valid = transition.valid & ~children

    def sample(self, size: int, generator: torch.Generator) -> Batch | None:
        """``size`` child-steps drawn without replacement, or all if there are fewer.

        None while no step has matured, and where all returns are zero up to rounding because the metric plateaus.
        """
        if not self.matured:
            return None
        rows = torch.cat([t.valid for t in self.matured]).nonzero().flatten()
        if not len(rows):
            return None
        rows = rows[torch.randperm(len(rows), generator=generator)[:size]]
        returns = torch.cat([t.returns for t in self.matured])[rows]
        if returns.abs().max() < _ROUNDING:
            return None
        children, device = len(self.matured[0].valid), self.matured[0].states.device
        here = rows.to(device)
        return Batch(
            states=torch.cat([t.states for t in self.matured])[here],
            actions=torch.cat([t.actions for t in self.matured])[here],
            log_probs=torch.cat([t.log_probs for t in self.matured])[here],
            weights=torch.stack([t.weights for t in self.matured])[here // children],
            returns=returns.to(device),
        )

    def state_dict(self) -> dict[str, Any]:
        """All transitions as plain tensors."""
        return {"pending": [dict(vars(t)) for t in self.pending], "matured": [dict(vars(t)) for t in self.matured]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Resume from ``state``, with the states and actions on ``device``."""
        self.pending = [_placed(t, device) for t in state["pending"]]
        self.matured = deque((_placed(t, device) for t in state["matured"]), maxlen=self.matured.maxlen)


def _placed(state: dict[str, Any], device: torch.device | str) -> Transition:
    moved = {name: state[name].to(device) for name in ("states", "actions", "log_probs", "weights")}
    return Transition(**{**state, **moved})
