"""All methods by name, and parsing of methods from text."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lossalign import rivals
from lossalign.control import RENAMED_OPTIONS, Preset
from lossalign.core import Controller, InputError, Registry, import_plug
from lossalign.core.values import parse_value
from lossalign.experiments.methods import trained
from lossalign.experiments.methods.combined import FOLDS, Children, Decided, Ensemble
from lossalign.experiments.methods.derived import BayesDecision, BestOf, Guard, Offsets
from lossalign.experiments.methods.spec import (
    DerivedMethod,
    Method,
    MethodSpec,
    Role,
    Setting,
    TrainedMethod,
)
from lossalign.losses.metric_learning import PREFIX as FROM_PACKAGE

METHODS: Registry[Method] = Registry(
    "method",
    hint=f"{FROM_PACKAGE}NAME for a loss of pytorch-metric-learning, or module:attribute for a controller of your own",
    renamed={"post-hoc-reward": "post-hoc-validation"},
)

AND_VALIDATION, SURVIVAL, DECISION = "+val", "+survival", "+decision"
"""Suffixes: the method trains on the validation split too; its children inherit as under ALA; its outputs are followed
by a decision."""
ENSEMBLE = "ensemble-"
"""Prefix: the children of a seed predict together."""

DEFERRED_UNTIL = 0.8
"""Deferred re-weighting starts at this fraction of the run (Cao et al., NeurIPS 2019: epoch 160 of 200)."""
ANNEALED_AT, ANNEALED_TO = 0.1, 5.0
"""L-Softmax starts as cross-entropy; from this fraction of the run on, its λ is the authors' final one."""


def _trained(
    name: str,
    summary: str,
    controller: Callable[[Setting], Controller],
    role: Role = "rival",
    **more: Any,
) -> None:
    METHODS.add(name, summary, TrainedMethod(name=name, role=role, controller=controller, **more))


def _derived(name: str, summary: str, derivation: Any, *after: str, of_classes: bool = False) -> None:
    METHODS.add(
        name,
        summary,
        DerivedMethod(name=name, role="derived", derivation=derivation, after=after, of_classes=of_classes),
    )


def _constant(value: float) -> Callable[[Tensor], Tensor]:
    return lambda counts: torch.full(counts.shape, value)


FIXED, ALA, RANDOM_PHI = "fixed", "ala", "random-phi"
"""The baseline, the learner, and random search: methods that others are derived from."""
_MATRIX: dict[str, Any] = {"loss": "class-correlation", "groups": ("diagonal", "pairs")}

_trained(FIXED, "the run's loss with Φ at its start (for the default loss: cross-entropy)", trained.fixed, "baseline")
_trained(
    "cross-entropy",
    "cross-entropy, whatever the run's loss is",
    trained.fixed,
    loss="aligned",
    groups=("offsets",),
)
_trained(
    ALA,
    "a policy moves Φ and learns from the reward (the paper's method)",
    trained.learning,
    "learner",
    watches=True,
    heritable=False,
)
_trained(
    "random-walk",
    "the moves of ALA, never learning, no inheritance",
    trained.random_walk,
    watches=True,
    heritable=False,
    random=True,
)
_trained(
    "evolution", "the moves and inheritance of ALA, never learning", trained.evolution, watches=True, heritable=False
)
for _name, _summary, _group, _values, _since in (
    ("inverse-frequency", "class weights 1 / n_c", "weights", rivals.inverse_frequency, 0.0),
    ("class-balanced", "class weights by effective number (Cui et al. 2019)", "weights", rivals.effective_number, 0.0),
    (
        "deferred-reweighting",
        "class-balanced weights from 80 % of the run (Cao et al. 2019)",
        "weights",
        rivals.effective_number,
        DEFERRED_UNTIL,
    ),
    ("logit-adjustment", "offsets log π_c (Menon et al. 2021)", "offsets", rivals.logit_adjustment, 0.0),
    ("focal", "focal loss, γ = 2", "focus", _constant(2.0), 0.0),
    ("label-smoothing", "label smoothing, ε = 0.1", "smoothing", _constant(0.1), 0.0),
):
    _trained(_name, _summary, trained.designed(_group, _values, _since), loss="aligned", groups=(_group,))
_trained(
    "cost-weighted", "class weights from the cost matrix", trained.cost_weighted, loss="aligned", groups=("weights",)
)
_trained(
    "ldam-drw",
    "LDAM with deferred re-weighting, cosine head (Cao et al. 2019)",
    trained.designed("weights", rivals.effective_number, DEFERRED_UNTIL),
    loss="ldam",
    groups=("weights",),
    model="+cosine",
)
_trained(
    "l-softmax",
    "large-margin softmax, cosine head (Liu et al. 2016)",
    trained.designed("strength", lambda counts: torch.tensor([1 / (1 + ANNEALED_TO)]), ANNEALED_AT),
    loss="l-softmax",
    groups=("strength",),
    model="+cosine",
)
_trained(
    "proportional-rule",
    "offsets follow the per-class validation loss, no learning",
    trained.proportional_rule,
    loss="aligned",
    groups=("offsets",),
    watches=True,
)
_trained(
    "confusion-rule",
    "offsets follow what the metric would gain without a class's errors, no learning",
    trained.confusion_rule,
    loss="aligned",
    groups=("offsets",),
    watches=True,
)
_trained(
    "metric-gradient",
    "offsets follow the metric's gradient on soft predictions, no learning",
    trained.metric_gradient,
    loss="aligned",
    groups=("offsets",),
    watches=True,
)
_trained("pairwise", "half cross-entropy, half pairwise ranking loss", trained.fixed, loss="pairwise", groups=("mix",))
_trained(
    "smooth-ap",
    "half cross-entropy, half Smooth-AP (Brown et al. 2020)",
    trained.fixed,
    loss="smooth-ap",
    groups=("mix",),
)
_trained(
    "population-based",
    "population-based training of Φ (Jaderberg et al. 2017)",
    trained.population_based,
    watches=True,
    heritable=False,
)
_trained(
    "survival",
    "fixed+survival under its earlier name, with other random draws",
    trained.survival,
    watches=True,
    heritable=False,
)
_trained("random-matrix", "the paper's control: identity with noise", trained.random_matrix, **_MATRIX)
_trained(
    "confusion-matrix", "the paper's control: Φ from the confusion", trained.confusion_matrix, watches=True, **_MATRIX
)
for _name, _summary in (
    ("triplet", "triplet loss, semi-hard (Eq. 8)"),
    ("margin", "margin loss, negatives weighted by distance (Wu et al. 2017)"),
    ("contrastive", "contrastive loss (Hadsell et al. 2006)"),
    ("multi-similarity", "multi-similarity loss (Wang et al. 2019)"),
    ("paper-mixture", "Eq. 9 at the paper's Φ_0"),
    ("light-mixture", "Eq. 9 with a lighter weight on positives"),
    ("sharp-focal", "Eq. 10 at (2, 10)"),
):
    _trained(_name, _summary, trained.fixed, loss=_name)
_trained(RANDOM_PHI, "20 children, each with a random Φ throughout", trained.random_phi, children=20)
_trained(
    "refit-ala",
    "trains again on train and validation under the Φ that ala learned",
    trained.replayed(ALA),
    after=(ALA,),
    refits=True,
)
_derived(
    "post-hoc-offsets",
    "fixed, then offsets fitted on validation (with --final: and selection)",
    Offsets(FIXED, and_selection=True),
    FIXED,
    of_classes=True,
)
_derived(
    "post-hoc-validation", "fixed, then offsets fitted on the validation split", Offsets(FIXED), FIXED, of_classes=True
)
_derived("post-hoc-ala", "ala, then offsets fitted on the validation split", Offsets(ALA), ALA, of_classes=True)
_derived("bayes-decision", "fixed, calibrated, then the class of lowest expected cost", BayesDecision(FIXED), FIXED)
_derived("best-of-fixed", "the child of fixed with the best selection metric", BestOf(FIXED), FIXED)
_derived("best-of-ala", "the child of ala with the best selection metric", BestOf(ALA), ALA)
_derived("best-of-random", "the child of random-phi with the best selection metric", BestOf(RANDOM_PHI), RANDOM_PHI)
_derived("guarded-ala", "ala, or fixed where the selection split prefers it", Guard(ALA, FIXED), ALA, FIXED)

COMPARED_CLASSES = (
    FIXED,
    "deferred-reweighting",
    "logit-adjustment",
    "proportional-rule",
    "post-hoc-offsets",
    "fixed+decision",
    "logit-adjustment+decision",
    "random-walk",
    "evolution",
    ALA,
)
"""Default methods of ``lossalign compare`` in classification; decisions only for metrics of the confusion counts."""
COMPARED_EMBEDDINGS = (
    FIXED,
    "triplet",
    "margin",
    "contrastive",
    "multi-similarity",
    "random-walk",
    "evolution",
    ALA,
)
"""Default methods of ``lossalign compare`` in metric learning."""
GUARDED, REFITTED = (ALA, FIXED, "guarded-ala"), (ALA, "refit-ala")
"""Methods that ``--guard`` and ``--refit`` add."""

_OWN: dict[str, Any] = {"policy": str, "freeze": bool, "children": int}
"""Options that a method may have besides those of the preset."""


def parse_method(text: str) -> MethodSpec:
    """The method that ``text`` describes.

    Example:
        >>> parse_method("ala:groups=weights,offsets,horizon=1").options
        (('groups', ('weights', 'offsets')), ('horizon', 1))
        >>> parse_method("logit-adjustment+val").and_validation
        True
        >>> parse_method("logit-adjustment+survival").trained.name
        'logit-adjustment+survival'
        >>> parse_method("ensemble-logit-adjustment+decision").method.after
        ('logit-adjustment',)
        >>> parse_method("pml-multi-similarity").trained.loss
        'pml-multi-similarity'
    """
    name, options = _parts(text)
    plain, suffixes = _suffixes(text, name)
    if DECISION in suffixes or plain.startswith(ENSEMBLE):
        return _combined(text, name, decides=DECISION in suffixes)
    method = _find(plain)
    own = {key: parse_value(f"method {text!r}: {key}", options.pop(key), _OWN[key]) for key in _OWN if key in options}
    if own.get("children", 1) < 1:
        raise InputError(f"method {text!r}: children={own['children']}: train at least 1.")
    watches = isinstance(method, TrainedMethod) and method.watches
    and_validation = AND_VALIDATION in suffixes
    if and_validation and (watches or isinstance(method, DerivedMethod)):
        raise InputError(
            f"method {text!r}: {plain} reads the validation split or is not trained; leave out {AND_VALIDATION}."
        )
    if (options or own) and isinstance(method, DerivedMethod):
        raise InputError(f"method {text!r}: {plain} is derived from other methods and takes no options.")
    return MethodSpec(
        text=text,
        method=_surviving(text, method) if SURVIVAL in suffixes else method,
        and_validation=and_validation or (isinstance(method, TrainedMethod) and method.refits),
        options=tuple((key, _option(text, key, value)) for key, value in options.items()),
        policy=own.get("policy"),
        freeze=own.get("freeze"),
        children=own.get("children", getattr(method, "children", None)),
    )


def _suffixes(text: str, name: str) -> tuple[str, list[str]]:
    """The name without its suffixes, and these.

    Example:
        >>> _suffixes("fixed+survival+val", "fixed+survival+val")
        ('fixed', ['+val', '+survival'])
    """
    found: list[str] = []
    known = (AND_VALIDATION, SURVIVAL, DECISION)
    while suffix := next((suffix for suffix in known if name.endswith(suffix)), None):
        if suffix in found:
            raise InputError(f"method {text!r}: {suffix} is given twice; leave one out.")
        name, found = name.removesuffix(suffix), [*found, suffix]
    return name, found


def _combined(text: str, name: str, *, decides: bool) -> MethodSpec:
    """An ensemble, a decision, or both, on a method that must be in the run too."""
    ensemble, options = name.startswith(ENSEMBLE), text.removeprefix(name)
    base = parse_method(name.removeprefix(ENSEMBLE).replace(DECISION, "") + options)
    asked = " and ".join([ENSEMBLE] * ensemble + [DECISION] * decides)
    if base.trained is None:
        raise InputError(f"method {text!r}: {base.text} trains no children of its own; leave out {asked}.")
    if decides and base.trained.refits:
        raise InputError(
            f"method {text!r}: {base.text} trains on the validation split under the Φ of another method, so no labels "
            f"are left to decide by; leave out {DECISION}."
        )
    folds = tuple(_fold(base, fold) for fold in range(FOLDS)) if decides and base.and_validation else ()
    models = Ensemble(base.text) if ensemble else Children(base.text)
    return MethodSpec(
        text=text,
        method=DerivedMethod(
            name=name,
            role="derived",
            derivation=Decided(models, tuple(fold.text for fold in folds)) if decides else Ensemble(base.text),
            after=(base.text,),
            of_classes=True,
            ensemble=ensemble,
            decides=decides,
            folds=folds,
        ),
    )


def _fold(base: MethodSpec, fold: int) -> MethodSpec:
    """The method, trained without one fold of the validation split."""
    assert base.trained is not None
    method = replace(base.trained, role="rival")
    return replace(base, text=f"{base.text} without fold {fold + 1} of {FOLDS}", method=method, without=fold)


def _surviving(text: str, method: Method) -> TrainedMethod:
    """The method with the inheritance of ALA."""
    if not isinstance(method, TrainedMethod) or method.refits or not method.heritable:
        raise InputError(
            f"method {text!r}: {method.name} inherits by itself or trains no children of its own; leave out {SURVIVAL}."
        )
    return replace(
        method,
        name=method.name + SURVIVAL,
        role="rival",
        controller=trained.surviving(method.controller),
        watches=True,
        heritable=False,
    )


def _find(name: str) -> Method:
    if name.startswith(FROM_PACKAGE):
        return TrainedMethod(name=name, role="rival", controller=trained.fixed, loss=name)
    if ":" in name:
        return own_method(name, import_plug("controller", name))
    return METHODS[name]


def own_method(name: str, factory: Any) -> TrainedMethod:
    """A method whose controller a user's ``factory(spec, children, generator)`` makes."""
    return TrainedMethod(name=name, role="rival", controller=trained.own(name, factory), watches=True)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """The name, and the options as text; a part without ``=`` continues the value before it."""
    pieces = text.split(":")
    name = pieces[0]
    if len(pieces) > 1 and "=" not in pieces[1]:  # module:attribute
        name, pieces = f"{pieces[0]}:{pieces[1]}", pieces[1:]
    options: dict[str, str] = {}
    for part in ":".join(pieces[1:]).split(",") if len(pieces) > 1 else []:
        key, equals, value = part.partition("=")
        if equals:
            options[key] = value
        elif options:
            options[next(reversed(options))] += f",{part}"
        else:
            raise InputError(f"method {text!r}: write its options as name=value, separated by commas.")
    return name, options


_HINTS = typing.get_type_hints(Preset)


def _option(text: str, key: str, value: str) -> Any:
    if key not in _HINTS:
        if key in RENAMED_OPTIONS:
            raise InputError(f"method {text!r}: option {key!r} is now called {RENAMED_OPTIONS[key]!r}.")
        raise InputError(f"method {text!r}: option {key!r} is unknown; choose from {', '.join((*_OWN, *_HINTS))}.")
    return parse_value(f"method {text!r}: {key}", value, _HINTS[key])


DEFAULT_METHODS = (parse_method(ALA),)
"""Default methods of ``lossalign train``."""
