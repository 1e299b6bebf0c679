"""What a caller holds: a registered agent, a run, and an open request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from perdure.core.budget import Budget
from perdure.core.commit import Cancelled, Resolved
from perdure.core.errors import RunCancelled, RunFailed, StillWaiting
from perdure.core.limits import SPAN_MAX
from perdure.core.run import Run, RunStatus
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.engine._admission import File
from perdure.engine._asked import check_timeout
from perdure.engine._news import RunEvent

if TYPE_CHECKING:
    from perdure.engine._agents import AgentType
    from perdure.engine._engine import Engine

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class Request:
    """An open wait point of a run, and the ways to answer it."""

    def __init__(self, engine: Engine, wait: WaitPoint) -> None:
        self._engine, self.wait = engine, wait

    @property
    def id(self) -> str:
        return self.wait.id

    @property
    def kind(self) -> str:
        return self.wait.kind

    @property
    def tool(self) -> str | None:
        return self.wait.row.tool

    @property
    def input(self) -> Any:
        """The validated input of the call that waits."""
        return self.wait.row.input

    def __repr__(self) -> str:
        return f"Request({self.kind}, tool={self.tool!r}, id={self.id!r})"

    async def approve(self, *, by: str | None = None, input: Mapping[str, Any] | None = None, reason: str | None = None) -> Resolved:
        """Say yes, to the call as it stands or with another input."""
        return await self._engine.approve(self.id, by=by, input=input, reason=reason)

    async def deny(self, *, by: str | None = None, reason: str | None = None) -> Resolved:
        """Say no; the model sees the reason."""
        return await self._engine.deny(self.id, by=by, reason=reason)

    async def answer(self, decision: str | None = None, value: Any = None, *, by: str | None = None, reason: str | None = None) -> Resolved:
        """Any decision that the row takes, with its value."""
        return await self._engine.resolve(self.id, decision, value, by=by, reason=reason)

    async def extend(self, within: timedelta | None) -> Resolved:
        """Move the deadline to so long from now; None: never."""
        return await self._engine.extend(self.id, within)


class RunHandle(Generic[Out]):
    """One run, wherever it executes. Durable: the id alone is enough to come back to it."""

    def __init__(self, engine: Engine, run_id: str, agent: AgentType | None = None, *, created: bool = True) -> None:
        self._engine, self.id, self._agent = engine, run_id, agent
        self.created = created
        """Whether this call created the run; False: its key was seen."""
        self.pruned: RunStatus | None = None
        """The final status of a run that is no longer kept: its key still answers."""

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    async def run(self) -> Run:
        """The run as it stands."""
        return await self._engine.run(self.id)

    async def status(self) -> RunStatus:
        """Where the run stands."""
        return (await self.run()).status

    async def result(self, timeout: float | timedelta | None = None) -> Out:
        """Wait for the run to settle and answer its output.

        Args:
            timeout: Seconds (or a timedelta); None waits as long as it takes.

        Raises:
            RunFailed: It ended `failed`; `code` says why.
            RunCancelled: It ended `cancelled`.
            StillWaiting: The time is up; the run goes on.
        """
        run = await self._engine.settled(self.id, timeout)
        if run.status is RunStatus.COMPLETED:
            output = run.output if self._agent is None else self._agent.parse_output(run.output)
            return cast(Out, output)
        if run.status is RunStatus.FAILED:
            raise RunFailed(run)
        if run.status is RunStatus.CANCELLED:
            raise RunCancelled(run)
        raise StillWaiting(run)

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Durable events with a number above `after`, and text as it streams; ends with `Settled`."""
        return self._engine.events(self.id, after=after)

    async def steps(self) -> Sequence[Step]:
        """The run's log so far."""
        return await self._engine.steps(self.id)

    async def messages(self, *, generation: int | None = None, step: int | None = None) -> list[Any]:
        """The message history of a checkpoint; the newest where nothing is named."""
        return await self._engine.messages(self.id, generation=generation, step=step)

    async def requests(self) -> list[Request]:
        """What the run waits for now."""
        return await self._engine.requests(run_id=self.id)

    async def cancel(self, *, reason: str | None = None, by: str | None = None) -> Cancelled:
        """Ask the run to stop."""
        return await self._engine.cancel(self.id, reason=reason, by=by)

    async def retry(
        self,
        mode: Literal["resume", "full"] = "resume",
        *,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        max_cost: Decimal | None = None,
        budget: Budget | None = None,
        deadline: timedelta | None = None,
    ) -> RunHandle[Out]:
        """Bring a failed or cancelled run back."""
        await self._engine.retry(self.id, mode, max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, budget=budget, deadline=deadline)
        return self

    async def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> bool:
        """Say something to the run; a tool that waits for `name` gets the payload."""
        return await self._engine.signal(self.id, name, payload, id=id)


class DurableAgent(Generic[In, Out]):
    """A registered agent: every call of it is a run."""

    def __init__(self, engine: Engine, agent: AgentType) -> None:
        self._engine, self._agent = engine, agent

    def __repr__(self) -> str:
        return f"DurableAgent({self.name!r})"

    @property
    def name(self) -> str:
        return self._agent.name

    def check_model(self) -> None:
        """Whether this process can call the model, as far as that is known without a call.

        Raises:
            ConfigurationError: The name stands for no model, its key is not in the environment, or its library is not installed.
        """
        self._agent.check_model()

    @property
    def kind(self) -> AgentType:
        """What was registered: the same value may be registered with any number of engines."""
        return self._agent

    async def start(
        self,
        input: In,
        *,
        key: str | None = None,
        concurrency_key: str | None = None,
        thread: str | None = None,
        attachments: Sequence[File] = (),
        budget: Budget | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        delay: timedelta | None = None,
        run_id: str | None = None,
        connection: Any = None,
    ) -> RunHandle[Out]:
        """Admit a run. It is durable when this returns.

        Args:
            input: The payload, validated against the agent's `input` type.
            key: Idempotency key: the same again answers with the run that it started.
            concurrency_key: Runs that share it run one at a time.
            thread: The conversation that the run belongs to.
            attachments: Files for the model.
            budget: Limits of this run, in place of the agent's.
            priority: Higher ones are claimed first.
            labels: For people and lists.
            delay: Not before so long from now.
            run_id: A UUIDv7 of the caller's, so that admitting is safe to repeat.
            connection: A `psycopg.AsyncConnection` to the engine's database with a transaction of yours: the run is there with it, or not at all. Files
                are stored at once. Postgres only.

        Raises:
            InvalidTrigger: Something is wrong with the input; the field is named; nothing was stored.
            Conflict: The key stands for another payload.
            ConfigurationError: `connection` is none that a run can join.
            StoreError: With `connection`: the database refused, and your transaction is lost.
        """
        return await self._engine.admit(
            self._agent,
            input,
            key=key,
            concurrency_key=concurrency_key,
            thread=thread,
            attachments=attachments,
            budget=budget,
            priority=priority,
            labels=labels,
            delay=delay,
            run_id=run_id,
            connection=connection,
        )

    async def run(
        self,
        input: In,
        *,
        key: str | None = None,
        concurrency_key: str | None = None,
        thread: str | None = None,
        attachments: Sequence[File] = (),
        budget: Budget | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: float | timedelta | None = None,
    ) -> Out:
        """`start`, then the result. Raises what `start` and `RunHandle.result` raise."""
        check_timeout(timeout)
        handle = await self.start(
            input, key=key, concurrency_key=concurrency_key, thread=thread, attachments=attachments, budget=budget, labels=labels
        )
        return await handle.result(timeout)

    def run_sync(
        self,
        input: In,
        *,
        key: str | None = None,
        thread: str | None = None,
        attachments: Sequence[File] = (),
        budget: Budget | None = None,
        timeout: float | timedelta | None = None,
    ) -> Out:
        """`run` for scripts and notebooks: opens the engine where it is not open. Not from inside the engine's own event loop."""

        async def call() -> Out:
            return await self.run(input, key=key, thread=thread, attachments=attachments, budget=budget, timeout=timeout)

        return self._engine.run_blocking(call)


def seconds(timeout: float | timedelta | None) -> float | None:
    """A time-out in seconds; None for one that never comes."""
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return None if given is None or given > SPAN_MAX.total_seconds() else float(given)


__all__ = ["DurableAgent", "File", "Request", "RunHandle", "seconds"]
