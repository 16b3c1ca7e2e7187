"""Controllers of the trained methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from lossalign import rivals
from lossalign.control import LARGE, LearningController, Policy
from lossalign.core import Controller
from lossalign.experiments.methods.derived import costs_of
from lossalign.experiments.methods.spec import Setting
from lossalign.training import own_controller, statistics_name

EVERY = 10
"""Steps between two comparisons of methods that inherit, under a preset that has no inheritance."""


def _given(setting: Setting) -> Policy | None:
    """The initial policy; None for a fresh one."""
    if setting.policy == "none":
        return None
    if setting.policy not in ("auto", "pretrained"):
        return Policy.load(setting.policy)
    if setting.policy == "pretrained":
        return Policy.pretrained()
    if not setting.pretrained:
        return None
    layout = setting.preset.layout(setting.loss.num_statistics)
    return Policy.pretrained_for(setting.preset.groups, layout, statistics_name(setting.loss))


def fixed(setting: Setting) -> Controller:
    """Φ stays at its start."""
    return rivals.fixed(setting.spec, setting.children)


def learning(setting: Setting) -> Controller:
    """A policy that learns, or a frozen one."""
    return _controller(setting, policy=_given(setting), learn=not setting.freeze)


def evolution(setting: Setting) -> Controller:
    """The moves and the inheritance of a fresh policy that never learns."""
    return _controller(setting, policy=None, learn=False)


def random_walk(setting: Setting) -> Controller:
    """The moves of a fresh policy that never learns, without inheritance."""
    return evolution(replace(setting, preset=replace(setting.preset, inherit_every=0)))


def _controller(setting: Setting, policy: Policy | None, learn: bool) -> Controller:
    return LearningController(
        setting.spec,
        children=setting.children,
        preset=setting.preset,
        groups=setting.preset.groups or None,
        statistics=setting.loss.num_statistics,
        policy=policy,
        learn=learn,
        generator=setting.generator("actions"),
        device=setting.device if setting.spec.size * setting.children >= LARGE else "cpu",
        loss_name=statistics_name(setting.loss),
        provenance={"task": setting.task, "metric": setting.metric.name, "seed": setting.seed},
    )


def designed(group: str, values: Callable[[Tensor], Tensor], since: float = 0.0) -> Callable[[Setting], Controller]:
    """A group of Φ set by the class counts [C], from a fraction of the run on."""
    return lambda setting: rivals.designed(setting.spec, setting.children, group, values(setting.counts), since)


def cost_weighted(setting: Setting) -> Controller:
    """Class weights from the metric's cost matrix."""
    values = rivals.cost_weights(costs_of(setting.metric, setting.method))
    return rivals.designed(setting.spec, setting.children, "weights", values)


def population_based(setting: Setting) -> Controller:
    """Population-based training of Φ."""
    return rivals.PopulationBasedController(
        setting.spec,
        children=setting.children,
        groups=setting.preset.groups,
        generator=setting.generator("population-based"),
        tie_breaker=setting.preset.tie_breaker,
    )


def survival(setting: Setting) -> Controller:
    """Children inherit weights as under ALA; Φ stays at its start."""
    preset = setting.preset
    return rivals.PopulationBasedController(
        setting.spec,
        children=setting.children,
        groups=preset.groups,
        generator=setting.generator("survival"),
        times=max(1, setting.steps // (preset.inherit_every or EVERY)),
        share=preset.inherit_share,
        far=0,
        tie_breaker=preset.tie_breaker,
    )


def surviving(controller: Callable[[Setting], Controller]) -> Callable[[Setting], Controller]:
    """The same controller with the inheritance of ALA, as often and for as many children as the preset says."""

    def made(setting: Setting) -> Controller:
        preset = setting.preset
        return rivals.Surviving(
            controller(setting),
            every=preset.inherit_every or EVERY,
            share=preset.inherit_share,
            generator=setting.generator("inheritance"),
            tie_breaker=preset.tie_breaker,
        )

    return made


def proportional_rule(setting: Setting) -> Controller:
    """Offsets follow the per-class validation loss."""
    return rivals.proportional_rule(setting.spec, children=setting.children)


def confusion_rule(setting: Setting) -> Controller:
    """Offsets follow the metric's gain without the errors out of, and into, each class."""
    return rivals.confusion_rule(setting.spec, setting.children)


def metric_gradient(setting: Setting) -> Controller:
    """Offsets follow the metric's gradient on soft predictions."""
    return rivals.metric_gradient(setting.spec, setting.children)


def random_matrix(setting: Setting) -> Controller:
    """The paper's control: the identity with noise, drawn again at every step."""
    return rivals.random_matrix(setting.spec, children=setting.children, generator=setting.generator("matrix"))


def confusion_matrix(setting: Setting) -> Controller:
    """The paper's control: Φ from the validation confusion."""
    return rivals.confusion_matrix(setting.spec, children=setting.children)


def random_phi(setting: Setting) -> Controller:
    """Every child has a random Φ of its own throughout."""
    return rivals.random_phi(setting.spec, children=setting.children, generator=setting.generator("random Φ"))


def replayed(of: str) -> Callable[[Setting], Controller]:
    """The Φ schedule that ``of`` learned, rescaled to the new class counts."""

    def controller(setting: Setting) -> Controller:
        def schedule() -> rivals.Schedule:
            return rivals.rescaled(setting.learned(of), setting.counts_before, setting.counts)

        return rivals.ReplayedController(setting.spec, children=setting.children, schedule=schedule)

    return controller


def own(name: str, factory: Any) -> Callable[[Setting], Controller]:
    """A user's controller: ``factory(spec, children, generator)`` with the loss's parameters, n and a random stream."""

    return lambda setting: own_controller(
        f"controller {name!r}", factory, setting.spec, setting.children, setting.generator("own controller")
    )
