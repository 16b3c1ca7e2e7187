"""Splits of a data set into disjoint parts, class by class, with an optional long tail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Examples


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """The four disjoint splits of a data set.

    Args:
        train: gives gradients.
        validation: moves Φ; D_val of the paper.
        selection: picks the best weights; neither training nor the controller uses it.
        test: scored once, at the end.
        both: makes ``train_and_validation``.
    """

    train: Examples
    validation: Examples
    selection: Examples
    test: Examples
    both: Callable[[], Examples]

    @cached_property
    def train_and_validation(self) -> Examples:
        """Train and validation together: labelled examples that a method without a controller may train on."""
        return self.both()


VALIDATION_AT_LEAST = 5
"""Smallest number of examples of a class in a validation part that is taken out of the training part."""


def long_tailed_counts(largest: int, num_classes: int, ratio: float) -> Tensor:
    """Class sizes that fall exponentially: n_c = ⌊largest · ratio^{−c/(C−1)}⌋, at least 1 (Cui et al. 2019).

    Args:
        largest: the size of class 0.
        num_classes: C.
        ratio: the size of class 0 over that of class C − 1; 1 is balanced.

    Returns:
        The sizes [C]; rounding errors of the power do not reduce them.

    Example:
        >>> long_tailed_counts(5000, 10, 100).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if largest < 1:
        raise InputError(f"largest={largest}: the largest class needs at least 1 example.")
    if num_classes < 2:
        raise InputError(f"num_classes={num_classes}: a long tail needs at least 2 classes.")
    if not 1 <= ratio < float("inf"):
        raise InputError(f"ratio={ratio}: give largest over smallest class, 1 (balanced) or more.")
    sizes = [largest * ratio ** (-c / (num_classes - 1)) for c in range(num_classes)]
    return torch.tensor([max(1, int(size * (1 + 1e-9))) for size in sizes])


@dataclass(frozen=True)
class PerClass:
    """A part with the same number of examples of each class."""

    number: int

    def sizes(self, name: str, counts: Tensor) -> Tensor:
        """Examples of each class that the part ``name`` takes [C]."""
        if self.number < 1:
            raise InputError(f"{name}_per_class={self.number}: the part needs at least 1 example of each class.")
        return torch.full_like(counts, self.number)


@dataclass(frozen=True)
class Fraction:
    """A part with a share of each class, at least one example."""

    share: float

    def sizes(self, name: str, counts: Tensor) -> Tensor:
        """Examples of each class that the part ``name`` takes [C]."""
        if not 0 < self.share < 1:
            raise InputError(f"{name}: the fraction {self.share} is not between 0 and 1; give e.g. 0.2.")
        return (counts * self.share).round().long().clamp(min=1)


@dataclass(frozen=True)
class OfTrain:
    """A validation part taken out of the training part: a share of each of its classes, at least five examples."""

    share: float

    def sizes(self, train: Tensor) -> Tensor:
        """Training examples of each class that become validation examples [C]."""
        if not 0 < self.share < 1:
            raise InputError(f"validation_of_train={self.share}: give a share between 0 and 1.")
        taken = (train * self.share).round().long().clamp(min=VALIDATION_AT_LEAST)
        if (taken >= train).any():
            raise InputError(
                f"validation_of_train={self.share}: the smallest class has {int(train.min())} training examples, and "
                f"at least {VALIDATION_AT_LEAST} would be taken; lower the ratio or give validation_per_class."
            )
        return taken


def split(
    dataset: Examples,
    *,
    validation: PerClass | Fraction | OfTrain,
    selection: PerClass | Fraction,
    test: PerClass | Fraction | Examples,
    generator: torch.Generator,
    largest: int | None = None,
    ratio: float = 1.0,
) -> Splits:
    """Cut ``dataset`` into disjoint parts; each class is shuffled by itself, so every part has its share of it.

    A class gives its first examples to the test part (if one is cut), the next to validation, then selection, then
    training. Parts list their examples class by class in the order drawn, so the result does not depend on how the
    classes are interleaved in storage, and a smaller training part is the beginning of a larger one.

    Args:
        dataset: what to cut.
        validation: size of the validation part.
        selection: size of the selection part.
        test: size of the test part, or a test set that exists already.
        generator: draws the examples.
        largest: training examples of class 0, with those that ``OfTrain`` takes; as many as every class can follow if
            not given.
        ratio: training examples of class 0 over those of the last class. At 1, without ``largest``, training takes
            all that is left, balanced or not.

    Returns:
        The parts.

    Example:
        >>> from lossalign.data import Dataset
        >>> data = Dataset(
        ...     name="x", inputs=torch.rand(20, 3), targets=torch.arange(20) % 2, class_names=("a", "b")
        ... )
        >>> parts = split(
        ...     data, validation=PerClass(2), selection=PerClass(1), test=PerClass(3), ratio=2,
        ...     generator=torch.Generator(),
        ... )
        >>> [part.counts.tolist() for part in (parts.train, parts.validation, parts.selection, parts.test)]
        [[4, 2], [2, 2], [1, 1], [3, 3]]
    """
    sizes = _sizes(dataset, validation, selection, test, largest, ratio)
    _check_supply(dataset, sizes)
    drawn = _draw(dataset, sizes, generator)
    parts = {name: dataset.subset(indices) for name, indices in drawn.items() if sizes[name].any()}
    both = torch.cat([drawn["train"], drawn["validation"]])
    return Splits(
        train=parts["train"],
        validation=parts["validation"],
        selection=parts["selection"],
        test=test if isinstance(test, Examples) else parts["test"],
        both=lambda: dataset.subset(both),
    )


def _sizes(
    dataset: Examples,
    validation: PerClass | Fraction | OfTrain,
    selection: PerClass | Fraction,
    test: PerClass | Fraction | Examples,
    largest: int | None,
    ratio: float,
) -> dict[str, Tensor]:
    """Examples of each class in each part [C], in the order in which a class gives them."""
    counts, of_train = dataset.counts, validation if isinstance(validation, OfTrain) else None
    if isinstance(test, Examples):
        _check_test(dataset, test)
    sizes = {
        "test": torch.zeros_like(counts) if isinstance(test, Examples) else test.sizes("test", counts),
        "validation": (
            torch.zeros_like(counts) if isinstance(validation, OfTrain) else validation.sizes("validation", counts)
        ),
        "selection": selection.sizes("selection", counts),
    }
    rest = counts - sum(sizes.values(), torch.zeros_like(counts))
    sizes["train"] = _training_sizes(rest, largest, ratio)
    if of_train is not None:
        sizes["validation"] = of_train.sizes(sizes["train"])
        sizes["train"] = sizes["train"] - sizes["validation"]
    return sizes


def _draw(dataset: Examples, sizes: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Examples of each part, class by class, each class shuffled by itself."""
    drawn: dict[str, list[Tensor]] = {name: [] for name in sizes}
    for c in range(dataset.num_classes):
        members = (dataset.targets == c).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator)]
        start = 0
        for name, size in sizes.items():
            stop = start + int(size[c])
            drawn[name].append(members[start:stop])
            start = stop
    return {name: torch.cat(indices) for name, indices in drawn.items()}


def _training_sizes(rest: Tensor, largest: int | None, ratio: float) -> Tensor:
    """Number of training examples of each class [C], at least 1, so that a class with none left is an error."""
    rest = rest.clamp(min=1)
    if largest is not None:
        return long_tailed_counts(largest, len(rest), ratio)
    if ratio == 1:
        return rest
    fits, too_many = 1, int(rest[0]) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if (long_tailed_counts(middle, len(rest), ratio) <= rest).all():
            fits = middle
        else:
            too_many = middle
    return long_tailed_counts(fits, len(rest), ratio)


def _check_supply(dataset: Examples, sizes: dict[str, Tensor]) -> None:
    needed = torch.stack(list(sizes.values())).sum(0)
    short = (needed > dataset.counts).nonzero()
    if len(short):
        c = int(short[0])
        parts = ", ".join(f"{int(size[c])} {name}" for name, size in sizes.items() if size[c])
        raise InputError(
            f"dataset {dataset.name!r}: class {dataset.class_names[c]!r} has {int(dataset.counts[c])} examples, but "
            f"{int(needed[c])} are needed ({parts}); ask for fewer or add examples."
        )


def _check_test(dataset: Examples, test: Examples) -> None:
    if test.class_names != dataset.class_names:
        raise InputError(f"test: its classes are not those of dataset {dataset.name!r}; load both the same way.")
    if (test.input_shape, test.dtype) != (dataset.input_shape, dataset.dtype):
        raise InputError(
            f"test: its inputs are {test.dtype} {list(test.input_shape)}, those of dataset "
            f"{dataset.name!r} {dataset.dtype} {list(dataset.input_shape)}; load both the same way."
        )
