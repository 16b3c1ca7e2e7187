"""Labeled Faces in the Wild, for face verification (Huang et al. 2007)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lossalign.core import InputError
from lossalign.data.dataset import Dataset, Examples, Pairs
from lossalign.data.folders import UNREADABLE, label_images, list_images, read_image
from lossalign.data.registry import DATA_SOURCES, Loaded, SourceSettings

_PAIRS = {"dev_train": "pairsDevTrain.txt", "dev_test": "pairsDevTest.txt", "view2": "pairs.txt"}


@dataclass(frozen=True, kw_only=True, eq=False)
class LFW:
    """Labeled Faces in the Wild.

    ``pairs("view2")`` includes people of ``dev_train``. Test a network that was trained on the faces of ``dev_train``
    with ``pairs("dev_test")``, and use ``view2`` only for networks trained on other faces (see
    :func:`without_identities`).

    Args:
        images: all faces; a class is a person, and most people have one image.
        dev_train: people to train on; none of them is in ``dev_test``.
        dev_test: people to test on.
        folder: the folder with the lists of pairs.
        rows: the row in ``images`` of every image, by its name without suffix, such as ``Aaron_Peirsol_0001``.
    """

    images: Dataset
    dev_train: tuple[str, ...] = field(repr=False)
    dev_test: tuple[str, ...] = field(repr=False)
    folder: Path
    rows: dict[str, int] = field(repr=False)

    def faces_of(self, people: Iterable[str]) -> Dataset:
        """The images of ``people``, such as ``dev_train``, with the same classes."""
        wanted = set(people)
        unknown = sorted(wanted.difference(self.images.class_names))
        if unknown:
            raise InputError(f"people: {self.folder} has no images of {len(unknown)} of them, e.g. {unknown[0]!r}.")
        return self.images.subset(_is_of(self.images, wanted).nonzero().squeeze(1))

    def pairs(self, name: str) -> Pairs:
        """Published pairs, half of them of one person.

        Args:
            name: ``dev_train`` (2,200 pairs, pairsDevTrain.txt), ``dev_test`` (1,000 pairs, pairsDevTest.txt) or
                ``view2`` (10 folds of 600 pairs, pairs.txt; each fold is scored at the threshold of the other nine).
        """
        if name not in _PAIRS:
            raise InputError(f"name={name!r}: choose from {', '.join(_PAIRS)}.")
        file = self.folder / _PAIRS[name]
        header, lines = _read_list(file)
        folds, of_each_kind = header if len(header) == 2 else (1, header[0])
        if len(lines) != folds * 2 * of_each_kind or {len(line) for line in lines} - {3, 4}:
            raise InputError(
                f"{file}: it should have {folds * 2 * of_each_kind} lines of 3 or 4 columns; download it again."
            )
        first = [self._row(file, line[0], line[1]) for line in lines]
        second = [self._row(file, line[-2] if len(line) == 4 else line[0], line[-1]) for line in lines]
        return Pairs(
            first=torch.tensor(first),
            second=torch.tensor(second),
            same=torch.tensor([len(line) == 3 for line in lines]),
            folds=torch.arange(len(lines)) // (2 * of_each_kind),
        )

    def _row(self, file: Path, person: str, number: str) -> int:
        image = f"{person}_{number:0>4}"
        if image not in self.rows:
            raise InputError(
                f"{file}: its image {image} is missing or unreadable; all pairs are needed, so replace it."
            )
        return self.rows[image]


def load_lfw(folder: str | Path, size: int = 64) -> LFW:
    """Labeled Faces in the Wild as published: ``<name>/<name>_<0001>.jpg``, and the lists ``peopleDevTrain.txt``,
    ``peopleDevTest.txt``, ``pairsDevTrain.txt``, ``pairsDevTest.txt`` and ``pairs.txt`` beside the people's folders.

    Images that cannot be read are left out, and one warning names them. See :class:`LFW` for which pairs to
    test on.

    Args:
        folder: the folder with the people's folders and the lists.
        size: side of an image in pixels; published images are scaled as a whole, without cropping to the face.

    Returns:
        13,233 faces of 5,749 people, uint8 images [n, 3, size, size].
    """
    folder = Path(folder)
    files = list_images(folder, size)
    images: dict[Path, Tensor] = {}
    unreadable: list[Path] = []
    for file in files:
        try:
            images[file] = read_image(file, size)
        except UNREADABLE:
            unreadable.append(file)
    class_names, targets = label_images(folder, files, unreadable)
    inputs = torch.stack(list(images.values()))
    return LFW(
        images=Dataset(name="lfw", inputs=inputs, targets=targets, class_names=class_names),
        dev_train=_read_people(folder / "peopleDevTrain.txt"),
        dev_test=_read_people(folder / "peopleDevTest.txt"),
        folder=folder,
        rows={file.stem: row for row, file in enumerate(images)},
    )


def without_identities(dataset: Examples, names: str | Path | Iterable[str]) -> Examples:
    """``dataset`` without the examples of some classes, such as people of CASIA-WebFace who are in LFW too.

    Args:
        dataset: the training set, with one class for each identity.
        names: names of classes to drop, or a text file with one name a line; other names are ignored.

    Returns:
        All other examples; labels keep their meaning, so the dropped classes stay in ``class_names``.

    Example:
        >>> faces = Dataset(
        ...     name="x", inputs=torch.eye(3), targets=torch.tensor([0, 1, 2]), class_names=("0000045", "0000099", "7")
        ... )
        >>> without_identities(faces, ["0000099"]).targets
        tensor([0, 2])
    """
    if isinstance(names, str | Path):
        if not Path(names).is_file():
            raise InputError(f"names={str(names)!r}: there is no such file; give a text file, or a list of names.")
        names = Path(names).read_text(encoding="utf-8").splitlines()
    dropped = {name.strip() for name in names}
    if dropped.isdisjoint(dataset.class_names):
        raise InputError(f"names: none is a class of dataset {dataset.name!r}; write them as in its class_names.")
    return dataset.subset((~_is_of(dataset, dropped)).nonzero().squeeze(1))


def _is_of(dataset: Examples, names: set[str]) -> Tensor:
    """Whether an example's class is named [n]."""
    return torch.tensor([name in names for name in dataset.class_names])[dataset.targets]


def _read_people(file: Path) -> tuple[str, ...]:
    header, lines = _read_list(file)
    if [len(lines)] != header:
        raise InputError(f"{file}: it has {len(lines)} people, but its first line says {header[0]}; download it again.")
    return tuple(line[0] for line in lines)


def _read_list(file: Path) -> tuple[list[int], list[list[str]]]:
    """The numbers of a list's first line, and the columns of all others."""
    if not file.is_file():
        raise InputError(f"{file}: this list is missing; put the published one beside the people's folders.")
    header, *lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines() or [""])
    if len(header) not in (1, 2) or not all(number.isdecimal() for number in header):
        raise InputError(f"{file}: its first line is not the number of lines; download it again.")
    return [int(number) for number in header], [line for line in lines if line]


def _faces(run: SourceSettings) -> Loaded:
    """People of DevTrain, and the images of DevTest's pairs."""
    lfw = load_lfw(run.path / "lfw", run.image_size)
    pairs = lfw.pairs("dev_test")
    rows = torch.cat([pairs.first, pairs.second]).unique()
    within = pairs._replace(first=torch.searchsorted(rows, pairs.first), second=torch.searchsorted(rows, pairs.second))
    return Loaded(examples=lfw.faces_of(lfw.dev_train), test=lfw.images.subset(rows), pairs=within)


DATA_SOURCES.add("lfw", "Labeled Faces in the Wild", _faces)
