"""Typed values from text, from TOML and from Python."""

from __future__ import annotations

import os
import types
import typing
from typing import Any, Literal, get_args, get_origin

from lossalign.core import InputError


def parse_value(name: str, value: Any, hint: Any) -> Any:
    """``value`` as the type ``hint``; ``name`` is used in errors.

    Text stands for any type: ``none`` where None is allowed, ``true`` and ``false``, commas between the parts of a
    tuple.

    Example:
        >>> parse_value("horizon", "5", int), parse_value("ratio_clip", "none", float | None)
        (5, None)
        >>> parse_value("policy_hidden", "32,16", tuple[int, ...])
        (32, 16)
    """
    kinds = get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if types.NoneType in kinds and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    try:
        if get_origin(kind) is tuple:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(_single(part, get_args(kind)[0]) for part in parts)
        return _single(value, kind)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{name}={value}: give {_wanted(kind)}{' or none' if len(kinds) > 1 else ''}.") from error


def _single(value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[str(value)]
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if kind is str:
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(value)
        return os.fspath(value)
    if isinstance(value, bool) or (kind is int and isinstance(value, float) and value != int(value)):
        raise TypeError(value)
    return kind(value)


def _wanted(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"{_wanted(get_args(kind)[0])}, or several"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}[kind]
