"""What a run's row says when its owner commits next, so that the commit needs no look at it before: one round trip in place of two.

Nobody but its owner commits to a running run. So its row stands as the owner's last commit left it, unless somebody told the run something meanwhile: a cancel sets
a flag, an answer or a signal takes a number. A commit is therefore computed from what was left, and sent with a statement that takes the lock and refuses the whole
transaction where the row says anything else. Then it is asked again, the long way: nothing is decided by what was only expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.commit import Commit, Committed, Outcome
from perdure.core.run import RunStatus
from perdure.core.runtime import Runtime
from perdure.stores._moves._draft import SHORT, Draft
from perdure.stores._moves._program import CLOCK, Query, Rows, Work

ROWS_MAX: Final = 10_000
"""Rows that are kept at most. The one that was written least recently makes room; its next commit looks first."""

CLOCK_OFF_MAX: Final = 1_000_000
"""Microseconds by which the database's clock may differ from what was expected of it, before it is asked again."""

_LOOKS_AT_THE_ROW: Final = ("lock_run", CLOCK.name)


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What one commit may expect: the run's row, and the time by the database's clock, in microseconds since 1970."""

    row: Mapping[str, Any]
    now: int

    def answers(self, batch: Sequence[Query]) -> Sequence[Rows] | None:
        """What these queries would answer, if they are the look that was foreseen."""
        return ([self.row], [{"now": self.now}]) if tuple(query.name for query in batch) == _LOOKS_AT_THE_ROW else None

    @property
    def proof(self) -> Query:
        """Takes the row's lock; refuses the transaction if anything is not as expected."""
        return Query("expect_run", {**self.row, "now": self.now, "off_max": CLOCK_OFF_MAX})


class Foresight:
    """The rows that this process's claims and commits left behind."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rows: dict[str, tuple[dict[str, Any], int]] = {}
        self._ahead: int | None = None

    def take(self, commit: Commit) -> Foreseen | None:
        """What this commit may expect. It is given once: whatever goes wrong, the next try looks first."""
        kept = self._rows.pop(commit.run_id, None)
        if kept is None or self._ahead is None:
            return None
        row, last = kept
        mine = (row["epoch"], row["claim_token"], row["commit_no"] + 1) == (commit.epoch, commit.token, commit.commit_no)
        # Its own clock never goes back, for one run.
        return Foreseen(row, max(last, self._micros() + self._ahead)) if mine else None

    def learn(self, commit: Commit, answer: Committed, work: Work, foreseen: Foreseen | None) -> None:
        """Keep what this commit left behind, if it is the kind that only adds to the run."""
        draft = work.drafts.get(commit.run_id)
        if draft is None or draft.whole or answer.outcome is not Outcome.APPLIED:
            return
        # It looked at the clock, be it because it found another time than was foreseen: who did not learn from that would be wrong again each time.
        self._keep(draft, looked=foreseen is None or draft.now != foreseen.now)

    def learn_claims(self, work: Work) -> None:
        """Keep the rows of runs that this transaction left running: their owner may be here. What is kept of others is void."""
        for draft in work.drafts.values():
            self._rows.pop(draft.id, None)
            if draft.whole and draft.run.status is RunStatus.RUNNING:
                self._keep(draft, looked=True)

    def _keep(self, draft: Draft, *, looked: bool) -> None:
        if looked:
            # Read before the answer came, so the difference is rather too small: what is expected of the database's clock is never ahead of it.
            self._ahead = draft.now - self._micros()
        if len(self._rows) >= ROWS_MAX:
            del self._rows[next(iter(self._rows))]
        self._rows[draft.id] = {name: draft.row[name] for name in SHORT}, draft.now

    def _micros(self) -> int:
        return int(self._runtime.monotonic() * 1_000_000)
