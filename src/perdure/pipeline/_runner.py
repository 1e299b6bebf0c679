"""One advance: take the job, run the phase that comes next, write what came of it.

Read `advance_phase` first; it is the whole story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from perdure.core.codec import clean_text
from perdure.core.errors import StoreError
from perdure.core.limits import DEATHS_MAX, LEASE_DEFAULT
from perdure.core.runtime import RealRuntime, Runtime
from perdure.pipeline import _failures as failures
from perdure.pipeline import _given
from perdure.pipeline._adapters import KEEP, Claim, Kept, Outcome, SchedulerAdapter, StorageAdapter, chaining, committing, comparing, leasing
from perdure.pipeline._errors import InvalidStateError, JobLost, PhaseError
from perdure.pipeline._keeper import Held, LeaseKeeper
from perdure.pipeline._phase import Cancellation, Phase, PhaseContext, PhaseResult, S, Wait, check_phases
from perdure.pipeline._records import Checkpoint, JobRecord, Level, LogEntry, Progress
from perdure.pipeline._settle import NOW, Phases, Refused, Stay, repause, settle, settle_exception, time_is_up
from perdure.pipeline._writer import write

REAL: Final = RealRuntime()
PROGRESS_EVERY: Final = 0.5
"""Seconds between two writes of a phase's progress: often enough for a person, rare enough to cost nothing."""

Advanced = Literal["ran", "early", "busy", "idle", "lost"]
"""What came of an advance. `ran`: the job moved. `early`: it may not go on yet; another advance was asked for. `busy`: another advance is at work.
`idle`: there is nothing to do. `lost`: another advance took the job over meanwhile; nothing of this one was written."""


@dataclass(frozen=True, slots=True)
class Env:
    """What an advance works with. `cancelled` fires from outside (a worker that drains); `keeper` is a worker's own. `stays` is asked after each phase,
    with how many were run in one go, whether the next may follow at once; None: it never does. After `deaths_max` leases in a row that ran out a job is
    given up."""

    storage: StorageAdapter
    scheduler: SchedulerAdapter
    runtime: Runtime = REAL
    lease: timedelta = LEASE_DEFAULT
    keeper: LeaseKeeper | None = None
    cancelled: Cancellation | None = None
    stays: Callable[[int], bool] | None = None
    deaths_max: int = DEATHS_MAX

    async def write(self, outcome: Outcome, current: Checkpoint[Any] | None) -> int | None:
        return await write(self.storage, self.scheduler, outcome, current)


async def advance_phase(
    job_id: str, phases: Sequence[Phase[S]], storage: StorageAdapter, scheduler: SchedulerAdapter, *, runtime: Runtime = REAL,
    lease: timedelta = LEASE_DEFAULT,
) -> Advanced:  # fmt: skip
    """Run the job's next phase and write what came of it. Harmless at any time, and however often.

    Nothing happens to a job that is unknown, not running, without a checkpoint, or at work elsewhere. `lease` is how long a dead process keeps
    the job from others, on storages with leases; a live one renews it.

    Raises:
        PhaseError: The phase failed its job for good; the status is `error`, the checkpoint as it was.
        InvalidPipelineError: The phases or another argument are wrong; nothing was read or written.
    """
    named = check_phases(phases)
    _given.check_job_id(job_id)
    _given.check_adapters(storage, scheduler)
    _given.check_lease(lease)
    return await advance(job_id, named, Env(storage, scheduler, runtime, lease))


async def advance(job_id: str, phases: Phases, env: Env) -> Advanced:
    """`advance_phase` for a caller that brings its own surroundings."""
    with _alone(env.storage, job_id) as alone:
        if not alone:
            return "busy"
        sent = env.runtime.monotonic()
        came: Advanced | Taken = Taken(await _take(job_id, env), sent)
        while isinstance(came, Taken):
            came = await _go_on(job_id, came, phases, env)
        return came


@dataclass(frozen=True, slots=True)
class Taken:
    """A claim that was sent at `sent` on the runtime's monotonic clock, after `ran` phases in one go."""

    claim: Claim
    sent: float
    ran: int = 0


async def _go_on(job_id: str, taken: Taken, phases: Phases, env: Env) -> Advanced | Taken:
    """Run the phase that the claim found. Another claim in return: the job is still ours, at its next phase."""
    claim = taken.claim
    if claim.busy is not None:
        # Not simply dropped: should the holder die, this is the advance that takes over.
        await env.scheduler.schedule_advance(job_id, claim.busy)
        return "busy"
    job = claim.job
    if job is None or job.checkpoint is None or job.status not in ("running", "paused"):
        return "idle"
    stay = _stay(job_id, job, job.checkpoint, env, claim)
    if job.status == "paused":
        return await _wake(stay, env)
    return await _enter(stay, job, phases, env, taken)


async def _take(job_id: str, env: Env) -> Claim:
    """Make the job ours, as well as the storage can."""
    storage = env.storage
    if (leaser := leasing(storage)) is not None:
        return await leaser.claim_job(job_id, env.lease)
    job, comparer = await storage.get_job(job_id), comparing(storage)
    if job is None or job.status != "running" or job.checkpoint is None or comparer is None:
        return Claim(job, taken=True)
    # Writing the checkpoint over itself raises the version: of two advances that read the same one, the second stops here.
    version = await comparer.compare_and_set(job_id, job.version, job.checkpoint)
    return Claim(None) if version is None else Claim(replace(job, version=version), taken=True)


@contextmanager
def _alone(storage: StorageAdapter, job_id: str) -> Generator[bool]:
    """Keep two advances of one process apart on storages that can't do it themselves."""
    if leasing(storage) is not None:
        yield True
        return
    mine = object()
    key = (id(storage), job_id)
    alone = _AT_WORK.setdefault(key, mine) is mine
    try:
        yield alone
    finally:
        if alone:
            del _AT_WORK[key]


_AT_WORK: Final[dict[tuple[int, str], object]] = {}


def _stay(job_id: str, job: JobRecord, at: Checkpoint[Any], env: Env, claim: Claim) -> Stay:
    # One clock for all processes where the storage has one: due times are compared with it, whatever this machine's own shows.
    return Stay(job_id, job.version, at, claim.now or env.runtime.now(), env.runtime.random())


async def _wake(stay: Stay, env: Env) -> Advanced:
    """An advance met a paused job: go on if the wait's time has come."""
    wait = stay.checkpoint.wait
    if wait is None or wait.answer is not None or wait.until is None:
        return "idle"
    if wait.until > stay.now:
        await env.scheduler.schedule_advance(stay.job_id, wait.until - stay.now)
        return "early"
    version = await env.write(time_is_up(stay, wait), stay.checkpoint)
    return "lost" if version is None else "ran"


async def _enter(stay: Stay, job: JobRecord, phases: Phases, env: Env, taken: Taken) -> Advanced | Taken:
    """The job is ours: see whether its phase can run, run it, write the outcome."""
    at = stay.checkpoint
    phase = phases.get(at.next_phase)
    if phase is None:
        return await _written(stay, stay.failed(failures.unknown(at.next_phase, list(phases))), env)
    if at.wait is not None and at.wait.answer is None:
        return await _written(stay, repause(stay, at.wait), env)
    if job.deaths >= env.deaths_max:
        return await _written(stay, stay.failed(failures.poisoned(phase.name, job.deaths)), env)
    if at.not_before is not None and at.not_before > stay.now:
        done = await _written(stay, stay.outcome(advance=at.not_before - stay.now), env)
        return "lost" if done == "lost" else "early"
    try:
        state = phase.state.unpack(at.state, phase.name)
    except InvalidStateError as error:
        return await _fail(stay, stay.failed(error.message), env, error, error.code)
    return await _work(stay, phase, replace(at, state=state), phases, env, taken)


async def _work(stay: Stay, phase: Phase[Any], at: Checkpoint[Any], phases: Phases, env: Env, taken: Taken) -> Advanced | Taken:
    desk = _Desk(stay, phase, env)
    try:
        async with _Keeping(desk, env, taken.sent):
            result = await _run(phase, PhaseContext(stay.job_id, phase.name, at, desk.cancelled, desk))
        await desk.close()
    except JobLost:
        return "lost"
    except asyncio.CancelledError:
        # Handed back, not failed: whoever comes next enters the same phase with what was saved.
        await env.write(desk.stay.outcome(advance=NOW), desk.stay.checkpoint)
        raise
    finally:
        desk.cancelled.fire("ended")  # for a thread that the phase left behind
        if env.cancelled is not None:
            env.cancelled.lead(None)
    if isinstance(result, _Raised) and result.error is desk.refused:
        raise result.error  # the storage's trouble, not the phase's: the job stays as it is, and is entered again
    stay = replace(desk.stay, now=stay.now + timedelta(seconds=env.runtime.monotonic() - taken.sent))
    if isinstance(result, _Raised):
        outcome = settle_exception(stay, phase, result.error, timed_out=result.timed_out)
        return await (_fail(stay, outcome, env, result.error) if outcome.status == "error" else _written(stay, outcome, env))
    try:
        if isinstance(result, Wait):
            stay = replace(stay, wait_id=env.runtime.new_id())
        outcome = settle(stay, phase, phases, result)
    except Refused as refused:
        return await _fail(stay, stay.failed(refused.message), env, refused.__cause__, refused.code)
    return await _moved(stay, outcome, env, taken.ran + 1)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception
    timed_out: bool = False


async def _run(phase: Phase[S], context: PhaseContext[S]) -> PhaseResult[S] | _Raised:
    """The phase's own code, within its time."""
    limit = None if phase.timeout is None else asyncio.timeout(phase.timeout)
    try:
        if limit is None:
            return await phase.run(context)
        async with limit:
            return await phase.run(context)
    except Exception as error:
        timed_out = isinstance(error, TimeoutError) and limit is not None and limit.expired()
        if timed_out:
            context.cancelled.fire("timeout")
        return _Raised(error, timed_out)


async def _written(stay: Stay, outcome: Outcome, env: Env) -> Advanced:
    return "lost" if await env.write(outcome, stay.checkpoint) is None else "ran"


async def _moved(stay: Stay, outcome: Outcome, env: Env, ran: int) -> Advanced | Taken:
    """Write a phase's outcome; where the next one may follow at once, keep the job in the same write."""
    chain = chaining(env.storage)
    if chain is None or outcome.advance != NOW or outcome.status is not None or not _may_stay(env, ran):
        return await _written(stay, outcome, env)
    sent = env.runtime.monotonic()
    claim = await chain.commit_and_claim(outcome, env.lease)
    if claim is None:
        return "lost"
    return Taken(claim, sent, ran) if claim.taken else "ran"


def _may_stay(env: Env, ran: int) -> bool:
    return env.stays is not None and env.stays(ran) and not (env.cancelled is not None and env.cancelled.is_set())


async def _fail(stay: Stay, outcome: Outcome, env: Env, cause: BaseException | None, code: str | None = None) -> Advanced:
    if await _written(stay, outcome, env) == "lost":
        return "lost"
    raise PhaseError(outcome.error or "", job_id=stay.job_id, phase=stay.phase, code=code) from cause


class _Keeping:
    """Keeps the lease while the phase is at work, and aborts it when the lease is lost."""

    def __init__(self, desk: _Desk, env: Env, sent: float) -> None:
        self._desk, self._env, self._sent = desk, env, sent
        leaser = leasing(env.storage)
        self._keeper = None if leaser is None else env.keeper or LeaseKeeper(leaser, env.lease, env.runtime)
        self._later: asyncio.Task[None] | None = None
        self._abort = _Abort()

    async def __aenter__(self) -> None:
        keeper, desk, runtime = self._keeper, self._desk, self._env.runtime
        if keeper is None:
            return
        desk.held = keeper.hold(desk.stay.job_id, desk.stay.version, self._sent, self._lost)
        if self._env.keeper is None:
            # A keeper of our own is a thread: most phases are over before it would have anything to do.
            self._later = runtime.spawn(_start_later(keeper, runtime), name="perdure-pipeline-keeper")

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._keeper is not None and self._desk.held is not None:
            self._keeper.let_go(self._desk.held)
            if self._later is not None:
                self._later.cancel()
                await self._keeper.stop()
        if isinstance(error, asyncio.CancelledError) and self._abort.was_ours():
            raise JobLost from None

    def _lost(self) -> None:
        self._desk.cancelled.fire("lease_lost")
        self._abort.fire()


async def _start_later(keeper: LeaseKeeper, runtime: Runtime) -> None:
    await runtime.sleep(keeper.period)
    keeper.start()


class _Abort:
    """A cancellation of the current task that can be told from anybody else's."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._before, self._fired = task, task.cancelling(), False

    def fire(self) -> None:
        self._fired = True
        self._task.cancel()

    def was_ours(self) -> bool:
        return self._fired and self._task.uncancel() <= self._before


class _Desk:
    """What a phase at work may write. Each write is refused once another advance has the job."""

    def __init__(self, stay: Stay, phase: Phase[Any], env: Env) -> None:
        self.stay, self._phase, self._env = stay, phase, env
        self.cancelled = Cancellation()
        if env.cancelled is not None:
            env.cancelled.lead(self.cancelled)
        self.held: Held | None = None
        self.refused: StoreError | None = None
        self._latest: Progress | Kept = KEEP
        self._shown = env.runtime.monotonic()
        self._showing: asyncio.Task[None] | None = None

    async def log(self, message: str, level: Level) -> None:
        entry = LogEntry(self._env.runtime.now(), clean_text(message), self.stay.phase, level)
        await self._hold(self.stay.outcome(hold=True, log=(entry,), progress=self._latest, durable=False))

    async def save(self, state: Any, note: str | None) -> Checkpoint[Any]:
        packed = replace(self.stay.checkpoint, state=self._phase.state.pack(state, self._phase.name))
        log = () if note is None else (LogEntry(self._env.runtime.now(), clean_text(note), self.stay.phase),)
        await self._hold(self.stay.outcome(hold=True, checkpoint=packed, log=log, progress=self._latest))
        self.stay = replace(self.stay, checkpoint=packed)
        return replace(packed, state=state)

    def progress(self, progress: Progress) -> None:
        self._latest = progress
        if self.held is not None:
            self.held.progress = progress
        due = self._env.runtime.monotonic() - self._shown >= PROGRESS_EVERY
        if committing(self._env.storage) is not None and due and (self._showing is None or self._showing.done()):
            self._shown = self._env.runtime.monotonic()
            self._showing = self._env.runtime.spawn(self._show(), name="perdure-pipeline-progress")

    async def _show(self) -> None:
        try:
            await self._hold(self.stay.outcome(hold=True, progress=self._latest, durable=False))
        except JobLost:
            pass  # the phase hears of it from its own next write
        except Exception:
            pass  # progress is for people to look at; it fails nothing

    async def close(self) -> None:
        """Let a write under way finish, so that it can't come after the outcome's."""
        if self._showing is not None:
            await asyncio.wait([self._showing])

    async def _hold(self, outcome: Outcome) -> None:
        try:
            version = await self._env.write(outcome, self.stay.checkpoint)
        except StoreError as error:
            self.refused = error
            raise
        if version is None:
            raise JobLost
        self.stay = replace(self.stay, version=version)
