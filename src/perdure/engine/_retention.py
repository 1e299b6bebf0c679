"""Forgetting settled runs once their time is over: in bounded batches, apart from the writes of runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from perdure.core.commit import PruneRequest
from perdure.core.errors import ConfigurationError
from perdure.core.run import FINAL, RunStatus
from perdure.core.runtime import Runtime
from perdure.engine._jobtype import JobType
from perdure.stores import Store

Retention = timedelta | Mapping[RunStatus | str, timedelta]
"""How long settled runs are kept: one time for all, or one for each final status; a status without one is kept for ever."""

BATCH: Final = 100
"""Runs that one pass forgets of one agent and age: the tick does other things besides."""
EVERY: Final = timedelta(minutes=1)
"""The pause after a pass that found less than a whole batch."""


def read_retention(name: str, given: Retention | None) -> dict[timedelta, tuple[RunStatus, ...]]:
    """Statuses by the time for which they are kept.

    Raises:
        ConfigurationError: It names a status that is not final, or a time below zero.
    """
    if given is None:
        return {}
    whole = isinstance(given, timedelta)
    known = {str(status): status for status in FINAL}
    by_age: dict[timedelta, tuple[RunStatus, ...]] = {}
    for word, age in (dict.fromkeys(known, given) if whole else given).items():
        status = known.get(str(word))
        if status is None or not isinstance(age, timedelta) or age < timedelta(0):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise ConfigurationError(
                f"Agent {name!r}: retention={given!r}. It takes a timedelta, or one for each of {', '.join(sorted(known))}: "
                "retention={'completed': timedelta(days=30)}."
            )
        by_age[age] = (*by_age.get(age, ()), status)
    return by_age


class Pruner:
    """Forgets what the retention of each job type lets go. Any number of replicas may do it at once."""

    def __init__(self, store: Store, runtime: Runtime, types: Mapping[str, JobType]) -> None:
        self._store, self._runtime, self._types = store, runtime, types
        self._due = runtime.monotonic()

    async def prune_due(self) -> None:
        """One bounded pass, where one is due. While there is more to forget, one is due at every tick."""
        if self._runtime.monotonic() < self._due:
            return
        more = False
        for kind in list(self._types.values()):
            for age, statuses in kind.retention.items():
                pruned = await self._store.prune(PruneRequest(age, kind.name, statuses, BATCH))
                more = more or max(len(pruned.runs), pruned.keys) >= BATCH
        self._due = self._runtime.monotonic() + (0 if more else EVERY.total_seconds())
