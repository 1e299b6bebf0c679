"""What a family may spend, watched from outside: calls that the model really answered, beside what the rows say that they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from perdure.core.budget import Usage
from perdure.core.run import Run, RunStatus
from perdure.testing.simulation._checkers import Change, Checker, Rows, Sight


class FamiliesStayInBudget(Checker):
    """A run and its children spend no more than their cap, and one call for each execution in flight, whoever dies in a call and whatever is written of it."""

    def __init__(self) -> None:
        self._rows: dict[str, Rows] = {}
        self._calls: Counter[str] = Counter()

    def written(self, change: Change) -> Iterator[str]:
        self._rows[change.run_id] = change.after
        return iter(())

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind != "model":
            return
        self._calls[sight.run_id] += 1
        for cap in self._line(sight.run_id):
            if cap.budget.max_tokens is None:
                continue
            under = [each for each in self._rows.values() if cap.id in [above.id for above in self._line(each.run.id)]]
            spent, least, most = self._spent(under)
            running = sum(each.run.status is RunStatus.RUNNING and self._unwritten(each) > 0 for each in under)
            if len(under) > 1 and spent > cap.budget.max_tokens + most * running:
                yield f"{spent} tokens under a cap of {cap.budget.max_tokens} with {running} calls in flight (calls of {least} to {most})"

    def _line(self, run_id: str) -> list[Run]:
        """A run and those above it."""
        rows = self._rows.get(run_id)
        if rows is None:
            return []
        run = rows.run
        return [run] if run.forked or run.parent_run is None else [run, *self._line(run.parent_run)]

    def _spent(self, under: Sequence[Rows]) -> tuple[int, int, int]:
        """What these runs have spent at least: what is written, and of each call that was made and is written nowhere as much as the smallest one; then the
        smallest and the largest call that is written."""
        sizes = [tokens for each in under for tokens in _sizes(each)]
        written = sum(each.run.usage.total_tokens for each in under)
        unwritten = sum(self._unwritten(each) for each in under)
        least, most = min(sizes, default=0), max(sizes, default=0)
        return written + unwritten * least, least, most

    def _unwritten(self, rows: Rows) -> int:
        """Calls of a run that were made and are written nowhere: one may be in flight, the others were lost."""
        return max(0, self._calls[rows.run.id] - rows.run.usage.requests)


def _sizes(rows: Rows) -> Iterator[int]:
    for step in rows.steps:
        if step.row.usage is not None and (tokens := Usage.from_json(step.row.usage).total_tokens):
            yield tokens
