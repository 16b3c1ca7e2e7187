"""Data sources by name. Each source is registered in the file that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lossalign.core import Registry
from lossalign.data.dataset import Examples, Pairs


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The settings of a run that its data depend on.

    Args:
        folder: the folder that holds the data sets, or the user's own file or folder; None: ``data``.
        image_size: side of the images, in pixels.
        in_memory_gb: image folders larger than this are streamed from disk.
        image_cache: folder for decoded images.
    """

    folder: str | None = None
    image_size: int = 32
    in_memory_gb: float = 4.0
    image_cache: str | None = None

    @property
    def path(self) -> Path:
        """The folder or file."""
        return Path(self.folder or "data")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """All examples of a source, with its own test set and the pairs of that to verify, if it has them."""

    examples: Examples
    test: Examples | None = None
    pairs: Pairs | None = None


DATA_SOURCES: Registry[Callable[[SourceSettings], Loaded]] = Registry("data source")


def load_source(name: str, settings: SourceSettings) -> Loaded:
    """Read the source called ``name``.

    Example:
        >>> len(load_source("digits", SourceSettings()).examples)
        1797
    """
    return DATA_SOURCES[name](settings)


def with_test(parts: tuple[Examples, Examples]) -> Loaded:
    """A source that is published as a training and a test set."""
    return Loaded(examples=parts[0], test=parts[1])
