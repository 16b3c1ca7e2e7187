"""Recipe files: TOML with ``task`` and any keys of a config."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lossalign.core import InputError
from lossalign.experiments.config import Config
from lossalign.experiments.keys import KEYS, by_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def is_recipe(task: str) -> bool:
    """Whether ``task`` is the path of a recipe file."""
    return task.endswith(".toml")


def read_recipe(path: str) -> tuple[str, dict[str, Any]]:
    """The task of a recipe file, and its other values by key."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"task {path!r}: the recipe file cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or a number or nesting without end
        raise InputError(f"task {path!r}: invalid TOML: {error}") from error
    task = found.pop("task", None)
    if not isinstance(task, str) or is_recipe(task):
        raise InputError(f'task {path!r}: the recipe file must name its task, e.g. task = "digits-lt".')
    tables = [name for name, value in found.items() if isinstance(value, dict)]
    if tables:
        raise InputError(f"task {path!r}: {tables[0]!r} is a table; write keys as name = value, without sections.")
    return task, found


def write_recipe(config: Config) -> str:
    """A recipe file that gives the same run; None is written as ``"none"``."""
    values = by_key(config)
    lines = [f"task = {_toml(config.task)}"]
    section = ""
    for name, key in KEYS.items():
        if key.section != section:
            section = key.section
            lines += ["", f"# {section}"]
        lines.append(f"{name} = {_toml(values[name])}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A TOML value.

    Example:
        >>> _toml(("fixed", "ala")), _toml(None), _toml(True), _toml(0.5)
        ('["fixed", "ala"]', '"none"', 'true', '0.5')
    """
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return '"none"' if value is None else json.dumps(value)
