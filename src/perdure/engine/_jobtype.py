"""What the engine can execute: a job type turns a claim into an outcome. Agents are one, pipelines another."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from perdure.core.budget import Budget
from perdure.core.run import RunStatus
from perdure.engine._journal import Write

if TYPE_CHECKING:
    from perdure.engine._execution import Execution


class Job(Protocol):
    """One claimed run in the hands of its job type."""

    async def run(self) -> Write:
        """Carry the run to its next rest or its end. The answer has an `ending` and is the last commit of the claim.

        An exception fails the run; `Suspend` and cancellation end it as the engine decides.
        """
        ...

    async def wind_down(self, grace: timedelta) -> Write:
        """After `run` was cut off: let effects in flight be recorded for up to `grace`, and answer what is finished and not yet written (no ending, unless it was known).

        With an ending, that is what the run came to: it was cut off while it was tidying up.
        """
        ...


class JobType(Protocol):
    """A kind of work, registered with an engine under a name."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None: ...

    @property
    def limit(self) -> int | None:
        """How many of its runs may be claimed at once, over all workers."""
        ...

    @property
    def budget(self) -> Budget: ...

    @property
    def step_timeout(self) -> timedelta | None: ...

    @property
    def retention(self) -> Mapping[timedelta, tuple[RunStatus, ...]]:
        """Final statuses by how long runs are kept in them; a status that is not there is kept for ever."""
        ...

    @property
    def key_retention(self) -> timedelta | None:
        """How long an idempotency key answers after its run has settled; None: as long as it does by default."""
        ...

    def check(self, payload: Any) -> Any:
        """The payload as stored JSON, or `InvalidTrigger` with the field that is wrong."""
        ...

    def parse_output(self, output: Any) -> Any:
        """A run's stored output as the value that its caller expects."""
        ...

    def open(self, execution: Execution) -> Job: ...
