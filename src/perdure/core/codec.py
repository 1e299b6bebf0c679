"""One rule for what may be stored, and the bytes that it becomes.

The rule, applied once, at the gate: NUL becomes U+2400 (SYMBOL FOR NULL), a lone surrogate becomes U+FFFD,
NaN and the infinities become the strings "NaN", "Infinity" and "-Infinity". The six literal characters
``\\u0000`` are ordinary text and stay. Everything else must be JSON; what is not raises
`UnserializableError` with the path. No module path, pickle or constructor is ever stored, so reading
back can't run code.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import fields, is_dataclass
from typing import Any, Final, Protocol, cast

import pydantic_core

from perdure.core.errors import UnserializableError
from perdure.core.limits import DEPTH_MAX, INTEGER_BITS_MAX

NUL = "\u2400"
LONE = "\ufffd"
_BAD_TEXT = re.compile("[\x00\ud800-\udfff]")


class Codec(Protocol):
    """What a user may put between the engine and the stored bytes: encryption, compression.

    It sees messages, inputs, outputs, errors and artifacts; never the columns that the engine queries.
    """

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


class PlainCodec:
    """Bytes as they are."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def clean_text(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by the rule."""
    if text.isascii() and "\x00" not in text:
        return text
    return _BAD_TEXT.sub(lambda found: NUL if found[0] == "\x00" else LONE, text)


def clean(value: Any, *, path: str = "$") -> Any:
    """`value` as plain JSON data, by the rule.

    Pydantic models, dataclasses, dates, decimals, enums and the like become what Pydantic makes of them in JSON mode.

    Raises:
        UnserializableError: Something in it has no JSON form; `details["path"]` says where.
    """
    try:
        return _clean(value, path, 0)
    except RecursionError as error:
        raise UnserializableError(
            f"{path}: it contains itself, or is nested too deeply to be stored as JSON. Return plain data.", path=path
        ) from error


def _clean(value: Any, path: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise UnserializableError(
            f"{path[:80]}…: it contains itself, or is nested deeper than {DEPTH_MAX} levels (DEPTH_MAX). Return flatter data.", path=path
        )
    if value is None or value is True or value is False:
        return value
    kind = cast(type[Any], type(value))
    if kind is str:
        return clean_text(value)
    if kind is int:
        if value.bit_length() > INTEGER_BITS_MAX:
            raise UnserializableError(f"{path}: an integer of {value.bit_length():,} bits. Return it as text.", path=path)
        return value
    if kind is float:
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind is dict:
        pairs = cast(dict[Any, Any], value).items()
        named = {_key(name, path): _clean(each, f"{path}.{name}", depth + 1) for name, each in pairs}
        if len(named) != len(pairs):
            raise UnserializableError(f"{path}: two of its keys are the same as text, such as 1 and '1'. Give them names of their own.", path=path)
        return named
    if kind is list or kind is tuple:
        return [_clean(each, f"{path}[{at}]", depth + 1) for at, each in enumerate(cast(list[Any], value))]
    if is_dataclass(value) and not isinstance(value, type) and not hasattr(kind, "__pydantic_serializer__"):
        return {each.name: _clean(getattr(value, each.name), f"{path}.{each.name}", depth + 1) for each in fields(value)}
    if hasattr(kind, "__next__"):
        # Pydantic would read an open file or a generator to its end and store what came: nobody asked for that.
        raise UnserializableError(f"{path}: a {kind.__qualname__} is read only once, so it can't be stored. Return plain data.", path=path)
    try:
        plain = pydantic_core.to_jsonable_python(value, inf_nan_mode="constants", by_alias=True)
    except Exception as error:
        raise UnserializableError(
            f"{path}: a {kind.__module__}.{kind.__qualname__} can't be stored as JSON. Return plain data.", path=path
        ) from error
    if type(plain) is kind:
        raise UnserializableError(f"{path}: a {kind.__qualname__} can't be stored as JSON. Return plain data.", path=path)
    return _clean(plain, path, depth)


def _key(name: Any, path: str) -> str:
    if isinstance(name, str):
        return clean_text(name)
    if name is None or isinstance(name, (bool, int, float)):
        return clean_text(json.dumps(clean(name)).strip('"'))
    plain = _clean(name, f"{path}.<key>", 0)
    if isinstance(plain, str):
        return plain
    raise UnserializableError(f"{path}: a key of type {type(name).__qualname__} can't be stored as JSON.", path=path)


_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
"""Made once: `json.dumps` would make one in each call."""


def dump(value: Any) -> str:
    """Compact JSON of a value that is clean already. Non-ASCII stays readable."""
    return _COMPACT.encode(value)


def load(text: str | bytes | None) -> Any:
    """What `dump` wrote; None for None."""
    return None if text is None else json.loads(text)


def fingerprint(value: Any) -> str:
    """SHA-256 in hex of a clean value, whatever the order of its keys."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
