"""Cancel, retry, sweep and signals: what moves a run that nobody runs (tables R and W)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure.core.budget import Budget
from perdure.core.commit import CancelRequest, Park, Release, ResolveOutcome, RetryRequest, Settle, Signal
from perdure.core.effect import EffectState
from perdure.core.errors import Conflict, RunNotFoundError
from perdure.core.limits import SIGNALS_MAX
from perdure.core.run import Activity, RunStatus, moves_from
from perdure.core.wait import ResolutionKind
from perdure.testing.conformance._bench import DRAIN, LATER, LEASE, Bench, Owner, approval, effect, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

MINUTE = timedelta(minutes=1)


class CancelConformance(Conformance):
    """`cancel`."""

    @pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.INTERRUPTED, RunStatus.WAITING])
    async def test_a_resting_run_is_cancelled_at_once(self, kit: Kit, status: RunStatus) -> None:
        """One terminal event, with who asked and why."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status)
            told = await store.cancel(CancelRequest("r1", reason="No longer needed.", by="ana"))
            assert (told.outcome, told.status) == ("settled", RunStatus.CANCELLED)
            run = await bench.run()
            assert (run.status, run.settlement, run.cancel_requested) == (RunStatus.CANCELLED, 1, False)
            last = (await store.events("r1"))[-1]
            assert (last.type, last.data["reason"], last.data["by"]) == ("run.settled", "No longer needed.", "ana")

    async def test_a_running_run_is_asked_to_stop(self, kit: Kit) -> None:
        """Its owner hears with every write; the request is recorded once."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            assert [await bench.cancel(), await bench.cancel()] == ["cancelling", "cancelling"]
            assert (await bench.run()).cancel_requested
            assert (await bench.events()).count("run.cancel_requested") == 1
            assert (await owner.commit()).cancel_requested
            assert (await owner.commit(ending=Settle(RunStatus.CANCELLED))).status is RunStatus.CANCELLED

    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
    async def test_a_final_run_stays_as_it_ended(self, kit: Kit, status: RunStatus) -> None:
        """`already`, and how it had ended."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status)
            before = await bench.run()
            told = await store.cancel(CancelRequest("r1"))
            assert (told.outcome, told.status) == ("already", status)
            assert await bench.run() == before

    async def test_a_dead_owners_run_is_cancelled_by_the_sweep(self, kit: Kit) -> None:
        """Not poisoned either, however many deaths there were."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            await bench.cancel()
            kit.advance(LATER)
            swept = await bench.sweep(deaths_max=1)
            assert (swept.recovered, swept.poisoned) == (("r1",), ())
            assert await bench.status() is RunStatus.CANCELLED

    async def test_a_repeated_cancel_does_not_cancel_the_next_life(self, kit: Kit) -> None:
        """It names the settlement that it meant."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            assert await bench.cancel(settlement=0) == "settled"
            await bench.retry()
            assert await bench.cancel(settlement=0) == "already"
            assert await bench.status() is RunStatus.PENDING
            assert await bench.cancel(settlement=1) == "settled"

    async def test_unfinished_children_are_listed(self, kit: Kit) -> None:
        """For the engine to cancel; settled ones and forks are not."""  # case G2
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            for run_id in ("r2", "r3", "r4"):
                await bench.admit(run_id, parent_run="r1")
            await bench.admit("fork", parent_run="r1", source="fork")
            await bench.admit("grandchild", parent_run="r2")
            await (await bench.own("r3")).complete()
            told = await store.cancel(CancelRequest("r1"))
            assert sorted(told.children) == ["r2", "r4"]

    async def test_a_run_that_is_not_there_can_not_be_cancelled(self, kit: Kit) -> None:
        """The id must be known."""
        async with kit.open() as store:
            with pytest.raises(RunNotFoundError):
                await store.cancel(CancelRequest("nobody"))


class RetryConformance(Conformance):
    """`retry`."""

    async def test_resume_goes_on_in_the_same_generation(self, kit: Kit) -> None:
        """Error, output, end and deaths are gone; usage, log and epoch go on."""  # case O1
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.fail()
            told = await store.retry(RetryRequest("r1", "resume", 1))
            run = told.run
            assert (told.outcome, run.status, run.generation, run.epoch, run.settlement) == ("retried", RunStatus.PENDING, 1, 1, 1)
            assert (run.error, run.output, run.finish_reason, run.finished_at, run.deaths) == (None, None, None, None, 0)
            assert run == await bench.run()
            last = (await store.events("r1"))[-1]
            assert (last.type, last.data["mode"], last.data["settlement"]) == ("run.retried", "resume", 1)
            assert await bench.claim() == ["r1"]

    async def test_full_starts_the_next_generation(self, kit: Kit) -> None:
        """From the trigger."""  # case O1
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).fail()
            assert await bench.retry(mode="full") == "retried"
            assert (await bench.run()).generation == 2

    @pytest.mark.parametrize("mode", ["resume", "full"])
    async def test_a_retry_forgets_the_deaths(self, kit: Kit, mode: str) -> None:
        """The new life has as many of them before it as the first one had."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            kit.advance(LATER)
            await bench.sweep(deaths_max=1)
            assert await bench.status() is RunStatus.FAILED
            await bench.retry(mode=mode)
            assert (await bench.run()).deaths == 0

    async def test_a_cancelled_run_can_be_retried(self, kit: Kit) -> None:
        """The cancel was for the life that ended."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await bench.cancel()
            await owner.commit(ending=Park())
            assert await bench.retry() == "retried"
            run = await bench.run()
            assert (run.status, run.cancel_requested) == (RunStatus.PENDING, False)

    async def test_a_repeated_retry_starts_one_life(self, kit: Kit) -> None:
        """It names the settlement that it answers: another one there, or none, is told `already`."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).fail()
            assert await bench.retry(mode="full", settlement=1) == "retried"
            assert await bench.retry(mode="full", settlement=1) == "already"
            owner = await bench.own()
            assert await bench.retry(mode="full", settlement=1) == "already"
            await owner.fail()
            assert await bench.retry(mode="full", settlement=1) == "already"
            assert (await bench.run()).generation == 2
            assert await bench.retry(mode="full", settlement=2) == "retried"

    async def test_of_retries_at_once_one_starts_a_life(self, kit: Kit) -> None:
        """The others are told."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            await (await bench.start()).fail()
            told = await asyncio.gather(*(store.retry(RetryRequest("r1", "full", 1)) for store in [one, two] * 5))
            assert [each.outcome for each in told].count("retried") == 1
            assert (await bench.run()).generation == 2

    @pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.INTERRUPTED, RunStatus.COMPLETED])
    async def test_only_a_failed_or_cancelled_run_can_be_retried(self, kit: Kit, status: RunStatus) -> None:
        """The others are a conflict, and stay as they are."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status)
            before = await bench.run()
            with pytest.raises(Conflict):
                await bench.retry()
            assert await bench.run() == before

    async def test_a_settlement_of_the_future_is_a_conflict(self, kit: Kit) -> None:
        """Nobody can have seen it."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).fail()
            with pytest.raises(Conflict):
                await bench.retry(settlement=2)

    async def test_a_passed_deadline_must_be_replaced(self, kit: Kit) -> None:
        """Else the sweep would end the new life at once."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit(budget=Budget(deadline=MINUTE))
            kit.advance(LATER)
            await bench.sweep()
            with pytest.raises(Conflict):
                await bench.retry()
            assert await bench.retry(deadline=LATER) == "retried"
            run = await bench.run()
            assert run.deadline is not None and run.deadline > await store.now()
            assert (await bench.sweep()).count == 0

    async def test_a_new_budget_replaces_the_old_one(self, kit: Kit) -> None:
        """`retry(budget=…)` goes on where the old one ended."""  # case K3
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).fail("budget_exceeded")
            await bench.retry(budget=Budget(max_steps=99))
            assert (await bench.run()).budget.max_steps == 99

    async def test_a_retry_is_available_at_once(self, kit: Kit) -> None:
        """Whatever the old life was put off until."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(ending=Release("retry_after", LATER))
            await bench.cancel()
            await bench.retry()
            assert await bench.claim() == ["r1"]

    async def test_a_run_that_is_not_there_can_not_be_retried(self, kit: Kit) -> None:
        """The id must be known."""
        async with kit.open() as store:
            with pytest.raises(RunNotFoundError):
                await store.retry(RetryRequest("nobody", "resume", 1))


class SweepConformance(Conformance):
    """`sweep`."""

    async def test_a_live_lease_is_left_alone(self, kit: Kit) -> None:
        """Before its end by the store's clock nothing is taken."""  # case H5
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            kit.advance(timedelta(seconds=20))
            assert (await bench.sweep()).count == 0
            await store.renew([owner.lease], LEASE)
            kit.advance(timedelta(seconds=20))
            assert (await bench.sweep()).count == 0
            assert await bench.status() is RunStatus.RUNNING

    async def test_an_expired_lease_is_recovered(self, kit: Kit) -> None:
        """One more death; the run can be claimed under a new epoch, and the log says so."""  # case H9
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            kit.advance(LATER)
            assert (await bench.sweep()).recovered == ("r1",)
            run = await bench.run()
            assert (run.status, run.deaths, run.lease_owner, run.epoch) == (RunStatus.PENDING, 1, None, 1)
            last = (await store.events("r1"))[-1]
            assert (last.type, last.data["worker"], last.data["deaths"]) == ("run.recovered", "worker-1", 1)
            assert (await bench.own()).epoch == 2

    async def test_sweeps_at_once_count_one_death(self, kit: Kit) -> None:
        """Any number of replicas may tick at the same moment."""  # case H7
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            for at in range(6):
                await bench.start(f"r{at}")
            kit.advance(LATER)
            swept = await asyncio.gather(*(Bench(store).sweep() for store in [one, two] * 4))
            assert sorted(run_id for each in swept for run_id in each.recovered) == [f"r{at}" for at in range(6)]
            assert [(await bench.run(f"r{at}")).deaths for at in range(6)] == [1] * 6

    async def test_a_poison_run_is_failed_with_what_it_did_last(self, kit: Kit) -> None:
        """At the limit of deaths in a row."""  # case H11
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            for death in (1, 2):
                owner = await bench.own()
                activity = Activity(3, "tool boom", await store.now())
                await store.renew([type(owner.lease)("r1", owner.epoch, owner.token, activity)], LEASE)
                kit.advance(LATER)
                swept = await bench.sweep(deaths_max=2)
                assert swept.poisoned == (("r1",) if death == 2 else ())
            run = await bench.run()
            assert (run.status, run.deaths, run.settlement) == (RunStatus.FAILED, 2, 1)
            assert run.error is not None and run.error.code == "poisoned"
            assert run.error.details["activity"]["what"] == "tool boom"

    async def test_a_drain_a_park_and_a_retry_are_no_deaths(self, kit: Kit) -> None:
        """Only a lease that ran out is."""  # case A10 H11
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            for ending in (DRAIN, Park(), Release("retry_after")):
                await (await bench.own()).commit(ending=ending)
            await (await bench.own()).fail()
            await bench.retry()
            assert (await bench.run()).deaths == 0

    async def test_a_swept_run_waits_while_a_row_is_open(self, kit: Kit) -> None:
        """Its owner died after asking: the question stands."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval(),))
            kit.advance(LATER)
            await bench.sweep()
            assert await bench.status() is RunStatus.WAITING
            assert (await bench.events())[-2:] == ["run.recovered", "run.waiting"]

    @pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.INTERRUPTED, RunStatus.WAITING])
    async def test_a_resting_run_past_its_deadline_fails(self, kit: Kit, status: RunStatus) -> None:
        """`deadline`, and nothing before it."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status, budget=Budget(deadline=timedelta(minutes=30)))
            assert (await bench.sweep()).count == 0
            kit.advance(LATER)
            assert (await bench.sweep()).deadlines == ("r1",)
            run = await bench.run()
            assert (run.status, run.error and run.error.code) == (RunStatus.FAILED, "deadline")

    async def test_a_running_run_past_its_deadline_is_its_owners_to_stop(self, kit: Kit) -> None:
        """The sweep leaves it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start(budget=Budget(deadline=MINUTE))
            kit.advance(LATER)
            await store.renew([owner.lease], LEASE)
            assert (await bench.sweep()).count == 0
            assert await bench.status() is RunStatus.RUNNING

    @pytest.mark.parametrize("status", list(RunStatus))
    async def test_nothing_due_is_nothing_done(self, kit: Kit, status: RunStatus) -> None:
        """A sweep of a run in any status changes nothing before its time."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status)
            before = await store.load("r1")
            assert (await bench.sweep()).count == 0
            assert await store.load("r1") == before

    async def test_a_pass_is_bounded_and_says_when_the_next_is_due(self, kit: Kit) -> None:
        """At most `limit` of each kind; what is left is due at once."""
        async with kit.open() as store:
            bench = Bench(store)
            for at in range(5):
                await bench.start(f"r{at}")
            kit.advance(LATER)
            first = await bench.sweep(limit=2)
            assert len(first.recovered) == 2
            assert first.next_due is not None and first.next_due <= await store.now()
            assert len((await bench.sweep(limit=2)).recovered) == 2
            assert len((await bench.sweep(limit=2)).recovered) == 1
            assert (await bench.sweep()).next_due is None

    async def test_the_next_due_time_is_the_nearest_of_all(self, kit: Kit) -> None:
        """Of leases, rows and deadlines."""
        async with kit.open() as store:
            bench = Bench(store)
            now = await store.now()
            assert (await bench.sweep()).next_due is None
            await bench.admit("r1", budget=Budget(deadline=LATER))
            due = (await bench.sweep()).next_due
            assert due is not None and due >= now + LATER
            await (await bench.start("r2")).park(approval(expires_at=now + 10 * MINUTE))
            assert (await bench.sweep()).next_due == now + 10 * MINUTE
            await bench.start("r3")
            assert (await bench.sweep()).next_due == (await bench.run("r3")).lease_expires_at


class SignalConformance(Conformance):
    """`signal`: a durable inbox, deduplicated, bounded, ordered (P7)."""

    async def test_a_signal_resolves_the_row_that_waits_for_it(self, kit: Kit) -> None:
        """By name, with its payload."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(wait_row("w1", kind="event", name="paid"), wait_row("w2", kind="event", name="shipped"))
            assert await store.signal(Signal("s1", "r1", "shipped", {"by": "post"}))
            assert [(await bench.wait(wait_id)).open for wait_id in ("w1", "w2")] == [True, False]
            answer = (await bench.wait("w2")).resolution
            assert answer is not None and (answer.kind, answer.value) == (ResolutionKind.EVENT, {"by": "post"})
            assert await bench.status() is RunStatus.WAITING
            await store.signal(Signal("s2", "r1", "paid"))
            assert await bench.status() is RunStatus.PENDING
            assert (await bench.events())[-2:] == ["signal.received", "wait.resolved"]

    async def test_a_signal_takes_the_oldest_row(self, kit: Kit) -> None:
        """One signal, one row."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(*(wait_row(f"w{at}", kind="event", name="paid") for at in range(3)))
            for at in range(3):
                await store.signal(Signal(f"s{at}", "r1", "paid", at))
            answers = [(await bench.wait(f"w{at}")).resolution for at in range(3)]
            assert [answer and answer.value for answer in answers] == [0, 1, 2]

    @pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.COMPLETED])
    async def test_a_signal_that_comes_first_waits_in_the_inbox(self, kit: Kit, status: RunStatus) -> None:
        """In any status but completed; the row that opens later takes the oldest."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.in_status(status)
            assert await store.signal(Signal("s1", "r1", "paid", 1))
            assert await store.signal(Signal("s2", "r1", "paid", 2))
            if status in (RunStatus.FAILED, RunStatus.CANCELLED):
                await bench.retry()
            if status is RunStatus.WAITING:
                await bench.answer("w-r1")
            if status is RunStatus.RUNNING:
                kit.advance(LATER)
                await bench.sweep()
            owner = await bench.own()
            answer = await owner.park(*(wait_row(wait_id, kind="event", name="paid") for wait_id in ("w1", "w2")))
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w1", "w2"))
            values = [wait.resolution and wait.resolution.value for wait in [await bench.wait("w1"), await bench.wait("w2")]]
            assert values == [1, 2]

    async def test_a_signal_is_taken_once(self, kit: Kit) -> None:
        """The next row waits for the next one."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            await store.signal(Signal("s1", "r1", "paid"))
            owner = await bench.own()
            await owner.commit(waits=(wait_row("w1", kind="event", name="paid"),))
            assert (await owner.park(wait_row("w2", kind="event", name="paid"))).status is RunStatus.WAITING

    async def test_the_same_id_again_is_seen(self, kit: Kit) -> None:
        """A repeated signal counts once, also after it was taken; ids of two runs do not meet."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(wait_row("w1", kind="event", name="paid"), wait_row("w2", kind="event", name="paid"))
            await bench.admit("r2")
            assert [await store.signal(Signal("s1", run_id, "paid")) for run_id in ("r1", "r1", "r2")] == [True, False, True]
            assert [(await bench.wait(wait_id)).open for wait_id in ("w1", "w2")] == [False, True]
            assert (await bench.events()).count("signal.received") == 1

    async def test_of_one_signal_sent_at_once_one_is_kept(self, kit: Kit) -> None:
        """Two handles, one id."""
        async with kit.open() as one, kit.open() as two:
            await Bench(one).admit()
            told = await asyncio.gather(*(store.signal(Signal("s1", "r1", "paid")) for store in [one, two] * 5))
            assert told.count(True) == 1

    async def test_a_full_retry_puts_taken_signals_back_in_order(self, kit: Kit) -> None:
        """The new life finds what the old one used up; a resumed one does not."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            for at in range(3):
                await store.signal(Signal(f"s{at}", "r1", "paid", at))
            owner = await bench.own()
            await owner.commit(waits=tuple(wait_row(f"w{at}", kind="event", name="paid") for at in range(2)))
            await owner.fail()
            await bench.retry()
            owner = await bench.own()
            await owner.commit(waits=(wait_row("w2", kind="event", name="paid"),))
            await owner.fail()
            await bench.retry(mode="full")
            owner = await bench.own()
            await owner.commit(waits=tuple(wait_row(f"v{at}", kind="event", name="paid") for at in range(3)))
            answers = [(await bench.wait(wait_id)).resolution for wait_id in ("w0", "w1", "w2", "v0", "v1", "v2")]
            assert [answer and answer.value for answer in answers] == [0, 1, 2, 0, 1, 2]

    async def test_a_signal_does_not_answer_a_row_that_is_due(self, kit: Kit) -> None:
        """It stays in the inbox; the row expires."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(wait_row("w1", kind="event", name="paid", expires_at=await store.now() + MINUTE))
            kit.advance(LATER)
            await store.signal(Signal("s1", "r1", "paid", 1))
            assert (await bench.wait("w1")).open
            assert (await bench.sweep()).expired == ("r1",)
            owner = await bench.own()
            assert (await owner.park(wait_row("w2", kind="event", name="paid"))).answered == ("w2",)

    async def test_a_completed_run_takes_no_signals(self, kit: Kit) -> None:
        """It can't be retried, so nobody would ever read it."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).complete()
            with pytest.raises(Conflict):
                await store.signal(Signal("s1", "r1", "paid"))

    async def test_the_inbox_is_bounded(self, kit: Kit) -> None:
        """A full one refuses, and says what it holds."""
        async with kit.open() as store:
            await Bench(store).admit()
            for at in range(SIGNALS_MAX):
                await store.signal(Signal(f"s{at}", "r1", "paid"))
            with pytest.raises(Conflict) as caught:
                await store.signal(Signal("more", "r1", "paid"))
            assert caught.value.details["limit"] == SIGNALS_MAX
            assert not await store.signal(Signal("s0", "r1", "paid")), "one that was seen is still told so"
            bench = Bench(store)
            owner = await bench.own()
            await owner.commit(waits=(wait_row("w1", kind="event", name="paid"),))
            assert await store.signal(Signal("more", "r1", "paid")), "one was taken"
            await owner.fail()
            await bench.retry(mode="full")
            with pytest.raises(Conflict):
                await store.signal(Signal("another", "r1", "paid"))  # the one that was taken is back

    async def test_a_signal_to_no_run_is_an_error(self, kit: Kit) -> None:
        """The id must be known."""
        async with kit.open() as store:
            with pytest.raises(RunNotFoundError):
                await store.signal(Signal("s1", "nobody", "paid"))

    async def test_an_effect_may_be_unknown_while_a_signal_comes(self, kit: Kit) -> None:
        """Each row is a question of its own."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(EffectState.STARTED),), waits=(wait_row("w1", kind="event", name="paid"),))
            kit.advance(LATER)
            await bench.sweep()
            await store.signal(Signal("s1", "r1", "paid"))
            assert await bench.status() is RunStatus.WAITING


class MoveConformance(Conformance):
    """Table R, verb by verb and status by status: every move that it names, and no other."""

    @pytest.mark.parametrize("status", list(RunStatus))
    @pytest.mark.parametrize(
        "verb", ["claim", "renew", "commit", "park", "drain", "retry_after", "complete", "fail", "cancel", "sweep", "resolve", "retry"]
    )
    async def test_only_the_moves_of_the_table_are_made(self, kit: Kit, verb: str, status: RunStatus) -> None:
        """Elsewhere the verb is refused and nothing of the run has changed."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.in_status(status, budget=Budget(deadline=MINUTE) if verb == "sweep" else Budget())
            kit.advance(2 * MINUTE)
            before = (await store.load("r1"), await store.events("r1"), await store.steps("r1"))
            refused = await _tried(bench, verb, owner)
            after = await bench.status()
            assert after in _allowed(verb, status), (verb, status, after)
            if refused:
                assert (await store.load("r1"), await store.events("r1"), await store.steps("r1")) == before
            assert refused == (not _reached(verb, status))


ENDINGS: dict[str, Any] = {
    "commit": None,
    "park": Park(),
    "drain": DRAIN,
    "retry_after": Release("retry_after"),
    "complete": Settle(RunStatus.COMPLETED),
    "fail": Settle(RunStatus.FAILED),
}
VERBS: dict[str, Any] = {"drain": "release", "retry_after": "release", "complete": "settle", "fail": "settle"}


def _reached(verb: str, status: RunStatus) -> frozenset[RunStatus]:
    return moves_from(status, VERBS.get(verb, verb))


def _allowed(verb: str, status: RunStatus) -> frozenset[RunStatus]:
    return _reached(verb, status) or frozenset({status})


async def _tried(bench: Bench, verb: str, owner: Owner | None) -> bool:
    """Try the verb on run `r1`; whether it was refused."""
    store = bench.store
    if verb in ENDINGS:
        return not (owner is not None and (await owner.send(ending=ENDINGS[verb])).ok)
    match verb:
        case "claim":
            return not await bench.claim()
        case "renew":
            return not (owner is not None and (await store.renew([owner.lease], LEASE))[0].held)
        case "cancel":
            return await bench.cancel() == "already"
        case "sweep":
            return (await bench.sweep()).count == 0
        case "resolve":
            return await store.wait("w-r1") is None or (await bench.answer("w-r1")).outcome is not ResolveOutcome.RESOLVED
        case _:
            try:
                return await bench.retry() == "already"
            except Conflict:
                return True
