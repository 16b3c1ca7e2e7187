"""CIFAR-10 and CIFAR-100 from their binary files (Krizhevsky 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lossalign.core import InputError
from lossalign.data.dataset import Dataset
from lossalign.data.registry import DATA_SOURCES, with_test
from lossalign.data.sources import CIFAR10, CIFAR100, Source

_PIXELS = 3 * 32 * 32


def load_cifar10(root: str | Path) -> tuple[Dataset, Dataset]:
    """CIFAR-10 as published in binary: ``cifar-10-batches-bin/{data_batch_1 … data_batch_5, test_batch}.bin``.

    Args:
        root: the folder ``cifar-10-batches-bin``, or the folder that holds it.

    Returns:
        The training and the test set, uint8 images [n, 3, 32, 32].
    """
    folder = CIFAR10.locate(root)
    names = _class_names(folder / "batches.meta.txt", 10)
    parts = [f"data_batch_{i}.bin" for i in range(1, 6)]
    train = _read("cifar10-train", CIFAR10, folder, parts, label_bytes=1, class_names=names)
    return train, _read("cifar10-test", CIFAR10, folder, ["test_batch.bin"], label_bytes=1, class_names=names)


def load_cifar100(root: str | Path) -> tuple[Dataset, Dataset]:
    """CIFAR-100 with its 100 fine labels, as published in binary: ``cifar-100-binary/{train, test}.bin``.

    Args:
        root: the folder ``cifar-100-binary``, or the folder that holds it.

    Returns:
        The training and the test set, uint8 images [n, 3, 32, 32].
    """
    folder = CIFAR100.locate(root)
    names = _class_names(folder / "fine_label_names.txt", 100)
    train = _read("cifar100-train", CIFAR100, folder, ["train.bin"], label_bytes=2, class_names=names)
    return train, _read("cifar100-test", CIFAR100, folder, ["test.bin"], label_bytes=2, class_names=names)


def _read(
    name: str, source: Source, folder: Path, parts: list[str], *, label_bytes: int, class_names: tuple[str, ...]
) -> Dataset:
    """One data set from files of records: label bytes, the last of which counts, then 3×32×32 pixels."""
    advice = f"run `lossalign data fetch {source.name}`"
    pieces = []
    for path in (folder / part for part in parts):
        if not path.is_file():
            raise InputError(f"{path}: this file is missing; {advice}.")
        values = np.fromfile(path, dtype=np.uint8)
        if not values.size or values.size % (label_bytes + _PIXELS):
            raise InputError(
                f"{path}: {values.size} bytes are not a whole number of records of {label_bytes + _PIXELS} bytes; "
                f"remove the file and {advice}."
            )
        records = values.reshape(-1, label_bytes + _PIXELS)
        largest = int(records[:, label_bytes - 1].max())
        if largest >= len(class_names):
            raise InputError(
                f"{path}: it has label {largest}, the last is {len(class_names) - 1}; remove the file and {advice}."
            )
        pieces.append(records)
    records = np.concatenate(pieces)
    return Dataset(
        name=name,
        inputs=torch.from_numpy(records[:, label_bytes:].reshape(-1, 3, 32, 32).copy()),
        targets=torch.from_numpy(records[:, label_bytes - 1].astype(np.int64)),
        class_names=class_names,
    )


def _class_names(path: Path, number: int) -> tuple[str, ...]:
    """The names listed in ``path``, or numbers where there is no such file."""
    if not path.is_file():
        return tuple(map(str, range(number)))
    names = tuple(path.read_text(encoding="utf-8").split())
    if len(names) != number:
        raise InputError(f"{path}: it lists {len(names)} class names, not {number}; remove the file to use numbers.")
    return names


DATA_SOURCES.add("cifar10", "CIFAR-10", lambda run: with_test(load_cifar10(run.path)))
DATA_SOURCES.add("cifar100", "CIFAR-100", lambda run: with_test(load_cifar100(run.path)))
