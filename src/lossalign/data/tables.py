"""Tables of numbers, with a class label in every row."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lossalign.core import InputError
from lossalign.core.errors import UNREADABLE
from lossalign.data.dataset import Dataset
from lossalign.data.registry import DATA_SOURCES, Loaded

_TARGET_NAMES = ("label", "target", "class")  # before "y", which is a coordinate in tables of x, y, label
_OTHER_TARGET_NAME = "y"
_EXACT = 2.0**53
"""Whole numbers beyond this share a float64 with their neighbours."""


def load_table(path: str | Path) -> Dataset:
    """A table from ``.npz`` (arrays ``X`` and ``y``) or ``.csv`` (commas, with or without a header).

    In a csv file the target column is the one named label, target, class or y, else the last. Labels may be whole
    numbers or words; classes are sorted. Rows in messages are counted as a spreadsheet counts them in a csv file, and
    from 0 in an npz file.

    Args:
        path: the file.

    Returns:
        A set with inputs [n, F], float32, named after the file.
    """
    path = Path(path)
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: tables are read from {' and '.join(readers)} files only; convert it to one of them.")
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path.")
    features, labels, rows = readers[path.suffix.lower()](path)
    if features.ndim != 2 or not features.size:
        raise InputError(f"{path}: features have shape {features.shape}; a table needs rows and columns of numbers.")
    if len(labels) != len(features):
        raise InputError(f"{path}: {len(labels)} labels for {len(features)} rows; give one label for each row.")
    with np.errstate(over="ignore"):
        inputs = features.astype(np.float32)
    bad = ~np.isfinite(inputs).all(axis=1)
    if bad.any():
        raise InputError(
            f"{path}: row {rows[int(bad.argmax())]} holds NaN, inf or a number beyond float32, as do {int(bad.sum())} "
            "rows in all; fill or drop them."
        )
    class_names, targets = _classes(path, labels, rows)
    return Dataset(
        name=path.stem,
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        class_names=class_names,
    )


def _classes(
    path: Path, labels: npt.NDArray[Any], rows: Sequence[int]
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Class names in order, and the class of every row [n]."""
    if labels.dtype.kind == "U":
        labels = np.char.strip(labels)
        if (labels == "").any():
            raise InputError(f"{path}: row {rows[int((labels == '').argmax())]} has no label; fill or drop it.")
        labels = _as_numbers(labels)
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            row = rows[int((~np.isfinite(labels)).argmax())]
            raise InputError(f"{path}: the label of row {row} is not a finite number; fill or drop the row.")
        if (labels != np.round(labels)).any():
            row = rows[int((labels != np.round(labels)).argmax())]
            raise InputError(
                f"{path}: labels are not whole numbers (row {row}), which looks like regression; give class labels."
            )
        if (np.abs(labels) > _EXACT).any():
            row = rows[int((np.abs(labels) > _EXACT).argmax())]
            raise InputError(f"{path}: the label of row {row} is beyond 2⁵³, where floats merge; save integers.")
        labels = labels.astype(np.int64)
    names, targets = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise InputError(f"{path}: every label is {str(names[0])!r}; classification needs at least two classes.")
    return tuple(map(str, names)), targets.astype(np.int64)


def _as_numbers(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels as numbers if every one is a number, unchanged if not, or if numbers would merge what differs."""
    try:
        return labels.astype(np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        numbers = labels.astype(np.float64)
    except ValueError:
        return labels
    return labels if (np.abs(numbers) > _EXACT).any() else numbers


def _read_npz(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Sequence[int]]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            missing = [name for name in ("X", "y") if name not in arrays.files]
            if missing:
                raise InputError(
                    f"{path}: it has {arrays.files}, but not {missing}; save it with np.savez(…, X=…, y=…)."
                )
            features, labels = arrays["X"], arrays["y"]
    except (*UNREADABLE, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: cannot be read as npz ({error}); save X as numbers, and y as numbers or fixed-width strings."
        ) from error
    if features.dtype.kind not in "fiub":
        raise InputError(f"{path}: X holds {features.dtype}, not numbers; convert it with X.astype(float).")
    labels = labels.reshape(-1) if labels.shape[1:] in ((), (1,)) else labels
    if labels.ndim != 1 or labels.dtype.kind not in "fiubU":
        raise InputError(
            f"{path}: y holds {labels.dtype} of shape {labels.shape}; give one number or word for each row."
        )
    return features, labels, range(len(features))


def _read_csv(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Sequence[int]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            numbered = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except (ValueError, OSError, MemoryError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as csv ({error}); save it as UTF-8 with commas.") from error
    rows, table = [number for number, _ in numbered], [cells for _, cells in numbered]
    width = len(table[0]) if table else 0
    if width < 2:
        raise InputError(f"{path}: it has {width} columns; give features and a label in each row, separated by commas.")
    for row, cells in zip(rows, table, strict=True):
        if len(cells) != width:
            raise InputError(f"{path}: row {row} has {len(cells)} columns, but the first has {width}; correct the row.")
    if _is_header(table):
        header, rows, table = [cell.strip() for cell in table[0]], rows[1:], table[1:]
        target = _target_column(path, header)
    else:
        header, target = [str(column + 1) for column in range(width)], width - 1
    if not table:
        raise InputError(f"{path}: it has a header but no rows; give at least one row of each class.")
    labels = np.array([cells.pop(target) for cells in table])
    columns = header[:target] + header[target + 1 :]
    return _numbers(path, table, columns, rows), labels, rows


def _is_header(table: list[list[str]]) -> bool:
    """Whether the first row has no numbers, or a target's name that is not repeated in its column."""
    first = [cell.strip() for cell in table[0]]
    if not any(_is_number(cell) for cell in first):
        return True
    return any(
        cell.lower() in (*_TARGET_NAMES, _OTHER_TARGET_NAME) and all(row[column].strip() != cell for row in table[1:])
        for column, cell in enumerate(first)
    )


def _target_column(path: Path, header: list[str]) -> int:
    names = [name.lower() for name in header]
    found = [column for column, name in enumerate(names) if name in _TARGET_NAMES]
    found = found or [column for column, name in enumerate(names) if name == _OTHER_TARGET_NAME]
    if len(found) > 1:
        raise InputError(
            f"{path}: columns {[header[column] for column in found]} could each be the target; keep one of them."
        )
    return found[0] if found else len(header) - 1


def _numbers(path: Path, table: list[list[str]], columns: list[str], rows: list[int]) -> npt.NDArray[np.float64]:
    try:
        return np.array([[float(cell) for cell in cells] for cells in table])
    except ValueError:
        row, column, cell = next(
            (row, column, cell)
            for row, cells in zip(rows, table, strict=True)
            for column, cell in zip(columns, cells, strict=True)
            if not _is_number(cell)
        )
    raise InputError(
        f"{path}: column {column!r}, row {row} holds {cell!r}, which is not a number; encode or drop the column "
        "(if this row is a header, name the target column 'label')."
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


DATA_SOURCES.add("table", "a table of yours", lambda run: Loaded(examples=load_table(run.path)))
