"""Copies of values that hold JSON, so that two sides never share something that one of them may change."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


def copied(value: T) -> T:
    """`value` with every dict and list in it new. Frozen values without any are shared, because nobody can change them."""
    return cast(T, _copied(value))


def _copied(value: Any) -> Any:
    kind = cast(type[Any], type(value))
    if kind is dict:
        return {name: _copied(each) for name, each in cast(dict[Any, Any], value).items()}
    if kind is list:
        return [_copied(each) for each in cast(list[Any], value)]
    if kind is tuple:
        return tuple(_copied(each) for each in cast(tuple[Any, ...], value))
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        new = {name: _copied(part) for name, part in parts.items()}
        return kind(**new) if any(new[name] is not parts[name] for name in parts) else value
    return value
