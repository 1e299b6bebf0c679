"""When a failed model call is tried again: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from perdure.core.limits import MODEL_TRIES_MAX, RETRY_AFTER_INLINE, RETRY_AFTER_PARK


@dataclass(frozen=True, slots=True)
class Again:
    """Try again in this execution after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Later:
    """Hand the run back; it becomes available after `delay`."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Quota:
    """The provider's quota resets so late that somebody should know: open a wait that ends by itself after `delay`."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The error stands."""


def after_model_failure(
    *, retryable: bool, tries: int, retry_after: timedelta | None, chance: float, tries_max: int = MODEL_TRIES_MAX
) -> Again | Later | Quota | GiveUp:
    """What to do after `tries` failed tries of one model call.

    A provider that says when to come back has not been tried in vain: its wish is honoured without counting. Otherwise exponential back-off with
    full jitter (`chance` in [0, 1)), from 0.5 s.
    """
    if not retryable:
        return GiveUp()
    if retry_after is not None and retry_after > RETRY_AFTER_PARK:
        return Quota(retry_after)
    if retry_after is not None and retry_after > RETRY_AFTER_INLINE:
        return Later(retry_after)
    if tries >= tries_max:
        return GiveUp()
    if retry_after is not None:
        return Again(retry_after.total_seconds())
    return Again(0.5 * 2 ** (tries - 1) * (0.5 + chance / 2))
