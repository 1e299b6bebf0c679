"""What callers give, judged before anything is read or written: each mistake is named, with what would be right."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final

from perdure.core import given
from perdure.core.limits import SPAN_MAX
from perdure.pipeline._errors import InvalidPipelineError

STORAGE: Final = ("get_job", "set_status", "set_checkpoint", "append_log", "clear_log")
MODES: Final = ("resume", "full")


def refuse(what: str, wrong: str | None) -> None:
    """Raise `InvalidPipelineError` where something is wrong with `what`."""
    if wrong is not None:
        raise InvalidPipelineError(f"{what}: {wrong}.", field=what)


def check_job_id(job_id: Any) -> None:
    refuse("job_id", given.name_of_a_row(job_id))


def check_adapters(storage: Any, scheduler: Any) -> None:
    """That both have at least the methods that every adapter has."""
    missing = [name for name in STORAGE if not callable(getattr(storage, name, None))]
    if missing:
        raise InvalidPipelineError(f"storage: {given.shown(storage)} is no storage; it has no {', '.join(missing)}.", field="storage")
    if not callable(getattr(scheduler, "schedule_advance", None)):
        raise InvalidPipelineError(f"scheduler: {given.shown(scheduler)} is no scheduler; it has no schedule_advance.", field="scheduler")


def check_mode(name: str, mode: Any) -> None:
    refuse(name, None if isinstance(mode, str) and mode in MODES else f"must be 'resume' or 'full', not {given.shown(mode)}")


def check_lease(lease: Any) -> None:
    refuse("lease", given.span(lease, positive=True))


def pause(value: Any) -> str | None:
    """How long to wait: a timedelta or seconds. One that is over already is none."""
    if isinstance(value, timedelta):
        return None if value <= SPAN_MAX else given.span(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return f"must be a timedelta or seconds, not {given.shown(value)}"
    return None if value <= SPAN_MAX.total_seconds() else f"must be at most {SPAN_MAX.days:,} days (SPAN_MAX); it is {value} s"


def limit(value: Any) -> str | None:
    """How long something may take: a timedelta or seconds, more than none; None for as long as it takes."""
    if value is None or (isinstance(value, timedelta) and value > timedelta(0)):
        return None
    if given.seconds(value) is not None:
        return given.seconds(value)
    return None if not isinstance(value, timedelta) and value > 0 else f"must be longer than 0; it is {value!r}"


def moment(value: Any) -> str | None:
    """When something ends: a span from now, or a moment with its zone."""
    if isinstance(value, datetime):
        return given.moment(value)
    return pause(value) if isinstance(value, timedelta) else f"must be a timedelta or a datetime with a time zone, not {given.shown(value)}"


def number(value: Any, *, least: float = 0.0) -> str | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return f"must be a number, not {given.shown(value)}"
    return None if value >= least else f"must be at least {least:g}; it is {value}"
