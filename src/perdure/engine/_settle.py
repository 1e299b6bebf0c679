"""What an outcome means for the run: pure."""

from __future__ import annotations

from typing import Any

from perdure.agents import describe
from perdure.core.budget import Budget, Limit, OnLimit
from perdure.core.codec import clean, clean_text
from perdure.core.commit import Ending, Release, Settle
from perdure.core.errors import PerdureError, StoreUnavailable, UnserializableError
from perdure.core.limits import STORE_AWAY
from perdure.core.run import RunError, RunStatus


def completed(output: Any, finish_reason: str | None = "stop") -> Settle:
    return Settle(RunStatus.COMPLETED, output=output, finish_reason=finish_reason)


def failed(code: str, message: str, **details: Any) -> Settle:
    """The run's last word. Whatever the message quotes, it is one that every store takes."""
    return Settle(RunStatus.FAILED, error=RunError(code, clean_text(message), _plain(details)), finish_reason="error")


def cancelled() -> Settle:
    return Settle(RunStatus.CANCELLED, error=RunError("cancelled", "The run was cancelled."))


def from_error(error: BaseException) -> Ending:
    """An exception as the run's error: ours keep their code, others are `internal` and name their class.

    A store that is away for a moment is nobody's failure: the run is handed back and goes on where it stands.
    """
    if isinstance(error, StoreUnavailable):
        return Release("retry_after", STORE_AWAY)
    if isinstance(error, PerdureError):
        return failed(error.code, error.message, **error.details)
    return failed("internal", describe(error))


def _plain(details: dict[str, Any]) -> dict[str, Any]:
    try:
        return clean(details)
    except UnserializableError:
        return {}


def on_limit(budget: Budget, *, text_output: bool) -> OnLimit:
    """The agent's word, or the default: text agents stop, others fail."""
    return budget.on_limit or ("stop" if text_output else "fail")


def limit_message(limit: Limit, budget: Budget, of: str | None = None, *, shared: bool = False) -> str:
    """One line that says which limit, its value, whose it is, and what to do."""
    value = getattr(budget, limit)
    if of is not None:
        return f"The run reached {limit}={value} of run {of}, whose budget it shares. Its history is kept: give that run a larger budget, then retry this one."
    told = "The run and its children" if shared else "The run"
    return f"{told} reached {limit}={value}. Its history is kept: retry it with a larger budget to go on at the same step."
