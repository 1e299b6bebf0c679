"""Budgets that a run shares with its children (table B, X9)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.core.budget import Budget, Usage
from perdure.core.commit import Committed, Outcome, Park, PruneRequest, ResolveOutcome
from perdure.core.errors import RunNotFoundError
from perdure.core.family import ReservationEnds, Reserve, Reserved, Room
from perdure.core.run import RunStatus
from perdure.core.wait import ResolutionKind, WaitWrite
from perdure.testing.conformance._bench import LATER, LEASE, Bench, Owner, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

CAP = Budget(max_tokens=100)
ENDS, KEPT = ReservationEnds("p"), ReservationEnds("p", kept=True)


def usage(tokens: int, cost: str = "0") -> Usage:
    return Usage(input_tokens=tokens, requests=1, cost=Decimal(cost))


async def ask(owner: Owner, tokens: int = 40, *, step: int = 1, **fields: Any) -> Reserved:
    """Ask for room under this claim."""
    place: dict[str, Any] = {"commit_no": owner.commit_no, **fields}
    return await owner.store.reserve(Reserve(owner.run_id, owner.epoch, owner.token, step=step, tokens=tokens, **place))


async def room(owner: Owner, tokens: int = 40, **fields: Any) -> Room:
    return (await ask(owner, tokens, **fields)).room


def room_row(wait_id: str, **fields: Any) -> WaitWrite:
    return wait_row(wait_id, kind="budget", question=f"room:{wait_id}", name="p", **fields)


async def wait_for_room(owner: Owner, wait_id: str) -> Committed:
    return await owner.park(room_row(wait_id))


async def family_of(bench: Bench, *children: str, budget: Budget = CAP) -> dict[str, Owner]:
    """A parent "p" with a cap, and children, each of them claimed."""
    owners = {"p": await bench.start("p", budget=budget)}
    for child in children:
        owners[child] = await bench.start(child, parent_run="p")
    return owners


class FamilyConformance(Conformance):
    """Spent + reserved + this call ≤ cap, by one conditional write."""

    async def test_who_shares_no_cap_needs_no_room(self, kit: Kit) -> None:
        """A run without a cap, one with a cap and no children, a family without any cap: nothing is written, and the run is told so at its load."""
        async with kit.open() as store:
            bench = Bench(store)
            free, capped = await bench.start("free"), await bench.start("capped", budget=CAP)
            child = await bench.start("child", parent_run="free")
            for owner in (free, capped, child):
                assert await room(owner, 1_000) is Room.FREE
                assert (await store.load(owner.run_id)).shares is False

    async def test_children_take_room_under_the_cap_of_their_parent(self, kit: Kit) -> None:
        """What one has reserved the next one does not find; the answer names whose limit it is."""
        async with kit.open() as store:
            owners = await family_of(Bench(store), "a", "b", "c")
            assert [await room(owners[name]) for name in "ab"] == [Room.RESERVED, Room.RESERVED]
            told = await ask(owners["c"])
            assert (told.room, told.family, told.cap, told.limit, told.budget) == (Room.FULL, "p", "p", "max_tokens", CAP)
            assert await room(owners["c"], 20) is Room.RESERVED
            assert all([(await store.load(name)).shares for name in "pabc"])

    async def test_asked_again_the_answer_and_the_room_are_the_same(self, kit: Kit) -> None:
        """A lost reply reserves nothing twice: the row is named by run, epoch and step."""
        async with kit.open() as store:
            owners = await family_of(Bench(store), "a", "b")
            assert [await room(owners["a"]) for _ in range(3)] == [Room.RESERVED] * 3
            assert await room(owners["b"], 60) is Room.RESERVED

    async def test_many_who_ask_at_once_find_no_more_than_there_is(self, kit: Kit) -> None:
        """One conditional write each: ten children, room for two."""
        async with kit.open() as store:
            names = [f"c{n}" for n in range(10)]
            owners = await family_of(Bench(store), *names)
            told = await asyncio.gather(*(room(owners[name]) for name in names))
            assert sorted(told) == [Room.FULL] * 8 + [Room.RESERVED] * 2

    async def test_the_real_figure_takes_the_place_of_the_reservation(self, kit: Kit) -> None:
        """In the commit that brings the response; the run's own usage stays its own."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            await ask(owners["a"], 90)
            assert await room(owners["b"]) is Room.FULL
            answer = await owners["a"].commit(usage=usage(30), reservation=ENDS)
            assert answer.outcome is Outcome.APPLIED
            assert await room(owners["b"], 70) is Room.RESERVED
            assert [(await bench.run(name)).usage.total_tokens for name in "pab"] == [0, 30, 0]

    async def test_written_spend_of_children_counts_for_the_parent_and_its_own_for_them(self, kit: Kit) -> None:
        """Also of those that have settled, however deep below."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a")
            deep = await bench.start("deep", parent_run="a")
            await owners["p"].commit(usage=usage(20))
            await owners["a"].commit(usage=usage(30))
            await deep.complete(usage=usage(40))
            assert await room(owners["p"], 11) is Room.REACHED
            assert await room(owners["a"], 10) is Room.RESERVED
            assert await room(owners["p"], 1) is Room.FULL

    async def test_money_is_counted_like_tokens(self, kit: Kit) -> None:
        """Known costs count; at the cap there is no room even for a call whose price nobody knows."""
        async with kit.open() as store:
            owners = await family_of(Bench(store), "a", "b", budget=Budget(max_cost=Decimal("1.00")))
            assert await room(owners["a"], cost=Decimal("0.60")) is Room.RESERVED
            assert (await ask(owners["b"], cost=Decimal("0.50"))).limit == "max_cost"
            await owners["a"].commit(usage=usage(1, "1.00"), reservation=ENDS)
            assert await room(owners["b"], cost=Decimal(0)) is Room.REACHED

    async def test_every_cap_above_a_run_holds(self, kit: Kit) -> None:
        """The nearest one and the farthest one; the answer names the run that leaves no room."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start("p", budget=Budget(max_tokens=1_000))
            middle = await bench.start("m", parent_run="p", budget=CAP)
            below, beside = await bench.start("x", parent_run="m"), await bench.start("y", parent_run="p")
            assert await room(beside, 950) is Room.RESERVED
            assert ((await ask(below, 60)).cap, (await ask(below, 150)).cap) == ("p", "m")
            await beside.commit(usage=usage(10), reservation=ENDS)
            assert await room(below, 60) is Room.RESERVED
            assert (await ask(middle, 60)).room is Room.FULL

    async def test_a_fork_begins_a_family_of_its_own(self, kit: Kit) -> None:
        """It goes back to another run, but it is nobody's child."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a")
            fork = await bench.start("f", parent_run="p", source="fork", budget=CAP)
            await owners["a"].commit(usage=usage(100))
            assert await room(fork, 1_000) is Room.FREE
            assert await room(owners["p"], 1) is Room.REACHED

    async def test_nobody_in_flight_means_that_the_budget_is_reached(self, kit: Kit) -> None:
        """Room that nobody will make is not waited for."""
        async with kit.open() as store:
            owners = await family_of(Bench(store), "a", "b")
            await owners["a"].commit(usage=usage(70))
            told = await ask(owners["b"])
            assert (told.room, told.cap, told.limit) == (Room.REACHED, "p", "max_tokens")
            assert await room(owners["b"], 30) is Room.RESERVED

    async def test_a_dead_owners_reservation_is_estimated_spend(self, kit: Kit) -> None:
        """The call may have been made: it counts for ever, and nobody is waited for."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            await ask(owners["a"], 70)
            kit.advance(LEASE / 2)
            await store.renew([owners["b"].lease], LATER)
            kit.advance(LEASE)
            assert "a" in (await bench.sweep()).recovered
            assert await room(owners["b"]) is Room.REACHED
            again = await bench.own("a")
            assert await room(again, 40, step=1) is Room.REACHED, "the new epoch asks for room of its own"
            assert await room(again, 30, step=1) is Room.RESERVED

    async def test_an_owner_gives_back_only_the_room_of_a_call_that_it_did_not_make(self, kit: Kit) -> None:
        """Kept, the room stays taken."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b", "c")
            await ask(owners["a"], 50)
            await ask(owners["b"], 50)
            await owners["a"].commit(ending=Park(), reservation=KEPT)
            await owners["b"].commit(ending=Park(), reservation=ENDS)
            assert await room(owners["c"], 51) is Room.REACHED
            assert await room(owners["c"], 50) is Room.RESERVED

    async def test_who_waits_for_room_is_woken_when_a_reservation_ends(self, kit: Kit) -> None:
        """By the commit that ends it, whether or not that made room."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b", "c")
            await ask(owners["a"], 90)
            assert (await wait_for_room(owners["b"], "w1")).status is RunStatus.WAITING
            await owners["c"].park(wait_row("w2", kind="budget"))
            await owners["a"].commit(usage=usage(90), reservation=ENDS)
            word = (await bench.wait("w1")).resolution
            assert word is not None and (word.kind, word.decision) == (ResolutionKind.EVENT, "look")
            assert [await bench.status(name) for name in "bc"] == [RunStatus.PENDING, RunStatus.WAITING]
            assert (await bench.run("b")).budget == Budget()

    async def test_no_row_opens_when_nobody_is_in_flight_any_more(self, kit: Kit) -> None:
        """The reservation ended between the question and the row: nothing would wake it."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            await ask(owners["a"], 90)
            assert await room(owners["b"]) is Room.FULL
            await owners["a"].commit(usage=usage(10), reservation=ENDS)
            answer = await wait_for_room(owners["b"], "w1")
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w1",))

    async def test_a_row_for_room_tells_nobody_and_closes_by_itself(self, kit: Kit) -> None:
        """No notice goes out; at its end the run looks again, though the one that it waits for has died."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            await ask(owners["a"], 90)
            await owners["b"].park(room_row("w1", expires_at=await store.now() + timedelta(seconds=5)))
            assert await store.claim_notices(limit=10, hold=LEASE) == []
            kit.advance(timedelta(seconds=5))
            await bench.sweep()
            assert await bench.status("b") is RunStatus.PENDING

    async def test_a_top_up_is_of_the_budget_that_was_reached(self, kit: Kit) -> None:
        """A child that came to its parent's limit asks for more of that one; the answer wakes the others that came to it too."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b", "c")
            await owners["p"].commit(usage=usage(100), ending=Park())
            for name, row in (("a", "w1"), ("b", "w2")):
                data = {"budget": CAP.to_json(), "of": "p", "decisions": ["top_up", "stop"]}
                await owners[name].park(wait_row(row, kind="budget", question="budget:0", name="p", data=data))
            assert (await bench.answer("w1", "top_up", value={"max_tokens": 150}, by="eva")).outcome is ResolveOutcome.RESOLVED
            assert (await bench.run("p")).budget.max_tokens == 150
            assert [(await bench.run(name)).budget for name in "ab"] == [Budget(), Budget()]
            assert [await bench.status(name) for name in "ab"] == [RunStatus.PENDING, RunStatus.PENDING]
            late = wait_row("w3", kind="budget", question="budget:0", name="p", data={"budget": CAP.to_json(), "of": "p"})
            assert (await owners["c"].park(late)).status is RunStatus.PENDING, "the top-up came before the row"
            assert await room(await bench.own("a"), 50) is Room.RESERVED

    async def test_more_for_the_parent_wakes_its_children(self, kit: Kit) -> None:
        """By the parent's own row, and by a retry with a larger budget."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            data = {"budget": CAP.to_json(), "of": "p"}
            await owners["a"].park(wait_row("w1", kind="budget", name="p", data=data))
            await owners["p"].park(wait_row("own", kind="budget", data={"budget": CAP.to_json()}))
            await bench.answer("own", "top_up", value={"max_tokens": 120})
            assert await bench.status("a") is RunStatus.PENDING
            more = Budget(max_tokens=120)
            await owners["b"].park(wait_row("w2", kind="budget", name="p", data={"budget": more.to_json(), "of": "p"}))
            await (await bench.own("p")).fail()
            await bench.retry("p", budget=Budget(max_tokens=500))
            assert await bench.status("b") is RunStatus.PENDING

    async def test_a_stale_owner_reserves_nothing(self, kit: Kit) -> None:
        """Another epoch, another token, a commit that came in between: told so, and nothing is taken."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a", "b")
            old = await ask(owners["a"], commit_no=owners["a"].commit_no + 1)
            assert old.room is Room.LOST
            await owners["a"].commit(usage=usage(1))
            assert await room(owners["a"], commit_no=owners["a"].commit_no - 1) is Room.LOST, "a request that was long on its way"
            for wrong in (Reserve("a", owners["a"].epoch + 1, owners["a"].token, 1, 1, 40), Reserve("a", owners["a"].epoch, "other", 1, 1, 40)):
                assert (await store.reserve(wrong)).room is Room.LOST
            await owners["a"].park()
            assert await room(owners["a"]) is Room.LOST
            assert await room(owners["b"], 99) is Room.RESERVED
            with pytest.raises(RunNotFoundError):
                await store.reserve(Reserve("nobody", 1, "t", 1, 1, 40))

    async def test_a_cancel_is_told_with_the_room(self, kit: Kit) -> None:
        """As with a commit: no model call starts after its owner has heard of it."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a")
            await bench.cancel("a")
            told = await ask(owners["a"])
            assert told.cancel_requested

    async def test_a_limit_of_0_leaves_no_room_at_all(self, kit: Kit) -> None:
        """Neither for tokens nor for money."""
        async with kit.open() as store:
            bench = Bench(store)
            for name, budget in (("p1", Budget(max_tokens=0)), ("p2", Budget(max_cost=Decimal(0)))):
                await bench.admit(name, budget=budget)
                assert await room(await bench.start(f"{name}-child", parent_run=name), 0) is Room.REACHED

    async def test_spend_that_still_counts_is_not_forgotten(self, kit: Kit) -> None:
        """A settled grandchild stays as long as somebody above it has not settled."""
        async with kit.open() as store:
            bench = Bench(store)
            owners = await family_of(bench, "a")
            deep = await bench.start("deep", parent_run="a")
            await deep.complete(usage=usage(60))
            await owners["a"].complete(usage=usage(30))
            await bench.admit("new")
            await store.renew([owners["p"].lease], timedelta(days=100))
            kit.advance(timedelta(days=20))
            old = PruneRequest(timedelta(days=10))
            assert (await store.prune(old)).runs == ()
            assert await room(owners["p"], 11) is Room.REACHED
            await owners["p"].complete()
            kit.advance(timedelta(days=20))
            assert set((await store.prune(old)).runs) == {"p", "a", "deep"}
