"""Wait rows: each question asked once, answered once (table W, P2-P7)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure.core.budget import Budget
from perdure.core.commit import Park, Resolve, ResolveOutcome, Settle, Signal
from perdure.core.effect import EffectState
from perdure.core.errors import WaitNotFoundError
from perdure.core.run import RunStatus
from perdure.core.wait import Resolution, ResolutionKind
from perdure.testing.conformance._bench import LATER, Bench, Owner, approval, effect, new_run, said, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

SOON = timedelta(minutes=10)


class WaitConformance(Conformance):
    """Opening, answering, extending."""

    async def test_a_parked_run_waits_for_its_row(self, kit: Kit) -> None:
        """The row is open, knows its run and generation, and holds what was asked."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            row = approval(
                tool="pay", tool_call_id="c", position=0, input={"n": 1}, input_hash="h", data={"schema": {}}, expires_at=await store.now() + LATER
            )
            answer = await owner.park(row)
            assert (answer.status, answer.opened, answer.answered) == (RunStatus.WAITING, ("w1",), ())
            wait = await bench.wait("w1")
            assert (wait.run_id, wait.generation, wait.row, wait.open, wait.votes) == ("r1", 1, row, True, ())
            assert (await bench.events())[-2:] == ["wait.opened", "run.waiting"]
            run = await bench.run()
            assert run.lease_owner is None and run.lease_expires_at is None

    async def test_an_answer_wakes_the_run(self, kit: Kit) -> None:
        """Who, when and what are on the row, in a `wait` step and in an event."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(tool="pay"))
            told = await bench.answer(by="ana", via="cli", reason="fine", value={"n": 2})
            assert (told.outcome, told.run_status) == (ResolveOutcome.RESOLVED, RunStatus.PENDING)
            answer = (await bench.wait("w1")).resolution
            assert answer is not None and answer == told.wait.resolution and answer.at is not None
            assert (answer.kind, answer.decision, answer.by, answer.via, answer.reason, answer.value) == (
                ResolutionKind.ANSWER, "approve", "ana", "cli", "fine", {"n": 2},
            )  # fmt: skip
            (step,) = await store.steps("r1")
            assert (step.kind, step.row.output["decision"], step.row.output["by"]) == ("wait", "approve", "ana")
            last = (await store.events("r1"))[-1]
            assert (last.type, last.data["wait"], last.data["decision"], last.data["by"]) == ("wait.resolved", "w1", "approve", "ana")
            assert await bench.claim() == ["r1"]

    async def test_the_same_answer_again_is_already_there(self, kit: Kit) -> None:
        """A double click is told so and changes nothing."""  # case A8 B1
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            await bench.answer(by="ana", reason="ok")
            before = await store.load("r1")
            again = await bench.answer(by="ana", reason="ok")
            assert again.outcome is ResolveOutcome.ALREADY
            assert await store.load("r1") == before

    @pytest.mark.parametrize("other", [said("deny"), said("approve", value={"n": 2}), Resolution(ResolutionKind.EVENT)], ids=str)
    async def test_another_answer_is_a_conflict_that_names_the_winner(self, kit: Kit, other: Resolution) -> None:
        """Exactly one answer wins."""  # case B1
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            await bench.answer(by="ana")
            told = await store.resolve(Resolve("w1", other))
            assert told.outcome is ResolveOutcome.CONFLICT
            assert told.wait.resolution is not None and told.wait.resolution.by == "ana"
            assert told.message is not None

    async def test_of_fifty_answers_at_once_one_wins(self, kit: Kit) -> None:
        """One is resolved, its equals are told already, the others conflict; one step, one event, one wake."""  # case B1
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            await (await bench.start()).park(approval())
            words = ["approve", "deny"] * 25
            stores = ([one] * 2 + [two] * 2) * 12 + [one, two]
            told = await asyncio.gather(*(store.resolve(Resolve("w1", said(word))) for store, word in zip(stores, words, strict=True)))
            outcomes = [each.outcome for each in told]
            assert outcomes.count(ResolveOutcome.RESOLVED) == 1
            assert outcomes.count(ResolveOutcome.ALREADY) == 24
            assert outcomes.count(ResolveOutcome.CONFLICT) == 25
            assert len(await one.steps("r1")) == 1
            assert (await bench.events()).count("wait.resolved") == 1

    async def test_a_row_that_is_not_there_is_an_error(self, kit: Kit) -> None:
        """A forged id decides nothing."""  # case B13
        async with kit.open() as store:
            with pytest.raises(WaitNotFoundError):
                await store.resolve(Resolve("nothing", said()))
            with pytest.raises(WaitNotFoundError):
                await store.extend("nothing", None)

    async def test_a_decision_is_bound_to_the_input_that_was_shown(self, kit: Kit) -> None:
        """Another hash decides nothing."""  # case B13
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(input_hash="shown"))
            told = await store.resolve(Resolve("w1", said(), input_hash="other"))
            assert told.outcome is ResolveOutcome.CONFLICT and told.wait.open
            assert (await store.resolve(Resolve("w1", said(), input_hash="shown"))).outcome is ResolveOutcome.RESOLVED

    async def test_rows_are_answered_in_any_order_and_the_last_one_wakes(self, kit: Kit) -> None:
        """By id, never by position."""  # case B6 B10
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(*(approval(f"w{at}") for at in range(5)))
            for at in (3, 0, 4, 1):
                assert (await bench.answer(f"w{at}", value=at)).run_status is RunStatus.WAITING
            assert (await bench.answer("w2", "deny", value=2)).run_status is RunStatus.PENDING
            answers = [(await bench.wait(f"w{at}")).resolution for at in range(5)]
            assert [answer and answer.value for answer in answers] == [0, 1, 2, 3, 4]

    async def test_an_answer_that_comes_before_the_park_is_not_lost(self, kit: Kit) -> None:
        """Resolving works while the run is running; the park then finds nothing open."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval(),))
            assert (await bench.answer()).run_status is RunStatus.RUNNING
            assert (await owner.commit(ending=Park())).status is RunStatus.PENDING

    async def test_a_question_that_is_open_is_not_asked_twice(self, kit: Kit) -> None:
        """A second row for it is not opened."""  # case B20
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval("w1", question="q"),))
            answer = await owner.park(approval("w2", question="q"), approval("w3", question="other"))
            assert (answer.status, answer.opened) == (RunStatus.WAITING, ("w3",))
            assert [wait.id for wait in (await store.load("r1")).waits] == ["w1", "w3"]
            assert await store.wait("w2") is None

    async def test_a_question_that_was_answered_may_be_asked_again(self, kit: Kit) -> None:
        """Only an open row stands for it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval("w1", question="q"),))
            await bench.answer("w1")
            assert (await owner.park(approval("w2", question="q"))).status is RunStatus.WAITING

    async def test_nobody_answers_a_timer(self, kit: Kit) -> None:
        """It resolves by itself."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(wait_row("w1", kind="timer", expires_at=await store.now() + LATER))
            told = await bench.answer(decision=None)
            assert told.outcome is ResolveOutcome.REFUSED and told.wait.open

    @pytest.mark.parametrize("kind", [ResolutionKind.EXPIRED, ResolutionKind.TIMER, ResolutionKind.CANCELLED])
    async def test_nobody_says_what_only_the_store_can_find(self, kit: Kit, kind: ResolutionKind) -> None:
        """Expiry, timers and cancels are no answers."""  # case B2
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            told = await store.resolve(Resolve("w1", Resolution(kind)))
            assert told.outcome is ResolveOutcome.REFUSED and told.wait.open

    # ── expiry ─────────────────────────────────────────────────────────────────────────────────────────────
    @pytest.mark.parametrize("late", [timedelta(0), timedelta(seconds=1), LATER], ids=str)
    async def test_from_its_end_on_a_row_can_only_expire(self, kit: Kit, late: timedelta) -> None:
        """An answer at or after `expires_at` is told so and the row stays open for the sweep."""  # case B2
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(approval(expires_at=await store.now() + SOON))
            kit.advance(SOON + late)
            told = await bench.answer()
            assert (told.outcome, told.run_status) == (ResolveOutcome.EXPIRED, RunStatus.WAITING)
            assert told.wait.open
            assert (await store.extend("w1", await store.now() + LATER)).outcome is ResolveOutcome.EXPIRED
            assert (await bench.sweep()).expired == ("r1",)
            assert (await bench.answer()).outcome is ResolveOutcome.EXPIRED

    async def test_an_expiry_is_by_nobody_and_wakes_the_run(self, kit: Kit) -> None:
        """The default is that the model is told; silence is never consent."""  # case B2 B3
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(expires_at=await store.now() + SOON))
            assert (await bench.sweep()).count == 0
            kit.advance(LATER)
            assert (await bench.sweep()).expired == ("r1",)
            answer = (await bench.wait("w1")).resolution
            assert answer is not None and (answer.kind, answer.decision, answer.by) == (ResolutionKind.EXPIRED, None, None)
            assert await bench.status() is RunStatus.PENDING
            assert (await store.steps("r1"))[0].row.output["kind"] == "expired"

    async def test_an_expiry_that_fails_the_run_fails_it(self, kit: Kit) -> None:
        """In one write: the row is expired, its siblings are closed, the run has failed."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval("w1", expires_at=await store.now() + SOON, on_expiry="fail", tool="pay"), approval("w2"))
            kit.advance(LATER)
            assert (await bench.sweep()).expired == ("r1",)
            run = await bench.run()
            assert (run.status, run.error and run.error.code, run.settlement) == (RunStatus.FAILED, "approval_expired", 1)
            kinds = [wait.resolution and wait.resolution.kind for wait in (await store.load("r1")).waits]
            assert kinds == [ResolutionKind.EXPIRED, ResolutionKind.CANCELLED]

    async def test_while_the_run_is_running_such_a_row_stays_open(self, kit: Kit) -> None:
        """Only the sweep of the waiting run closes it, together with the run."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(waits=(approval(expires_at=await store.now() + SOON, on_expiry="fail"),))
            await owner.commit(waits=(approval("w2", expires_at=await store.now() + SOON),))
            kit.advance(timedelta(minutes=11))
            await store.renew([owner.lease], LATER)
            assert (await bench.sweep()).expired == ("r1",), "the one that denies"
            assert [wait.open for wait in (await store.load("r1")).waits] == [True, False]
            assert (await owner.commit(ending=Park())).status is RunStatus.WAITING
            assert (await bench.sweep()).expired == ("r1",)
            assert await bench.status() is RunStatus.FAILED

    async def test_a_row_that_opens_too_late_expires_at_once(self, kit: Kit) -> None:
        """The commit looks at the clock first: written resolved, nothing to wait for."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            answer = await owner.park(approval(expires_at=await store.now() - SOON))
            assert (answer.status, answer.opened, answer.answered) == (RunStatus.PENDING, (), ("w1",))
            resolution = (await bench.wait("w1")).resolution
            assert resolution is not None and resolution.kind is ResolutionKind.EXPIRED
            assert [step.kind for step in await store.steps("r1")] == ["wait"]

    async def test_a_row_that_opens_too_late_and_fails_the_run_is_left_to_the_sweep(self, kit: Kit) -> None:
        """It opens; the run waits; the sweep settles both."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            answer = await owner.park(approval(expires_at=await store.now() - SOON, on_expiry="fail"))
            assert (answer.status, answer.opened) == (RunStatus.WAITING, ("w1",))
            await bench.sweep()
            assert await bench.status() is RunStatus.FAILED

    async def test_a_timer_resolves_as_timer(self, kit: Kit) -> None:
        """At its time, by the sweep; one whose time has passed, in the commit that opens it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(wait_row("w1", kind="timer", expires_at=await store.now() + SOON))
            kit.advance(LATER)
            assert (await bench.sweep()).woken == ("r1",)
            owner = await bench.own()
            answer = await owner.park(wait_row("w2", kind="timer", expires_at=await store.now() - SOON))
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w2",))
            for wait_id in ("w1", "w2"):
                resolution = (await bench.wait(wait_id)).resolution
                assert resolution is not None and resolution.kind is ResolutionKind.TIMER

    async def test_a_row_of_unknown_outcome_never_expires(self, kit: Kit) -> None:
        """Nobody but a person says what became of an effect."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            row = wait_row("w1", kind="effect", effect_key="r1:1:1:0", expires_at=await store.now() + SOON)
            await owner.commit(effects=(effect(EffectState.STARTED),))
            await owner.park(row, effects=(effect(EffectState.UNKNOWN),))
            kit.advance(LATER)
            assert (await bench.sweep()).count == 0
            assert (await bench.answer(decision="fail")).outcome is ResolveOutcome.RESOLVED

    # ── extend ─────────────────────────────────────────────────────────────────────────────────────────────
    async def test_an_open_row_can_be_extended_before_its_end(self, kit: Kit) -> None:
        """It can be answered until the new one, and the warning moves along."""  # case B4
        async with kit.open() as store:
            bench = Bench(store)
            now = await store.now()
            await (await bench.start()).park(approval(expires_at=now + SOON, warn_at=now + SOON - timedelta(minutes=2)))
            told = await store.extend("w1", now + LATER)
            assert told.outcome is ResolveOutcome.RESOLVED
            assert (told.wait.row.expires_at, told.wait.row.warn_at) == (now + LATER, now + LATER - timedelta(minutes=2))
            assert (await bench.events())[-1] == "wait.extended"
            kit.advance(SOON + SOON)
            assert (await bench.sweep()).count == 0
            assert (await bench.answer()).outcome is ResolveOutcome.RESOLVED

    async def test_a_row_can_be_made_to_wait_for_ever(self, kit: Kit) -> None:
        """None: never."""  # case B4
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(expires_at=await store.now() + SOON))
            assert (await store.extend("w1", None)).wait.row.expires_at is None
            kit.advance(LATER)
            assert (await bench.sweep()).count == 0

    async def test_extending_twice_is_already_done_and_a_closed_row_stays_closed(self, kit: Kit) -> None:
        """The same end again is no news; a new end in the past is refused."""
        async with kit.open() as store:
            bench = Bench(store)
            now = await store.now()
            await (await bench.start()).park(approval(expires_at=now + SOON))
            assert (await store.extend("w1", now + LATER)).outcome is ResolveOutcome.RESOLVED
            assert (await store.extend("w1", now + LATER)).outcome is ResolveOutcome.ALREADY
            assert (await store.extend("w1", now - LATER)).outcome is ResolveOutcome.REFUSED
            assert (await bench.events()).count("wait.extended") == 1
            await bench.answer()
            assert (await store.extend("w1", now + LATER + LATER)).outcome is ResolveOutcome.CONFLICT

    # ── people ─────────────────────────────────────────────────────────────────────────────────────────────
    async def test_two_of_three_must_agree(self, kit: Kit) -> None:
        """One person counts once; the second one decides."""  # case B21
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(data={"policy": {"quorum": 2, "approvers": ["ana", "bo", "cy"]}}))
            first = await bench.answer(by="ana")
            assert (first.outcome, first.run_status, len(first.wait.votes)) == (ResolveOutcome.VOTED, RunStatus.WAITING, 1)
            assert (await bench.answer(by="ana")).outcome is ResolveOutcome.ALREADY
            assert (await bench.answer(by="dee")).outcome is ResolveOutcome.REFUSED
            assert (await bench.answer()).outcome is ResolveOutcome.REFUSED
            assert (await bench.answer(by="bo", value={"n": 2})).outcome is ResolveOutcome.VOTED, "for another input: votes count per input"
            last = await bench.answer(by="cy")
            assert (last.outcome, last.run_status, [vote["by"] for vote in last.wait.votes]) == (
                ResolveOutcome.RESOLVED, RunStatus.PENDING, ["ana", "bo", "cy"],
            )  # fmt: skip
            assert last.wait.resolution is not None and last.wait.resolution.by == "ana, cy"
            assert (await bench.answer(by="cy")).outcome is ResolveOutcome.ALREADY
            assert (await bench.answer(by="bo", decision="deny")).outcome is ResolveOutcome.CONFLICT
            assert (await bench.events()).count("wait.voted") == 2
            assert len(await store.steps("r1")) == 1

    async def test_one_denial_settles_it(self, kit: Kit) -> None:
        """Whatever votes there are."""  # case B21
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(data={"policy": {"quorum": 3}}))
            await bench.answer(by="ana")
            told = await bench.answer(by="bo", decision="deny")
            assert (told.outcome, told.run_status) == (ResolveOutcome.RESOLVED, RunStatus.PENDING)

    async def test_votes_without_a_quorum_expire(self, kit: Kit) -> None:
        """One of two is not consent."""  # case B21
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(expires_at=await store.now() + SOON, data={"policy": {"quorum": 2}}))
            await bench.answer(by="ana")
            kit.advance(LATER)
            await bench.sweep()
            answer = (await bench.wait("w1")).resolution
            assert answer is not None and answer.kind is ResolutionKind.EXPIRED

    async def test_the_requester_may_be_excluded(self, kit: Kit) -> None:
        """Nobody approves what they asked for."""  # case B21
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval(data={"policy": {"not_requester": True, "requester": "ana"}}))
            assert (await bench.answer(by="ana")).outcome is ResolveOutcome.REFUSED
            assert (await bench.answer(by="bo")).outcome is ResolveOutcome.RESOLVED

    async def test_only_tokens_that_were_sent_count_and_all_are_void_afterwards(self, kit: Kit) -> None:
        """Each notification has its own; a guess decides nothing."""  # case M6
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            for token in ("one", "two"):
                await store.note_notice("w1", tries=1, accepted=True, warning=False, retry_in=None, token_hash=token)
            assert (await store.resolve(Resolve("w1", said(), token_hash="guess"))).outcome is ResolveOutcome.REFUSED
            assert (await store.resolve(Resolve("w1", said(), token_hash="two"))).outcome is ResolveOutcome.RESOLVED
            assert (await store.resolve(Resolve("w1", said("deny"), token_hash="one"))).outcome is ResolveOutcome.CONFLICT

    # ── children, budgets ──────────────────────────────────────────────────────────────────────────────────
    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
    async def test_a_childs_settlement_wakes_its_parent(self, kit: Kit, status: Any) -> None:
        """Whatever its end: the row is told status and output."""  # case B14
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(wait_row("w1", kind="event", child="r2"), children=(new_run("r2", parent_wait="w1"),))
            child = await bench.own("r2")
            await child.commit(ending=Settle(status, output="out"))
            assert await bench.status("r1") is RunStatus.PENDING
            answer = (await bench.wait("w1")).resolution
            assert answer is not None and answer.kind is ResolutionKind.EVENT
            assert (answer.value["run"], answer.value["status"], answer.value["output"]) == ("r2", str(status), "out")

    async def test_a_child_that_settled_before_the_row_answers_it(self, kit: Kit) -> None:
        """The commit that opens the row looks at the child first."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(children=(new_run("r2"),))
            await (await bench.own("r2")).complete("early")
            answer = await owner.park(wait_row("w1", kind="event", child="r2"))
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w1",))
            resolution = (await bench.wait("w1")).resolution
            assert resolution is not None and resolution.value["output"] == "early"

    async def test_a_cancelled_child_wakes_its_parent_too(self, kit: Kit) -> None:
        """Also where no owner says so."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(wait_row("w1", kind="event", child="r2"), children=(new_run("r2"),))
            await bench.cancel("r2")
            assert await bench.status("r1") is RunStatus.PENDING

    async def test_parents_and_children_that_write_at_once_do_not_stop_each_other(self, kit: Kit) -> None:
        """Both take the parent's row first, so nobody waits for the other's."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            owners = [await bench.start(f"p{at}") for at in range(5)]
            for at, owner in enumerate(owners):
                await owner.commit(waits=(wait_row(f"w{at}", kind="event", child=f"c{at}"),), children=(new_run(f"c{at}"),))
            children = [await Bench(two).own(f"c{at}") for at in range(5)]

            async def parent(owner: Owner) -> None:
                for _ in range(4):
                    await owner.commit()
                await owner.commit(ending=Park())

            async with asyncio.timeout(60):
                await asyncio.gather(*(parent(owner) for owner in owners), *(child.complete() for child in children))
            assert [await bench.status(f"p{at}") for at in range(5)] == [RunStatus.PENDING] * 5
            assert [(await bench.wait(f"w{at}")).open for at in range(5)] == [False] * 5

    async def test_a_top_up_raises_the_budget_and_wakes(self, kit: Kit) -> None:
        """The named limits change, the others stay."""  # case K3
        async with kit.open() as store:
            bench = Bench(store)
            budget = Budget(max_steps=2, max_tokens=100)
            owner = await bench.start(budget=budget)
            await owner.park(wait_row("w1", kind="budget", data={"budget": budget.to_json()}))
            assert (await bench.answer(decision="top_up", value={"max_steps": 9})).run_status is RunStatus.PENDING
            assert (await bench.run()).budget == Budget(max_steps=9, max_tokens=100)

    @pytest.mark.parametrize("value", [None, 5, {"max_steps": -1}, {"other": 1}], ids=str)
    async def test_a_top_up_that_is_no_budget_is_refused(self, kit: Kit, value: Any) -> None:
        """The row stays open and the budget as it was."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(wait_row("w1", kind="budget"))
            told = await bench.answer(decision="top_up", value=value)
            assert told.outcome is ResolveOutcome.REFUSED and told.wait.open
            assert (await bench.run()).budget == Budget()

    async def test_a_top_up_that_came_before_the_row_answers_it(self, kit: Kit) -> None:
        """The budget on the run is not the one that the row's author saw."""
        async with kit.open() as store:
            bench = Bench(store)
            seen = Budget(max_steps=2)
            owner = await bench.start(budget=seen)
            await owner.commit(waits=(wait_row("w1", kind="budget", data={"budget": seen.to_json()}),))
            await bench.answer(decision="top_up", value={"max_steps": 5})
            answer = await owner.park(wait_row("w2", kind="budget", data={"budget": seen.to_json()}))
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w2",))
            assert (await bench.run()).budget.max_steps == 5

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────
    @pytest.mark.parametrize("end", ["settle", "cancel", "poison", "deadline", "expiry"])
    async def test_every_final_status_closes_the_open_rows(self, kit: Kit, end: str) -> None:
        """As cancelled, with a step each; a decision that comes later is told who won."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start(budget=Budget(deadline=timedelta(minutes=30)))
            rows = [approval("w1"), wait_row("w2", kind="event", name="paid"), wait_row("w3", kind="attention"), wait_row("w4", kind="budget")]
            await owner.commit(waits=tuple(rows))
            match end:
                case "settle":
                    await owner.fail()
                case "cancel":
                    await owner.commit(ending=Park())
                    await bench.cancel()
                case "poison":
                    kit.advance(timedelta(minutes=5))
                    await bench.sweep(deaths_max=1)
                case "deadline":
                    await owner.commit(ending=Park())
                    kit.advance(LATER)
                    await bench.sweep()
                case _:
                    await owner.park(approval("w5", expires_at=await store.now() + SOON, on_expiry="fail"))
                    kit.advance(timedelta(minutes=11))
                    await bench.sweep()
            run = await bench.run()
            assert run.status.final and run.settlement == 1
            waits = [await bench.wait(row.id) for row in rows]
            assert [wait.resolution and wait.resolution.kind for wait in waits] == [ResolutionKind.CANCELLED] * 4
            assert (await bench.answer("w1")).outcome is ResolveOutcome.CONFLICT
            events = await bench.events()
            assert events[-1] == "run.settled" and events.count("run.settled") == 1
            assert len([step for step in await store.steps("r1") if step.kind == "wait"]) >= 4

    async def test_a_signal_after_the_row_was_closed_stays_in_the_inbox(self, kit: Kit) -> None:
        """It is there for the row that a retry opens."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.park(wait_row("w1", kind="event", name="paid"))
            await bench.cancel()
            assert await store.signal(Signal("s1", "r1", "paid", 7))
            await bench.retry()
            owner = await bench.own()
            assert (await owner.park(wait_row("w2", kind="event", name="paid"))).answered == ("w2",)
