"""Download, verify and unpack a published data set; it is put in place only if it is complete."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from lossalign.core import InputError
from lossalign.data.sources import Source, find

Progress = Callable[[int, "int | None"], None]

_BLOCK = 1 << 18
_TIMEOUT = 60.0
"""Seconds without a byte, or with fewer than ``_SLOWEST``, after which a transfer is given up; it can be resumed."""
_SLOWEST = 1 << 14


def fetch(name: str | Source, root: str | Path, progress: Progress | None = None, base_url: str | None = None) -> Path:
    """Download, verify and unpack a data set; nothing is done if it is there and complete.

    The download is written to ``<archive>.part`` under ``root`` and resumes from there when it is run again. The
    archive is unpacked only if its digest is right, and the data set's folder is put in place in one move.

    Args:
        name: a name from :func:`known`, or a :class:`Source` of your own.
        root: the folder that will hold the data set's folder.
        progress: called during the download with (bytes so far, total bytes or None).
        base_url: a mirror's folder, instead of the publisher's.

    Returns:
        The data set's folder.
    """
    source, root = find(name), Path(root)
    if not check(source, root):
        return source.locate(root)
    root.mkdir(parents=True, exist_ok=True)
    part = root / f"{source.archive}.part"
    if not (part.is_file() and not _wrong_digests(part, source)):
        _download(f"{(base_url or source.base_url).rstrip('/')}/{source.archive}", part, _largest(source), progress)
        wrong = _wrong_digests(part, source)
        if wrong:
            part.unlink()
            raise InputError(
                f"{source.archive}: the digest of the download is not the published one ({wrong}), so it was removed; "
                f"download {source.name} again, or from another base_url."
            )
    folder = _unpack(part, source, root)
    part.unlink()
    return folder


def check(name: str | Source, root: str | Path) -> list[str]:
    """Problems of a data set on disk; an empty list if there are none.

    Args:
        name: a name from :func:`known`, or a :class:`Source` of your own.
        root: the data set's folder, or the folder that holds it.

    Returns:
        One sentence for each file that is missing, of the wrong size, or with the wrong content.

    Example:
        >>> check("cifar10", "/nowhere")
        ['/nowhere/cifar-10-batches-bin: this folder is missing; run `lossalign data fetch cifar10`.']
    """
    source = find(name)
    folder, advice = source.locate(root), f"run `lossalign data fetch {source.name}`"
    if not folder.is_dir():
        return [f"{folder}: this folder is missing; {advice}."]
    problems = []
    for file, published in source.files.items():
        path = folder / file
        if not path.is_file():
            problems.append(f"{path}: this file is missing; {advice}.")
        elif path.stat().st_size != published.size:
            problems.append(f"{path}: it has {path.stat().st_size} bytes, but {published.size} as published; {advice}.")
        elif published.sha256 and _digest(path, "sha256") != published.sha256:
            problems.append(f"{path}: its sha256 is not the published one; {advice}.")
    return problems


def _digest(path: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _wrong_digests(path: Path, source: Source) -> str:
    """The digests that are not as published, each with both values; empty if all are right."""
    published = {"sha256": source.sha256, "md5": source.md5}
    found = {kind: _digest(path, kind) for kind, value in published.items() if value}
    return ", ".join(
        f"{kind} {value} instead of {published[kind]}" for kind, value in found.items() if value != published[kind]
    )


def _largest(source: Source) -> int:
    """Most bytes of its archive; compressed files are hardly ever larger than plain ones."""
    return 2 * sum(published.size for published in source.files.values()) + 2**20


def _download(url: str, part: Path, largest: int, progress: Progress | None) -> None:
    """Download the file at ``url`` into ``part``; if the transfer breaks, ``part`` is kept."""
    try:
        with _open(url, part) as response:
            start = _start_of(response, part.stat().st_size if part.is_file() else 0)
            length = response.headers.get("Content-Length")
            total = start + int(length) if length is not None and length.isdecimal() else None
            done, seen, since = start, start, time.monotonic()
            with part.open("ab") as file:
                file.truncate(start)
                while block := response.read1(_BLOCK):
                    file.write(block)
                    done += len(block)
                    if done > largest or (total or 0) > largest:
                        raise _TooLarge
                    if time.monotonic() - since > _TIMEOUT:
                        if done - seen < _SLOWEST:
                            raise TimeoutError(f"{done - seen} bytes in {_TIMEOUT:.0f} seconds")
                        seen, since = done, time.monotonic()
                    if progress is not None:
                        progress(done, total)
    except _TooLarge:
        part.unlink()
        raise InputError(
            f"{url}: it is larger than {largest:,} bytes, so it is not what was published; use another base_url."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{url}: the transfer failed ({error}); run it again to resume, or download the file "
            "another way and unpack it yourself."
        ) from error
    if total is not None and done < total:
        raise InputError(f"{url}: the transfer stopped at {done} of {total} bytes; run it again to resume.")


class _TooLarge(Exception):
    """More bytes than an archive can have."""


def _open(url: str, part: Path) -> http.client.HTTPResponse:
    """Request the bytes missing from ``part``, or the whole file if the server has no bytes beyond it."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    request = urllib.request.Request(url, headers={"User-Agent": "lossalign", **headers})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        part.unlink()
        return _open(url, part)
    return response


def _start_of(response: http.client.HTTPResponse, have: int) -> int:
    """The position in the file of the first byte of this response, at most behind the bytes that are there."""
    span = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    start = int(span[1]) if span and response.status == http.client.PARTIAL_CONTENT else 0
    if start > have:
        raise http.client.HTTPException(f"the server sends bytes from {start:,} on, and {have:,} are there")
    return start


def _unpack(archive: Path, source: Source, root: Path) -> Path:
    """Unpack next to the final folder, check the result, then move it there."""
    with tempfile.TemporaryDirectory(dir=root, prefix=".unpack-") as name:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(name, filter="data")
        except (tarfile.TarError, zlib.error, EOFError) as error:
            archive.unlink()
            raise InputError(f"{source.archive}: cannot be unpacked safely ({error}); it was removed.") from error
        problems = check(source, name)
        if problems:
            archive.unlink()
            raise InputError(f"{source.archive}: it does not contain {source.name} as published: {problems[0]}")
        return _move(Path(name) / source.folder, source.locate(root))


def _move(unpacked: Path, final: Path) -> Path:
    """Move the new folder into place; into a damaged one file by file, where other files are kept."""
    if not final.exists():
        os.replace(unpacked, final)
        return final
    for path in sorted(unpacked.rglob("*")):
        if path.is_file():
            target = final / path.relative_to(unpacked)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    return final
