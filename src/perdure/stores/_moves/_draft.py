"""A run row under its lock, and what one transaction adds to the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from perdure.core.codec import dump
from perdure.core.event import EventWrite
from perdure.core.run import Run, RunStatus
from perdure.core.step import StepWrite
from perdure.core.wait import WaitPoint
from perdure.stores._moves import _rows
from perdure.stores._moves._program import CLOCK, Program, Query, Row, Rows, Work, micros

_SAVED: Final = (
    "seq", "status", "head", "head_generation", "format", "version", "epoch", "claim_token", "commit_no", "first_event", "ended", "lease_owner",
    "lease_host", "lease_expires_at", "activity", "cancel_requested", "generation", "executions", "deaths", "settlement", "next_event", "next_step",
    "tail_base", "tail_idx", "tail_length", "tail_shared", "usage", "finish_reason", "updated_at", "available_at", "due_at", "started_at", "finished_at", "deadline",
)  # fmt: skip
"""What `save_run` writes: every column of `run` that may change."""

_SAVED_BY_COMMIT: Final = (
    "seq", "commit_no", "first_event", "deaths", "next_event", "next_step", "tail_base", "tail_idx", "tail_length", "tail_shared", "usage", "format",
    "version", "updated_at",
)  # fmt: skip
"""What `save_commit` writes: enough for a commit that neither ends nor opens anything."""


SHORT: Final = (
    "id", "seq", "status", "epoch", "claim_token", "commit_no", "first_event", "ended", "lease_owner", "cancel_requested", "generation", "deaths",
    "next_event", "next_step", "tail_base", "tail_idx", "tail_length", "tail_shared", "usage", "format", "version",
)  # fmt: skip
"""What `lock_run` reads: the columns that a commit must know which neither ends nor opens anything."""

NO_TAIL: Final = {"tail_base": -1, "tail_idx": -1, "tail_length": 0, "tail_shared": 0}
"""What the row says of the newest checkpoint of a generation that has none."""


class Draft:
    """One run under its lock. What the transaction changes is kept here and saved once, at its end.

    Steps and events take their numbers from the row's counters. A row that was locked whole has a `run`: assign to it what the run becomes.
    """

    def __init__(self, work: Work, row: Row, now: int, *, whole: bool) -> None:
        self.work, self.now = work, now
        self.row: dict[str, Any] = dict(row)
        self.id: str = self.row["id"]
        self.seq: int = self.row["seq"]
        self.touched = False
        self.waits: list[WaitPoint] | None = None
        """The open wait rows, once they were asked for."""
        self.unsettled: Rows | None = None
        """The rows of its effects that are not settled, as they were when it was locked; for whoever asks first."""
        self.waiters: Rows | None = None
        """The wait rows that its settlement resolves. Nobody adds one while it is locked."""
        self._before = self._run = _rows.read_run(work, row) if whole else None

    @property
    def whole(self) -> bool:
        """Whether all of the run was taken, not only the columns that most commits rewrite."""
        return self._run is not None

    @property
    def run(self) -> Run:
        """The run as it stands in this transaction."""
        assert self._run is not None, "the row was not locked whole"
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run, self.touched = run, True

    # ── what the run gets ──────────────────────────────────────────────────────────────────────────────────
    def tell(self, *events: EventWrite) -> None:
        """Add events under the run's next numbers."""
        row, work = self.row, self.work
        for event in events:
            work.write("add_event", run=self.seq, seq=row["next_event"], type=event.type, at=self.now, data=work.seal(event.data or None))
            row["next_event"] += 1
        self.touched = True

    def log(self, *steps: StepWrite) -> None:
        """Add rows to the run's log under its next numbers."""
        row = self.row
        generation: int = row["generation"] if self._run is None else self._run.generation
        for step in steps:
            self.work.send("add_step", _rows.write_step(self.work, step, run=self.seq, seq=row["next_step"], generation=generation))
            row["next_step"] += 1
        self.touched = True

    # ── saving ─────────────────────────────────────────────────────────────────────────────────────────────
    def save(self) -> None:
        """Write the row, if anything was added to the run."""
        if not self.touched:
            return
        self.touched = False
        if self._run is None:
            self.work.news(self.id)
            self.row["updated_at"] = self.now
            self.work.send("save_commit", {name: self.row[name] for name in _SAVED_BY_COMMIT})
            return
        self.work.moved(self.id)
        self._put(self._run)
        self.work.send("save_run", {name: self.row[name] for name in _SAVED})
        if self._run.status is not RunStatus.RUNNING:
            self.work.claimable()

    def _put(self, run: Run) -> None:
        """Make the row say what the run says. The numbers of steps and events are the row's own."""
        row = self.row
        row["status"] = run.status.value
        row["head"] = run.head
        row["format"], row["version"] = run.format, run.version
        row["epoch"], row["claim_token"], row["commit_no"] = run.epoch, run.claim_token, run.commit_no
        row["lease_owner"], row["lease_expires_at"] = run.lease_owner, micros(run.lease_expires_at)
        row["activity"] = None if run.activity is None else dump(run.activity.to_json())
        row["cancel_requested"] = int(run.cancel_requested)
        if row["generation"] != run.generation:
            row.update(NO_TAIL)
        row["generation"], row["executions"], row["deaths"] = run.generation, run.executions, run.deaths
        row["settlement"] = run.settlement
        row["usage"] = _rows.write_usage(run.usage)
        row["finish_reason"] = run.finish_reason
        row["updated_at"], row["available_at"] = micros(run.updated_at), micros(run.available_at)
        row["started_at"], row["finished_at"] = micros(run.started_at), micros(run.finished_at)
        row["deadline"] = micros(run.deadline)
        row["due_at"] = row["available_at"] if run.status.claimable and self.now < (row["available_at"] or 0) else None
        self._put_body(run)

    def _put_body(self, run: Run) -> None:
        before = self._before
        assert before is not None
        if (run.budget, run.output, run.error) != (before.budget, before.output, before.error):
            seal = self.work.seal
            self.work.write(
                "save_body", run=self.seq, budget=dump(run.budget.to_json()), output=seal(run.output), error=seal(run.error and run.error.to_json())
            )

    def stored(self) -> Run:
        """The run with the numbers that it will be saved with."""
        return replace(self.run, next_event=self.row["next_event"], next_step=self.row["next_step"])


# ── locks ──────────────────────────────────────────────────────────────────────────────────────────────────
def lock(work: Work, run_id: str, *also: Query) -> Program[tuple[Draft | None, list[list[Row]]]]:
    """Take the run's short columns: for what rewrites them often. `also` rides along."""
    # The clock is read after the lock was granted, so what is judged by it has waited for the lock too.
    rows, clock, *more = yield from work.read(Query("lock_run", {"id": run_id}), CLOCK, *also)
    draft = Draft(work, rows[0], clock[0]["now"], whole=False) if rows else None
    if draft is not None:
        work.drafts[run_id] = draft
    return draft, [list(each) for each in more]


def lock_whole(work: Work, run_id: str) -> Program[Draft | None]:
    """Take the whole run, once in a transaction."""
    if run_id in work.drafts:
        return work.drafts[run_id]
    # Locked first, read second: what another transaction wrote while this one waited for the lock must be seen whole.
    _, rows, clock = yield from work.read(Query("lock_run", {"id": run_id}), Query("get_run", {"id": run_id}), CLOCK)
    if not rows:
        return None
    draft = work.drafts[run_id] = Draft(work, rows[0], clock[0]["now"], whole=True)
    return draft


def lock_to_end(work: Work, run_id: str) -> Program[Draft | None]:
    """Take a run that may settle now, after the runs that wait for it: a parent is locked before its child."""
    waiters = yield from work.rows("list_runs_waiting_for", run_id=run_id)
    for row in waiters:
        yield from lock_whole(work, row["id"])
    if run_id in work.drafts:
        return work.drafts[run_id]
    # All that an end looks at, in one go: it comes with every run, and each look of its own would be a round trip.
    _, rows, clock, unsettled, waits, waiting = yield from work.read(
        Query("lock_run", {"id": run_id}), Query("get_run", {"id": run_id}), CLOCK,
        Query("list_unsettled_effects", {"id": run_id}), Query("list_open_waits", {"id": run_id}), Query("list_waits_for_run", {"run_id": run_id}),
    )  # fmt: skip
    if not rows:
        return None
    draft = work.drafts[run_id] = Draft(work, rows[0], clock[0]["now"], whole=True)
    draft.unsettled, draft.waiters = unsettled, waiting
    draft.waits = [_rows.read_wait(work, row) for row in waits]
    return draft
