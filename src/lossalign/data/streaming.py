"""Image folders larger than memory: decoded once into a file, and read batch by batch while training."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import data as torch_data

from lossalign.core import InputError
from lossalign.data.dataset import Dataset, Examples
from lossalign.data.digest import BYTES, Digests, row_digests
from lossalign.data.folders import UNREADABLE, label_images, list_images, load_image_folder, read_image
from lossalign.data.registry import DATA_SOURCES, Loaded, SourceSettings
from lossalign.data.streams import Draws, make_batch
from lossalign.data.transforms import Transform

Pixels = npt.NDArray[np.uint8]

_FORMAT = 2
"""Version of the files of decoded images; another one is decoded again."""
_DECODED_AT_ONCE = 64
_CHECKED_AT_ONCE = 256
_READERS = 8
_AHEAD = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedImages(Examples):
    """Decoded images in a file, mapped into memory: only images that are used are read.

    Args:
        name: name of the set in messages and run folders.
        targets: class indices [n], int64.
        class_names: one name for each class.
        pixels: all images of the file [m, 3, size, size].
        rows: the rows of ``pixels`` in this set, in order [n].
        pixel_digests: the digest of each image of the file [m, 16].
    """

    pixels: Pixels = field(repr=False)
    rows: Tensor = field(repr=False)
    pixel_digests: Digests = field(repr=False)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one image: (3, size, size)."""
        return self.pixels.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """uint8."""
        return torch.uint8

    def subset(self, indices: Tensor | Sequence[int]) -> MappedImages:
        """The images at ``indices``, in their order, with the same classes; nothing is read."""
        at = self._checked(indices)
        return replace(self, rows=self.rows[at], targets=self.targets[at])

    def read(self, indices: Tensor, out: Tensor) -> Tensor:
        """The images at ``indices``, copied into ``out``."""
        # with mode="raise" numpy fills a second array first, to leave out unchanged if an index is wrong
        np.take(self.pixels, self.rows[indices].numpy(), axis=0, out=out.numpy(), mode="clip")
        return out

    def row_digests(self) -> Digests:
        """The digest of each image [n, 16]; nothing is read."""
        return np.take(self.pixel_digests, self.rows.numpy(), axis=0)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """All images, at most ``size`` at a time, in the order of the file."""
        for at in self.rows.argsort().split(size):
            yield self.read(at, self._room(len(at)))

    def load(self) -> Dataset:
        """The same images, in memory."""
        inputs = self.read(torch.arange(len(self)), self._room(len(self)))
        return Dataset(name=self.name, inputs=inputs, targets=self.targets, class_names=self.class_names)

    def _room(self, number: int, pinned: bool = False) -> Tensor:
        return torch.empty(number, *self.input_shape, dtype=torch.uint8, pin_memory=pinned)

    def start_reading(self, indices: Tensor, pinned: bool) -> Future[Tensor]:
        """Read the images at ``indices`` in the background."""
        return _readers().submit(self.read, indices, self._room(len(indices), pinned))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_READERS, _processors()), "lossalign-images")


def open_image_folder(
    path: str | Path, size: int, *, memory_limit: float, cache: str | Path | None = None
) -> Dataset | MappedImages:
    """An image folder, in memory if its decoded images take at most ``memory_limit`` bytes, else mapped from a file.

    Args:
        path: the folder that holds one folder for each class.
        size: side of the square crop of every image, in pixels.
        memory_limit: number of bytes.
        cache: see :func:`map_image_folder`.
    """
    if len(list_images(Path(path), size)) * 3 * size * size <= memory_limit:
        return load_image_folder(path, size)
    return map_image_folder(path, size, cache)


def map_image_folder(path: str | Path, size: int, cache: str | Path | None = None) -> MappedImages:
    """The images of :func:`load_image_folder`, decoded by worker processes into a file that is mapped into memory.

    The file is reused as long as the names, sizes and times of the image files are the same. It is written again when
    they change, and when it is damaged: it is compared with the digests in its manifest.

    Args:
        path: the folder that holds one folder for each class.
        size: side of the square crop of every image, in pixels.
        cache: the folder for files of this and other image folders; ``path/.lossalign`` if not given.

    Returns:
        The readable images; one warning names the others.
    """
    path = Path(path)
    files = list_images(path, size)
    label_images(path, files, [])  # a folder without classes is refused before anything is decoded
    folder = path / ".lossalign" if cache is None else Path(cache) / path.resolve().name
    decoded = folder / f"{_digest(path, files, size)}.uint8"
    manifest = decoded.with_suffix(".json")
    found = _read_manifest(manifest, decoded, len(files), size)
    if found is None:
        _decode_all(files, size, decoded, manifest)
        found = _read_manifest(manifest, decoded, len(files), size)
    if found is None:
        raise InputError(
            f"{decoded}: it does not hold what was written; check the disk or give another folder as cache."
        )
    bad, digests = found
    class_names, targets = label_images(path, files, [files[row] for row in bad])
    readable = torch.ones(len(files), dtype=torch.bool)
    readable[bad] = False
    return MappedImages(
        name=path.resolve().name,
        targets=targets,
        class_names=class_names,
        pixels=_mapped(decoded, len(files), size),
        pixel_digests=digests,
        rows=readable.nonzero().squeeze(1),
    )


def _mapped(decoded: Path, images: int, size: int) -> Pixels:
    return np.asarray(np.memmap(decoded, np.uint8, "r", shape=(images, 3, size, size)))


def _read_manifest(manifest: Path, decoded: Path, images: int, size: int) -> tuple[list[int], Digests] | None:
    """The rows of unreadable images and the digest of each image; None if a file is missing, cut off or damaged."""
    try:
        about = json.loads(manifest.read_text(encoding="utf-8"))
        bad, digests = list(about["unreadable"]), np.frombuffer(bytes.fromhex(about["digests"]), np.uint8)
        if decoded.stat().st_size != images * 3 * size * size or not all(0 <= int(row) < images for row in bad):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    pixels = _mapped(decoded, images, size)
    parts = [row_digests(pixels[at : at + _CHECKED_AT_ONCE]) for at in range(0, images, _CHECKED_AT_ONCE)]
    return (bad, digests.reshape(-1, BYTES)) if np.array_equal(np.concatenate(parts).ravel(), digests) else None


def _digest(path: Path, files: list[Path], size: int) -> str:
    """A digest that changes whenever a file is added, removed, renamed or written to, or the cache's format changes."""
    digest = hashlib.sha256(f"format {_FORMAT}\n".encode())
    for file in files:
        about = file.stat()
        digest.update(f"{file.relative_to(path)}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return f"images-{size}-{digest.hexdigest()[:16]}"


def _decode_all(files: list[Path], size: int, decoded: Path, manifest: Path) -> None:
    """Write all images, then their manifest, and remove earlier files."""
    try:
        _write_both(files, size, decoded, manifest)
        for old in decoded.parent.glob(f"images-{size}-*"):
            if old.suffix != ".part" and old not in (decoded, manifest):
                old.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{decoded.parent}: decoded images cannot be written there ({error}); give another folder as cache."
        ) from error


def _write_both(files: list[Path], size: int, decoded: Path, manifest: Path) -> None:
    """Each file appears whole or not at all, the manifest last."""
    decoded.parent.mkdir(parents=True, exist_ok=True)
    needed, free = len(files) * 3 * size * size, shutil.disk_usage(decoded.parent).free
    if needed > free:
        raise InputError(
            f"{decoded.parent}: decoded images take {needed:,} bytes, but {free:,} are free; free some space."
        )
    part = decoded.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.truncate(needed)
        bad, digests = _decode_into(part, files, size)
        part.replace(decoded)
        part.write_text(json.dumps({"unreadable": bad, "digests": digests}), encoding="utf-8")
        part.replace(manifest)
    finally:
        part.unlink(missing_ok=True)


def _decode_into(part: Path, files: list[Path], size: int) -> tuple[list[int], str]:
    """Decode in worker processes; returns the rows of the images that cannot be read, and all digests."""
    pieces = _Pieces(part, files, size)
    workers = min(len(pieces), _processors())
    # without its own generator it would use torch's global one
    loader = torch_data.DataLoader(pieces, batch_size=None, num_workers=workers, generator=torch.Generator())
    done = list(loader)
    return [row for bad, _ in done for row in bad], "".join(digests for _, digests in done)


@dataclass(frozen=True)
class _Pieces(torch_data.Dataset[tuple[list[int], str]]):
    """Item i decodes its share of the images into the file: the rows that cannot be read, and all digests."""

    part: Path
    files: list[Path]
    size: int

    def __len__(self) -> int:
        return -(-len(self.files) // _DECODED_AT_ONCE)

    def __getitem__(self, piece: int) -> tuple[list[int], str]:
        pixels = np.memmap(self.part, np.uint8, "r+", shape=(len(self.files), 3, self.size, self.size))
        start, bad = piece * _DECODED_AT_ONCE, []
        for row, file in enumerate(self.files[start : start + _DECODED_AT_ONCE], start):
            try:
                pixels[row] = read_image(file, self.size).numpy()
            except UNREADABLE:
                bad.append(row)
        return bad, row_digests(pixels[start : start + _DECODED_AT_ONCE]).tobytes().hex()


class _Ahead(NamedTuple):
    """A batch that is being read."""

    images: Future[Tensor]
    targets: Tensor
    decided: list[Tensor]
    state: dict[str, Tensor]


class StreamedBatches:
    """Endless training batches of images that stay on disk: the same batches as :class:`BatchStream` gives.

    Threads read them ahead, each batch in one call that releases the GIL (worker processes of a ``DataLoader`` take
    eight to twenty times as long, as every batch is copied between processes); batches are moved and augmented as a
    whole.

    Args:
        images: the training set.
        batch_size: examples in a batch; the whole set if it is smaller.
        transform: normalisation and augmentation.
        generator: a CPU generator used by nothing else; its state is part of the stream's.
        device: where batches are made.
        per_class: see :class:`BatchStream`.
    """

    def __init__(
        self,
        images: MappedImages,
        batch_size: int,
        transform: Transform,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        *,
        per_class: int | None = None,
    ) -> None:
        self._drawing = Draws(images, batch_size, transform, generator, per_class)
        self.batch_size, self.device = self._drawing.batch_size, torch.device(device)
        self._images = images
        self._transform = replace(transform, mean=transform.mean.to(device), std=transform.std.to(device))
        self._all = torch.arange(self.batch_size, device=device)
        self._state, self._ahead = self._drawing.state(), deque[_Ahead]()

    def next(self) -> tuple[Tensor, Tensor]:
        """The next inputs [batch_size, 3, size, size], float32, and targets [batch_size]."""
        while len(self._ahead) <= _AHEAD:
            self._ahead.append(self._start())
        batch = self._ahead.popleft()
        self._state = batch.state
        images, targets, *decided = (
            tensor.to(self.device, non_blocking=True)
            for tensor in (batch.images.result(), batch.targets, *batch.decided)
        )
        return make_batch(images, targets, self._transform, tuple(self._drawing.decisions), [self._all, *decided])

    def _start(self) -> _Ahead:
        indices, *decided = self._drawing.next()
        images = self._images.start_reading(indices, self.device.type == "cuda")
        return _Ahead(images, self._images.targets[indices], decided, self._drawing.state())

    def state_dict(self) -> dict[str, Tensor]:
        """The position after the last batch returned, not the last read; as in :class:`BatchStream`."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state``, which a stream over the same data set gave."""
        self._drawing.load(state)
        self._state = self._drawing.state()
        self._ahead.clear()


def _images(run: SourceSettings) -> Loaded:
    limit = run.in_memory_gb * 1e9
    return Loaded(examples=open_image_folder(run.path, run.image_size, memory_limit=limit, cache=run.image_cache))


DATA_SOURCES.add("images", "a folder of your images", _images)
