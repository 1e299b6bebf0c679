"""A pipeline as a job type of the engine: the same runner and the same phases, on the engine's claims, leases, waits and events.

A job is a run, its first state the run's payload. A phase's outcome is a commit; `Wait` opens a wait row, `Retry` and the policies hand the run back
until later, an error fails the run, and a retry of the run (`resume`, `full`) is the engine's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_ai.messages import ModelRequest, UserPromptPart

from perdure.agents import decode, encode
from perdure.core.budget import Budget
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.codec import clean, dump, fingerprint, load
from perdure.core.commit import Loaded, Park, Release
from perdure.core.errors import InvalidTrigger, StoreError, Suspend
from perdure.core.run import RunStatus
from perdure.core.step import StepWrite
from perdure.core.wait import ResolutionKind, WaitPoint, WaitWrite
from perdure.engine import Engine, RunHandle, _settle
from perdure.engine._execution import Execution
from perdure.engine._journal import Write, WriteRefused
from perdure.engine._retention import Retention, read_retention
from perdure.pipeline._adapters import KEEP, Outcome
from perdure.pipeline._errors import InvalidStateError, PhaseError
from perdure.pipeline._failures import explain
from perdure.pipeline._phase import Cancellation, CancelReason, Phase, S, check_phases
from perdure.pipeline._records import Answer, Checkpoint, JobRecord, JobStatus, LogEntry, Progress, WaitRecord
from perdure.pipeline._runner import Env, advance
from perdure.pipeline._settle import NOW, Phases

OutputT = TypeVar("OutputT")
WARN_AT: Final = 0.8
"""Share of an approval's time after which one warning goes out."""

REASONS: Final[dict[str, CancelReason]] = {"drain": "drain", "lease_lost": "lease_lost", "ended": "ended"}


def register(
    engine: Engine, phases: Sequence[Phase[S]], *, name: str, version: str | None = None, limit: int | None = None, budget: Budget | None = None,
    output_type: Any = Any, retention: Retention | None = None, key_retention: timedelta | None = None,
) -> EnginePipeline[S]:  # fmt: skip
    """Register a pipeline with an engine, as agents are registered: its jobs are runs.

    Args:
        name: Under which it is started, shared with agents.
        version: Of the code, noted on the runs that it executes.
        limit: How many of its runs may be at work at once, over all workers.
        budget: Its `timeout` and `deadline` hold for each run.
        output_type: What `Done` hands over, as `result` gives it.
        retention: How long settled jobs are kept, as for agents.
        key_retention: How long an idempotency key answers after its job has settled, as for agents.

    Raises:
        InvalidPipelineError: No phases, or two of one name.
        ConfigurationError: The name is taken.
    """
    kind = PipelineType(phases, name=name, version=version, limit=limit, budget=budget or Budget(), output_type=output_type)
    kind.retention, kind.key_retention = read_retention(name, retention), key_retention
    engine.register(kind)
    return EnginePipeline(engine, kind)


class EnginePipeline(Generic[S]):
    """A pipeline that is registered with an engine."""

    def __init__(self, engine: Engine, kind: PipelineType) -> None:
        self._engine, self._kind = engine, kind

    @property
    def name(self) -> str:
        return self._kind.name

    async def start(self, state: S, **options: Any) -> RunHandle[Any]:
        """Start a job with this state. Durable when it returns; the options are those of `DurableAgent.start` (`key`, `labels`, `delay`, …).

        Raises:
            InvalidTrigger: The state does not fit the first phase; the field is named.
        """
        return await self._engine.admit(self._kind, state, **options)

    async def run(self, state: S, *, timeout: float | timedelta | None = None, **options: Any) -> Any:
        """Start a job and wait for its output. Raises as `RunHandle.result` does."""
        handle = await self.start(state, **options)
        return self._kind.parse_output(await handle.result(timeout=timeout))


class PipelineType:
    """What the engine knows of a pipeline."""

    step_timeout: timedelta | None = None
    key_retention: timedelta | None = None

    def __init__(self, phases: Sequence[Phase[Any]], *, name: str, version: str | None, limit: int | None, budget: Budget, output_type: Any) -> None:
        self.phases, self.first = check_phases(phases), phases[0]
        self.name, self.version, self.limit, self.budget = name, version, limit, budget
        self.retention: Mapping[timedelta, tuple[RunStatus, ...]] = {}
        self._output: TypeAdapter[Any] | None = None if output_type is Any else TypeAdapter(output_type)

    def check(self, payload: Any) -> Any:
        try:
            return self.first.state.pack(payload, self.first.name)
        except InvalidStateError as error:
            raise InvalidTrigger(f"payload: {error.message}", field=f"payload{error.field.removeprefix('$')}") from error

    def parse_output(self, output: Any) -> Any:
        return output if self._output is None else self._output.validate_json(dump(output))

    def open(self, execution: Execution) -> PipelineJob:
        return PipelineJob(execution, self)


class PipelineJob:
    """One claimed run: phases until it rests or ends."""

    def __init__(self, execution: Execution, kind: PipelineType) -> None:
        self._execution, self._kind = execution, kind

    async def run(self) -> Write:
        execution = self._execution
        loaded = await execution.store.load(execution.run.id)
        if any(wait.open for wait in loaded.waits):
            return Write(ending=Park())
        storage = ClaimStorage(execution, loaded, self._kind.phases, self._kind.first.name)
        cancelled = Cancellation()
        watch = execution.runtime.spawn(self._watch(cancelled), name="pipeline stop signal")
        try:
            return await self._advance(storage, Env(storage, storage, execution.runtime, cancelled=cancelled))
        except WriteRefused as refused:
            return Write(ending=_settle.from_error(refused.error))
        finally:
            watch.cancel()

    async def wind_down(self, grace: timedelta) -> Write:
        """What a phase at work had saved is stored already; it is entered again with that."""
        return Write()

    async def _advance(self, storage: ClaimStorage, env: Env) -> Write:
        while storage.last is None:
            if self._execution.stop.reason is not None:
                raise Suspend("The execution was told to stop.")
            try:
                await advance(self._execution.run.id, self._kind.phases, env)
            except PhaseError:
                pass  # it is the run's error; the last write says so
        return storage.last

    async def _watch(self, cancelled: Cancellation) -> None:
        cancelled.fire(REASONS.get(await self._execution.stop.wait(), "timeout"))


class ClaimStorage:
    """A claimed run as the runner's storage, and as its scheduler: the engine is who comes back later.

    An outcome that goes on is a commit; one that rests or ends is `last`, the write that ends the claim.
    """

    def __init__(self, execution: Execution, loaded: Loaded, phases: Phases, first: str) -> None:
        self._execution, self._phases = execution, phases
        self.last: Write | None = None
        run, checkpoint = execution.run, loaded.checkpoint
        self._index = checkpoint.index if checkpoint is not None else 0
        self._stored = checkpoint is not None
        if checkpoint is None:
            at: Checkpoint[Any] = Checkpoint(first, run.trigger.payload, execution.store_now(), life=str(run.generation))
        else:
            kept = _unpack(checkpoint.messages)
            # A retry of the run begins its tries anew, as a retry of a job does.
            at = _answered(kept["at"] if kept["settlement"] == run.settlement else replace(kept["at"], attempt=0, not_before=None), loaded.waits)
        self._job = JobRecord("running", at, version=1)
        self._entered = execution.store_now()

    @property
    def storage(self) -> ClaimStorage:
        """Its own scheduler: an outcome carries the next advance."""
        return self

    # ── what the runner asks ───────────────────────────────────────────────────────────────────────────────
    async def get_job(self, job_id: str) -> JobRecord | None:
        return self._job

    async def schedule_advance(self, job_id: str, delay: timedelta) -> None:
        """Asked for by an advance that came too early."""
        self._end(Write(ending=Release("retry_after", delay)))

    async def commit_outcome(self, outcome: Outcome) -> int | None:
        for line in outcome.log:
            self._execution.log(line.level, line.message, {"phase": line.phase})
        if isinstance(outcome.progress, Progress):
            self._shows(outcome.progress)
        at = None if outcome.checkpoint is KEEP else outcome.checkpoint
        if outcome.hold:
            if at is not None:
                await self._write(Write(checkpoint=self._checkpoint(at)))
                self._job = replace(self._job, checkpoint=at)
        elif outcome.status == "complete":
            self._end(Write(steps=(self._row(),), ending=_settle.completed(None if outcome.output is KEEP else outcome.output)))
        elif outcome.status == "error":
            self._end(self._failed(outcome.error or ""))
        elif outcome.status == "paused":
            self._end(self._paused(at))
        elif at is None:
            if outcome.advance is not None and outcome.advance > NOW:
                self._end(Write(ending=Release("retry_after", outcome.advance)))
            # Otherwise the phase was cancelled: the engine knows why, and how the claim ends.
        elif outcome.entered:
            await self._move(at)
        else:
            self._end(Write(checkpoint=self._checkpoint(at), ending=Release("retry_after", outcome.advance or NOW)))
        return outcome.version

    # ── what an outcome becomes ────────────────────────────────────────────────────────────────────────────
    async def _move(self, at: Checkpoint[Any]) -> None:
        row = self._row()
        self._index += 1
        self._stored = False
        await self._write(Write(checkpoint=self._checkpoint(at), steps=(row,), progress=True))
        self._job, self._entered = replace(self._job, checkpoint=at), self._execution.store_now()
        self._execution.doing(self._index, at.next_phase)

    def _failed(self, message: str) -> Write:
        said = explain(JobRecord("error", self._job.checkpoint, message))
        code = said.code or "phase_error"
        row = replace(self._row(), error={"code": code, "message": message})
        return Write(steps=(row,), ending=_settle.failed(code, message, phase=said.phase, attempt=said.attempt, next_step=said.next_step))

    def _paused(self, at: Checkpoint[Any] | None) -> Write:
        """The question as a wait row. A row that was closed without an answer (a cancel) is opened anew under another id."""
        at = at or self._at
        assert at.wait is not None
        wait = replace(at.wait, id=self._execution.runtime.new_id())
        return Write(
            checkpoint=self._checkpoint(replace(at, wait=wait)),
            steps=(self._row(),),
            waits=(self._question(at.next_phase, wait),),
            ending=Park(),
            progress=True,
        )

    def _question(self, phase: str, wait: WaitRecord) -> WaitWrite:
        shown: dict[str, Any] = {"question": wait.question, "phase": phase}
        if wait.kind == "until":
            return WaitWrite(wait.id, "timer", f"phase:{phase}", self._index, expires_at=wait.until, data=shown)
        if wait.kind == "resume":
            return WaitWrite(
                wait.id, "attention", f"phase:{phase}", self._index, data={**shown, "message": wait.question, "decisions": ["resume", "fail"]}
            )
        data: Any = clean(wait.data)
        data = {} if data is None else data if isinstance(cast(object, data), dict) else {"data": data}
        now = self._execution.store_now()
        return WaitWrite(
            wait.id, "approval", f"phase:{phase}", self._index, tool=phase, input=data, input_hash=fingerprint(data), expires_at=wait.until,
            warn_at=None if wait.until is None else now + (wait.until - now) * WARN_AT, data={**shown, "decisions": ["approve", "deny"]},
        )  # fmt: skip

    def _row(self) -> StepWrite:
        return StepWrite("tool", self._index, self._at.next_phase, started_at=self._entered, finished_at=self._execution.store_now())

    def _checkpoint(self, at: Checkpoint[Any]) -> CheckpointWrite:
        """The state as the one message of a history of its own, so that every view of a run's history can show it."""
        kept = {"at": at.to_json(), "settlement": self._execution.run.settlement}
        message = encode(ModelRequest(parts=[UserPromptPart(dump(kept), timestamp=at.created_at)], timestamp=at.created_at))
        return CheckpointWrite(index=self._index, base=self._index, keep=0, append=(message,), version=self._execution.run.version)

    @property
    def _at(self) -> Checkpoint[Any]:
        assert self._job.checkpoint is not None
        return self._job.checkpoint

    def _shows(self, progress: Progress) -> None:
        total = "" if progress.total is None else f"/{progress.total:g}"
        self._execution.doing(self._index, f"{self._at.next_phase} {progress.done:g}{total}")

    async def _write(self, write: Write) -> None:
        try:
            await self._execution.journal.write(write)
        except StoreError as error:
            # Not for the phase to catch: it is the store's word about the run, not about what the phase did.
            raise WriteRefused(error) from error

    def _end(self, write: Write) -> None:
        self.last = write

    # ── never asked: an outcome carries everything ─────────────────────────────────────────────────────────
    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        raise NotImplementedError

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        raise NotImplementedError

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        raise NotImplementedError

    async def clear_log(self, job_id: str) -> None:
        raise NotImplementedError


def _unpack(messages: Sequence[bytes]) -> dict[str, Any]:
    [part] = decode(messages[0]).parts
    kept = load(str(getattr(part, "content", "")))
    return {**kept, "at": Checkpoint.from_json(kept["at"])}


def _answered(at: Checkpoint[Any], waits: Sequence[WaitPoint]) -> Checkpoint[Any]:
    """The checkpoint with the answer that its wait row got."""
    if at.wait is None or at.wait.answer is not None:
        return at
    row = next((wait for wait in waits if wait.id == at.wait.id), None)
    answer = None if row is None else _answer(row)
    return at if answer is None else replace(at, wait=replace(at.wait, answer=answer))


def _answer(row: WaitPoint) -> Answer | None:
    said = row.resolution
    if said is None or said.kind is ResolutionKind.CANCELLED:
        return None
    if said.kind is ResolutionKind.TIMER:
        return Answer("timer", at=said.at)
    if said.kind is ResolutionKind.EXPIRED:
        return Answer("expired", approved=False, at=said.at)
    approved = {"approve": True, "resume": None}.get(said.decision or "resume", False)
    return Answer("person", approved, said.value, said.reason, said.by, said.at)
