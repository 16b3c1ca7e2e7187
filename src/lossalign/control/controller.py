"""The learning controller: observe, reward, learn, act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from lossalign.control.draws import draw_actions, draw_some
from lossalign.control.learner import Learner
from lossalign.control.policy import Policy, PolicyAbout, PolicyStack
from lossalign.control.presets import Preset
from lossalign.control.replay import Replay, Transition
from lossalign.control.reward import make_reward
from lossalign.control.rules import needed_by, rule_move
from lossalign.control.state import Space, StateLayout, StateMemory, features, remember
from lossalign.core import InputError, Observation, ParameterSpec, Wanted, choose_parents

LARGE = 400
"""From this number of parameters over all its children, a policy is faster on a GPU than on the CPU
(docs/performance.md)."""


def far_behind(metric: Tensor, deviations: float) -> Tensor:
    """Children whose error lies far above the median: by ``deviations`` robust deviations and by a quarter of it.

    A robust deviation is 1.4826 · MAD, which a few lost children do not move. Fewer than four cannot tell.

    Args:
        metric: errors of the n children of each policy [..., n].
        deviations: how many.

    Returns:
        [..., n].

    Example:
        >>> far_behind(torch.tensor([0.10, 0.11, 0.12, 0.13, 0.90]), deviations=5.0)
        tensor([False, False, False, False,  True])
    """
    if metric.shape[-1] < 4:
        return torch.zeros_like(metric, dtype=torch.bool)
    median = metric.quantile(0.5, -1, keepdim=True)
    excess = metric - median
    spread = 1.4826 * excess.abs().quantile(0.5, -1, keepdim=True)
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
            f"policy: it was learned on states with {_described(policy.layout)}, and this run has states with "
            f"{_described(layout)}; use a loss with the same statistics and the same options."
        )
    if policy.about is not None and not policy.about.fits(about.groups, about.loss):
        raise InputError(
            f"policy: it was learned on {policy.about}, this run has {about}; use a policy of the same loss and "
            "groups, or a fresh one."
        )
    return policy


def _check_moves(preset: Preset, groups: Sequence[str], learn: bool) -> None:
    if preset.prior != "none" and "offsets" not in groups:
        raise InputError(
            f"prior={preset.prior}: it moves the group offsets, and the groups moved here are {', '.join(groups)}; add "
            "offsets, or set prior=none."
        )
    if preset.expected_moves and learn:
        raise InputError(
            "expected_moves: a policy learns from the actions that it draws; use it with a frozen policy (freeze, or "
            "learn=False) or evolution, or leave it out."
        )


def _described(layout: StateLayout) -> str:
    return ", ".join(f"{name}={value}" for name, value in asdict(layout).items())


class LearningController:
    """Moves Φ of n children with one policy, which learns from all of them; or of G · n children with G such policies.

    All policies of a stack observe, are rewarded, learn and act in one pass. Each has its own children, rewards, replay
    memory and random stream: the results are those of G controllers, up to rounding.

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
        loss_name: name of the loss's statistics. A given policy must have been learned on it, if both
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
        self._spec, self._children = spec, children
        groups = tuple(spec.slices) if groups is None else tuple(groups)
        self._selected = spec.select(groups)
        self._own = ParameterSpec(tuple(group for group in spec.groups if group.name in groups))
        _check_moves(preset, groups, learn)
        about = PolicyAbout(groups=groups, loss=loss_name, preset=asdict(preset), provenance=provenance or {})
        made = _checked(policy, preset.layout(statistics), about) or Policy(
            preset.layout(statistics), preset.policy_hidden, preset.zero_bias, generator=generator, about=about
        )
        self._preset, self._learn = preset, learn
        self._begin([made], [generator], device)

    def _begin(
        self, policies: Sequence[Policy], generators: Sequence[torch.Generator], device: torch.device | str
    ) -> None:
        preset = self._preset
        self._generators = list(generators)
        self._stack = PolicyStack(policies)
        self._group_of = torch.cat([torch.full((g.size,), i) for i, g in enumerate(self._own.groups)])
        self._place(device)
        self._reward = make_reward(preset.reward)
        self._replay = Replay(preset.replay, preset.horizon)
        self._learner = Learner(
            self._stack,
            learning_rate=preset.policy_learning_rate,
            updates=preset.policy_updates,
            batch=preset.replay_batch,
            clip=preset.ratio_clip,
            entropy_bonus=preset.entropy_bonus,
        )
        self._phi = self._initial.expand(len(policies) * self._children, -1).clone()
        self._memory: StateMemory | None = None
        self._before: Tensor | None = None
        self._parents: Tensor | None = None
        self._steps = 0

    @classmethod
    def stacked(
        cls, controllers: Sequence[LearningController], device: torch.device | str = "cpu"
    ) -> LearningController:
        """One controller with the policies and children of several that have not moved yet and differ in these alone.

        Args:
            controllers: of the same loss, options and number of children.
            device: where the children train; the controller goes there from ``LARGE`` parameters on.
        """
        first = controllers[0]
        assert all(one._alike() == first._alike() and not one._steps for one in controllers), "they differ in more"
        made = copy(first)
        large = len(controllers) * first._children * first._spec.size >= LARGE
        policies = [policy for one in controllers for policy in one.policies]
        made._begin(policies, [g for one in controllers for g in one._generators], device if large else "cpu")
        return made

    def _alike(self) -> tuple[Any, ...]:
        layout = self.policies[0].layout
        return (self._children, self._preset, self._learn, self._own, self._spec, layout, self.policies[0].hidden)

    @property
    def policies(self) -> tuple[Policy, ...]:
        """All policies, in the order of their children."""
        return self._stack.policies

    @property
    def policy(self) -> Policy:
        """The policy, of a controller that has one."""
        (policy,) = self.policies
        return policy

    def to(self, device: torch.device | str) -> LearningController:
        """Move Φ, the policies and what they remember to ``device``; decisions do not depend on it."""
        state = self.state_dict()
        self._place(device)
        self.load_state_dict(state)
        return self

    def _place(self, device: torch.device | str) -> None:
        self._device = device
        self._stack.to(device)
        everything = len(self._selected) == self._spec.size
        self._moved = slice(None) if everything else self._selected.to(device)
        self._space = Space.of(self._own, device)
        self._initial = self._spec.initial.to(device)
        self._offsets = None if self._preset.prior == "none" else self._own.select(["offsets"]).to(device)
        self._weights = decision_weights(self._group_of).to(device)

    @property
    def wants(self) -> frozenset[Wanted]:
        """What the prior reads of an observation."""
        return frozenset() if self._preset.prior == "none" else frozenset([needed_by(self._preset.prior)])

    def _by_policy(self, values: Tensor) -> Tensor:
        """[G · n, …] → [G, n, …]."""
        return values.view(-1, self._children, *values.shape[1:])

    @property
    def phi(self) -> Tensor:
        """Φ of every child for the coming K iterations [G · n, P]."""
        return self._phi

    @torch.no_grad()
    def move(self, observation: Observation) -> dict[str, Tensor]:
        """Reward the last action, learn, and act: one round of Algorithm 1."""
        observation = observation.with_tie_breaker(self._preset.tie_breaker)
        reward = self._credit(observation.error)
        reset = self._reset(observation.error)
        if self._learn:
            self._learner.learn(self._replay, self._generators)
        observation = self._inherit(observation)
        entropy = self._act(observation)
        self._before = observation.error
        return {"reward": reward, "entropy": entropy, "reset": reset.float()}

    def _credit(self, metric: Tensor) -> Tensor:
        if self._before is None:
            return torch.full_like(metric, torch.nan)
        reward = self._reward(self._by_policy(self._before), self._by_policy(metric))
        self._replay.add_reward(reward)
        return reward.flatten()

    def _reset(self, metric: Tensor) -> Tensor:
        if self._preset.reset is None:
            return torch.zeros_like(metric, dtype=torch.bool)
        lost = far_behind(self._by_policy(metric), self._preset.reset).flatten()
        if lost.any():
            lost = lost & (self._phi != self._initial).any(1).cpu()
            self.restart(lost)
        return lost

    def restart(self, lost: Tensor) -> None:
        """Give some children [G · n] their initial Φ back, and forget what was decided for them."""
        self._phi = torch.where(lost.to(self._device)[:, None], self._initial, self._phi)
        self._replay.forget(self._by_policy(lost))

    @property
    def parents(self) -> Tensor | None:
        """Index of the child whose weights each child copies after the last move [G · n]; None: no copying."""
        return self._parents

    def _inherit(self, observation: Observation) -> Observation:
        """Every ``inherit_every`` steps the worst children copy Φ, its statistics and the weights of the best."""
        self._steps, self._parents = self._steps + 1, None
        if not self._preset.inherit_every or self._steps % self._preset.inherit_every:
            return observation
        chosen = [
            choose_parents(errors, self._preset.inherit_share, generator)
            for errors, generator in zip(self._by_policy(observation.error), self._generators, strict=True)
        ]
        self._replay.forget(torch.stack(chosen) != torch.arange(self._children))
        first = self._children * torch.arange(len(chosen))
        self._parents = parents = (torch.stack(chosen) + first[:, None]).flatten()
        here = parents.to(self._device)
        self._phi = self._phi[here]
        if self._memory is not None:
            self._memory = StateMemory(**{name: tensor[here] for name, tensor in vars(self._memory).items()})
        return observation.of(parents)

    def _act(self, observation: Observation) -> Tensor:
        phi = self._phi[:, self._moved]
        observation = Observation(
            error=observation.error,
            statistics=observation.statistics.to(self._device)[:, self._moved].contiguous(),
            sensitivity=observation.sensitivity.to(self._device)[:, self._moved].contiguous(),
            progress=observation.progress,
            gradient=None if observation.gradient is None else observation.gradient.to(self._device)[:, self._moved],
        )
        layout, prior = self.policies[0].layout, self._prior(observation)
        self._memory = remember(self._memory, observation.statistics, self._space.groups, layout.history)
        states = self._by_policy(features(layout, self._memory, observation, phi, self._space, prior))
        log_pi = self._stack.log_probabilities(states)
        pi = log_pi.exp()
        entropy = -(pi * log_pi).sum(-1).mean(-1).flatten().cpu()
        if not entropy.isfinite().all():
            raise InputError(
                "the policy's probabilities are not finite: look for NaN or inf in the loss's statistics, or lower "
                "policy_learning_rate."
            )
        actions = draw_actions(pi, self._generators, self._preset.antithetic)
        moves = (actions - 1).float()
        if self._preset.expected_moves:
            moves = pi[..., 2] - pi[..., 0]
        beta = self._preset.beta_scale * self._space.beta * (1 - observation.progress) ** self._preset.cooling
        moved = (phi + moves.flatten(0, 1) * beta).clamp(self._space.low, self._space.high)
        self._phi = self._phi.clone()
        self._phi[:, self._moved] = moved
        self._remember_decision(states, actions, log_pi.gather(-1, actions[..., None]).squeeze(-1))
        return entropy

    def _prior(self, observation: Observation) -> Tensor | None:
        """Logits by which a rule favours +β over 0 [n, P], from what is seen of the parameters that are moved."""
        if self._preset.prior == "none":
            return None
        assert self._offsets is not None
        logits = torch.zeros(observation.statistics.shape[:2], device=self._device)
        one = torch.ones(len(self._offsets), device=self._device)
        move = rule_move(self._preset.prior, observation, self._offsets, one)
        logits[:, self._offsets] = self._preset.prior_strength * move
        return logits

    def _remember_decision(self, states: Tensor, actions: Tensor, log_probs: Tensor) -> None:
        policies, children, size = actions.shape
        if size <= self._preset.replay_parameters:
            weights = self._weights.expand(policies, -1)
        else:
            kept = torch.stack([draw_some(size, self._preset.replay_parameters, each) for each in self._generators])
            here = kept.to(self._device)[:, None].expand(-1, children, -1)
            states = states.gather(2, here[..., None].expand(*here.shape, states.shape[-1]))
            actions, log_probs = actions.gather(2, here), log_probs.gather(2, here)
            weights = torch.stack([decision_weights(self._group_of[some]) for some in kept]).to(self._device)
        self._replay.add(
            Transition(
                states=states,
                actions=actions,
                log_probs=log_probs,
                weights=weights,
                returns=torch.zeros(policies, children),
                valid=torch.ones(policies, children, dtype=torch.bool),
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
            "generators": [generator.get_state() for generator in self._generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume exactly from ``state``."""
        if state["phi"].shape != self._phi.shape:
            raise InputError(
                f"state: it holds Φ of shape {tuple(state['phi'].shape)}, this controller has "
                f"{tuple(self._phi.shape)}; use the same loss, groups and number of children."
            )
        self._spec.check(state["phi"])
        if state["reward"].keys() != self._reward.state_dict().keys():
            raise InputError("state: it was saved under another reward; use the same preset.")
        self._phi, self._before, self._steps = state["phi"].to(self._device), state["before"], state["steps"]
        memory = state["memory"]
        self._memory = memory and StateMemory(**{name: tensor.to(self._device) for name, tensor in memory.items()})
        self._reward.load_state_dict(state["reward"])
        self._replay.load_state_dict(state["replay"], self._device)
        self._learner.load_state_dict(state["learner"])
        for generator, drawn in zip(self._generators, state["generators"], strict=True):
            generator.set_state(drawn)
