"""Data sets that can be downloaded: addresses, digests and files of their archives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lossalign.core import InputError


@dataclass(frozen=True, kw_only=True)
class PublishedFile:
    """A file of a published data set.

    Args:
        size: number of bytes.
        sha256: its digest, if known.
    """

    size: int
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that is published as one archive.

    Args:
        name: its name in ``lossalign data fetch``.
        base_url: URL of the folder that holds the archive.
        archive: the archive's file name.
        folder: the folder that it is unpacked to.
        files: the files that must be in that folder.
        sha256: the archive's digest, if known.
        md5: the archive's digest as published.
    """

    name: str
    base_url: str
    archive: str
    folder: str
    files: Mapping[str, PublishedFile]
    sha256: str | None = None
    md5: str | None = None

    def __post_init__(self) -> None:
        if self.sha256 is None and self.md5 is None:
            raise InputError(f"source {self.name!r}: give sha256 or md5; every archive is verified before unpacking.")

    def locate(self, root: str | Path) -> Path:
        """The data set's folder, given that folder or its parent as ``root``."""
        inside = Path(root) / self.folder
        is_itself = not inside.is_dir() and any((Path(root) / name).is_file() for name in self.files)
        return Path(root) if is_itself else inside


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_CIFAR10_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

CIFAR10 = Source(
    name="cifar10",
    base_url=_TORONTO,
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    files={name: PublishedFile(size=30_730_000, sha256=digest) for name, digest in _CIFAR10_SHA256.items()},
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)
CIFAR100 = Source(
    name="cifar100",
    base_url=_TORONTO,
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    files={"train.bin": PublishedFile(size=153_700_000), "test.bin": PublishedFile(size=30_740_000)},
    md5="03b5dce01913d631647c71ecec9e9cb8",
)


def known() -> dict[str, Source]:
    """Every data set that can be fetched, by name.

    Example:
        >>> list(known())
        ['cifar10', 'cifar100']
    """
    return {source.name: source for source in (CIFAR10, CIFAR100)}


def find(name: str | Source) -> Source:
    """The source called ``name``; a ``Source`` is returned as it is."""
    if isinstance(name, Source):
        return name
    if name not in known():
        raise InputError(f"name={name!r}: it cannot be fetched; choose from {', '.join(known())}.")
    return known()[name]
