"""Commits: applied once, whole or not at all, and always told the truth (table C)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Commit, Outcome, Park, Release, Resolve, Settle, Signal
from perdure.core.effect import EffectState
from perdure.core.errors import Conflict, RunNotFoundError
from perdure.core.event import EventWrite
from perdure.core.run import RunError, RunStatus
from perdure.core.step import StepWrite
from perdure.testing.conformance._bench import DRAIN, LATER, Bench, approval, effect, new_run, said, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

FULL: dict[str, Any] = {
    "usage": Usage(input_tokens=10, output_tokens=5, requests=1, cost=Decimal("0.01")),
    "checkpoint": CheckpointWrite(index=1, base=0, keep=0, append=(b"one", b"two")),
    "steps": (StepWrite("llm", 1, "gpt"), StepWrite("tool", 1, "search")),
    "effects": (effect(EffectState.STARTED),),
    "waits": (approval(),),
    "events": (EventWrite("step.completed", {"n": 1}), EventWrite("log", {"message": "hi"})),
}
"""A commit with a bit of everything."""


class CommitConformance(Conformance):
    """`commit`: outcomes, numbers, endings."""

    async def test_a_commit_writes_all_that_it_carries(self, kit: Kit) -> None:
        """Usage, checkpoint, steps, effects, wait rows and events are there together."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            answer = await owner.commit(**FULL, version="v7", progress=True)
            assert (answer.outcome, answer.epoch, answer.status, answer.opened) == (Outcome.APPLIED, 1, RunStatus.RUNNING, ("w1",))
            loaded = await store.load("r1")
            assert loaded.run.usage == FULL["usage"]
            assert (loaded.run.version, loaded.run.commit_no) == ("v7", 1)
            assert loaded.checkpoint is not None and loaded.checkpoint.messages == (b"one", b"two")
            assert [step.row.name for step in loaded.steps] == ["gpt", "search"]
            assert [each.state for each in loaded.effects] == [EffectState.STARTED]
            assert [wait.id for wait in loaded.waits] == ["w1"]
            assert await bench.events() == ["run.created", "run.claimed", "step.completed", "log", "wait.opened"]

    async def test_a_repeated_commit_is_already_applied_and_changes_nothing(self, kit: Kit) -> None:
        """After a lost reply the same answer comes again, with the same numbers."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            commit = owner.next(**FULL)
            first = await store.commit(commit)
            before, events, steps = await store.load("r1"), await store.events("r1"), await store.steps("r1")
            again = await store.commit(commit)
            assert again == replace(first, outcome=Outcome.ALREADY)
            assert (await store.load("r1"), await store.events("r1"), await store.steps("r1")) == (before, events, steps)

    @pytest.mark.parametrize("ending", [Park(), DRAIN, Release("retry_after", timedelta(minutes=1)), Settle(RunStatus.COMPLETED)], ids=str)
    async def test_a_repeated_last_commit_is_already_applied(self, kit: Kit, ending: Any) -> None:
        """The commit that ended the claim may be repeated until the next claim, whatever happened to the run since."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            commit = owner.next(ending=ending, events=(EventWrite("log"),))
            first = await store.commit(commit)
            again = await store.commit(commit)
            assert (again.outcome, again.first_event, again.status) == (Outcome.ALREADY, first.first_event, first.status)
            if first.status is not RunStatus.COMPLETED:
                kit.advance(timedelta(minutes=2))
                await bench.own()
                assert (await store.commit(commit)).outcome is Outcome.LOST

    async def test_the_commit_that_parked_is_told_so_even_after_an_answer(self, kit: Kit) -> None:
        """An answer that woke the run does not make the parking commit lost."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            commit = owner.next(waits=(approval(),), ending=Park())
            await store.commit(commit)
            await bench.answer()
            again = await store.commit(commit)
            assert (again.outcome, again.opened, again.status) == (Outcome.ALREADY, ("w1",), RunStatus.PENDING)

    async def test_a_commit_applied_before_its_claim_was_swept_is_lost(self, kit: Kit) -> None:
        """`lost` says that nothing more may be written, not that it was not applied."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            commit = owner.next(**FULL)
            await store.commit(commit)
            kit.advance(LATER)
            await bench.sweep()
            assert (await store.commit(commit)).outcome is Outcome.LOST

    async def test_numbers_other_than_the_next_are_lost(self, kit: Kit) -> None:
        """Neither an older number nor one from the future is applied."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            for _ in range(3):
                await owner.commit()
            before = await store.load("r1")
            for number in (0, 1, 2, 5, 9):
                answer = await store.commit(replace(owner.next(**FULL), commit_no=number))
                assert (answer.outcome, answer.status) == (Outcome.LOST, RunStatus.RUNNING)
            assert await store.load("r1") == before

    async def test_the_last_number_of_an_earlier_claim_is_not_already_applied(self, kit: Kit) -> None:
        """A new claim has committed nothing yet."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(events=(EventWrite("log"),))
            owner = await bench.own()
            answer = await store.commit(replace(owner.next(), commit_no=owner.commit_no))
            assert answer.outcome is Outcome.LOST

    async def test_a_commit_to_no_run_is_an_error(self, kit: Kit) -> None:
        """The run must exist."""
        async with kit.open() as store:
            with pytest.raises(RunNotFoundError):
                await store.commit(Commit("nobody", 1, "token", 1))

    async def test_events_and_steps_are_numbered_without_gaps(self, kit: Kit) -> None:
        """From counters on the run row, in commit order, whoever writes them."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            first = (await owner.commit(events=(EventWrite("log"), EventWrite("log")), steps=(StepWrite("llm", 1, "m"),))).first_event
            assert first == 3
            await owner.park(approval(), steps=(StepWrite("tool", 1, "t"),))
            await bench.answer()  # writes a step and an event too
            owner = await bench.own()
            assert (await owner.commit(events=(EventWrite("log"),), steps=(StepWrite("llm", 2, "m"),))).first_event == 9
            events, steps = await store.events("r1"), await store.steps("r1")
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [(step.seq, step.kind) for step in steps] == [(1, "llm"), (2, "tool"), (3, "wait"), (4, "llm")]
            assert [event.type for event in events] == [
                "run.created", "run.claimed", "log", "log", "wait.opened", "run.waiting", "wait.resolved", "run.claimed", "log",
            ]  # fmt: skip

    async def test_the_commits_events_come_before_the_stores_own(self, kit: Kit) -> None:
        """`first_event` is the number of the first event that the commit carried."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            answer = await owner.complete(events=(EventWrite("step.completed"),), waits=(approval(),))
            events = await store.events("r1", after=answer.first_event - 1)
            assert [event.type for event in events] == ["step.completed", "wait.opened", "wait.resolved", "run.settled"]

    async def test_usage_is_absolute(self, kit: Kit) -> None:
        """The last value stands; a commit without one leaves it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(usage=Usage(input_tokens=10))
            await owner.commit(usage=Usage(input_tokens=15, cost=None, cost_known=Decimal("0.01")))
            await owner.commit()
            assert (await bench.run()).usage == Usage(input_tokens=15, cost=None, cost_known=Decimal("0.01"))

    async def test_progress_resets_the_deaths_and_nothing_else_does(self, kit: Kit) -> None:
        """A response, an answer or a new wait row: a log line, a started effect or an empty park do not count."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            kit.advance(LATER)
            await bench.sweep()
            owner = await bench.own()
            await owner.commit(events=(EventWrite("log"),), effects=(effect(EffectState.STARTED),))
            await owner.commit(effects=(effect(EffectState.PLANNED),))
            await owner.park()
            assert (await bench.run()).deaths == 1
            owner = await bench.own()
            await owner.commit(progress=True)
            assert (await bench.run()).deaths == 0

    async def test_a_new_wait_row_is_progress_and_a_repeated_question_is_not(self, kit: Kit) -> None:
        """The store knows whether a row was opened."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval("w1", question="q"),))
            kit.advance(LATER)
            await bench.sweep()
            await bench.answer()
            owner = await bench.own()
            assert (await bench.run()).deaths == 1
            await owner.commit(waits=(approval("w2", question="q"),))
            assert (await bench.run()).deaths == 0

    async def test_park_rests_as_pending_without_an_open_row(self, kit: Kit) -> None:
        """There is nothing to wait for."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            assert (await owner.park()).status is RunStatus.PENDING
            assert (await bench.events())[-1] == "run.released"
            assert (await bench.run()).lease_owner is None

    @pytest.mark.parametrize("ending", [Park(), DRAIN, Release("retry_after")], ids=str)
    async def test_an_ended_claim_waits_while_a_row_is_open(self, kit: Kit, ending: Any) -> None:
        """Rest is one rule: an open row makes it `waiting`, whatever ends the claim."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval(),))
            assert (await owner.commit(ending=ending)).status is RunStatus.WAITING
            assert (await bench.events())[-1] == "run.waiting"

    async def test_a_drain_leaves_the_run_interrupted(self, kit: Kit) -> None:
        """Claimable by others at once, no death, nothing lost."""  # case G1
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            assert (await owner.commit(ending=DRAIN)).status is RunStatus.INTERRUPTED
            assert (await bench.run()).deaths == 0
            assert await bench.claim() == ["r1"]

    async def test_a_retry_after_makes_the_run_available_later(self, kit: Kit) -> None:
        """No worker is held meanwhile."""  # case K4
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(ending=Release("retry_after", timedelta(minutes=10)))
            assert await bench.claim() == []
            kit.advance(timedelta(minutes=11))
            assert await bench.claim() == ["r1"]

    async def test_a_completed_run_keeps_output_and_finish_reason(self, kit: Kit) -> None:
        """And one terminal event that carries the settlement."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(ending=Settle(RunStatus.COMPLETED, output={"answer": 42}, finish_reason="stop"))
            run = await bench.run()
            assert (run.status, run.output, run.finish_reason, run.error, run.settlement) == (RunStatus.COMPLETED, {"answer": 42}, "stop", None, 1)
            assert run.finished_at is not None and run.lease_owner is None and run.lease_expires_at is None
            last = (await store.events("r1"))[-1]
            assert (last.type, last.data["settlement"], last.data["status"]) == ("run.settled", 1, "completed")

    async def test_a_failed_run_keeps_its_error(self, kit: Kit) -> None:
        """Code, message and details."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            error = RunError("model_error", "It said no.", {"status": 400})
            await owner.commit(ending=Settle(RunStatus.FAILED, error=error))
            run = await bench.run()
            assert (run.status, run.error) == (RunStatus.FAILED, error)

    async def test_a_failure_under_a_cancel_is_cancelled(self, kit: Kit) -> None:
        """An accepted cancel never ends as `failed`."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await bench.cancel()
            assert (await owner.fail()).status is RunStatus.CANCELLED

    async def test_a_completion_under_a_cancel_stands(self, kit: Kit) -> None:
        """The work was done before anybody heard."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await bench.cancel()
            assert (await owner.complete()).status is RunStatus.COMPLETED

    @pytest.mark.parametrize("ending", [Park(), DRAIN, Release("retry_after")], ids=str)
    async def test_an_ended_claim_under_a_cancel_is_cancelled(self, kit: Kit, ending: Any) -> None:
        """Nothing rests with a cancel asked for, and its open rows are closed."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval(),))
            await bench.cancel()
            assert (await owner.commit(ending=ending)).status is RunStatus.CANCELLED
            assert not (await bench.wait("w1")).open

    async def test_after_the_end_nothing_of_the_execution_is_written(self, kit: Kit) -> None:
        """Not even with the right epoch, token and number."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.complete()
            before = await store.load("r1")
            assert (await owner.send(**FULL)).outcome is Outcome.LOST
            assert await store.load("r1") == before

    async def test_children_are_admitted_with_the_commit(self, kit: Kit) -> None:
        """Their start and the row that waits for them are one write, and repeating it makes no second child."""  # case A3
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            row = wait_row("w1", kind="event", child="r2")
            commit = owner.next(children=(new_run("r2", parent_wait="w1"),), waits=(row,), ending=Park())
            assert (await store.commit(commit)).status is RunStatus.WAITING
            assert (await store.commit(commit)).outcome is Outcome.ALREADY
            child = await bench.run("r2")
            assert (child.parent_run, child.parent_wait, child.status) == ("r1", "w1", RunStatus.PENDING)
            assert len(await store.events("r2")) == 1

    async def test_a_refused_child_refuses_the_whole_commit(self, kit: Kit) -> None:
        """Nothing is half applied: the same number is still free."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("r0", key="k")
            owner = await bench.start(thread="t")
            before = await store.load("r1")
            for child in (new_run("r2", thread="t"), new_run("r2", key="k", payload={"other": 1})):
                with pytest.raises(Conflict):
                    await store.commit(owner.next(**FULL, children=(new_run("r3"), child)))
            assert await store.load("r1") == before
            assert await store.get("r3") is None
            await owner.commit(**FULL)

    async def test_a_started_effect_ends_with_its_claim(self, kit: Kit) -> None:
        """Whatever ends the claim leaves none `started`: it is unknown, and where a person must say, there is a row."""
        for at, ending in enumerate((Park(), DRAIN, Release("retry_after"), Settle(RunStatus.FAILED), Settle(RunStatus.COMPLETED))):
            async with kit.open() as store:
                bench = Bench(store)
                run_id = f"r{at}"
                owner = await bench.start(run_id)
                ask, retry = (effect(EffectState.STARTED, run_id, position=place, unknown=word) for place, word in enumerate(("ask", "retry")))
                await owner.commit(effects=(ask, retry))
                status = (await owner.commit(ending=ending)).status
                loaded = await store.load(run_id)
                assert [each.state for each in loaded.effects] == [EffectState.UNKNOWN, EffectState.UNKNOWN]
                assert [(wait.kind, wait.row.effect_key, wait.open) for wait in loaded.waits] == [("effect", ask.key, True)]
                assert status is (ending.status if isinstance(ending, Settle) else RunStatus.WAITING)

    async def test_writes_at_once_leave_no_gap_in_the_numbers(self, kit: Kit) -> None:
        """The owner commits, the world signals and a person answers, through two handles: one log, in one order."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            owner = await bench.start()
            await owner.commit(waits=tuple(wait_row(f"e{at}", kind="event", name="paid") for at in range(10)))
            await owner.commit(waits=tuple(approval(f"w{at}") for at in range(10)))
            told: dict[int, int] = {}

            async def commits() -> None:
                for at in range(20):
                    told[at] = (await owner.commit(events=(EventWrite("log", {"n": at}),), steps=(StepWrite("tool", 1, f"t{at}"),))).first_event

            signals = [two.signal(Signal(f"s{at}", "r1", "paid", at)) for at in range(10)]
            words = [two.resolve(Resolve(f"w{at}", said())) for at in range(10)]
            await asyncio.gather(commits(), *signals, *words)
            events, steps = await one.events("r1"), await one.steps("r1")
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
            assert {event.data["n"]: event.seq for event in events if event.type == "log"} == told
            assert [step.kind for step in steps].count("wait") == 20
            assert (await owner.commit(ending=Park())).status is RunStatus.PENDING
