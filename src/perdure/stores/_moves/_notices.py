"""Telling people about wait rows: who sends which notice, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from perdure.core import answers, facts
from perdure.core.wait import WaitPoint
from perdure.stores._moves import _rows
from perdure.stores._moves._program import Program, Work, moment
from perdure.stores._moves._resolve import lock_wait


def claim_notices(work: Work, limit: int, hold: timedelta) -> Program[Sequence[WaitPoint]]:
    """Open rows whose request or warning is due to be sent, each held for the caller until `hold` has passed."""
    now = moment((yield from work.clock()))
    assert now is not None
    rows = yield from work.rows("list_due_notices", now=_rows.micros(now), limit=limit)
    held: list[WaitPoint] = []
    for row in rows:
        wait = _rows.read_wait(work, row)
        if answers.notice_due(wait, now):
            wait = replace(wait, notify_after=now + hold)
            work.send("hold_notice", _rows.write_hold(wait))
            held.append(wait)
    return held


def note_notice(
    work: Work, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
) -> Program[None]:
    """Record what became of one notice."""
    draft, wait = yield from lock_wait(work, wait_id)
    if not wait.open:
        return
    now = moment(draft.now)
    assert now is not None
    if token_hash is not None:
        work.write("add_token", wait_id=wait_id, hash=token_hash)
    first = (wait.warned_at if warning else wait.notified_at) is None
    noticed = answers.noticed(wait, now=now, tries=tries, accepted=accepted, warning=warning, retry_in=retry_in)
    work.send("save_wait", _rows.write_progress(work, noticed))
    if accepted and first:
        draft.tell(facts.notified(wait_id, warning=warning))
