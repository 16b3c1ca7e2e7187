"""The methods of a comparison, each by its name: which loss it trains under, and who moves Φ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lossalign import rivals
from lossalign.control import LearningController, Policy, Preset
from lossalign.core import Controller, InputError, ParameterSpec, generator
from lossalign.experiments.config import RunConfig
from lossalign.losses import (
    AdaptiveLoss,
    AlignedLoss,
    ClassCorrelationLoss,
    ContrastiveLoss,
    DistanceMixtureLoss,
    FocalWeightingLoss,
    LDAMLoss,
    LSoftmaxLoss,
    MarginLoss,
    MultiSimilarityLoss,
    PairwiseLoss,
    RankingLoss,
    SmoothAPLoss,
    TripletLoss,
    metric_learning_loss,
)
from lossalign.losses.metric_learning import PREFIX as FROM_PACKAGE
from lossalign.metrics import MeanCost, Metric

DEFERRED_UNTIL = 0.8
"""Deferred re-weighting starts at this fraction of the run (Cao et al., NeurIPS 2019: epoch 160 of 200)."""


ANNEALED_AT, ANNEALED_TO = 0.1, 5.0
"""L-Softmax starts as cross-entropy; from this fraction of the run on its λ is the authors' last."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a method may know when its controller is made."""

    config: RunConfig
    preset: Preset
    loss: AdaptiveLoss
    metric: Metric
    counts: Tensor
    """Training examples of each class [C]."""
    seed: int
    device: torch.device
    """Where the children train."""
    learned: Callable[[str], rivals.Schedule]
    """Φ along the training of another method under the same seed, as the mean of its children; known once it is
    trained."""
    counts_before: Tensor
    """Training examples of each class without the reward split [C]."""
    policy: str
    """What the policy starts from, as ``RunConfig.policy``."""
    freeze: bool
    """Use that policy as it is."""
    children: int
    """Children of one policy."""

    @property
    def spec(self) -> ParameterSpec:
        """The loss's parameters."""
        return self.loss.spec

    def generator(self, name: str) -> torch.Generator:
        """A random stream of the policy's own."""
        return generator(self.seed, "policy", name)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train.

    Args:
        controller: makes who moves Φ; None for a method that trains nobody (``derived``).
        loss: the loss it needs; None for the run's own.
        groups: parameter groups it needs; None for those the preset moves.
        model: what is added to the name of the network, e.g. ``"+cosine"``.
        derived: how it is made out of the trained methods ``after``: their outputs shifted by fitted offsets, or
            calibrated and decided by cost; their best child alone; or whichever of them the selection split prefers.
        after: the methods it is made of.
        looks: whether its controller looks at the reward split.
        learns: whether it learns from it.
        refits: whether it trains after the methods ``after``, on the reward split too, under the Φ they learned.
        children: how many it has, if the run is not to say.
    """

    controller: Callable[[Setting], Controller] | None
    loss: str | None = None
    groups: tuple[str, ...] | None = None
    model: str = ""
    derived: Literal["offsets", "offsets-of-reward", "bayes", "best", "guard"] | None = None
    after: tuple[str, ...] = ()
    looks: bool = False
    learns: bool = False
    refits: bool = False
    children: int | None = None


LARGE = 400
"""From so many parameters of all its children a policy is faster on a GPU than on the CPU (docs/performance.md)."""


def _given(setting: Setting) -> Policy | None:
    """The policy to start from; None for a fresh one."""
    if setting.policy == "none":
        return None
    if setting.policy not in ("auto", "pretrained"):
        return Policy.load(setting.policy)
    if setting.policy == "pretrained":
        return Policy.pretrained()
    if not setting.config.long_tailed_images:
        return None
    return Policy.pretrained_for(setting.preset.groups, setting.preset.layout(setting.loss.num_statistics))


def _learning(setting: Setting, *, learn: bool, inherit: bool = True) -> Controller:
    return LearningController(
        setting.spec,
        children=setting.children,
        preset=setting.preset if inherit else replace(setting.preset, inherit=0),
        groups=setting.preset.groups,
        statistics=setting.loss.num_statistics,
        policy=_given(setting) if learn else None,
        learn=learn and not setting.freeze,
        generator=setting.generator("actions"),
        device=setting.device if setting.spec.size * setting.children >= LARGE else "cpu",
    )


def _designed(
    group: str, values: Callable[[Tensor], Tensor], since: float = 0.0, loss: str = "aligned", model: str = ""
) -> Method:
    """A group of Φ that follows the class counts [C], from a fraction of the run on."""

    def controller(setting: Setting) -> Controller:
        return rivals.designed(setting.spec, setting.children, group, values(setting.counts), since)

    return Method(controller=controller, groups=(group,), loss=loss, model=model)


def costs_of(metric: Metric, method: str) -> Tensor:
    """The cost matrix that the metric is about."""
    if not isinstance(metric, MeanCost):
        raise InputError(f"method {method!r} needs costs; use it with --metric mean-cost:FILE.csv.")
    return metric.costs


def _cost_weighted(setting: Setting) -> Controller:
    values = rivals.cost_weights(costs_of(setting.metric, "cost-weighted"))
    return rivals.designed(setting.spec, setting.children, "weights", values)


def _surviving(setting: Setting) -> Controller:
    preset = setting.preset
    return rivals.PopulationBasedController(
        setting.spec,
        children=setting.children,
        groups=preset.groups,
        generator=setting.generator("survival"),
        times=max(1, setting.config.steps // (preset.inherit or 10)),
        share=preset.heirs,
        far=0,
        ties=preset.ties,
    )


def _replayed(setting: Setting) -> Controller:
    def schedule() -> rivals.Schedule:
        return rivals.rescaled(setting.learned("ala"), setting.counts_before, setting.counts)

    return rivals.ReplayedController(setting.spec, children=setting.children, schedule=schedule)


FIXED_EMBEDDINGS = (
    "triplet",
    "margin",
    "contrastive",
    "multi-similarity",
    "paper-mixture",
    "light-mixture",
    "sharp-focal",
)
"""Fixed losses of metric learning; the last three are members of the adaptive families."""

METHODS: dict[str, Method] = {
    "fixed": Method(controller=lambda s: rivals.fixed(s.spec, s.children)),
    "cross-entropy": Method(controller=lambda s: rivals.fixed(s.spec, s.children), loss="aligned", groups=("offsets",)),
    "ala": Method(controller=lambda s: _learning(s, learn=True), looks=True, learns=True),
    "random-walk": Method(controller=lambda s: _learning(s, learn=False, inherit=False), looks=True),
    "evolution": Method(controller=lambda s: _learning(s, learn=False), looks=True),
    "inverse-frequency": _designed("weights", rivals.inverse_frequency),
    "class-balanced": _designed("weights", rivals.effective_number),
    "deferred-reweighting": _designed("weights", rivals.effective_number, DEFERRED_UNTIL),
    "logit-adjustment": _designed("offsets", rivals.logit_adjustment),
    "cost-weighted": Method(controller=_cost_weighted, loss="aligned", groups=("weights",)),
    "focal": _designed("focus", lambda counts: torch.full(counts.shape, 2.0)),
    "label-smoothing": _designed("smoothing", lambda counts: torch.full(counts.shape, 0.1)),
    "ldam-drw": _designed("weights", rivals.effective_number, DEFERRED_UNTIL, loss="ldam", model="+cosine"),
    "l-softmax": _designed(
        "strength", lambda counts: torch.tensor([1 / (1 + ANNEALED_TO)]), ANNEALED_AT, loss="l-softmax", model="+cosine"
    ),
    "proportional-rule": Method(
        controller=lambda s: rivals.proportional_rule(s.spec, children=s.children),
        loss="aligned",
        groups=("offsets",),
        looks=True,
    ),
    "pairwise": Method(controller=lambda s: rivals.fixed(s.spec, s.children), loss="pairwise", groups=("mix",)),
    "smooth-ap": Method(controller=lambda s: rivals.fixed(s.spec, s.children), loss="smooth-ap", groups=("mix",)),
    "population-based": Method(
        controller=lambda s: rivals.PopulationBasedController(
            s.spec,
            children=s.children,
            groups=s.preset.groups,
            generator=s.generator("population-based"),
            ties=s.preset.ties,
        ),
        looks=True,
    ),
    "survival": Method(controller=_surviving, looks=True),
    "random-matrix": Method(
        controller=lambda s: rivals.random_matrix(s.spec, children=s.children, generator=s.generator("matrix")),
        loss="class-correlation",
        groups=("diagonal", "pairs"),
    ),
    "confusion-matrix": Method(
        controller=lambda s: rivals.confusion_matrix(s.spec, children=s.children),
        loss="class-correlation",
        groups=("diagonal", "pairs"),
        looks=True,
    ),
    **{name: Method(controller=lambda s: rivals.fixed(s.spec, s.children), loss=name) for name in FIXED_EMBEDDINGS},
    "random-phi": Method(
        controller=lambda s: rivals.random_phi(s.spec, children=s.children, generator=s.generator("random Φ")),
        children=20,
    ),
    "refit-ala": Method(controller=_replayed, after=("ala",), refits=True),
    "post-hoc-offsets": Method(controller=None, derived="offsets", after=("fixed",)),
    "post-hoc-reward": Method(controller=None, derived="offsets-of-reward", after=("fixed",)),
    "post-hoc-ala": Method(controller=None, derived="offsets-of-reward", after=("ala",)),
    "bayes-decision": Method(controller=None, derived="bayes", after=("fixed",)),
    "best-of-fixed": Method(controller=None, derived="best", after=("fixed",)),
    "best-of-ala": Method(controller=None, derived="best", after=("ala",)),
    "best-of-random": Method(controller=None, derived="best", after=("random-phi",)),
    "guarded-ala": Method(controller=None, derived="guard", after=("ala", "fixed")),
}

AND_REWARD = "+val"
"""What a method's name ends in when it trains on the reward split too."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One method of a run as it was written: ``NAME``, ``NAME+val`` or ``NAME:switch=value,…``."""

    method: Method
    and_reward: bool = False
    switches: tuple[str, ...] = ()
    policy: str | None = None
    """What its policy starts from; as the run says if None."""
    freeze: bool | None = None
    """Whether to use it as it is; as the run says if None."""
    children: int | None = None
    """How many share a policy; as many as the run says if None."""


_OWN = ("policy", "freeze", "children")
"""What a method may have of its own beside the switches of its preset."""


def entry(written: str) -> Entry:
    """A method as it was written.

    Example:
        >>> entry("ala:groups=weights,offsets,returns=1").switches
        ('groups=weights,offsets', 'returns=1')
        >>> entry("logit-adjustment+val").and_reward
        True
        >>> entry("pml-multi-similarity").method.loss
        'pml-multi-similarity'
    """
    before, _, after = written.partition(":")
    name = before.removesuffix(AND_REWARD)
    method = replace(METHODS["fixed"], loss=name) if name.startswith(FROM_PACKAGE) else METHODS.get(name)
    if method is None:
        raise InputError(
            f"method {written!r} is unknown; choose from {', '.join(METHODS)}, or {FROM_PACKAGE}NAME for a loss of "
            "pytorch-metric-learning."
        )
    switches: list[str] = []
    for part in after.split(",") if after else []:
        if "=" in part or not switches:
            switches.append(part)
        else:
            switches[-1] += f",{part}"
    own = {key: value for key, _, value in (item.partition("=") for item in switches) if key in _OWN}
    if own.get("freeze", "true") not in ("true", "false"):
        raise InputError(f"method {written!r}: freeze is true or false.")
    if not own.get("children", "1").isdecimal() or own.get("children") == "0":
        raise InputError(f"method {written!r}: children is a number, at least 1.")
    found = Entry(
        method=method,
        and_reward=name != before or method.refits,
        switches=tuple(item for item in switches if item.partition("=")[0] not in own),
        policy=own.get("policy"),
        freeze=own["freeze"] == "true" if "freeze" in own else None,
        children=int(own["children"]) if "children" in own else method.children,
    )
    if name != before and (method.looks or method.controller is None):
        raise InputError(f"method {written!r}: {name} looks at that split or is not trained; leave out {AND_REWARD}.")
    if switches and method.controller is None:
        raise InputError(f"method {written!r}: {name} trains nobody, so it has no switches.")
    return found


LOSSES: dict[str, Callable[[tuple[str, ...], Tensor], AdaptiveLoss]] = {
    "aligned": lambda groups, counts: AlignedLoss(len(counts), groups, frequencies=counts),
    "class-correlation": lambda groups, counts: ClassCorrelationLoss(len(counts), groups),
    "log-class-correlation": lambda groups, counts: ClassCorrelationLoss(len(counts), groups, form="log-sigmoid"),
    "ldam": lambda groups, counts: LDAMLoss(len(counts), counts, groups),
    "l-softmax": lambda groups, counts: LSoftmaxLoss(len(counts), groups),
    "ranking": lambda groups, counts: RankingLoss(len(counts), groups),
    "pairwise": lambda groups, counts: PairwiseLoss(len(counts)),
    "smooth-ap": lambda groups, counts: SmoothAPLoss(len(counts)),
}
"""The losses by name, each with the groups that are on and the training examples of each class [C]."""

EMBEDDING: dict[str, Callable[[tuple[str, ...], RunConfig], AdaptiveLoss]] = {
    "distance-mixture": lambda groups, c: DistanceMixtureLoss(c.framework, _start(c), groups=groups),
    "focal-weighting": lambda groups, c: FocalWeightingLoss(c.framework, _start(c)),
    "paper-mixture": lambda groups, c: DistanceMixtureLoss(c.framework, "paper"),
    "light-mixture": lambda groups, c: DistanceMixtureLoss(c.framework, "default"),
    "scale-matched": lambda groups, c: DistanceMixtureLoss(c.framework, _start(c), normalised=True, groups=groups),
    "sharp-focal": lambda groups, c: FocalWeightingLoss(c.framework, "default"),
    "triplet": lambda groups, c: TripletLoss(),
    "margin": lambda groups, c: MarginLoss(),
    "contrastive": lambda groups, c: ContrastiveLoss(),
    "multi-similarity": lambda groups, c: MultiSimilarityLoss(),
}
"""The losses of metric learning by name, each with the groups that are on and the run."""


def embeds(loss: str) -> bool:
    """Whether the loss of that name is one of metric learning."""
    return loss in EMBEDDING or loss.startswith(FROM_PACKAGE)


def _start(config: RunConfig) -> Literal["default", "paper"]:
    return config.start or ("paper" if config.preset == "paper" else "default")


def make_loss(name: str, groups: tuple[str, ...], counts: Tensor, config: RunConfig) -> AdaptiveLoss:
    """The loss called ``name`` with these groups on."""
    if name in EMBEDDING:
        return EMBEDDING[name](groups, config)
    if name.startswith(FROM_PACKAGE):
        return metric_learning_loss(name)
    if name not in LOSSES:
        raise InputError(f"loss {name!r} is unknown; choose from {', '.join((*LOSSES, *EMBEDDING))}.")
    return LOSSES[name](groups, counts)
