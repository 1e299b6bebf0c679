"""Retention: what is forgotten, and what never is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Park, Pruned, PruneRequest, RunFilter
from perdure.core.effect import EffectState
from perdure.core.errors import Conflict, RunNotFoundError
from perdure.core.event import EventWrite
from perdure.core.run import RunStatus
from perdure.core.step import StepWrite
from perdure.testing.conformance._bench import Bench, approval, effect, new_run, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

AGE = timedelta(days=10)
DAY = timedelta(days=1)


async def pruned(bench: Bench, **fields: Any) -> Pruned:
    return await bench.store.prune(PruneRequest(AGE, **fields))


class PruneConformance(Conformance):
    """What retention may forget."""

    async def test_an_old_settled_run_is_forgotten_with_all_that_hangs_on_it(self, kit: Kit) -> None:
        """Nobody finds it any more, and nothing of it is left in any list."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start("old", labels={"team": "a"}, thread="t")
            await owner.commit(
                checkpoint=CheckpointWrite(0, 0, 0, (b"hello",)), steps=(StepWrite("llm", 1, "model"),), effects=(effect(EffectState.STARTED, "old"),),
                events=(EventWrite("log"),),
            )  # fmt: skip
            await owner.commit(effects=(effect(EffectState.DONE, "old"),))
            await owner.park(approval())
            await bench.answer()
            await (await bench.own("old")).fail()
            await bench.admit("new")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("old",)
            assert await store.get("old") is None and await store.wait("w1") is None
            assert [run.id for run in await store.runs(RunFilter())] == ["new"]
            assert not await store.runs(RunFilter(label=("team", "a")))
            for call in (store.events("old"), store.steps("old"), store.load("old"), store.checkpoint("old")):
                with pytest.raises(RunNotFoundError):
                    await call

    async def test_only_what_is_old_enough_and_asked_for_is_forgotten(self, kit: Kit) -> None:
        """By age, agent and status, the oldest first, and at most so many."""
        async with kit.open() as store:
            bench = Bench(store)
            for at in range(3):
                await (await bench.start(f"done{at}")).complete()
            await (await bench.start("failed")).fail()
            await (await bench.start("other", agent="other")).complete()
            kit.advance(AGE)
            await (await bench.start("young")).complete()
            await bench.admit("last")
            assert (await pruned(bench, agent="other")).runs == ("other",)
            assert (await pruned(bench, status=(RunStatus.FAILED,))).runs == ("failed",)
            assert (await pruned(bench, limit=2)).runs == ("done0", "done1")
            assert (await pruned(bench)).runs == ("done2",)
            assert (await pruned(bench)).runs == ()
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("young",)

    async def test_nothing_unfinished_is_forgotten(self, kit: Kit) -> None:
        """However long it waits."""  # case D3
        async with kit.open() as store:
            bench = Bench(store)
            for status in (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.INTERRUPTED):
                await bench.in_status(status, f"r-{status}")
            await bench.admit("last")
            kit.advance(10 * AGE)
            assert (await pruned(bench)).runs == ()

    async def test_what_a_fork_goes_back_to_is_kept(self, kit: Kit) -> None:
        """Its effects say what must not be done again."""  # case D3
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("origin")).complete()
            await (await bench.start("fork", source="fork", parent_run="origin")).complete()
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("fork",)
            assert (await pruned(bench)).runs == ("origin",)

    async def test_a_child_is_kept_until_its_parent_has_settled(self, kit: Kit) -> None:
        """And a parent until its children have."""
        async with kit.open() as store:
            bench = Bench(store)
            parent = await bench.start("parent")
            await (await bench.start("child", source="run", parent_run="parent")).complete()
            grown = await bench.start("grown", source="run", parent_run="parent")
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ()
            await parent.complete()
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("child",)
            await grown.complete()
            assert (await pruned(bench)).runs == ("parent",)

    async def test_the_head_of_a_thread_is_kept(self, kit: Kit) -> None:
        """The next turn starts from it; the turns before it may go."""
        async with kit.open() as store:
            bench = Bench(store)
            for name in ("first", "second"):
                await (await bench.start(name, thread="t")).complete()
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("first",)

    async def test_what_an_unfinished_turn_read_as_its_head_is_kept(self, kit: Kit) -> None:
        """A resume reads it again."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("first", thread="t")).complete()
            await (await bench.start("second", thread="t")).fail()
            await (await bench.start("third", thread="t")).complete()
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("second",)
            assert (await pruned(bench)).runs == ("first",)

    async def test_a_run_that_somebody_is_still_asked_about_is_kept(self, kit: Kit) -> None:
        """An effect of unknown outcome can be settled long after its run has."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(EffectState.STARTED),))
            await owner.fail()
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ()

    @pytest.mark.parametrize(("claim", "gone"), [("agent:pay:7", ()), ("thread:t:pay:7", ()), ("run:r1:pay:7", ("r1",)), (None, ("r1",))])
    async def test_a_business_key_that_holds_beyond_the_run_keeps_it(self, kit: Kit, claim: str | None, gone: tuple[str, ...]) -> None:
        """Else the deed would be done again."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(EffectState.STARTED, claim=claim),))
            await owner.commit(effects=(effect(EffectState.DONE, claim=claim),))
            await owner.complete()
            await bench.admit("last")
            kit.advance(AGE)
            assert (await pruned(bench)).runs == gone

    async def test_the_key_of_a_forgotten_run_still_answers(self, kit: Kit) -> None:
        """With the id and the final status, for its own retention; then it starts a new run."""  # case D3
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("old", key="k", key_retention=AGE + DAY)
            await (await bench.own("old")).complete()
            await bench.admit("last")
            kit.advance(AGE)
            assert await pruned(bench) == Pruned(("old",), 0)
            again = await store.admit(new_run("again", key="k"))
            assert (again.created, again.run.id, again.run.status, again.run.pruned) == (False, "old", RunStatus.COMPLETED, True)
            found = await store.find("agent", "k")
            assert found is not None and found.pruned and found.id == "old"
            with pytest.raises(Conflict):
                await store.admit(new_run("other", key="k", payload="another"))
            kit.advance(DAY)
            assert await pruned(bench) == Pruned((), 1)
            assert await store.find("agent", "k") is None
            assert (await store.admit(new_run("again", key="k"))).created

    async def test_a_forgotten_number_is_not_given_again(self, kit: Kit) -> None:
        """Cursors of lists stay good."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("old")).complete()
            last = await bench.admit("last")
            kit.advance(AGE)
            await pruned(bench)
            assert (await bench.admit("next")).seq > last.seq

    async def test_what_is_left_works_on(self, kit: Kit) -> None:
        """A waiting run whose neighbours were forgotten is answered and finishes."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("old")).complete()
            waiting = await bench.start("waiting")
            await waiting.commit(waits=(approval(), wait_row("w2", kind="event", name="paid")), ending=Park())
            kit.advance(AGE)
            assert (await pruned(bench)).runs == ("old",)
            await bench.answer()
            await bench.cancel("waiting")
            assert await bench.status("waiting") is RunStatus.CANCELLED
