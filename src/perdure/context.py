"""The current run, for code inside a tool, a factory or a hook."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from perdure.core import given
from perdure.core.artifact import Artifact
from perdure.core.codec import clean_text
from perdure.core.errors import ConfigurationError, Suspend
from perdure.core.limits import SPAN_MAX
from perdure.core.trigger import TriggerEnvelope


class Cancellation(Protocol):
    """Fires once the execution should end: cancel, drain, lost lease, time-out, or its own end. Safe from any thread."""

    @property
    def reason(self) -> str | None:
        """None while all is well; then `cancel`, `drain`, `lease_lost`, `timeout`, `deadline` or `ended`."""
        ...

    async def wait(self) -> str:
        """Wait for it and answer the reason."""
        ...

    def blocking_wait(self, timeout: float | None = None) -> bool:
        """The same for code in a thread: whether it fired within `timeout` seconds."""
        ...


class Artifacts(Protocol):
    """Files of a run: stored by content, referred to by id."""

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream", filename: str | None = None) -> Artifact: ...

    async def get(self, artifact_id: str) -> bytes:
        """Raises `ArtifactNotFoundError`."""
        ...


@dataclass(frozen=True, slots=True)
class CurrentRun:
    """The run that this code works for.

    `key` is the idempotency key of the tool call in hand, the same over crashes, resumes and replicas, or None outside a tool. `input` is the validated payload.
    `attempt` counts the declared tries of this call, from 1. `epoch` is the fencing number of this execution's claim: it only ever rises, so a resource that
    refuses a lower one than it has seen is safe from an owner that was taken for dead.
    """

    id: str
    agent: str
    generation: int
    step: int
    trigger: TriggerEnvelope
    input: Any
    cancellation: Cancellation
    artifacts: Artifacts
    write_log: Callable[[str, str, dict[str, Any]], None]
    launch: Callable[[CurrentRun, str, Any, dict[str, Any]], Awaitable[str]]
    epoch: int = 0
    key: str | None = None
    tool: str | None = None
    attempt: int = 1
    join: Callable[[], AbstractAsyncContextManager[Any]] | None = None

    async def start(self, agent: str, payload: Any, **options: Any) -> str:
        """Start a child run of a registered agent and answer its id; then `raise Wait.run(id)` to wait for it.

        Keyed by this call: a tool that runs again after a crash finds the child that it started. The options are those of `DurableAgent.start`, without `key`.
        """
        return await self.launch(self, agent, payload, options)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Write rows of your own in the commit that records this effect as done: `async with current_run().transaction() as connection:`.

        The connection is psycopg's (`AsyncConnection`), with a transaction open; the engine's store must be the Postgres database that holds your tables. The
        commit is made when the tool has returned, with its result: an error in the block or after it, a crash or a lost lease leaves neither the
        rows nor the record. Once a call. It holds a connection, so it should not wait for the world.

        Raises:
            ConfigurationError: Called elsewhere than in an effect tool, or (when entered) the store is not on Postgres.
        """
        if self.join is None:
            raise ConfigurationError("transaction() works inside an effect tool: declare it with metadata=effect('transaction').")
        return self.join()

    def log(self, message: str, level: Literal["debug", "info", "warn", "error"] = "info", **data: Any) -> None:
        """Add a line to the run's events. Buffered: it rides on the next commit, and a crash may lose it."""
        self.write_log(level, message, data)


_current: ContextVar[CurrentRun | None] = ContextVar("perdure_current_run", default=None)


def current_run() -> CurrentRun:
    """The run that is executing this code, in tools (sync ones in threads too), factories and hooks.

    Raises:
        ConfigurationError: Called outside a run.
    """
    run = _current.get()
    if run is None:
        raise ConfigurationError("current_run() works only inside a run: in a tool, a deps or tools factory, or a hook of a registered agent.")
    return run


def enter(run: CurrentRun) -> Token[CurrentRun | None]:
    """Make `run` current in this context."""
    return _current.set(run)


def leave(token: Token[CurrentRun | None]) -> None:
    """Undo `enter`."""
    _current.reset(token)


class Wait(Suspend):
    """Raised by a tool to end with a wait: what resolves it becomes the tool's result.

    A tool *ends* with a wait instead of containing one, because suspending inside a body would run its first lines again.
    """

    def __init__(
        self,
        kind: Literal["event", "timer", "child"],
        *,
        name: str | None = None,
        until: datetime | timedelta | None = None,
        child: str | None = None,
    ) -> None:
        super().__init__(f"This tool waits for {name or until or child}. Raise it; never catch it.")
        wrong = {"event": _wrong_name, "timer": _wrong_time, "child": given.name_of_a_row}[kind]
        what = {"event": name, "timer": until, "child": child}[kind]
        for value, fault in ((what, wrong(what)), (until, None if until is None else _wrong_time(until))):
            if fault is not None:
                raise ConfigurationError(f"Wait({given.shown(value)}): it {fault}.")
        self.kind, self.name, self.until_, self.child = kind, None if name is None else clean_text(name), until, child

    @classmethod
    def event(cls, name: str, *, expires: datetime | timedelta | None = None) -> Wait:
        """Wait for `engine.signal(run, name, payload)`; its payload is the tool's result."""
        return cls("event", name=name, until=expires)

    @classmethod
    def until(cls, moment: datetime | timedelta) -> Wait:
        """Wait for a time, or for a while."""
        return cls("timer", until=moment)

    @classmethod
    def run(cls, run_id: str) -> Wait:
        """Wait for another run to settle; its outcome is the tool's result."""
        return cls("child", child=run_id)


def _wrong_name(name: Any) -> str | None:
    return given.text(name)


def _wrong_time(until: Any) -> str | None:
    if isinstance(until, datetime):
        return given.moment(until)
    if not isinstance(until, timedelta):
        return f"must be a datetime with a time zone or a timedelta, not {given.shown(until)}"
    # A moment that has passed is over at once; one that no calendar has never comes.
    return None if until < timedelta(0) and until >= -SPAN_MAX else given.span(until)
