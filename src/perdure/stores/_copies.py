"""Copies of values that hold JSON, so that two sides never share something that one of them may change."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, datetime, timedelta, Decimal})
"""What nobody can change."""


def copied(value: T) -> T:
    """`value` with every dict and list in it new. Frozen values without any are shared, because nobody can change them."""
    return cast(T, _copied(value))


def _copied(value: Any) -> Any:
    kind = cast(type[Any], type(value))
    if kind in ATOMS:
        return value
    if kind is dict:
        return {name: _copied(each) for name, each in cast(dict[Any, Any], value).items()}
    if kind is list:
        return [_copied(each) for each in cast(list[Any], value)]
    if kind is tuple:
        old = cast(tuple[Any, ...], value)
        parts = tuple(_copied(each) for each in old)
        return parts if any(new is not each for new, each in zip(parts, old, strict=True)) else old
    names = _names(kind)
    if names:
        changed = False
        new: dict[str, Any] = {}
        for name in names:
            part = getattr(value, name)
            new[name] = each = _copied(part)
            changed = changed or each is not part
        return kind(**new) if changed else value
    return value


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
