"""Bringing a failed or cancelled run back (table R, `retry`). Values and `now` in, a verdict out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from perdure.core.commit import RetryRequest
from perdure.core.errors import Conflict
from perdure.core.run import Run, RunStatus


def answered_already(run: Run, request: RetryRequest) -> bool:
    """Whether the settlement that this retry names was answered before: a repeated call is told so, and starts no second life."""
    earlier = request.settlement < run.settlement or (request.settlement == run.settlement and not run.status.final)
    return earlier and run.settlement > 0


def refuse(run: Run, request: RetryRequest, now: datetime) -> None:
    """Raise what refuses a retry that was not answered already.

    Raises:
        Conflict: The run is not failed or cancelled, or its deadline has passed and none was given.
    """
    if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED) or request.settlement != run.settlement:
        raise Conflict(f"Run {run.id} is {run.status}: only a failed or cancelled run can be retried.", run_id=run.id, status=str(run.status))
    if request.deadline is None and run.deadline is not None and run.deadline <= now:
        raise Conflict(f"The deadline of run {run.id} has passed. Retry it with a new one.", run_id=run.id, status=str(run.status))


def revived(run: Run, request: RetryRequest, now: datetime) -> Run:
    """The run at the start of its next life; where it comes to rest is for `rest` to say."""
    return replace(
        run, generation=run.generation + (request.mode == "full"), cancel_requested=False, deaths=0, available_at=now, finished_at=None,
        output=None, error=None, finish_reason=None, budget=request.budget or run.budget,
        deadline=run.deadline if request.deadline is None else now + request.deadline,
    )  # fmt: skip
