"""The one who watches: reads the store's rows after every write and asks each checker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

from perdure.core.commit import (
    Admitted,
    CancelRequest,
    Commit,
    EffectFilter,
    Lease,
    NewRun,
    Resolve,
    RetryRequest,
    SettleEffect,
    Signal,
    Swept,
    WaitFilter,
)
from perdure.core.run import Run
from perdure.stores import Store
from perdure.testing.simulation._checkers import Change, Checker, Rows, Sight
from perdure.testing.simulation._port import Call, Record, at_once
from perdure.testing.simulation._promises import ROW_CHECKERS

ROWS_MAX: Final = 10_000
"""Steps and events of one run that are read at once: more than any scenario makes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: which, how, in which run, at which call of the record."""

    checker: str
    message: str
    run_id: str | None
    call: int

    def __str__(self) -> str:
        run = f" (run {self.run_id[-6:]})" if self.run_id else ""
        return f"{self.checker}{run} at call {self.call}: {self.message}"


class Watch:
    """Keeps the last known rows of every run and shows each change to the checkers.

    The store must answer at once and must be written through recorded wires only: then the rows before a call are those after the call before.
    """

    def __init__(self, store: Store, record: Record, checkers: Iterable[type[Checker]] = ROW_CHECKERS) -> None:
        self._store, self._record = store, record
        self._checkers = [kind() for kind in checkers]
        self.rows: dict[str, Rows] = {}
        self.violations: list[Violation] = []
        self._epochs: dict[tuple[str, str], int] = {}
        self._waits: dict[str, str] = {}
        record.on_applied.append(self._applied)

    def epoch(self, replica: str, run_id: str) -> int:
        """The newest epoch of the run that this replica was told it holds."""
        return self._epochs.get((replica, run_id), 0)

    def see(self, sight: Sight) -> None:
        """The outside world saw something."""
        now = at_once(self._store.now())
        rows = self.rows.get(sight.run_id)
        for checker in self._checkers:
            self._blame(checker, sight.run_id, checker.seen(sight, rows, now))

    def rest(self) -> None:
        """Everything should have come to rest by now."""
        for checker in self._checkers:
            self._blame(checker, None, checker.rested(list(self.rows.values())))

    def blame(self, checker: str, message: str, run_id: str | None = None) -> None:
        """Record a violation that no checker class found."""
        self.violations.append(Violation(checker, message, run_id, len(self._record.calls)))

    def _applied(self, call: Call) -> None:
        if call.verb == "claim" and call.applied:
            for run in cast(Sequence[Run], call.answer):
                self._epochs[call.replica, run.id] = run.epoch
        if not call.write:
            return
        now = at_once(self._store.now())
        for run_id in self._touched(call):
            before = self.rows.get(run_id)
            after = self._read(run_id)
            if after is None:
                continue
            self.rows[run_id] = after
            self._waits.update({wait.id: run_id for wait in after.waits})
            change = Change(call, run_id, before, after, now)
            for checker in self._checkers:
                self._blame(checker, run_id, checker.written(change))

    def _blame(self, checker: Checker, run_id: str | None, messages: Iterable[str]) -> None:
        for message in messages:
            self.blame(type(checker).__name__, message, run_id)

    def _touched(self, call: Call) -> list[str]:
        """The runs to read again: those that the call names, and those whose row is another one now."""
        named = _named(call, self._waits)
        if call.verb == "renew":
            return named
        changed = [run_id for run_id, rows in self.rows.items() if run_id not in named and at_once(self._store.get(run_id)) != rows.run]
        children = [run_id for run_id in named if run_id not in self.rows]
        return [*dict.fromkeys([*named, *changed, *children])]

    def _read(self, run_id: str) -> Rows | None:
        store = self._store
        run = at_once(store.get(run_id))
        if run is None:
            return None
        return Rows(
            run=run,
            steps=tuple(at_once(store.steps(run_id, limit=ROWS_MAX))),
            events=tuple(at_once(store.events(run_id, limit=ROWS_MAX))),
            waits=tuple(at_once(store.waits(WaitFilter(run_id=run_id, open=None, limit=ROWS_MAX)))),
            effects=tuple(at_once(store.effects(EffectFilter(run_id=run_id, limit=ROWS_MAX)))),
            checkpoint=at_once(store.checkpoint(run_id)),
        )


def _named(call: Call, waits: dict[str, str]) -> list[str]:
    """The runs that a call speaks of."""
    first = call.request[0] if call.request else None
    match first:
        case NewRun():
            return [cast(Admitted, call.answer).run.id] if call.applied else [first.id]
        case Commit():
            return [first.run_id, *(child.id for child in first.children)]
        case CancelRequest() | RetryRequest() | Signal():
            return [first.run_id]
        case Resolve():
            return [waits[first.wait_id]] if first.wait_id in waits else []
        case SettleEffect():
            return [first.key.split(":")[0]]
        case str():
            return [waits[first]] if first in waits else []
        case tuple() if call.verb == "renew":
            return [lease.run_id for lease in cast(Sequence[Lease], first)]
        case _:
            pass
    if call.verb == "claim" and call.applied:
        return [run.id for run in cast(Sequence[Run], call.answer)]
    if call.verb == "sweep" and call.applied:
        swept = cast(Swept, call.answer)
        return [*swept.recovered, *swept.poisoned, *swept.expired, *swept.woken, *swept.deadlines]
    return []
