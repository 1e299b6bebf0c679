"""Values as people read them. Pure: `now` is an argument."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, cast

from perdure.core.budget import Usage
from perdure.core.errors import InvalidTrigger
from perdure.core.run import Run, RunStatus

TAIL: Final = 8
"""Characters of an id that tables show: its random end, as ids of one second share their beginning."""

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
# What a terminal obeys instead of showing. Models and tools must not be able to speak to the reader's terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """Text without anything that a terminal would obey; what was there shows as `�`."""
    return _CONTROLS.sub("\ufffd", text.replace("\r\n", "\n")).encode("utf-8", "replace").decode()


def tail(id: str) -> str:
    """The end of an id, by which commands find it again."""
    return id[-TAIL:]


def span(seconds: float) -> str:
    """`0.3 s`, `12 s`, `4 min 10 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for big, small, size, part in (("d", "h", 86_400, 3_600), ("h", "min", 3_600, 60), ("min", "s", 60, 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {big} {rest} {small}" if rest else f"{whole // size} {big}"
    return f"{whole} s"


def rough(seconds: float) -> str:
    """A span in one unit: `12 s`, `4 min`, `3 h`, `2 d`."""
    for name, size, least in (("d", 86_400, 48), ("h", 3_600, 100 / 60), ("min", 60, 100 / 60)):
        if seconds >= least * (3_600 if name != "min" else 60):
            return f"{round(seconds / size)} {name}"
    return f"{max(0, round(seconds))} s"


def ago(then: datetime | None, now: datetime) -> str:
    """`just now`, `4 min ago`, `in 2 d`; nothing for nothing."""
    if then is None:
        return ""
    seconds = (now - then).total_seconds()
    if abs(seconds) < 1:
        return "just now"
    return f"{rough(seconds)} ago" if seconds > 0 else f"in {rough(-seconds)}"


def clock(then: datetime | None) -> str:
    """A moment in the reader's time zone."""
    return "" if then is None else then.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def parse_span(text: str) -> timedelta:
    """`90s`, `30m`, `1h30m`, `2d`.

    Raises:
        InvalidTrigger: It is none, or no time at all.
    """
    compact = text.replace(" ", "").lower()
    if not _SPAN.fullmatch(compact):
        raise InvalidTrigger(f"{text!r} is no span of time. Write 90s, 30m, 1h30m or 2d.", field="within")
    seconds = sum(float(number) * dict(_UNITS)[unit] for number, unit in _PART.findall(compact))
    if not 0 < seconds < 365 * 100 * 86_400:
        raise InvalidTrigger(f"{text!r}: it must be longer than 0 and shorter than a century.", field="within")
    return timedelta(seconds=seconds)


def money(cost: Decimal | None) -> str:
    """`$0.0042`, `$12.30`; `$?` for a price that is unknown."""
    if cost is None:
        return "$?"
    if cost == 0:
        return "$0"
    return f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}" if cost >= Decimal("0.0001") else "<$0.0001"


def tokens(count: int) -> str:
    """`843`, `12.3k`, `4.1M`."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1_000:.1f}k" if count < 999_950 else f"{count / 1_000_000:.1f}M"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spent(usage: Usage) -> str:
    """`3 model calls · 2,431 tokens · $0.0042`; the cost only where there is one."""
    parts = [plural(usage.requests, "model call"), f"{tokens(usage.total_tokens)} tokens"]
    return " · ".join(parts if usage.cost == 0 else [*parts, "cost unknown" if usage.cost is None else money(usage.cost)])


def shown_status(run: Run, now: datetime) -> str:
    """The status, or `cancelling` and `recovering`, which are shown and not stored."""
    if run.status is RunStatus.RUNNING:
        if run.lease_expires_at is not None and run.lease_expires_at <= now:
            return "recovering"
        if run.cancel_requested:
            return "cancelling"
    return str(run.status)


def took(run: Run, now: datetime) -> float | None:
    """Seconds from the first claim to the end, or to now while it runs."""
    if run.started_at is None:
        return None
    return ((run.finished_at or now) - run.started_at).total_seconds()


def brief(value: Any, limit: int = 60) -> str:
    """A value on one line, cut to `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(safe(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def arguments(args: Any, limit: int = 60) -> str:
    """A call's input as code would write it: `order="KL-1234", cents=900`."""
    if not isinstance(args, Mapping):
        return brief(args, limit)
    pairs = [f"{name}={json.dumps(value, ensure_ascii=False, default=str)}" for name, value in cast("Mapping[str, Any]", args).items()]
    return brief(", ".join(pairs), limit)
