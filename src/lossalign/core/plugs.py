"""A user's own model or metric by its import path, ``module:attribute``, found from the current folder too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lossalign.core.errors import InputError


def import_plug(what: str, path: str) -> Any:
    """The object behind ``module:attribute``; ``what`` names the argument it was given for.

    Example:
        >>> import_plug("metric", "math:pi")
        3.14159...
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or module_name.startswith(".") or not attribute:
        raise InputError(f"{what}={path!r}: write module:attribute, e.g. my_package:my_{what}.")
    with _importable(Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{what}={path!r}: there is no module {error.name!r}; run from the folder that holds it, or install it."
            ) from error
        except Exception as error:  # whatever the user's module raises while it is imported
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
