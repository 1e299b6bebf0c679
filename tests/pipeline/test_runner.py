"""What a pipeline does, on every storage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from pipeline_worlds import START, Open
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure.core.errors import Conflict
from perdure.pipeline import (
    Checkpoint,
    Done,
    Error,
    InvalidPipelineError,
    InvalidStateError,
    JobConflictError,
    JobNotDoneError,
    JobNotFoundError,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    Retry,
    RetryPolicy,
    Wait,
    get_output,
    phase,
    resolve_start_phase,
    retry_job,
)


@dataclass
class Count:
    n: int = 0


class Runs:
    """How often each phase ran, over all crashes and retries."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.broken: set[str] = set()

    def chain(self, *names: str) -> list[Phase[Count]]:
        """Phases that add one and go on to the next; those in `broken` raise."""
        return [self._one(name, names[at + 1] if at + 1 < len(names) else None) for at, name in enumerate(names)]

    def _one(self, name: str, after: str | None) -> Phase[Count]:
        async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            self.seen.append(name)
            if name in self.broken:
                raise ValueError(f"{name} is broken")
            state = Count(ctx.state.n + 1)
            return Done(state) if after is None else Next(after, state)

        return Phase(name, run)


async def test_a_pipeline_runs_its_phases_in_order_and_keeps_the_output(world_of: Open) -> None:
    """Start, drain, read: the state goes from phase to phase and the last one's output is kept."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b", "c"))
        await world.start("j", Count(1))
        job = await world.job("j")
        assert (job.status, job.error, runs.seen) == ("running", None, [])
        assert job.checkpoint is not None
        assert (job.checkpoint.next_phase, job.checkpoint.state, job.checkpoint.created_at) == ("a", {"n": 1}, START)

        assert await world.drain() == []

        job = await world.job("j")
        assert (job.status, job.checkpoint, job.error, runs.seen) == ("complete", None, None, ["a", "b", "c"])
        if world.kind != "plain":
            assert await get_output("j", world.storage) == {"n": 4}


async def test_an_output_needs_a_complete_job(world_of: Open) -> None:
    """An unknown job, and one that is not done, each have their own error."""
    async with world_of() as world:
        world.use(*Runs().chain("a"))
        with pytest.raises(JobNotFoundError):
            await get_output("j", world.storage)
        await world.start("j", Count())
        with pytest.raises(JobNotDoneError) as caught:
            await get_output("j", world.storage)
        assert caught.value.details["status"] == "running"


async def test_an_advance_of_anything_that_does_not_run_is_quiet(world_of: Open) -> None:
    """No job, no checkpoint, or another status than running: nothing happens."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a"))
        assert await world.advance("nobody") == "idle"
        await world.storage.set_status("idle", "idle")
        await world.storage.set_status("bare", "running")
        assert await world.advance("idle") == "idle"
        assert await world.advance("bare") == "idle"
        for status in ("complete", "error", "paused"):
            await world.storage.set_status(status, status)
            await world.storage.set_checkpoint(status, Checkpoint("a", {"n": 1}, START))
            assert await world.advance(status) == "idle"
        assert runs.seen == []


async def test_a_returned_error_keeps_the_checkpoint(world_of: Open) -> None:
    """Status `error` with the message; the checkpoint stays where the phase was entered."""

    @phase
    async def fails(ctx: PhaseContext[Count]) -> Error:
        return Error("the scan is unreadable")

    async with world_of() as world:
        world.use(fails)
        await world.start("j", Count(5))
        assert await world.drain() == []
        job = await world.job("j")
        assert (job.status, job.error) == ("error", "the scan is unreadable")
        assert job.checkpoint is not None and (job.checkpoint.next_phase, job.checkpoint.state) == ("fails", {"n": 5})


async def test_an_exception_is_logged_recorded_and_raised(world_of: Open) -> None:
    """The same as an error, with a log entry, and `PhaseError` for the caller."""
    async with world_of() as world:
        runs = Runs()
        runs.broken = {"b"}
        world.use(*runs.chain("a", "b"))
        await world.start("j", Count(1))
        [failure] = await world.drain()
        assert (failure.job_id, failure.phase, failure.recoverable, failure.code) == ("j", "b", True, "phase_error")
        assert isinstance(failure.__cause__, ValueError)
        job = await world.job("j")
        assert (job.status, job.error) == ("error", 'Phase "b" threw: ValueError: b is broken')
        assert job.checkpoint is not None and (job.checkpoint.next_phase, job.checkpoint.state) == ("b", {"n": 2})
        last = (await world.log("j"))[-1]
        assert last.message.startswith('Phase "b" threw: ') and (last.level, last.phase) == ("error", "b")


async def test_a_retry_clears_the_stale_error_at_once(world_of: Open) -> None:
    """Between the retry and its advance the job says `running` and no error."""
    async with world_of() as world:
        runs = Runs()
        runs.broken = {"a"}
        world.use(*runs.chain("a"))
        await world.start("j", Count())
        await world.drain()
        await world.start("j", Count(), "resume")
        job = await world.job("j")
        assert (job.status, job.error) == ("running", None)


# case O1
async def test_resume_runs_the_failed_phase_and_those_after_it(world_of: Open) -> None:
    """Five phases, the fourth fails: resume runs 4 and 5, full runs all."""
    async with world_of() as world:
        runs = Runs()
        runs.broken = {"d"}
        world.use(*runs.chain("a", "b", "c", "d", "e"))
        await world.start("j", Count(0))
        await world.drain()
        assert runs.seen == ["a", "b", "c", "d"]
        runs.broken.clear()
        runs.seen.clear()
        await world.start("j", Count(99), "resume")
        assert await world.drain() == []
        assert runs.seen == ["d", "e"]
        assert (await world.job("j")).status == "complete"
        if world.kind != "plain":
            assert await get_output("j", world.storage) == {"n": 5}

        runs.seen.clear()
        await world.start("j", Count(10), "full")
        assert await world.drain() == []
        assert runs.seen == ["a", "b", "c", "d", "e"]
        if world.kind != "plain":
            assert await get_output("j", world.storage) == {"n": 15}


# case O1
async def test_a_complete_job_starts_again_from_a_named_phase_with_what_it_had(full_world_of: Open) -> None:
    """From phase 3 of a completed pipeline: what phases 1 and 2 made is used as it was."""
    async with full_world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b", "c", "d", "e"))
        await world.start("j", Count(0))
        await world.drain()
        runs.seen.clear()
        await retry_job("j", world.phases, world.storage, world.scheduler, from_phase="c", runtime=world.clock)
        await world.drain()
        assert runs.seen == ["c", "d", "e"]
        assert await get_output("j", world.storage) == {"n": 5}
        runs.seen.clear()
        await retry_job("j", world.phases, world.storage, world.scheduler, "full", runtime=world.clock)
        await world.drain()
        assert runs.seen == ["a", "b", "c", "d", "e"]


async def test_a_storage_without_old_states_takes_the_state_of_a_named_phase_from_the_caller(world_of: Open) -> None:
    """`initial_phase` with `full`, and `state=` of `retry_job`, work on every storage."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b", "c"))
        await world.start("j", Count(0))
        await world.drain()
        runs.seen.clear()
        await world.start("j", Count(7), "full", "b")
        await world.drain()
        await retry_job("j", world.phases, world.storage, world.scheduler, from_phase="c", state=Count(9), runtime=world.clock)
        await world.drain()
        assert runs.seen == ["b", "c", "c"]
        if not world.full:
            with pytest.raises(InvalidPipelineError, match="pass `state=`"):
                await retry_job("j", world.phases, world.storage, world.scheduler, from_phase="c", runtime=world.clock)


async def test_the_start_phase_is_a_function_of_mode_and_checkpoint() -> None:
    """All six cases."""
    at = Checkpoint("b", None, START)
    assert resolve_start_phase("resume", at, "a") == "b"
    assert resolve_start_phase("full", at, "a") == "a"
    assert resolve_start_phase(None, at, "a") == "b"
    for mode in ("resume", "full", None):
        assert resolve_start_phase(mode, None, "a") == "a"


async def test_no_mode_resumes_where_there_is_a_checkpoint_and_else_starts_fresh(world_of: Open) -> None:
    """A failed job goes on, a complete one starts anew with the state that is given."""
    async with world_of() as world:
        runs = Runs()
        runs.broken = {"b"}
        world.use(*runs.chain("a", "b"))
        await world.start("j", Count(0))
        await world.drain()
        runs.broken.clear()
        await world.start("j", Count(50))
        await world.drain()
        assert runs.seen == ["a", "b", "b"]
        await world.start("j", Count(50))
        await world.drain()
        assert runs.seen == ["a", "b", "b", "a", "b"]
        if world.kind != "plain":
            assert await get_output("j", world.storage) == {"n": 52}


async def test_a_complete_jobs_leftover_checkpoint_is_ignored(world_of: Open) -> None:
    """As a crash between "complete" and "clear" leaves it."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b"))
        await world.storage.set_status("j", "complete")
        await world.storage.set_checkpoint("j", Checkpoint("b", {"n": 41}, START))
        assert await world.advance("j") == "idle"
        await world.start("j", Count(0))
        await world.drain()
        assert runs.seen == ["a", "b"]


async def test_a_start_while_running_is_refused_without_a_mode(world_of: Open) -> None:
    """`conflict`, and nothing was written or scheduled."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b"))
        await world.start("j", Count(1))
        before = await world.job("j")
        with pytest.raises(JobConflictError) as caught:
            await world.start("j", Count(9))
        assert isinstance(caught.value, Conflict) and caught.value.code == "conflict"
        assert await world.job("j") == before
        await world.drain()
        assert runs.seen == ["a", "b"]


@pytest.mark.parametrize("mode", ["resume", "full"])
async def test_a_retry_of_an_unknown_job_is_refused(world_of: Open, mode: Any) -> None:
    """Nothing to retry: nothing is made."""
    async with world_of() as world:
        world.use(*Runs().chain("a"))
        with pytest.raises(JobNotFoundError):
            await world.start("j", Count(), mode)
        with pytest.raises(JobNotFoundError):
            await retry_job("j", world.phases, world.storage, world.scheduler, mode)
        assert await world.storage.get_job("j") is None


async def test_wrong_phases_are_refused_before_anything_is_written(world_of: Open) -> None:
    """None at all, two of one name, a start that does not exist."""
    async with world_of() as world:
        a, b = Runs().chain("a", "b")
        for phases, first in (([], None), ([a, b, a], None), ([a, b], "z")):
            world.phases = phases
            with pytest.raises(InvalidPipelineError):
                await world.start("j", Count(), None, first)
            if first is None:
                with pytest.raises(InvalidPipelineError):
                    await world.advance("j")
        assert await world.storage.get_job("j") is None


class Parsed(BaseModel):
    pages: int
    title: str


class Plainly(TypedDict):
    names: list[str]


async def test_a_state_that_does_not_validate_names_phase_and_field(world_of: Open) -> None:
    """At the start, before anything is written."""

    @phase
    async def read(ctx: PhaseContext[Parsed]) -> Done:
        return Done()

    async with world_of() as world:
        world.use(read)
        with pytest.raises(InvalidStateError) as caught:
            await world.start("j", {"pages": "many", "title": "x"})
        assert (caught.value.phase, caught.value.field, caught.value.code) == ("read", "$.pages", "invalid_state")
        with pytest.raises(InvalidStateError) as caught:
            await world.start("j", Parsed.model_construct(pages=3, title=object()))
        assert caught.value.phase == "read" and "title" in caught.value.field
        assert await world.storage.get_job("j") is None


async def test_any_type_that_pydantic_validates_is_a_state(world_of: Open) -> None:
    """A model, a dataclass, a `TypedDict`, plain JSON: each arrives as what its phase declares."""
    seen: list[Any] = []

    @phase
    async def model(ctx: PhaseContext[Parsed]) -> PhaseResult[Any]:
        seen.append(ctx.state)
        return Next("typed", {"names": ["x"]})

    @phase
    async def typed(ctx: PhaseContext[Plainly]) -> PhaseResult[Any]:
        seen.append(ctx.state)
        return Next(plain, [1, 2])

    @phase
    async def plain(ctx: PhaseContext[Any]) -> Done:
        seen.append(ctx.state)
        return Done(timedelta(seconds=1))

    async with world_of() as world:
        world.use(model, typed, plain)
        await world.start("j", Parsed(pages=1, title="t"))
        assert await world.drain() == []
        assert seen == [Parsed(pages=1, title="t"), {"names": ["x"]}, [1, 2]]


@pytest.mark.parametrize(
    ("result", "code", "says"),
    [
        (None, "invalid_result", 'Phase "bad" returned nothing; it must return Next, Done, Error, Wait or Retry'),
        ("next", "invalid_result", 'Phase "bad" returned a str;'),
        (Next("nowhere", Count(1)), "unknown_phase", 'Phase "bad" names an unknown next phase "nowhere"; known: bad, good'),
        (Next("good", Count("x")), "invalid_state", 'State for phase "good" is not valid at $.n'),  # type: ignore[arg-type]
        (Next("good", {"n": 1, "lock": object()}), "invalid_state", 'State for phase "good" is not valid at $.lock'),
        (Done(open), "unserializable", 'Phase "bad" gave something that can\'t be stored'),
    ],
)
async def test_a_result_that_cannot_be_taken_fails_the_job_and_keeps_its_checkpoint(world_of: Open, result: Any, code: str, says: str) -> None:
    """Named errors, and nothing half written."""

    async def run(ctx: PhaseContext[Count]) -> Any:
        return result

    async with world_of() as world:
        [good] = Runs().chain("good")
        world.use(Phase("bad", run, retry=RetryPolicy(attempts=5)), good)
        await world.start("j", Count(3))
        [failure] = await world.drain()
        assert failure.code == code and failure.message.startswith(says)
        job = await world.job("j")
        assert job.status == "error" and job.error is not None and job.error.startswith(says)
        assert job.checkpoint is not None and (job.checkpoint.next_phase, job.checkpoint.state) == ("bad", {"n": 3})


async def test_an_unknown_phase_in_the_checkpoint_fails_the_job_and_says_which(world_of: Open) -> None:
    """As after a deploy that renamed a phase: quiet for the caller, and a retry after the next deploy goes on."""
    async with world_of() as world:
        old, new = Runs().chain("a", "old"), Runs().chain("a", "new")
        world.use(*old)
        await world.start("j", Count(1))
        await world.advance("j")
        world.phases = new
        assert await world.drain() == []
        job = await world.job("j")
        assert (job.status, job.error) == ("error", 'Unknown phase "old"; known: a, new')
        world.phases = old
        await world.start("j", Count(), "resume")
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def test_a_stored_state_that_no_longer_fits_fails_the_job_by_name(world_of: Open) -> None:
    """As after a deploy that changed the state's type."""
    ran: list[int] = []

    @phase
    async def read(ctx: PhaseContext[Parsed]) -> Done:
        ran.append(1)
        return Done()

    async with world_of() as world:
        world.use(read)
        await world.storage.set_status("j", "running")
        await world.storage.set_checkpoint("j", Checkpoint("read", {"pages": 1}, START))
        with pytest.raises(Exception, match=r'State for phase "read" is not valid at \$\.title'):
            await world.advance("j")
        assert (await world.job("j")).status == "error" and ran == []


async def test_saved_state_is_what_a_phase_is_entered_with_again(world_of: Open) -> None:
    """`save_state` in the middle, then a failure: the retry enters the same phase with the saved state."""
    entered: list[int] = []

    @phase
    async def long(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        entered.append(ctx.state.n)
        if ctx.state.n < 3:
            await ctx.save_state(Count(ctx.state.n + 1))
            assert ctx.state.n == entered[-1] + 1
            raise RuntimeError("cut off")
        return Done(ctx.state)

    async with world_of() as world:
        world.use(long)
        await world.start("j", Count(0))
        for _ in range(3):
            assert len(await world.drain()) == 1
            await world.start("j", Count(0), "resume")
        assert await world.drain() == []
        assert entered == [0, 1, 2, 3]


async def test_a_state_that_cannot_be_saved_leaves_the_one_before(world_of: Open) -> None:
    """The phase hears of it, and what was stored stands."""

    @phase
    async def long(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        with pytest.raises(InvalidStateError):
            await ctx.save_state(Count("many"))  # type: ignore[arg-type]
        return Error("stopped")

    async with world_of() as world:
        world.use(long)
        await world.start("j", Count(4))
        await world.drain()
        job = await world.job("j")
        assert job.checkpoint is not None and job.checkpoint.state == {"n": 4}


async def test_the_log_is_in_order_with_phase_and_level(world_of: Open) -> None:
    """`info` unless told otherwise."""

    @phase
    async def talk(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        await ctx.log("one")
        await ctx.log("two", "warn")
        await ctx.log("three", "error")
        return Done()

    async with world_of() as world:
        world.use(talk)
        await world.start("j", Count())
        await world.drain()
        assert [(e.message, e.phase, e.level, e.timestamp) for e in await world.log("j")] == [
            ("one", "talk", "info", START), ("two", "talk", "warn", START), ("three", "talk", "error", START),
        ]  # fmt: skip


async def test_a_full_restart_clears_the_log_and_a_resume_keeps_it(world_of: Open) -> None:
    """A new life has its own log."""
    async with world_of() as world:
        runs = Runs()
        runs.broken = {"a"}
        world.use(*runs.chain("a"))
        await world.start("j", Count())
        await world.drain()
        await world.start("j", Count(), "resume")
        await world.drain()
        assert len(await world.said("j")) == 2
        await world.start("j", Count(), "full")
        assert await world.said("j") == ["Started again from a"]


async def test_a_policy_tries_again_later_and_stays_running_until_the_last_try(world_of: Open) -> None:
    """Three tries, the pauses doubled, each logged as thrown; then the error."""
    tries: list[tuple[int, float]] = []

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        tries.append((ctx.attempt, (world.clock.now() - START).total_seconds()))
        raise ConnectionError("no route")

    async with world_of() as world:
        world.use(Phase("flaky", run, retry=RetryPolicy(attempts=3, backoff=timedelta(seconds=10), on=(OSError,))))
        await world.start("j", Count())
        assert await world.drain() == []
        assert ((await world.job("j")).status, tries) == ("running", [(1, 0)])
        world.clock.advance(9)
        await world.drain()
        assert len(tries) == 1
        world.clock.advance(1)
        await world.drain()
        assert ((await world.job("j")).status, (await world.job("j")).error) == ("running", None)
        world.clock.advance(20)
        [failure] = await world.drain()
        assert failure.phase == "flaky" and tries == [(1, 0), (2, 10), (3, 30)]
        job = await world.job("j")
        assert (job.status, job.error) == ("error", 'Phase "flaky" threw: ConnectionError: no route (try 3 of 3)')
        thrown = [entry for entry in await world.log("j") if entry.level == "error"]
        assert len(thrown) == 3 and all(entry.message.startswith('Phase "flaky" threw: ') for entry in thrown)


async def test_an_early_duplicate_does_not_shorten_the_pause(world_of: Open) -> None:
    """An advance that comes before the back-off is over runs nothing and asks for another."""
    runs: list[int] = []

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        runs.append(1)
        raise ConnectionError

    async with world_of() as world:
        world.use(Phase("flaky", run, retry=RetryPolicy(attempts=9, backoff=timedelta(minutes=1))))
        await world.start("j", Count())
        await world.drain()
        for _ in range(5):
            assert await world.advance("j") == "early"
        assert runs == [1]
        world.clock.advance(60)
        await world.drain()
        assert runs == [1, 1]


async def test_an_exception_outside_the_policy_fails_at_once(world_of: Open) -> None:
    """Only the listed classes are worth another try."""

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        raise KeyError("account")

    async with world_of() as world:
        world.use(Phase("x", run, retry=RetryPolicy(attempts=5, on=(OSError,))))
        await world.start("j", Count())
        [failure] = await world.drain()
        assert failure.message == "Phase \"x\" threw: KeyError: 'account'"


async def test_a_resume_after_the_last_try_has_all_its_tries_again(world_of: Open) -> None:
    """The person who retries starts the count anew."""
    attempts: list[int] = []

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        attempts.append(ctx.attempt)
        raise ConnectionError

    async with world_of() as world:
        world.use(Phase("x", run, retry=RetryPolicy(attempts=2)))
        await world.start("j", Count())
        await world.drain_all()
        await world.start("j", Count(), "resume")
        await world.drain_all()
        assert attempts == [1, 2, 1, 2]


async def test_retry_asks_for_the_phase_again_after_a_while(world_of: Open) -> None:
    """Polling: the state as saved, no try spent where there is no policy."""
    seen: list[int] = []

    @phase
    async def poll(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        seen.append(ctx.state.n)
        if ctx.state.n == 3:
            return Done()
        await ctx.save_state(Count(ctx.state.n + 1))
        return Retry(30, "not there yet")

    async with world_of() as world:
        world.use(poll)
        await world.start("j", Count(0))
        await world.drain()
        assert seen == [0]
        for _ in range(3):
            world.clock.advance(30)
            await world.drain()
        assert seen == [0, 1, 2, 3] and (await world.job("j")).status == "complete"


async def test_retry_is_bounded_by_the_policy(world_of: Open) -> None:
    """With a policy each `Retry` is a try."""

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        return Retry(timedelta(seconds=1), "no answer")

    async with world_of() as world:
        world.use(Phase("poll", run, retry=RetryPolicy(attempts=3)))
        await world.start("j", Count())
        await world.drain_all()
        assert (await world.job("j")).error == 'Phase "poll" was not ready after 3 tries: no answer'


async def test_a_phase_that_takes_too_long_is_stopped(world_of: Open) -> None:
    """Its time-out is an exception like others, the cancellation signal says why."""
    signals: list[Any] = []

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        signals.append(ctx.cancelled)
        await asyncio.Event().wait()
        raise AssertionError

    async with world_of() as world:
        world.use(Phase("slow", run, timeout=0.01, retry=RetryPolicy(attempts=2, on=(TimeoutError,))))
        await world.start("j", Count())
        assert await world.drain() == []
        world.clock.advance(60)
        [failure] = await world.drain()
        assert failure.message == 'Phase "slow" threw: TimeoutError: it took longer than its 0.01 s (try 2 of 2)'
        assert [signal.reason for signal in signals] == ["timeout", "timeout"]


async def test_a_phases_own_timeout_error_is_not_ours(world_of: Open) -> None:
    """A `TimeoutError` that the phase raises within its time is said as it is."""

    async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        raise TimeoutError("the bank did not answer")

    async with world_of() as world:
        world.use(Phase("x", run, timeout=60))
        await world.start("j", Count())
        [failure] = await world.drain()
        assert failure.message == 'Phase "x" threw: TimeoutError: the bank did not answer'


async def test_the_signal_fires_once_the_phase_has_ended(world_of: Open) -> None:
    """A thread that the phase left behind can see that nobody waits for it."""
    kept: list[Any] = []

    @phase
    async def leaves(ctx: PhaseContext[Count]) -> Done:
        kept.append(ctx.cancelled)
        assert not ctx.cancelled.is_set()
        return Done()

    async with world_of() as world:
        world.use(leaves)
        await world.start("j", Count())
        await world.drain()
        assert kept[0].reason == "ended"


async def test_duplicate_advances_one_after_the_other_run_each_phase_once(world_of: Open) -> None:
    """Three schedules for each, and late ones at the end."""
    async with world_of() as world:
        runs = Runs()
        world.use(*runs.chain("a", "b", "c"))
        await world.start("j", Count(0))
        for _ in range(3):
            await world.scheduler.schedule_advance("j", timedelta(0))
        await world.drain()
        for _ in range(3):
            assert await world.advance("j") == "idle"
        assert runs.seen == ["a", "b", "c"]


async def test_duplicate_advances_at_the_same_moment_run_each_phase_once(world_of: Open) -> None:
    """While one is at work, others do nothing."""
    gate, started = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @phase
    async def slow(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        seen.append("slow")
        started.set()
        await gate.wait()
        return Next("after", ctx.state)

    @phase
    async def after(ctx: PhaseContext[Count]) -> Done:
        seen.append("after")
        return Done()

    async with world_of() as world:
        world.use(slow, after)
        await world.start("j", Count())
        first = asyncio.ensure_future(world.advance("j"))
        await started.wait()
        assert await asyncio.gather(*(world.advance("j") for _ in range(20))) == ["busy"] * 20
        gate.set()
        assert await first == "ran"
        await world.drain_all()
        assert seen == ["slow", "after"] and (await world.job("j")).status == "complete"


async def test_a_cancelled_advance_hands_the_job_back(world_of: Open) -> None:
    """Not failed, not held: the next advance enters the same phase with what was saved."""
    entered: list[int] = []
    started = asyncio.Event()

    @phase
    async def slow(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        entered.append(ctx.state.n)
        if ctx.state.n == 0:
            await ctx.save_state(Count(1))
            started.set()
            await asyncio.Event().wait()
        return Done()

    async with world_of() as world:
        world.use(slow)
        await world.start("j", Count(0))
        task = asyncio.ensure_future(world.advance("j"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await world.job("j")).status == "running"
        await world.drain()
        assert entered == [0, 1] and (await world.job("j")).status == "complete"


# case O5
async def test_the_key_of_a_phase_is_stable_until_a_new_life_begins(world_of: Open) -> None:
    """The same over tries and resumes; another in each phase, in each pass of a loop, and after a full retry."""
    keys: list[str] = []
    fail = {"on": True}

    @phase
    async def deed(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        keys.append(ctx.key)
        if fail["on"]:
            raise RuntimeError
        return Next("deed", Count(1)) if ctx.state.n == 0 else Done()

    async with world_of() as world:
        world.use(deed)
        await world.start("j", Count(0))
        await world.drain()
        await world.start("j", Count(0), "resume")
        await world.drain()
        fail["on"] = False
        await world.start("j", Count(0), "resume")
        await world.drain()
        assert keys[0] == keys[1] == keys[2] != keys[3]
        assert all(key.startswith("j:") for key in keys)
        await world.start("j", Count(0), "full")
        await world.drain()
        assert len(set(keys)) == 4


# case O5
async def test_resume_does_no_deed_of_a_finished_phase_again(world_of: Open) -> None:
    """A deed in phase 1, a failure in phase 4, resume: the ledger has one entry; full: one more, under a new key."""
    ledger: dict[str, int] = {}
    fail = {"on": True}

    @phase
    async def pay(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        ledger[ctx.key] = ledger.get(ctx.key, 0) + 1
        return Next("two", ctx.state)

    runs = Runs()

    @phase
    async def last(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
        if fail["on"]:
            raise RuntimeError("later")
        return Done()

    two, _ = runs.chain("two", "three")
    three = Phase("three", lambda ctx: _to("last", ctx), state=Count)
    async with world_of() as world:
        world.use(pay, two, three, last)
        await world.start("j", Count(0))
        await world.drain()
        fail["on"] = False
        await world.start("j", Count(0), "resume")
        await world.drain()
        assert list(ledger.values()) == [1]
        await world.start("j", Count(0), "full")
        await world.drain()
        assert list(ledger.values()) == [1, 1]


async def _to(name: str, ctx: PhaseContext[Count]) -> PhaseResult[Count]:
    return Next(name, ctx.state)


async def test_jobs_are_apart(world_of: Open) -> None:
    """Twenty jobs of one pipeline, some failing: each has its own end."""
    async with world_of() as world:

        @phase
        async def odd(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            return Error("odd") if ctx.state.n % 2 else Done(ctx.state.n)

        world.use(odd)
        for n in range(20):
            await world.start(f"job-{n}", Count(n))
        await world.drain()
        for n in range(20):
            assert (await world.job(f"job-{n}")).status == ("error" if n % 2 else "complete")


def test_a_local_state_type_is_asked_for_by_name() -> None:
    """An annotation that can't be resolved says what to do."""
    with pytest.raises(InvalidPipelineError, match="pass `state=`"):

        class Local(BaseModel):
            n: int

        @phase
        async def p(ctx: PhaseContext[Local]) -> Done:
            return Done()


def test_results_can_be_made_with_their_type_said() -> None:
    """As a type checker may want it."""
    assert Next[Count]("a", Count(1)) == Next("a", Count(1))
    assert Checkpoint[Count]("a", Count(1), START).state == Count(1) and Wait[Count](state=Count(2)).state == Count(2)


def test_a_policy_knows_its_pauses() -> None:
    """Doubling up to the longest, with jitter on top; never an overflow."""
    policy = RetryPolicy(attempts=2000, backoff=timedelta(seconds=1), longest=timedelta(seconds=60), jitter=0.5)
    assert [policy.delay(n, 0.0).total_seconds() for n in (1, 2, 3, 10, 1999)] == [1, 2, 4, 60, 60]
    assert policy.delay(1, 0.999).total_seconds() == pytest.approx(1.4995)
    with pytest.raises(InvalidPipelineError):
        RetryPolicy(attempts=0)


async def test_what_the_storage_hands_out_is_a_copy(world_of: Open) -> None:
    """Changing a record changes nothing that is stored."""
    async with world_of() as world:
        world.use(*Runs().chain("a"))
        await world.start("j", Count(1))
        job = await world.job("j")
        assert job.checkpoint is not None
        job.checkpoint.state["n"] = 99
        again = await world.job("j")
        assert again.checkpoint is not None and again.checkpoint.state == {"n": 1}
        assert replace(again.checkpoint, state=None) == replace(job.checkpoint, state=None)
