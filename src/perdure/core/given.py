"""What callers give, judged kind by kind before anything is stored.

Each function answers what is wrong with a value, as the rest of a sentence that begins with its name, or None. Callers may not be typed, so the type is
looked at first: a list in place of a text must not fail in the middle of a store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, cast

from perdure.core.codec import clean, clean_text
from perdure.core.errors import InvalidTrigger, UnserializableError
from perdure.core.limits import KEY_MAX, LABELS_MAX, SPAN_MAX, WHOLE_MAX

UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SHOWN_MAX: Final = 80


def shown(value: object) -> str:
    """A value as a message names it: short, on one line, whatever it is."""
    try:
        text = clean_text(" ".join(repr(value).split()))
    except Exception:
        return f"a {type(value).__qualname__}"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def text(value: Any, *, longest: int = KEY_MAX, limit: str = "KEY_MAX") -> str | None:
    """A text of 1 to `longest` characters; `limit` is the name of that number."""
    if not isinstance(value, str):
        return f"must be a text, not {shown(value)}"
    if not 0 < len(value) <= longest:
        return f"must have 1 to {longest} characters ({limit}); it has {len(value)}"
    return None


def words(value: Any) -> str | None:
    """What somebody says: any text, or None for nothing."""
    return None if value is None or isinstance(value, str) else f"must be a text or None, not {shown(value)}"


def name_of_a_row(value: Any) -> str | None:
    """An id or a key that something is looked up by. One that no store could hold is told apart from one that is not there."""
    wrong = text(value, longest=4 * KEY_MAX, limit="4 * KEY_MAX")
    if wrong is None and clean_text(value) != value:
        return f"holds characters that no id has: {shown(value)}"
    return wrong


def uuid(value: Any) -> str | None:
    """An id in the form that ours have."""
    if isinstance(value, str) and UUID.fullmatch(value):
        return None
    return f"must be a UUID (version 7, as text in lower case, such as 01890a5d-ac96-774b-bcce-b302099a8057), not {shown(value)}"


def span(value: Any, *, positive: bool = False) -> str | None:
    """A length of time: not negative (`positive`: longer than nothing), and short enough for any calendar."""
    if not isinstance(value, timedelta):
        return f"must be a timedelta, not {shown(value)}"
    if value < timedelta(0) or (positive and not value):
        return f"must {'be longer than 0' if positive else 'not be negative'}; it is {value!r}"
    if value > SPAN_MAX:
        return f"must be at most {SPAN_MAX.days:,} days (SPAN_MAX); it is {value!r}"
    return None


def moment(value: Any) -> str | None:
    """A point in time with its zone."""
    if not isinstance(value, datetime):
        return f"must be a datetime with a time zone, not {shown(value)}"
    try:
        known = value.utcoffset() is not None
    except Exception:
        known = False
    return None if known else f"has no time zone: {value.isoformat()}. Write datetime.now(UTC) + …"


def seconds(value: Any) -> str | None:
    """How long a caller waits: seconds, a timedelta, or None for as long as it takes."""
    if value is None or isinstance(value, timedelta):
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:  # not NaN; `math.isnan` takes no large int
        return None
    return f"must be seconds, a timedelta or None, not {shown(value)}"


def whole(value: Any, *, least: int = 0, most: int = WHOLE_MAX) -> str | None:
    """A whole number. True is none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return f"must be a whole number, not {shown(value)}"
    if not least <= value <= most:
        return f"must be from {least:,} to {most:,}; it is {shown(value)}"
    return None


def money(value: Any) -> str | None:
    """US dollars: a Decimal, or a number that is taken as it prints."""
    if not isinstance(value, (Decimal, int, float)) or isinstance(value, bool):
        return f"must be an amount of US dollars, such as Decimal('0.50'), not {shown(value)}"
    if not isinstance(value, int) and not math.isfinite(value):
        return f"must be an amount of US dollars, not {value}"
    return "can't be negative" if value < 0 else f"must be at most {WHOLE_MAX:,}" if value > WHOLE_MAX else None


def labels(value: Any) -> str | None:
    """Texts by name; numbers are taken as they print."""
    if not isinstance(value, Mapping):
        return f"must be a mapping of texts, such as {{'team': 'support'}}, not {shown(value)}"
    given = cast("Mapping[Any, Any]", value)
    if len(given) > LABELS_MAX:
        return f"must be at most {LABELS_MAX} (LABELS_MAX); there are {len(given):,}"
    for name, label in given.items():
        if (wrong := text(name)) is not None:
            return f"each name {wrong}"
        if not isinstance(label, (str, int, float)):
            return f"{shown(name)} must be a text, not {shown(label)}"
        if len(str(label)) > KEY_MAX:
            return f"{shown(name)} must have at most {KEY_MAX} characters (KEY_MAX); it has {len(str(label)):,}"
    return None


def refuse(field: str, wrong: str | None) -> None:
    """Raise `InvalidTrigger` for a field that something is wrong with."""
    if wrong is not None:
        raise InvalidTrigger(f"{field}: {wrong}.", field=field)


def plain(field: str, value: Any) -> Any:
    """A value as it may be stored.

    Raises:
        InvalidTrigger: Something in it has no JSON form; the field is its path.
    """
    try:
        return clean(value, path=field)
    except UnserializableError as error:
        raise InvalidTrigger(error.message, field=str(error.details.get("path", field))) from error
