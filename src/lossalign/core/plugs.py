"""The user's own objects by name: ``module:attribute``, with the current folder on the import path, or ``object:NAME``
for an object that was passed in Python."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossalign.core.errors import InputError

OBJECT = "object"
"""Prefix of the name of an object that was passed in Python."""
_OFFERED: dict[tuple[str, str], Any] = {}


def offer_plug(what: str, thing: Any, name: str | None = None) -> str:
    """A name under which ``import_plug`` finds ``thing`` in this process; ``what`` names the argument it is for.

    Example:
        >>> offer_plug("metric", print), import_plug("metric", "object:print") is print
        ('object:print', True)
    """
    name = name or getattr(thing, "__qualname__", None) or type(thing).__qualname__
    path = f"{OBJECT}:{re.sub(r'[^A-Za-z0-9_.-]+', '', name)}"
    _OFFERED[what, path] = thing
    return path


def import_plug(what: str, path: str) -> Any:
    """The object behind ``module:attribute``; ``what`` names the argument it was given for.

    Example:
        >>> import_plug("metric", "math:pi")
        3.14159...
    """
    module_name, _, attribute = path.partition(":")
    if module_name == OBJECT:
        if (what, path) not in _OFFERED:
            raise InputError(f"{what}={path!r}: it was an object in Python; pass it to lossalign.fit again.")
        return _OFFERED[what, path]
    if not module_name or module_name.startswith(".") or not attribute:
        raise InputError(f"{what}={path!r}: write module:attribute, e.g. my_package:my_{what}.")
    with _importable(Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{what}={path!r}: there is no module {error.name!r}; run from the folder that holds it, or install it."
            ) from error
        except Exception as error:  # anything the user's module raises on import
            raise InputError(
                f"{what}={path!r}: importing {module_name!r} failed: {type(error).__name__}: {error}"
            ) from error
    if not hasattr(module, attribute):
        raise InputError(f"{what}={path!r}: module {module_name!r} has no {attribute!r}; define it.")
    return getattr(module, attribute)


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
