"""The learning controller: observe, reward, learn, act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lossalign.control.draws import draw_actions, draw_some
from lossalign.control.learner import Learner
from lossalign.control.policy import Policy
from lossalign.control.presets import Preset
from lossalign.control.replay import Replay, Transition
from lossalign.control.reward import make_reward
from lossalign.control.state import Space, StateMemory, features, remember
from lossalign.core import InputError, Observation, ParameterSpec, heirs


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


class LearningController:
    """Moves Φ of n children with one policy, which learns from all of them.

    Args:
        spec: the loss's parameters.
        children: n.
        preset: the switches.
        groups: which groups of parameters to move; all that the loss has if None.
        statistics: S, statistics per parameter.
        policy: a policy to start from; a fresh one if None.
        learn: whether the policy learns; False with a fresh policy is the random walk.
        generator: for actions, replay and the fresh policy's weights; a CPU generator whatever the device.
        device: where Φ, the policy and what it remembers live; a GPU pays when the parameters are many.
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
    ) -> None:
        if children < 1:
            raise InputError(f"children={children}: train at least 1.")
        layout = preset.layout(statistics)
        self.policy = policy or Policy(layout, preset.hidden, preset.zero_bias, generator=generator)
        if self.policy.layout != layout:
            raise InputError(
                f"policy: it was learned on states with {asdict(self.policy.layout)}, this run has {asdict(layout)}; "
                "use a loss with the same statistics and the same preset switches."
            )
        self.policy.to(device)
        self._all, self._device = spec, device
        groups = tuple(spec.slices) if groups is None else groups
        moved = spec.select(groups)
        self._moved = slice(None) if len(moved) == spec.size else moved.to(device)
        own = ParameterSpec(tuple(group for group in spec.groups if group.name in groups))
        self._space = Space.of(own, device)
        self._group_of = torch.cat([torch.full((g.size,), i) for i, g in enumerate(own.groups)])
        self._preset, self._learn, self._generator = preset, learn, generator
        self._reward = make_reward(preset.reward)
        self._replay = Replay(preset.replay, preset.returns)
        self._learner = Learner(
            self.policy,
            learning_rate=preset.learning_rate,
            updates=preset.updates,
            batch=preset.batch,
            clip=preset.clip,
            entropy_bonus=preset.entropy_bonus,
        )
        self._initial = spec.initial.to(device)
        self._phi = self._initial.expand(children, -1).clone()
        self._memory: StateMemory | None = None
        self._before: Tensor | None = None
        self._parents: Tensor | None = None
        self._steps = 0

    @property
    def phi(self) -> Tensor:
        """Φ of every child for the coming K iterations [n, P]."""
        return self._phi

    @torch.no_grad()
    def step(self, seen: Observation) -> dict[str, Tensor]:
        """Reward the last action, learn, and act: one round of Algorithm 1."""
        seen = seen.told_apart(self._preset.ties)
        reward = self._credit(seen.metric)
        reset = self._reset(seen.metric)
        if self._learn:
            self._learner.learn(self._replay, self._generator)
        seen = self._inherit(seen)
        entropy = self._act(seen)
        self._before = seen.metric
        return {"reward": reward, "entropy": entropy, "reset": reset.float()}

    def _credit(self, metric: Tensor) -> Tensor:
        if self._before is None:
            return torch.full_like(metric, torch.nan)
        reward = self._reward(self._before, metric)
        self._replay.reward(reward)
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
        """With whose weights each child goes on [n]."""
        return self._parents

    def _inherit(self, seen: Observation) -> Observation:
        """From time to time the worst children take over Φ, what was seen of it, and the weights of the best."""
        self._steps, self._parents = self._steps + 1, None
        if not self._preset.inherit or self._steps % self._preset.inherit:
            return seen
        self._parents = parents = heirs(seen.metric, self._preset.heirs, self._generator)
        self._replay.forget(parents != torch.arange(len(parents)))
        here = parents.to(self._device)
        self._phi = self._phi[here]
        if self._memory is not None:
            self._memory = StateMemory(**{name: tensor[here] for name, tensor in vars(self._memory).items()})
        return Observation(
            metric=seen.metric[parents],
            statistics=seen.statistics[parents.to(seen.statistics.device)],
            sensitivity=seen.sensitivity[parents.to(seen.sensitivity.device)],
            progress=seen.progress,
        )

    def _act(self, seen: Observation) -> Tensor:
        phi = self._phi[:, self._moved]
        seen = Observation(
            metric=seen.metric,
            statistics=seen.statistics.to(self._device)[:, self._moved].contiguous(),
            sensitivity=seen.sensitivity.to(self._device)[:, self._moved].contiguous(),
            progress=seen.progress,
        )
        self._memory = remember(self._memory, seen.statistics, self._space.groups, self.policy.layout.history)
        states = features(self.policy.layout, self._memory, seen, phi, self._space)
        log_pi = self.policy.log_probabilities(states)
        pi = log_pi.exp()
        entropy = -(pi * log_pi).sum(-1).mean(1).cpu()
        if not entropy.isfinite().all():
            raise InputError(
                "the policy's probabilities are not finite: look for NaN or inf in the loss's statistics, or lower the "
                "preset's learning_rate."
            )
        actions = draw_actions(pi, self._generator, self._preset.antithetic)
        step = self._preset.beta * self._space.step * (1 - seen.progress) ** self._preset.cooling
        moved = (phi + (actions - 1) * step).clamp(self._space.low, self._space.high)
        self._phi = self._phi.clone()
        self._phi[:, self._moved] = moved
        self._remember_decision(states, actions, log_pi.gather(-1, actions[..., None]).squeeze(-1))
        return entropy

    def _remember_decision(self, states: Tensor, actions: Tensor, log_probs: Tensor) -> None:
        children, size = actions.shape
        kept = draw_some(size, self._preset.parameters, self._generator)
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
        """Go on exactly from ``state``."""
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
