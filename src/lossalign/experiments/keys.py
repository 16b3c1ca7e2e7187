"""The fields of a config by key: one flat list that flags, recipe files and ``lossalign.fit`` share."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin

from lossalign.control import RENAMED_OPTIONS, Preset
from lossalign.core import InputError
from lossalign.core.values import parse_value
from lossalign.experiments.config import (
    ComputeConfig,
    Config,
    ControlConfig,
    DataConfig,
    MethodsConfig,
    ModelConfig,
    OptimisationConfig,
    SplitConfig,
)
from lossalign.experiments.methods import MethodSpec, parse_method

SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "split": SplitConfig,
    "model": ModelConfig,
    "optimisation": OptimisationConfig,
    "control": ControlConfig,
    "methods": MethodsConfig,
    "compute": ComputeConfig,
}
OPTIONS = tuple(field.name for field in fields(Preset))
"""Keys that are fields of the preset."""


@dataclass(frozen=True)
class Key:
    """One field of a config.

    Args:
        name: the key.
        section: the section it belongs to; ``task`` for the metric.
        hint: its type.
        owner: the dataclass that has the field.
        field: the field's name there.
    """

    name: str
    section: str
    hint: Any
    owner: type
    field: str

    @property
    def doc(self) -> str:
        """The help of the key: the text under the field."""
        return _field_docs(self.owner)[self.field]

    @property
    def many(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.hint) is tuple

    @property
    def placeholder(self) -> str:
        """The placeholder of a value in help."""
        return placeholder(self.hint)


@functools.cache
def _field_docs(cls: type) -> dict[str, str]:
    """The texts under the fields of a dataclass."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value.value if isinstance(following, ast.Expr) else ""  # type: ignore[attr-defined]
            docs[statement.target.id] = " ".join(str(text).split())
    return docs


def _keys_of(section: str, cls: type) -> dict[str, Key]:
    hints = typing.get_type_hints(cls)
    names = {each.metadata.get("key", each.name): each.name for each in fields(cls)}
    return {name: Key(name, section, hints[field], cls, field) for name, field in names.items()}


def _all_keys() -> dict[str, Key]:
    found = {"metric": _keys_of("task", Config)["metric"]}
    for section, cls in SECTIONS.items():
        found |= {name: key for name, key in _keys_of(section, cls).items() if name not in ("source", "options")}
        if section == "control":
            found |= _keys_of(section, Preset)
    return found


KEYS = _all_keys()
"""Every key that a user may set, in the order of the sections."""

RENAMED = {
    "reward_per_class": "validation_per_class",
    "reward_of_train": "validation_of_train",
    "reward_classes": "validation_classes",
    "validation_fraction": "held_out_fraction",
    **{old: new for old, new in RENAMED_OPTIONS.items() if old not in KEYS},
}
"""Names that keys had in version 0.1."""


def check_key(name: str, where: str, shown: Callable[[str], str] = repr) -> Key:
    """The key called ``name``; ``where`` is its source, e.g. ``"recipe x.toml"``, and ``shown`` formats keys for it."""
    if name in KEYS:
        return KEYS[name]
    if name == "switches":
        raise InputError(
            f"{where} {shown(name)}: it was removed; every option of the preset is a key of its own, e.g. "
            f"{shown('horizon')}."
        )
    if name in RENAMED:
        raise InputError(f"{where} {shown(name)}: it is now called {shown(RENAMED[name])}.")
    close = difflib.get_close_matches(name, KEYS, 1)
    hint = f"did you mean {shown(close[0])}?" if close else f"choose from {', '.join(map(shown, KEYS))}."
    raise InputError(f"{where} {shown(name)}: it is unknown; {hint}")


def typed(changes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``changes`` by key, each value with its key's type; text is parsed.

    Example:
        >>> typed({"ratio_clip": "none", "groups": "weights,offsets", "children": "4"}, "flags")
        {'ratio_clip': None, 'groups': ('weights', 'offsets'), 'children': 4}
    """
    return {name: _typed(check_key(name, where), value) for name, value in changes.items()}


def _typed(key: Key, value: Any) -> Any:
    if key.name == "methods":
        texts = [value] if isinstance(value, (str, MethodSpec)) else value
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, (str, MethodSpec)) for text in texts):
            raise InputError(f"methods={value!r}: give the name of a method, or several.")
        return tuple(text if isinstance(text, MethodSpec) else parse_method(text) for text in texts)
    return parse_value(key.name, value, key.hint)


def to_plain(config: Config) -> dict[str, Any]:
    """``config`` as JSON data, nested by section; methods as text."""
    plain = asdict(config)
    plain["methods"]["specs"] = [spec.text for spec in config.methods.specs]
    result: dict[str, Any] = json.loads(json.dumps(plain))
    return result


def from_plain(plain: Mapping[str, Any]) -> Config:
    """The config that ``to_plain`` wrote."""
    sections: dict[str, Any] = {}
    for name, cls in SECTIONS.items():
        part = {each: _tuples(value) for each, value in plain[name].items()}
        if name == "methods":
            part["specs"] = tuple(parse_method(text) for text in part["specs"])
        if name == "control":
            part["options"] = Preset(**{each: _tuples(value) for each, value in part["options"].items()})
        sections[name] = cls(**part)
    return Config(task=plain["task"], kind=plain["kind"], metric=plain["metric"], **sections)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def by_key(config: Config) -> dict[str, Any]:
    """Every key of a config with its value; methods as text."""
    values: dict[str, Any] = {"metric": config.metric}
    for section, cls in SECTIONS.items():
        part = getattr(config, section)
        for each in fields(cls):
            name = each.metadata.get("key", each.name)
            values[name] = getattr(part, each.name)
    values |= asdict(values.pop("options"))
    values["methods"] = tuple(spec.text for spec in config.methods.specs)
    return {name: values[name] for name in KEYS}


def plain_by_key(plain: Mapping[str, Any]) -> dict[str, Any]:
    """``by_key`` of what ``to_plain`` wrote, as data alone: no name in it is looked up, as that may import code."""
    values: dict[str, Any] = {"metric": plain["metric"]}
    for name, key in KEYS.items():
        if key.section != "task":
            section = plain[key.section]
            values[name] = _tuples((section["options"] if key.owner is Preset else section)[key.field])
    return values


def placeholder(hint: Any) -> str:
    """The placeholder of a value of this type in help.

    Example:
        >>> placeholder(int | None), placeholder(tuple[str, ...]), placeholder(Literal["on", "off"])
        ('NUMBER|none', 'NAME', 'on|off')
    """
    if get_origin(hint) in (types.UnionType, typing.Union):
        inner = next(part for part in get_args(hint) if part is not types.NoneType)
        return f"{placeholder(inner)}|none" if inner is not str else placeholder(inner)
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) is tuple:
        return placeholder(get_args(hint)[0])
    return {bool: "true|false", int: "NUMBER", float: "NUMBER"}.get(hint, "NAME")
