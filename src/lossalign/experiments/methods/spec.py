"""The definition of a method: a role, and either a controller to train with or a rule to derive a score."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from lossalign.children import Weights
from lossalign.control import Preset
from lossalign.core import Controller, ParameterSpec, generator
from lossalign.losses import AdaptiveLoss
from lossalign.metrics import Metric
from lossalign.rivals import Schedule

Split = Literal["scored", "validation", "selection"]
T = TypeVar("T")

Role = Literal["baseline", "learner", "rival", "derived"]
"""``baseline``: Φ stays at its start, others are compared with it; ``learner``: a policy that learns; ``rival``: any
other way to train; ``derived``: computed from trained methods."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The arguments for making a method's controller."""

    task: str
    """The task's name."""
    method: str
    """The method as a user wrote it."""
    preset: Preset
    """The controller's options."""
    loss: AdaptiveLoss
    metric: Metric
    counts: Tensor
    """Training examples of each class [C]."""
    counts_before: Tensor
    """Training examples of each class, before the validation split is added [C]."""
    seed: int
    device: torch.device
    """Where the children train."""
    steps: int
    """Steps of the whole run."""
    children: int
    """Children of one policy."""
    policy: str
    """Policy to start from, as ``ControlConfig.policy``."""
    pretrained: bool
    """Whether ``auto`` means the pretrained policy here."""
    freeze: bool
    """Use that policy without learning."""
    learned: Callable[[str], Schedule]
    """Φ at every step of another method with the same seed, as the mean over its children; available once that is
    trained."""

    @property
    def spec(self) -> ParameterSpec:
        """The loss's parameters."""
        return self.loss.spec

    def generator(self, name: str) -> torch.Generator:
        """A random generator for this seed's controller."""
        return generator(self.seed, "policy", name)


class Judged(Protocol):
    """Trained methods on the split that is scored, as derived methods use them."""

    @property
    def metric(self) -> Metric:
        """The metric of the run."""
        ...

    @property
    def final(self) -> bool:
        """Whether the test split is scored, instead of the selection split."""
        ...

    @property
    def weights(self) -> Weights:
        """The weights that are scored."""
        ...

    def under(self, weights: Weights) -> Judged:
        """The same methods with other weights."""
        ...

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returns, made once for all weights."""
        ...

    def say(self, sentence: str) -> None:
        """Have a sentence printed below the table, once."""
        ...

    def value(self, method: str, seed: int) -> Tensor:
        """The metric of a method's children [n], or whether each judges each pair correctly [n, pairs]."""
        ...

    def selection_errors(self, method: str, seed: int) -> Tensor:
        """The best selection metric of each child, as an error [n]."""
        ...

    def outputs(self, method: str, seed: int, split: Split) -> Tensor:
        """Outputs of each child on a split [n, V, C]."""
        ...

    def targets(self, seed: int, split: Split) -> Tensor:
        """Labels of a split [V]."""
        ...

    def folds(self, seed: int) -> Tensor:
        """The fold of every sample of the validation split [V], for methods that train on that split too."""
        ...

    def measure(self, outputs: Tensor, seed: int, *, one_hot: bool = False) -> Tensor:
        """The metric of other outputs on the scored split [n], from [n, V, C]; ``one_hot``: against labels [V, C]."""
        ...


class Derivation(Protocol):
    """How a derived method scores itself."""

    def check(self, name: str, metric: Metric) -> None:
        """Raise ``InputError`` for a metric that it cannot use, before anything is trained."""
        ...

    def score(self, judged: Judged, seed: int) -> Tensor:
        """The metric of one seed: of each child [n], or one value."""
        ...


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to get a model.

    Args:
        name: as users write it.
        role: see ``Role``.
        after: methods that it needs in the run.
    """

    name: str
    role: Role
    after: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainedMethod(Method):
    """A method that trains children of its own.

    Args:
        controller: makes the controller that moves Φ.
        loss: the loss it needs; None for the run's own.
        groups: parameter groups it needs; None for those the preset moves.
        model: suffix of the network's name, e.g. ``"+cosine"``.
        watches: whether its controller uses the validation split.
        heritable: whether children can take over each other's Φ, so that ``+survival`` can be added; policies and
            searches inherit in ways of their own.
        refits: whether it trains after the methods ``after``, on the validation split too, with the Φ they learned.
        children: its number of children, if not that of the run.
        random: whether its moves are random, so that the R² of reward on them says how much there is to learn.
    """

    controller: Callable[[Setting], Controller]
    loss: str | None = None
    groups: tuple[str, ...] | None = None
    model: str = ""
    watches: bool = False
    heritable: bool = True
    refits: bool = False
    children: int | None = None
    random: bool = False


@dataclass(frozen=True, kw_only=True)
class DerivedMethod(Method):
    """A method computed from the trained methods ``after``.

    Args:
        derivation: how it scores itself.
        of_classes: whether it needs an output for each class, so that it cannot be used in metric learning.
        ensemble: whether all children of a seed predict together, as one model.
        decides: whether it fits a ``Decision``.
        folds: what is trained for it and has no row of its own.
    """

    derivation: Derivation
    of_classes: bool = False
    ensemble: bool = False
    decides: bool = False
    folds: tuple[MethodSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method as a user asked for it: ``NAME``, ``NAME+survival``, ``NAME+val``, ``NAME+decision``, ``ensemble-NAME``,
    and with options ``NAME:option=value,…``.

    Args:
        text: as it was written; its name in tables.
        method: the method.
        and_validation: whether it trains on the validation split too.
        without: the fold of the validation split that it leaves out; None: it leaves out none.
        options: options of the preset that it changes, typed.
        policy: initial policy; None: that of the run.
        freeze: whether the policy is not trained; None: as in the run.
        children: number of children; None: that of the run.
    """

    text: str
    method: Method
    and_validation: bool = False
    without: int | None = None
    options: tuple[tuple[str, Any], ...] = ()
    policy: str | None = None
    freeze: bool | None = None
    children: int | None = None

    @property
    def role(self) -> Role:
        """The method's role."""
        return self.method.role

    @property
    def trained(self) -> TrainedMethod | None:
        """The method, if it trains; None if it is derived."""
        return self.method if isinstance(self.method, TrainedMethod) else None

    @property
    def derived(self) -> DerivedMethod | None:
        """The method, if it is derived; None if it trains."""
        return self.method if isinstance(self.method, DerivedMethod) else None

    @property
    def decides(self) -> bool:
        """Whether a ``Decision`` follows its outputs."""
        return self.derived is not None and self.derived.decides

    @property
    def plain(self) -> bool:
        """Whether it has no options of its own."""
        return self.text == self.method.name
