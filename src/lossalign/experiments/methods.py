"""The methods of a comparison, each by its name: which loss it trains under, and who moves Φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lossalign import rivals
from lossalign.control import LearningController, Policy, Preset
from lossalign.core import Controller, InputError, ParameterSpec, generator
from lossalign.experiments.config import RunConfig
from lossalign.losses import AdaptiveLoss, AlignedLoss, ClassCorrelationLoss

DEFERRED_UNTIL = 0.8
"""Deferred re-weighting starts at this fraction of the run (Cao et al., NeurIPS 2019: epoch 160 of 200)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a method may know when its controller is made."""

    config: RunConfig
    preset: Preset
    loss: AdaptiveLoss
    counts: Tensor
    """Training examples of each class [C]."""
    seed: int
    device: torch.device
    """Where the children train."""

    @property
    def spec(self) -> ParameterSpec:
        """The loss's parameters."""
        return self.loss.spec

    @property
    def children(self) -> int:
        """Children of one policy."""
        return self.config.children

    def generator(self, name: str) -> torch.Generator:
        """A random stream of the policy's own."""
        return generator(self.seed, "policy", name)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train.

    Args:
        controller: makes who moves Φ; None for a method that only changes the outputs of ``after``.
        loss: the loss it needs; None for the run's own.
        groups: parameter groups it needs; None for those the preset moves.
        after: the trained method whose outputs it starts from.
    """

    controller: Callable[[Setting], Controller] | None
    loss: str | None = None
    groups: tuple[str, ...] | None = None
    after: str | None = None


LARGE = 400
"""From so many parameters of all its children a policy is faster on a GPU than on the CPU (docs/performance.md)."""


def _learning(setting: Setting, *, learn: bool) -> Controller:
    config = setting.config
    given = Policy.load(config.policy) if learn and config.policy is not None else None
    return LearningController(
        setting.spec,
        children=setting.children,
        preset=setting.preset,
        groups=setting.preset.groups,
        statistics=setting.loss.num_statistics,
        policy=given,
        learn=learn and not config.freeze,
        generator=setting.generator("actions"),
        device=setting.device if setting.spec.size * setting.children >= LARGE else "cpu",
    )


def _deferred(setting: Setting) -> Controller:
    values = rivals.effective_number(setting.counts)
    return rivals.designed(setting.spec, setting.children, "weights", values, since=DEFERRED_UNTIL)


METHODS: dict[str, Method] = {
    "fixed": Method(controller=lambda s: rivals.fixed(s.spec, s.children)),
    "cross-entropy": Method(controller=lambda s: rivals.fixed(s.spec, s.children), loss="aligned", groups=("offsets",)),
    "ala": Method(controller=lambda s: _learning(s, learn=True)),
    "random-walk": Method(controller=lambda s: _learning(s, learn=False)),
    "inverse-frequency": Method(
        controller=lambda s: rivals.designed(s.spec, s.children, "weights", rivals.inverse_frequency(s.counts)),
        loss="aligned",
        groups=("weights",),
    ),
    "deferred-reweighting": Method(controller=_deferred, loss="aligned", groups=("weights",)),
    "logit-adjustment": Method(
        controller=lambda s: rivals.designed(s.spec, s.children, "offsets", rivals.logit_adjustment(s.counts)),
        loss="aligned",
        groups=("offsets",),
    ),
    "proportional-rule": Method(
        controller=lambda s: rivals.proportional_rule(s.spec, children=s.children), loss="aligned", groups=("offsets",)
    ),
    "random-matrix": Method(
        controller=lambda s: rivals.random_matrix(s.spec, children=s.children, generator=s.generator("matrix")),
        loss="class-correlation",
        groups=("diagonal", "pairs"),
    ),
    "confusion-matrix": Method(
        controller=lambda s: rivals.confusion_matrix(s.spec, children=s.children),
        loss="class-correlation",
        groups=("diagonal", "pairs"),
    ),
    "post-hoc-offsets": Method(controller=None, after="fixed"),
}


def method_named(name: str) -> Method:
    """The method called ``name``."""
    if name not in METHODS:
        raise InputError(f"method {name!r} is unknown; choose from {', '.join(METHODS)}.")
    return METHODS[name]


def make_loss(name: str, groups: tuple[str, ...], counts: Tensor) -> AdaptiveLoss:
    """The classification loss called ``name`` with these groups on."""
    classes = len(counts)
    if name == "aligned":
        return AlignedLoss(classes, groups, frequencies=counts)
    if name == "class-correlation":
        return ClassCorrelationLoss(classes, groups)
    if name == "log-class-correlation":
        return ClassCorrelationLoss(classes, groups, form="log-sigmoid")
    raise InputError(f"loss {name!r} is unknown; choose from aligned, class-correlation, log-class-correlation.")


def grouped_by_loss(config: RunConfig) -> dict[str, list[str]]:
    """Trained methods by the loss they train under: each loss is one population."""
    own = config.controls().loss
    families: dict[str, list[str]] = {}
    for name in config.methods:
        method = method_named(name)
        if method.after is not None and method.after not in config.methods:
            raise InputError(f"method {name!r} starts from {method.after!r}; add it to the methods.")
        if method.controller is not None:
            families.setdefault(method.loss or own, []).append(name)
    return families


def groups_needed(names: list[str], preset: Preset) -> tuple[str, ...]:
    """The groups that at least one of the methods needs."""
    needed: list[str] = []
    for name in names:
        needed += method_named(name).groups or preset.groups
    return tuple(dict.fromkeys(needed))
