"""Replay memory D: states, actions and returns of the children at the last steps, of G policies side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 0.01  # rewards are measured in deviations
_ON_DEVICE = ("states", "actions", "log_probs", "weights")


@dataclass(kw_only=True)
class Transition:
    """One step of the n children of each of G policies: s_t, a_t, and the return, the sum of the next T rewards.

    REINFORCE does not need s_t+1, so it is not kept. ``returns`` and ``valid`` stay on the CPU, where the rewards
    are; the rest is on the policies' device.

    Args:
        states: s_t of the kept parameters [G, n, M, F].
        actions: 0, 1, 2 for −β, 0, +β [G, n, M].
        log_probs: log π(a_t|s_t) when the action was taken [G, n, M].
        weights: how much each kept parameter counts in a decision; sums to 1 [G, M].
        returns: Σ of centred rewards so far [G, n].
        valid: children whose Φ was moved by this action, not replaced [G, n].
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
    """Experiences drawn at random for some of the policies: B child-steps of M parameters each.

    Args:
        policies: which policies [g].
        states: [g, B, M, F].
        actions: [g, B, M].
        log_probs: [g, B, M].
        weights: [g, B, M].
        returns: [g, B].
    """

    policies: Tensor
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
        self._joined: dict[str, Tensor] = {}

    def add(self, transition: Transition) -> None:
        """Add the step that begins now."""
        self.pending.append(transition)

    def add_reward(self, rewards: Tensor) -> None:
        """Add the newest rewards [G, n] to every step that has fewer than ``horizon`` rewards."""
        for transition in self.pending:
            transition.returns = transition.returns + rewards
            transition.age += 1
        self.matured.extend(t for t in self.pending if t.age == self.horizon)
        self.pending = [t for t in self.pending if t.age < self.horizon]
        self._joined = {}

    def forget(self, children: Tensor) -> None:
        """Drop the pending steps of ``children`` [G, n], whose rewards were not decided by their actions."""
        for transition in self.pending:
            transition.valid = transition.valid & ~children

    def _all(self) -> dict[str, Tensor]:
        """The matured steps by field, each [G, steps · n, …], and ``weights`` [G, steps, M]."""
        if not self._joined:
            for name in (*_ON_DEVICE, "returns", "valid"):
                joined = torch.stack([getattr(t, name) for t in self.matured], 1)
                self._joined[name] = joined if name == "weights" else joined.flatten(1, 2)
        return self._joined

    def sample(self, size: int, generators: Sequence[torch.Generator]) -> list[Batch]:
        """For each policy ``size`` child-steps drawn without replacement, or all if there are fewer.

        A policy does not learn from returns that are all zero up to rounding, because the metric plateaus.

        Returns:
            A batch for all policies that draw equally many; no more than one as soon as all have ``size``.
        """
        if not self.matured:
            return []
        everything = self._all()
        drawn = [
            _draw(valid, size, generator) for valid, generator in zip(everything["valid"], generators, strict=True)
        ]
        alike: dict[int, list[int]] = {}
        for policy, rows in enumerate(drawn):
            if len(rows) and everything["returns"][policy, rows].abs().max() >= _ROUNDING:
                alike.setdefault(len(rows), []).append(policy)
        return [
            self._batch(policies, torch.stack([drawn[policy] for policy in policies])) for policies in alike.values()
        ]

    def _batch(self, policies: list[int], rows: Tensor) -> Batch:
        """The child-steps ``rows`` [g, B] of some policies."""
        everything = self._all()
        device, n = everything["states"].device, self.matured[0].valid.shape[1]
        own = torch.tensor(policies)
        at, here = own[:, None].to(device), rows.to(device)
        return Batch(
            policies=own,
            states=everything["states"][at, here],
            actions=everything["actions"][at, here],
            log_probs=everything["log_probs"][at, here],
            weights=everything["weights"][at, here // n],
            returns=everything["returns"][own[:, None], rows].to(device),
        )

    def state_dict(self) -> dict[str, Any]:
        """All transitions as plain tensors."""
        return {"pending": [dict(vars(t)) for t in self.pending], "matured": [dict(vars(t)) for t in self.matured]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """Resume from ``state``, with the states and actions on ``device``."""
        self.pending = [_placed(t, device) for t in state["pending"]]
        self.matured = deque((_placed(t, device) for t in state["matured"]), maxlen=self.matured.maxlen)
        self._joined = {}


def _draw(valid: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` of the rows that are ``valid``, in random order, or all if there are fewer."""
    rows = valid.nonzero().flatten()
    return rows[torch.randperm(len(rows), generator=generator)[:size]] if len(rows) else rows


def _placed(state: dict[str, Any], device: torch.device | str) -> Transition:
    return Transition(**{**state, **{name: state[name].to(device) for name in _ON_DEVICE}})
