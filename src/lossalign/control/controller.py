"""The learning controller: observe, reward, learn, act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lossalign.control.draws import draw_actions, draw_some
from lossalign.control.learner import Learner
from lossalign.control.policy import Policy, PolicyAbout
from lossalign.control.presets import Preset
from lossalign.control.replay import Replay, Transition
from lossalign.control.reward import make_reward
from lossalign.control.state import Space, StateLayout, StateMemory, features, remember
from lossalign.core import InputError, Observation, ParameterSpec, choose_parents

LARGE = 400
"""From this number of parameters over all its children, a policy is faster on a GPU than on the CPU
(docs/performance.md)."""


def far_behind(metric: Tensor, deviations: float) -> Tensor:
    """Children whose error lies far above the median: by ``deviations`` robust deviations and by a quarter of it [n].

    A robust deviation is 1.4826 · MAD, which a few lost children do not move. Fewer than four cannot tell.

    Example:
        >>> far_behind(torch.tensor([0.10, 0.11, 0.12, 0.13, 0.90]), deviations=5.0)
        tensor([False, False, False, False,  True])
    """
    if len(metric) < 4:
        return torch.zeros_like(metric, dtype=torch.bool)
    median = metric.quantile(0.5)
    excess = metric - median
    spread = 1.4826 * excess.abs().quantile(0.5)
    return excess > torch.maximum(deviations * spread, median.abs() / 4)


def decision_weights(group_of: Tensor) -> Tensor:
    """Weights [P] that average within each group, then over groups; they sum to 1.

    Example:
        >>> decision_weights(torch.tensor([0, 0, 1]))
        tensor([0.2500, 0.2500, 0.5000])
    """
    _, index, counts = group_of.unique(return_inverse=True, return_counts=True)
    return torch.reciprocal(len(counts) * counts[index].float())


def _checked(policy: Policy | None, layout: StateLayout, about: PolicyAbout) -> Policy | None:
    """``policy``, if it can be used where ``about`` says; None if there is none."""
    if policy is None:
        return None
    if policy.layout != layout:
        raise InputError(
            f"policy: it was learned on states with {asdict(policy.layout)}, this run has {asdict(layout)}; "
            "use a loss with the same statistics and the same options."
        )
    if policy.about is not None and not policy.about.fits(about.groups, about.loss):
        raise InputError(
            f"policy: it was learned on {policy.about}, this run has {about}; use a policy of the same loss and "
            "groups, or a fresh one."
        )
    return policy


class LearningController:
    """Moves Φ of n children with one policy, which learns from all of them.

    Args:
        spec: the loss's parameters.
        children: n.
        preset: its options.
        groups: which groups of parameters to move; all that the loss has if None.
        statistics: S, statistics per parameter.
        policy: a policy to start from; a fresh one if None.
        learn: whether the policy learns; False with a fresh policy is the random walk.
        generator: for actions, replay and the fresh policy's weights; a CPU generator whatever the device.
        device: where Φ, the policy and what it remembers live; a GPU pays from ``LARGE`` parameters.
        loss_name: name of the class that computes the statistics. A given policy must have been learned on it, if both
            are known; a fresh one says so in ``policy.about``.
        provenance: where a fresh policy learns, for readers of its file: task, metric, seed and the like.
    """

    def __init__(
        self,
        spec: ParameterSpec,
        *,
        children: int,
        preset: Preset,
        groups: Sequence[str] | None = None,
        statistics: int,
        policy: Policy | None = None,
        learn: bool = True,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        loss_name: str = "",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if children < 1:
            raise InputError(f"children={children}: train at least 1.")
        self._all = spec
        groups = tuple(spec.slices) if groups is None else tuple(groups)
        self._selected = spec.select(groups)
        self._own = ParameterSpec(tuple(group for group in spec.groups if group.name in groups))
        about = PolicyAbout(groups=groups, loss=loss_name, preset=asdict(preset), provenance=provenance or {})
        self.policy = _checked(policy, preset.layout(statistics), about) or Policy(
            preset.layout(statistics), preset.policy_hidden, preset.zero_bias, generator=generator, about=about
        )
        self._place(device)
        self._group_of = torch.cat([torch.full((g.size,), i) for i, g in enumerate(self._own.groups)])
        self._preset, self._learn, self._generator = preset, learn, generator
        self._reward = make_reward(preset.reward)
        self._replay = Replay(preset.replay, preset.horizon)
        self._learner = Learner(
            self.policy,
            learning_rate=preset.policy_learning_rate,
            updates=preset.policy_updates,
            batch=preset.replay_batch,
            clip=preset.ratio_clip,
            entropy_bonus=preset.entropy_bonus,
        )
        self._phi = self._initial.expand(children, -1).clone()
        self._memory: StateMemory | None = None
        self._before: Tensor | None = None
        self._parents: Tensor | None = None
        self._steps = 0

    def to(self, device: torch.device | str) -> LearningController:
        """Move Φ, the policy and what it remembers to ``device``; decisions do not depend on it."""
        state = self.state_dict()
        self._place(device)
        self.load_state_dict(state)
        return self

    def _place(self, device: torch.device | str) -> None:
        self._device = device
        self.policy.to(device)
        everything = len(self._selected) == self._all.size
        self._moved = slice(None) if everything else self._selected.to(device)
        self._space = Space.of(self._own, device)
        self._initial = self._all.initial.to(device)

    @property
    def phi(self) -> Tensor:
        """Φ of every child for the coming K iterations [n, P]."""
        return self._phi

    @torch.no_grad()
    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Reward the last action, learn, and act: one round of Algorithm 1."""
        observation = observation.with_tie_breaker(self._preset.tie_breaker)
        reward = self._credit(observation.error)
        reset = self._reset(observation.error)
        if self._learn:
            self._learner.learn(self._replay, self._generator)
        observation = self._inherit(observation)
        entropy = self._act(observation)
        self._before = observation.error
        return {"reward": reward, "entropy": entropy, "reset": reset.float()}

    def _credit(self, metric: Tensor) -> Tensor:
        if self._before is None:
            return torch.full_like(metric, torch.nan)
        reward = self._reward(self._before, metric)
        self._replay.add_reward(reward)
        return reward

    def _reset(self, metric: Tensor) -> Tensor:
        if self._preset.reset is None:
            return torch.zeros_like(metric, dtype=torch.bool)
        lost = far_behind(metric, self._preset.reset)
        if lost.any():
            lost = lost & (self._phi != self._initial).any(1).cpu()
            self._phi = torch.where(lost.to(self._device)[:, None], self._initial, self._phi)
            self._replay.forget(lost)
        return lost

    @property
    def parents(self) -> Tensor | None:
        """Index of the child whose weights each child copies after the last move [n]; None: no copying."""
        return self._parents

    def _inherit(self, observation: Observation) -> Observation:
        """Every ``inherit_every`` steps the worst children copy Φ, its statistics and the weights of the best."""
        self._steps, self._parents = self._steps + 1, None
        if not self._preset.inherit_every or self._steps % self._preset.inherit_every:
            return observation
        self._parents = parents = choose_parents(observation.error, self._preset.inherit_share, self._generator)
        self._replay.forget(parents != torch.arange(len(parents)))
        here = parents.to(self._device)
        self._phi = self._phi[here]
        if self._memory is not None:
            self._memory = StateMemory(**{name: tensor[here] for name, tensor in vars(self._memory).items()})
        return Observation(
            error=observation.error[parents],
            statistics=observation.statistics[parents.to(observation.statistics.device)],
            sensitivity=observation.sensitivity[parents.to(observation.sensitivity.device)],
            progress=observation.progress,
        )

    def _act(self, observation: Observation) -> Tensor:
        phi = self._phi[:, self._moved]
        observation = Observation(
            error=observation.error,
            statistics=observation.statistics.to(self._device)[:, self._moved].contiguous(),
            sensitivity=observation.sensitivity.to(self._device)[:, self._moved].contiguous(),
            progress=observation.progress,
        )
        self._memory = remember(self._memory, observation.statistics, self._space.groups, self.policy.layout.history)
        states = features(self.policy.layout, self._memory, observation, phi, self._space)
        log_pi = self.policy.log_probabilities(states)
        pi = log_pi.exp()
        entropy = -(pi * log_pi).sum(-1).mean(1).cpu()
        if not entropy.isfinite().all():
            raise InputError(
                "the policy's probabilities are not finite: look for NaN or inf in the loss's statistics, or lower the "
                "preset's learning_rate."
            )
        actions = draw_actions(pi, self._generator, self._preset.antithetic)
        beta = self._preset.beta_scale * self._space.beta * (1 - observation.progress) ** self._preset.cooling
        moved = (phi + (actions - 1) * beta).clamp(self._space.low, self._space.high)
        self._phi = self._phi.clone()
        self._phi[:, self._moved] = moved
        self._remember_decision(states, actions, log_pi.gather(-1, actions[..., None]).squeeze(-1))
        return entropy

    def _remember_decision(self, states: Tensor, actions: Tensor, log_probs: Tensor) -> None:
        children, size = actions.shape
        kept = draw_some(size, self._preset.replay_parameters, self._generator)
        here = kept.to(self._device)
        self._replay.add(
            Transition(
                states=states[:, here],
                actions=actions[:, here],
                log_probs=log_probs[:, here],
                weights=decision_weights(self._group_of[kept]).to(self._device),
                returns=torch.zeros(children),
                valid=torch.ones(children, dtype=torch.bool),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain tensors."""
        return {
            "phi": self._phi,
            "memory": None if self._memory is None else dict(vars(self._memory)),
            "before": self._before,
            "steps": self._steps,
            "reward": self._reward.state_dict(),
            "replay": self._replay.state_dict(),
            "learner": self._learner.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``."""
        if state["phi"].shape != self._phi.shape:
            raise InputError(
                f"state: it holds Φ of shape {tuple(state['phi'].shape)}, this controller has "
                f"{tuple(self._phi.shape)}; use the same loss, groups and number of children."
            )
        self._all.check(state["phi"])
        if state["reward"].keys() != self._reward.state_dict().keys():
            raise InputError("state: it was saved under another reward; use the same preset.")
        self._phi, self._before, self._steps = state["phi"].to(self._device), state["before"], state["steps"]
        memory = state["memory"]
        self._memory = memory and StateMemory(**{name: tensor.to(self._device) for name, tensor in memory.items()})
        self._reward.load_state_dict(state["reward"])
        self._replay.load_state_dict(state["replay"], self._device)
        self._learner.load_state_dict(state["learner"])
        self._generator.set_state(state["generator"])
