"""Typed values: from text, from TOML, and as fields of dataclasses."""

from __future__ import annotations

import os
import types
import typing
from dataclasses import fields
from numbers import Real
from typing import Any, Literal, get_args, get_origin

from lossalign.core.errors import InputError

_LARGEST = 2**63
"""No whole number is this large: torch counts in 64 bits."""


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
    kinds = _kinds(hint)
    if types.NoneType in kinds and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    try:
        if get_origin(kind) is tuple:
            parts = value.split(",") if isinstance(value, str) else _sequence(value)
            return tuple(_single(part, get_args(kind)[0]) for part in parts)
        return _single(value, kind)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(f"{name}={_shown(value)}: give {_wanted(hint)}.") from error


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise ``InputError`` unless ``value`` is of type ``hint``; a whole number is a number, too.

    Example:
        >>> check_value("flip", "false", bool)
        Traceback (most recent call last):
        ...
        lossalign.core.errors.InputError: flip='false': give true or false.
    """
    if not any(_is(value, kind) for kind in _kinds(hint)):
        raise InputError(f"{name}={_shown(repr(value))}: give {_wanted(hint)}.")


class Checked:
    """Base of dataclasses whose fields are checked against their types when they are made."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for each in fields(self):  # type: ignore[arg-type]
            check_value(each.metadata.get("key", each.name), getattr(self, each.name), hints[each.name])


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _single(value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[str(value)]
    if kind is bool:
        return {"true": True, "false": False}[str(value).lower()]
    if kind is str:
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(value)
        return os.fspath(value)
    if isinstance(value, bool) or not isinstance(value, (str, Real)) or (kind is int and _is_fraction(value)):
        raise TypeError(value)
    number = kind(value)
    if not _is(number, kind):
        raise ValueError(value)
    return number


def _is(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is(part, get_args(kind)[0]) for part in value)
    if kind in (int, float):
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        return number and value == value and (isinstance(value, float) or abs(value) < _LARGEST)
    return isinstance(value, kind)


def _is_fraction(value: Any) -> bool:
    return not isinstance(value, str) and value != int(value)


def _sequence(value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        raise TypeError(value)
    return value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


def _wanted(hint: Any) -> str:
    kinds = _kinds(hint)
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    return f"{_wanted_kind(kind)}{' or none' if len(kinds) > 1 else ''}"


def _wanted_kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"{_wanted_kind(get_args(kind)[0])}, or several"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}
    return words.get(kind, f"a {kind.__name__}")
