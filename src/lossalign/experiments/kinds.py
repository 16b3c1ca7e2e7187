"""The kinds of task: each defines its split, its defaults, and how its networks are judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from lossalign.core import InputError, Registry, generator
from lossalign.data import Examples, Fraction, OfTrain, Pairs, PerClass, Splits, split, split_classes
from lossalign.experiments.config import Config
from lossalign.experiments.keys import KEYS
from lossalign.experiments.methods import MethodSpec
from lossalign.experiments.methods.names import COMPARED_CLASSES, COMPARED_EMBEDDINGS
from lossalign.losses.registry import find_loss
from lossalign.metrics import all_pairs, balanced_threshold, judged_rightly


class Networks(Protocol):
    """The networks of one population and the split on which they are scored."""

    @property
    def final(self) -> bool:
        """Whether the test split is scored."""
        ...

    @property
    def pairs(self) -> Pairs | None:
        """Pairs of the test split to verify, if the data set has them."""
        ...

    def measured(self) -> Tensor:
        """The metric of every network [N]."""
        ...

    def embedded(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For every network: embeddings of the scored split [V, D], of the selection split [S, D], and its labels."""
        ...


class Kind(ABC):
    """A kind of task."""

    name: str
    metric: str
    """The default metric."""
    compared: tuple[str, ...]
    """The methods that ``lossalign compare`` trains by default."""
    embeds: bool
    """Whether networks output embeddings; whole classes are then held out."""
    unused: tuple[str, ...]
    """Keys that this kind has no use for."""

    @abstractmethod
    def outputs(self, config: Config, num_classes: int) -> int:
        """Number of outputs of a network."""

    @abstractmethod
    def split(self, config: Config, examples: Examples, test: Examples | None, seed: int) -> Splits:
        """One seed's train, validation, selection and test sets."""

    def judge(self, networks: Networks) -> Tensor:
        """The metric of every network [N], or whether it judges each pair correctly [N, pairs]."""
        return networks.measured()

    def check(self, config: Config) -> None:
        """Refuse a config that does not fit this kind."""
        embeds = find_loss(config.control.options.loss).embeds
        if embeds != self.embeds or (config.model.embedding is not None) != self.embeds:
            raise InputError(
                f"loss={config.control.options.loss}, embedding={config.model.embedding}: metric learning needs both a "
                "loss on embeddings and the size of an embedding, and classification neither; change one of the two."
            )
        for name in self.unused:
            key = KEYS[name]
            (default,) = [each.default for each in fields(key.owner) if each.name == key.field]
            value = getattr(getattr(config, key.section), key.field)
            if value != default:
                here, there = _sides(self)
                raise InputError(f"{name}={value}: it is for {there}, and {config.short_name} is {here}; leave it out.")

    def check_method(self, config: Config, spec: MethodSpec, loss: str) -> None:
        """Raise ``InputError`` for a method of another kind."""
        of_classes = spec.derived is not None and spec.derived.of_classes
        if find_loss(loss).embeds != self.embeds or (self.embeds and of_classes):
            here, there = _sides(self)
            raise InputError(f"method {spec.text!r} is for {there}, and {config.short_name} is {here}; leave it out.")


def _sides(kind: Kind) -> tuple[str, str]:
    """What ``kind`` is, and what it is not."""
    here, there = ("metric learning", "classification")[:: 1 if kind.embeds else -1]
    return here, there


@dataclass(frozen=True)
class Classification(Kind):
    """One output for each class; every class is in every split."""

    name = "classification"
    metric = "balanced-error"
    compared = COMPARED_CLASSES
    embeds = False
    unused = ("validation_classes", "selection_classes", "test_classes", "examples_per_class", "framework", "start")

    def outputs(self, config: Config, num_classes: int) -> int:
        """The number of classes."""
        return num_classes

    def split(self, config: Config, examples: Examples, test: Examples | None, seed: int) -> Splits:
        """Examples of every class for every part."""
        wanted = config.split
        of_train = None if wanted.validation_of_train is None else OfTrain(wanted.validation_of_train)
        return split(
            examples,
            validation=of_train or _size("validation", wanted.validation_per_class, wanted.held_out_fraction),
            selection=_size("selection", wanted.selection_per_class, wanted.held_out_fraction),
            test=_size("test", wanted.test_per_class, wanted.held_out_fraction) if test is None else test,
            largest=wanted.largest,
            ratio=wanted.ratio,
            generator=generator(seed, "split"),
        )


def _size(name: str, per_class: int | None, fraction: float | None) -> PerClass | Fraction:
    """The size of a part; a number of examples comes before a fraction."""
    if per_class is not None:
        return PerClass(per_class)
    if fraction is None:
        raise InputError(f"{name}_per_class: the data have no {name} split; give a number, or held_out_fraction.")
    return Fraction(fraction)


@dataclass(frozen=True)
class Retrieval(Kind):
    """Embeddings; classes of the other splits are not trained on."""

    name = "retrieval"
    metric = "recall@1"
    compared = COMPARED_EMBEDDINGS
    embeds = True
    unused = (
        *("ratio", "largest", "held_out_fraction"),
        *("validation_per_class", "validation_of_train", "selection_per_class", "test_per_class"),
    )

    def outputs(self, config: Config, num_classes: int) -> int:
        """The number of dimensions of an embedding."""
        assert config.model.embedding is not None
        return config.model.embedding

    def split(self, config: Config, examples: Examples, test: Examples | None, seed: int) -> Splits:
        """Whole classes for every part."""
        wanted = config.split
        return split_classes(
            examples,
            validation=wanted.validation_classes or 0,
            selection=wanted.selection_classes or 0,
            test=wanted.test_classes or 0 if test is None else 0,
            test_set=test,
            examples_per_class=wanted.examples_per_class,
            generator=generator(seed, "split"),
        )


@dataclass(frozen=True)
class Verification(Retrieval):
    """Retrieval, tested on a list of pairs to verify."""

    name = "verification"
    metric = "verification"

    def judge(self, networks: Networks) -> Tensor:
        """On the test split: whether each pair is judged correctly [N, pairs], at the best threshold for all pairs of
        the selection split. On other splits: the metric [N]."""
        pairs = networks.pairs
        if not networks.final or pairs is None:
            return networks.measured()
        return (
            torch.stack(
                [
                    judged_rightly(
                        (scored[pairs.first] - scored[pairs.second]).norm(dim=-1),
                        pairs.same.to(scored.device),
                        balanced_threshold(*all_pairs(own, labels)),
                    )
                    for scored, own, labels in networks.embedded()
                ]
            )
            .float()
            .cpu()
        )


KINDS: Registry[Kind] = Registry("kind")
KINDS.add("classification", "one output for each class", Classification())
KINDS.add("retrieval", "embeddings, whole classes held out", Retrieval())
KINDS.add("verification", "embeddings, tested on pairs", Verification())
