"""Splits of a data set into parts that share no class, to test on classes not seen in training."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Examples
from lossalign.data.splits import Splits


def split_classes(
    dataset: Examples,
    *,
    validation: int | float,
    selection: int | float,
    test: int | float = 0,
    test_set: Examples | None = None,
    examples_per_class: int | None = None,
    generator: torch.Generator,
) -> Splits:
    """Cut ``dataset`` into parts with different classes, at least two each.

    Classes are shuffled and dealt to test (if one is cut), validation and selection; training keeps the others. A class
    with fewer than two examples (or than ``examples_per_class``) has no pairs to compare and stays in
    training. Parts list their examples class by class; labels keep their meaning, so every part has the class names of
    ``dataset``, most of them without examples.

    Held-out parts of different seeds have the same size, as populations that train side by side need, if all classes of
    ``dataset`` have the same size (Omniglot) or ``examples_per_class`` is given; otherwise sizes follow the classes.

    Args:
        dataset: what to cut.
        validation: number of classes of the validation part, or its share of the classes that have examples (a float).
        selection: the same for the selection part.
        test: the same for the test part; or
        test_set: a test set that exists already, with other classes.
        examples_per_class: number of examples that each held-out class gives to its part, drawn at random; its others
            are not used, and classes that have fewer are not held out. All examples of a class if not given.
        generator: draws the classes and examples.

    Returns:
        The parts.

    Example:
        >>> from lossalign.data import load_digits
        >>> parts = split_classes(
        ...     load_digits(),
        ...     test=2,
        ...     validation=0.2,
        ...     selection=0.2,
        ...     examples_per_class=100,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> [int((part.counts > 0).sum()) for part in (parts.train, parts.validation, parts.selection, parts.test)]
        [4, 2, 2, 2]
        >>> [len(part) for part in (parts.validation, parts.selection, parts.test)]
        [200, 200, 200]
    """
    if examples_per_class is not None and examples_per_class < 2:
        raise InputError(f"examples_per_class={examples_per_class}: give 2 or more, so that there are pairs.")
    classes = int((dataset.counts > 0).sum())
    numbers = {
        "validation": _number("validation", validation, classes),
        "selection": _number("selection", selection, classes),
    }
    if test_set is None:
        numbers = {"test": _number("test", test, classes), **numbers}
    else:
        _check_test_set(dataset, test, test_set)
    dealt = _deal(dataset, numbers, examples_per_class or 2, generator)
    members = dataset.targets.argsort(stable=True).split(dataset.counts.tolist())
    drawn = {
        name: torch.cat([_draw(members[c], examples_per_class, generator) for c in dealt[name]]) for name in numbers
    }
    train = torch.cat([members[c] for c in dealt["train"]])
    both = torch.cat([train, drawn["validation"]])
    return Splits(
        train=dataset.subset(train),
        validation=dataset.subset(drawn["validation"]),
        selection=dataset.subset(drawn["selection"]),
        test=dataset.subset(drawn["test"]) if test_set is None else test_set,
        both=lambda: dataset.subset(both),
    )


def _number(part: str, asked: int | float, classes: int) -> int:
    """The number of classes of a part."""
    if isinstance(asked, float) and asked:
        if not 0 < asked < 1:
            raise InputError(f"{part}={asked}: give a share between 0 and 1, or a whole number of classes.")
        asked = round(asked * classes)
    if asked < 2:
        own = ", or a test set as test_set" if part == "test" else ""
        raise InputError(f"{part}: {asked} classes, but a part needs at least 2; ask for more{own}.")
    return int(asked)


def _deal(
    dataset: Examples, numbers: dict[str, int], at_least: int, generator: torch.Generator
) -> dict[str, list[int]]:
    """Classes of each part, and those left for training."""
    counts = dataset.counts
    able = (counts >= at_least).nonzero().squeeze(1)
    needed, left = sum(numbers.values()), int((counts > 0).sum()) - sum(numbers.values())
    if needed > len(able) or left < 2:
        parts = ", ".join(f"{number} {part}" for part, number in numbers.items())
        raise InputError(
            f"dataset {dataset.name!r}: {len(able)} of its {left + needed} classes have {at_least} or more examples, "
            f"but {needed} are held out ({parts}) and training needs 2; ask for fewer."
        )
    shuffled = able[torch.randperm(len(able), generator=generator)].tolist()
    stops = accumulate(numbers.values())
    dealt = {part: sorted(shuffled[stop - n : stop]) for (part, n), stop in zip(numbers.items(), stops, strict=True)}
    held_out = set(shuffled[:needed])
    return dealt | {"train": [c for c in range(dataset.num_classes) if c not in held_out]}


def _draw(members: Tensor, number: int | None, generator: torch.Generator) -> Tensor:
    """``number`` examples of a class, in the order of the data set; all if it is not given."""
    if number is None:
        return members
    return members[torch.randperm(len(members), generator=generator)[:number].sort().values]


def _check_test_set(dataset: Examples, test: int | float, test_set: Examples) -> None:
    if test:
        raise InputError("test_set: give it without test, which would cut a second test set.")
    shared = _with_examples(dataset) & _with_examples(test_set)
    if shared:
        raise InputError(
            f"test_set: {len(shared)} of its classes have examples in dataset {dataset.name!r} too, e.g. "
            f"{min(shared)!r}; leave them out of one of the two."
        )
    if len(_with_examples(test_set)) < 2:
        raise InputError("test_set: it has examples of fewer than 2 classes; give a set with at least 2.")
    if (test_set.input_shape, test_set.dtype) != (dataset.input_shape, dataset.dtype):
        raise InputError(
            f"test_set: its inputs are {test_set.dtype} {list(test_set.input_shape)}, those of dataset "
            f"{dataset.name!r} {dataset.dtype} {list(dataset.input_shape)}; load both the same way."
        )


def _with_examples(dataset: Examples) -> set[str]:
    return {dataset.class_names[c] for c in dataset.counts.nonzero().squeeze(1).tolist()}
