"""A phase: a name, what it does, the type of its state, and how often it may try."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError

from perdure.core import given
from perdure.core.codec import clean, dump
from perdure.core.errors import UnserializableError
from perdure.core.limits import APPROVAL_WITHIN
from perdure.pipeline import _given
from perdure.pipeline._errors import InvalidPipelineError, InvalidStateError
from perdure.pipeline._records import LEVELS, Answer, Checkpoint, Level, Progress, S

T = TypeVar("T")


class Same:
    """Stands for "the state as it is"."""

    def __repr__(self) -> str:
        return "SAME"


SAME: Final = Same()


# ── what a phase may return ────────────────────────────────────────────────────────────────────────────────
# No slots: on Python 3.11 `Next[State](…)` fails on a frozen generic class that has them.
@dataclass(frozen=True)
class Next(Generic[S]):
    """Go on with `phase`, which gets `state`."""

    phase: str | Phase[S]
    state: S

    def __post_init__(self) -> None:
        _refuse("Next.phase", _is_phase(self.phase))


@dataclass(frozen=True, slots=True)
class Done:
    """The job is complete. `output` is kept, as JSON, where the storage keeps outputs."""

    output: Any = None


@dataclass(frozen=True, slots=True)
class Error:
    """The job failed; a retry enters this phase again with the state it has now."""

    message: str

    def __post_init__(self) -> None:
        _refuse("Error.message", _is(self.message, str))


@dataclass(frozen=True, slots=True)
class Approval:
    """A question for a person. `data` is JSON that helps to decide. After `within` it lapses, which approves nothing; None: it never does."""

    question: str
    data: Any = None
    within: timedelta | None = APPROVAL_WITHIN

    def __post_init__(self) -> None:
        _refuse("Approval.question", _is(self.question, str))
        _refuse("Approval.within", None if self.within is None else given.span(self.within, positive=True))


@dataclass(frozen=True)
class Wait(Generic[S]):
    """Pause the job. What ends the pause is in `PhaseContext.answer` of the phase that is entered then.

    With `approval`, until a person has decided or the question lapsed. With `until`, until then (a span counts from now). With neither, until
    somebody resumes it. `phase` is entered afterwards, this one again if None, with `state`, or the state as it is.
    """

    phase: str | Phase[S] | None = None
    state: S | Same = SAME
    approval: Approval | None = None
    until: datetime | timedelta | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _refuse("Wait.phase", None if self.phase is None else _is_phase(self.phase))
        _refuse("Wait.approval", None if self.approval is None else _is(self.approval, Approval))
        _refuse("Wait.until", None if self.until is None else _given.moment(self.until))
        _refuse("Wait.reason", _is(self.reason, str))


@dataclass(frozen=True, slots=True)
class Retry:
    """Not yet: enter this phase again after a while (a bare number is seconds). Counts as a try where the phase has a `RetryPolicy`."""

    after: timedelta | float
    reason: str = ""

    def __post_init__(self) -> None:
        _refuse("Retry.after", _given.pause(self.after))
        _refuse("Retry.reason", _is(self.reason, str))


PhaseResult: TypeAlias = Next[S] | Done | Error | Wait[S] | Retry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a phase that raises is tried, and how far apart.

    `attempts` counts all tries, the first included. The pause before try n+1 is `backoff · factor^(n-1)`, at most `longest`, and up to `jitter` of it
    more, drawn at random. Only exceptions of the classes `on` are tried again; a time-out is a `TimeoutError`. A crash of the process is no try.
    """

    attempts: int = 3
    backoff: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)
    jitter: float = 0.1
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        _refuse("RetryPolicy.attempts", given.whole(self.attempts, least=1))
        for name in ("backoff", "longest"):
            _refuse(f"RetryPolicy.{name}", given.span(getattr(self, name)))
        for name in ("factor", "jitter"):
            _refuse(f"RetryPolicy.{name}", _given.number(getattr(self, name)))
        given_on = cast(object, self.on)
        classes = isinstance(given_on, tuple) and all(
            isinstance(each, type) and issubclass(each, Exception) for each in cast("tuple[object, ...]", given_on)
        )
        _refuse("RetryPolicy.on", None if classes else f"must be a tuple of exception classes, not {given.shown(self.on)}")

    def delay(self, failed: int, chance: float) -> timedelta:
        """The pause after `failed` failed tries; `chance` is in [0, 1)."""
        # A float overflows long before a person would wait that long.
        growth = min(self.factor ** min(failed - 1, 64), 1e9)
        plain = min(self.backoff * growth, self.longest)
        return plain * (1 + self.jitter * chance)


# ── what a phase gets ──────────────────────────────────────────────────────────────────────────────────────
CancelReason = Literal["timeout", "lease_lost", "drain", "ended"]


class Cancellation:
    """Fires when the phase should stop: its time is up, another advance took the job over, the worker shuts down, or the phase has ended.

    Readable from any thread.
    """

    def __init__(self) -> None:
        self.reason: CancelReason | None = None
        self._event = asyncio.Event()
        self._threads: threading.Event | None = None
        self._follower: Cancellation | None = None

    def is_set(self) -> bool:
        return self.reason is not None

    async def wait(self) -> str:
        """Wait until it has fired, and answer the reason."""
        await self._event.wait()
        assert self.reason is not None
        return self.reason

    def blocking_wait(self, timeout: float | None = None) -> bool:
        """The same for code in a thread: whether it fired within `timeout` seconds."""
        with _LOCK:  # against another thread that waits; few phases do at all, so there is no event until then
            event = self._threads = self._threads or threading.Event()
        if self.reason is not None:
            event.set()  # `fire` may have come before there was an event to set
        return event.wait(timeout)

    def fire(self, reason: CancelReason) -> None:
        """Fire, once; on the loop that runs the phase."""
        if self.reason is None:
            self.reason = reason
            self._event.set()
            if self._threads is not None:
                self._threads.set()
            if self._follower is not None:
                self._follower.fire(reason)

    def lead(self, follower: Cancellation | None) -> None:
        """Have `follower` fire when this one does."""
        self._follower = follower
        if follower is not None and self.reason is not None:
            follower.fire(self.reason)


_LOCK: Final = threading.Lock()


class Desk(Protocol):
    """What the runner does for a phase at work."""

    async def log(self, message: str, level: Level) -> None: ...

    async def save(self, state: Any, note: str | None) -> Checkpoint[Any]: ...

    def progress(self, progress: Progress) -> None: ...


@dataclass(slots=True)
class PhaseContext(Generic[S]):
    """What a phase gets.

    `attempt` is 1 for the first try. `answer` is how the wait ended that brought the job here. `key` names this stay in this phase, the same over
    crashes, retries and resumes and new in every new life of the job: hand it to the outside world as an idempotency key.
    """

    job_id: str
    phase: str
    checkpoint: Checkpoint[S]
    cancelled: Cancellation
    _desk: Desk = field(repr=False)

    @property
    def state(self) -> S:
        """The state as last saved."""
        return self.checkpoint.state

    @property
    def attempt(self) -> int:
        return self.checkpoint.attempt + 1

    @property
    def answer(self) -> Answer | None:
        return None if self.checkpoint.wait is None else self.checkpoint.wait.answer

    @property
    def key(self) -> str:
        return f"{self.job_id}:{self.checkpoint.life}:{self.checkpoint.step}:{self.phase}"

    async def log(self, message: str, level: Level = "info") -> None:
        """Append a line to the job's log."""
        _refuse("log message", _is(message, str))
        _refuse("log level", None if level in LEVELS else f"must be one of {', '.join(LEVELS)}, not {given.shown(level)}")
        await self._desk.log(message, level)

    async def save_state(self, state: S, *, log: str | None = None) -> None:
        """Keep `state` now: whatever happens, this phase is entered again with it. Durable when it returns; `log` is an entry in the same write.

        Raises:
            InvalidStateError: It does not fit the phase or can't be stored; nothing was written.
        """
        self.checkpoint = await self._desk.save(state, log)

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far it is. Cheap: call it as often as you like; where the storage shows progress, the latest is written now and then."""
        _refuse("progress", _given.number(done) or (None if total is None else _given.number(total)))
        self._desk.progress(Progress(done, total))


# ── the phase ──────────────────────────────────────────────────────────────────────────────────────────────
class StateType(Generic[S]):
    """The type of a phase's state: into plain data and back, naming phase and field where it does not fit."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._adapter: TypeAdapter[Any] | None = None
        self._read: tuple[Any, Any] = (None, None)

    @property
    def adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            try:
                self._adapter = TypeAdapter(self.kind)
            except PydanticUserError as error:
                said = str(error).splitlines()[0]
                raise InvalidPipelineError(f"Pydantic can't validate {given.shown(self.kind)}, so it can't be the type of a state: {said}") from error
        return self._adapter

    def pack(self, state: Any, phase: str) -> Any:
        """`state` as plain JSON data that `unpack` takes.

        What is written is read back first: a state that could not be read later is refused now.
        """
        try:
            plain = self.adapter.dump_python(state, mode="json", by_alias=True, warnings=False)
        except (PydanticSerializationError, AttributeError, TypeError):
            plain = state  # of another type; what is wrong with it is named below
        try:
            # A model that can't be dumped is walked by its fields, so that the one to blame is named.
            data = clean(dict(cast(Any, plain)) if isinstance(plain, BaseModel) else plain)
        except UnserializableError as error:
            path = str(error.details.get("path", "$"))
            raise InvalidStateError(phase, path, error.message.removeprefix(f"{path}: ")) from error
        # Where this very data is entered with next, in the same process, it need not be read once more.
        self._read = (data, self.unpack(data, phase))
        return data

    def unpack(self, data: Any, phase: str) -> S:
        if self.kind is Any:
            return data
        if data is not None and data is self._read[0]:
            value, self._read = self._read[1], (None, None)  # handed out once: a phase may change what it gets
            return value
        try:
            return self.adapter.validate_json(dump(data))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(["$", *(str(each) for each in first["loc"])])
            raise InvalidStateError(phase, where, first["msg"]) from error


Run: TypeAlias = Callable[[PhaseContext[S]], Awaitable[PhaseResult[S]]]


class Phase(Generic[S]):
    """One phase of a pipeline.

    Args:
        name: Unique in the pipeline; it is stored, so renaming it strands jobs that wait for it.
        run: What it does.
        state: The type of its state, anything Pydantic validates. Read from `run`'s annotation `PhaseContext[…]` if None; where that has none, any JSON.
        timeout: Seconds that one try may take.
        retry: What happens when it raises. None: the job fails at once.
    """

    def __init__(
        self, name: str, run: Run[S], *, state: type[S] | None = None, timeout: timedelta | float | None = None, retry: RetryPolicy | None = None
    ) -> None:  # fmt: skip
        _refuse("Phase name", given.name_of_a_row(name))
        _refuse(f"Phase {name!r}: run", _is_run(run))
        _refuse(f"Phase {name!r}: timeout", _given.limit(timeout))
        _refuse(f"Phase {name!r}: retry", None if retry is None else _is(retry, RetryPolicy))
        self.name = name
        self.run = run
        self.timeout = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        self.retry = retry
        self.state: StateType[S] = StateType(state if state is not None else _state_of(name, run))

    def __call__(self, context: PhaseContext[S]) -> Awaitable[PhaseResult[S]]:
        return self.run(context)

    def __repr__(self) -> str:
        return f"Phase({self.name!r})"


@overload
def phase(run: Run[S], /) -> Phase[S]: ...


@overload
def phase(
    *, name: str | None = None, state: Any = None, timeout: timedelta | float | None = None, retry: RetryPolicy | None = None
) -> Callable[[Run[S]], Phase[S]]: ...


def phase(
    run: Run[Any] | None = None, /, *, name: str | None = None, state: Any = None, timeout: timedelta | float | None = None,
    retry: RetryPolicy | None = None,
) -> Any:  # fmt: skip
    """Make an async function a phase, named like the function unless told otherwise."""

    def make(function: Run[Any]) -> Phase[Any]:
        return Phase(name or getattr(function, "__name__", ""), function, state=state, timeout=timeout, retry=retry)

    return make if run is None else make(run)


def check_phases(phases: Sequence[Phase[Any]]) -> dict[str, Phase[Any]]:
    """The phases by name.

    Raises:
        InvalidPipelineError: There is none, or two share a name.
    """
    if not isinstance(cast(object, phases), Sequence) or not all(isinstance(cast(object, each), Phase) for each in phases):
        raise InvalidPipelineError(f"The phases of a pipeline are a list of phases (functions with @phase), not {given.shown(phases)}.")
    if not phases:
        raise InvalidPipelineError("A pipeline needs at least one phase.")
    found: dict[str, Phase[Any]] = {}
    for each in phases:
        if each.name in found:
            raise InvalidPipelineError(f"Two phases are named {each.name!r}; names must be unique.", phase=each.name)
        found[each.name] = each
    return found


def _refuse(what: str, wrong: str | None) -> None:
    if wrong is not None:
        _given.refuse(what, wrong)


def _is(value: Any, kind: type) -> str | None:
    return None if isinstance(value, kind) else f"must be of type {kind.__name__}, not {given.shown(value)}"


def _is_phase(value: Any) -> str | None:
    return None if isinstance(value, (str, Phase)) else f"must be a phase or its name, not {given.shown(value)}"


def _is_run(run: Any) -> str | None:
    """Something that takes a context and is awaited."""
    if not callable(run):
        return f"must be an async function, not {given.shown(run)}"
    if inspect.isfunction(run) and run.__name__ != "<lambda>" and not inspect.iscoroutinefunction(inspect.unwrap(run)):
        return f"must be async: write `async def {run.__name__}(…)`"
    try:
        inspect.signature(run).bind(None)
    except TypeError:
        return "must take one argument, the PhaseContext"
    except ValueError:
        pass  # written in C, and it does not say
    return None


def phase_name(named: str | Phase[Any]) -> str:
    return named if isinstance(named, str) else named.name


def _state_of(name: str, run: Any) -> Any:
    """The state type that the annotation of `run`'s first argument names."""
    function: Any = inspect.unwrap(run if inspect.isroutine(run) else type(run).__call__)
    parameters = list(inspect.signature(run).parameters.values())
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return Any
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidPipelineError(
            f"The state type of phase {name!r} can't be read: {error}. Define it at module level, or pass `state=` to the phase.", phase=name
        ) from error
    hint = hints.get(parameters[0].name)
    if get_origin(hint) is not PhaseContext:
        return Any
    [kind] = get_args(hint)
    return Any if isinstance(kind, TypeVar) else kind
