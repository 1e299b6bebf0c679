"""What callers ask of runs that are there, as requests to the store: every argument is checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from perdure.core import given
from perdure.core.budget import Budget
from perdure.core.codec import clean
from perdure.core.commit import CancelRequest, Resolve, RetryRequest, SettleEffect, Signal
from perdure.core.errors import Conflict, InvalidTrigger
from perdure.core.limits import NAME_MAX
from perdure.core.run import Run, RunStatus
from perdure.core.wait import Resolution, ResolutionKind
from perdure.engine._admission import check_budget
from perdure.engine._notify import token_hash


def check_id(field: str, value: Any) -> None:
    """Raises `InvalidTrigger` where `value` can't name anything."""
    given.refuse(field, given.name_of_a_row(value))


def check_timeout(timeout: Any) -> None:
    """Raises `InvalidTrigger` where `timeout` is no time to wait for."""
    given.refuse("timeout", given.seconds(timeout))


def check_limit(limit: Any) -> None:
    """Raises `InvalidTrigger` where `limit` is no number of rows."""
    given.refuse("limit", given.whole(limit, least=1, most=10_000))


def check_index(field: str, value: Any) -> None:
    """Raises `InvalidTrigger` where `value` is neither the number of a step (or generation, or event) nor None."""
    given.refuse(field, None if value is None else given.whole(value))


def _said(**texts: Any) -> None:
    for field, value in texts.items():
        # Whoever decides has a name or none: an empty one would stand in the record as somebody.
        given.refuse(field, given.text(value) if field == "by" and value is not None else given.words(value))


def resolve_of(
    wait_id: str, decision: Any, value: Any, *, by: Any, reason: Any, via: Any, input_hash: Any, token: Any, field: str = "value"
) -> Resolve:
    """An answer to a wait point."""
    check_id("wait_id", wait_id)
    _said(decision=decision, by=by, reason=reason, via=via, input_hash=input_hash, token=token)
    kind = ResolutionKind.EVENT if decision is None else ResolutionKind.ANSWER
    resolution = Resolution(kind, decision, given.plain(field, value), clean(reason), clean(by), clean(via))
    return Resolve(wait_id, resolution, input_hash, None if token is None else token_hash(token))


def check_input(edited: Any) -> None:
    """Raises `InvalidTrigger` where an edited input is neither a tool's arguments nor None."""
    if edited is not None and not isinstance(edited, Mapping):
        raise InvalidTrigger(f"input: must be the tool's arguments by name, not {given.shown(edited)}.", field="input")


def check_within(within: Any) -> None:
    """Raises `InvalidTrigger` where `within` is neither a time from now on nor None."""
    given.refuse("within", None if within is None else given.span(within, positive=True))


def signal_of(run_id: str, name: Any, payload: Any, *, id: Any, new_id: str) -> Signal:
    """What the world says to a run."""
    check_id("run_id", run_id)
    given.refuse("name", given.text(name))
    given.refuse("id", None if id is None else given.text(id))
    return Signal(new_id if id is None else clean(id), run_id, clean(name), given.plain("payload", payload))


def settle_of(key: str, decision: Any, result: Any, *, by: Any, reason: Any, via: Any) -> SettleEffect:
    """A word on an effect of unknown outcome."""
    check_id("key", key)
    if decision not in ("done", "run", "fail"):
        raise InvalidTrigger(f"decision: say 'done', 'run' or 'fail', not {given.shown(decision)}.", field="decision")
    _said(by=by, reason=reason, via=via)
    return SettleEffect(key, decision, given.plain("result", result), clean(reason), clean(by), clean(via))


def cancel_of(run: Run, *, reason: Any, by: Any) -> CancelRequest:
    """A wish that a run stops."""
    _said(reason=reason, by=by)
    return CancelRequest(run.id, clean(reason), clean(by), run.settlement)


def check_retry(mode: Any, limits: Mapping[str, Any], budget: Any, deadline: Any) -> None:
    """Raises `InvalidTrigger` where one of the options of a retry is none."""
    if mode not in ("resume", "full"):
        raise InvalidTrigger(f"mode: takes 'resume' or 'full', not {given.shown(mode)}.", field="mode")
    for name, value in limits.items():
        given.refuse(name, None if value is None else given.money(value) if name == "max_cost" else given.whole(value))
    check_budget(budget)
    given.refuse("deadline", None if deadline is None else given.span(deadline, positive=True))


def retry_of(run: Run, mode: Literal["resume", "full"], limits: Mapping[str, Any], budget: Budget | None, deadline: timedelta | None) -> RetryRequest:
    """A wish that a run comes back.

    Raises:
        Conflict: It is not failed or cancelled.
    """
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
        raise Conflict(
            f"Run {run.id} is {run.status}: only failed and cancelled runs are retried. Start a new run, or fork this one.", status=str(run.status)
        )
    changed = budget
    if changed is None and any(each is not None for each in limits.values()):
        changed = run.budget.merged(**limits)
    return RetryRequest(run.id, mode, run.settlement, changed, deadline)


def check_kind(kind: Any) -> None:
    """Raises `InvalidTrigger` where `kind` is no name of a kind or state."""
    given.refuse("kind", None if kind is None else given.text(kind, longest=NAME_MAX, limit="NAME_MAX"))
