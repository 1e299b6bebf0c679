"""Reads, artifacts, notices and hints."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta

import pytest

from perdure.core.commit import EffectFilter, Park, RunFilter, SweepRequest, WaitFilter
from perdure.core.effect import EffectState
from perdure.core.errors import ArtifactNotFoundError, RunNotFoundError
from perdure.core.event import EventWrite
from perdure.core.run import RunStatus
from perdure.core.step import StepWrite
from perdure.stores import Hint, Store
from perdure.testing.conformance._bench import LATER, Bench, approval, effect, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

HOLD = timedelta(minutes=1)


class ReadConformance(Conformance):
    """Lists, pages and counts."""

    async def test_what_is_not_there_reads_as_nothing_or_as_an_error(self, kit: Kit) -> None:
        """`get`, `find` and `wait` answer None; what belongs to a run needs the run."""
        async with kit.open() as store:
            assert await store.get("nobody") is None
            assert await store.find("agent", "key") is None
            assert await store.wait("nothing") is None
            assert list(await store.runs(RunFilter())) == []
            assert list(await store.waits(WaitFilter())) == []
            assert list(await store.effects(EffectFilter())) == []
            for read in (store.load("nobody"), store.steps("nobody"), store.events("nobody"), store.checkpoint("nobody")):
                with pytest.raises(RunNotFoundError):
                    await read

    async def test_runs_are_listed_newest_first_in_pages(self, kit: Kit) -> None:
        """`before` continues below a `seq`; a run that comes meanwhile does not shift a page."""
        async with kit.open() as store:
            bench = Bench(store)
            for at in range(7):
                await bench.admit(f"r{at}")
            first = await store.runs(RunFilter(limit=3))
            assert [run.id for run in first] == ["r6", "r5", "r4"]
            await bench.admit("r7")
            second = await store.runs(RunFilter(limit=3, before=first[-1].seq))
            assert [run.id for run in second] == ["r3", "r2", "r1"]
            third = await store.runs(RunFilter(limit=3, before=second[-1].seq))
            assert [run.id for run in third] == ["r0"]

    async def test_runs_are_filtered_by_each_field(self, kit: Kit) -> None:
        """Agent, status, thread, label, parent and time; several at once."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("a", agent="one", thread="t", labels={"team": "ops", "env": "prod"})
            await bench.admit("b", agent="two", thread="t", labels={"team": "dev"})
            await bench.in_status(RunStatus.FAILED, "c", agent="one", parent_run="a")
            await bench.in_status(RunStatus.WAITING, "d", agent="two", labels={"ops": "team"})
            kit.advance(LATER)
            middle = await store.now() - LATER / 2
            await bench.admit("e", agent="one")

            async def listed(**where: object) -> str:
                return "".join(run.id for run in await store.runs(RunFilter(**where)))  # pyright: ignore[reportArgumentType]

            assert await listed() == "edcba"
            assert await listed(agent="one") == "eca"
            assert await listed(status=(RunStatus.FAILED, RunStatus.WAITING)) == "dc"
            assert await listed(thread="t") == "ba"
            assert await listed(label=("team", "ops")) == "a"
            assert await listed(label=("team", "nobody")) == ""
            assert await listed(parent="a") == "c"
            assert await listed(since=middle) == "e"
            assert await listed(agent="one", status=(RunStatus.PENDING,), limit=1) == "e"

    async def test_counts_name_every_status(self, kit: Kit) -> None:
        """Of all agents or of one; nothing is 0, not missing."""
        async with kit.open() as store:
            bench = Bench(store)
            assert await store.counts() == {str(status): 0 for status in RunStatus}
            for status in RunStatus:
                await bench.in_status(status, str(status))
            await bench.admit("other", agent="other")
            assert await store.counts() == {**{str(status): 1 for status in RunStatus}, "pending": 2}
            assert (await store.counts("other"))["pending"] == 1
            assert sum((await store.counts("other")).values()) == 1

    async def test_events_are_read_from_any_number_on(self, kit: Kit) -> None:
        """In order, in pages, stamped by the store."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(events=tuple(EventWrite("log", {"n": at}) for at in range(10)))
            page = await store.events("r1", after=4, limit=3)
            assert [event.seq for event in page] == [5, 6, 7]
            assert [event.data for event in page] == [{"n": 2}, {"n": 3}, {"n": 4}]
            assert all(event.run_id == "r1" and event.at.tzinfo is not None for event in page)
            assert list(await store.events("r1", after=12)) == []

    async def test_steps_are_read_from_any_number_on(self, kit: Kit) -> None:
        """Over all generations, with what was written."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            row = StepWrite("llm", 1, "gpt", "c", 0, 0, 1, {"i": 1}, {"o": 1}, "text", {"code": "x"}, {"input_tokens": 1}, "stop")
            await owner.commit(steps=(row, *(StepWrite("tool", 1, f"t{at}") for at in range(3))))
            await owner.fail()
            await bench.retry(mode="full")
            await (await bench.own()).commit(steps=(StepWrite("llm", 1, "gpt"),))
            steps = await store.steps("r1")
            assert steps[0].row == row
            assert [(step.seq, step.generation) for step in steps] == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
            assert [step.seq for step in await store.steps("r1", after=1, limit=2)] == [2, 3]

    async def test_wait_rows_are_listed_oldest_first_in_pages(self, kit: Kit) -> None:
        """By run, kind and state; `after` continues behind a row."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1")).park(approval("w1"), wait_row("w2", kind="event", name="paid"))
            await (await bench.start("r2")).park(approval("w3"), approval("w4"))
            await bench.answer("w3")

            async def listed(**where: object) -> list[str]:
                return [wait.id for wait in await store.waits(WaitFilter(**where))]  # pyright: ignore[reportArgumentType]

            assert await listed() == ["w1", "w2", "w4"]
            assert await listed(open=None) == ["w1", "w2", "w3", "w4"]
            assert await listed(open=False) == ["w3"]
            assert await listed(run_id="r2") == ["w4"]
            assert await listed(kind=("approval",), open=None) == ["w1", "w3", "w4"]
            assert await listed(limit=2) == ["w1", "w2"]
            assert await listed(after="w2", limit=2) == ["w4"]
            assert await listed(after="w1", open=None, limit=2) == ["w2", "w3"]

    async def test_effects_are_listed_oldest_first(self, kit: Kit) -> None:
        """By run and state; a change of state does not move one."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=tuple(effect(EffectState.STARTED, position=at, unknown="retry") for at in range(3)))
            await owner.commit(effects=(effect(EffectState.DONE, position=1, unknown="retry"),))
            await owner.commit(ending=Park())
            assert [each.row.position for each in await store.effects(EffectFilter())] == [0, 1, 2]
            assert [each.row.position for each in await store.effects(EffectFilter(state=("unknown",)))] == [0, 2]
            assert [each.row.position for each in await store.effects(EffectFilter(run_id="r1", limit=1))] == [0]
            assert list(await store.effects(EffectFilter(run_id="other"))) == []

    async def test_a_load_is_of_one_moment(self, kit: Kit) -> None:
        """While the run is written, its parts agree with each other."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            owner = await bench.start()

            async def writes() -> None:
                for at in range(20):
                    await owner.commit(effects=(effect(EffectState.DONE, position=at),), waits=(approval(f"w{at}"),))

            async def reads() -> None:
                for _ in range(20):
                    loaded = await two.load("r1")
                    assert len(loaded.effects) == len(loaded.waits) == loaded.run.commit_no

            await asyncio.gather(writes(), reads())

    async def test_all_that_was_acknowledged_is_there_for_the_next_process(self, kit: Kit) -> None:
        """Durable first, acknowledged second."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            kept = (await store.load("r1"), await store.events("r1"), await store.waits(WaitFilter()))
        async with kit.open() as store:
            assert (await store.load("r1"), await store.events("r1"), await store.waits(WaitFilter())) == kept
            await Bench(store).answer()
            assert await Bench(store).status() is RunStatus.PENDING

    async def test_the_clock_is_the_stores(self, kit: Kit) -> None:
        """UTC, never backwards, and moved with the place."""
        async with kit.open() as store:
            before = await store.now()
            kit.advance(LATER)
            after = await store.now()
            assert before.utcoffset() == timedelta(0)
            assert after - before >= LATER

    async def test_migrating_twice_is_no_work(self, kit: Kit) -> None:
        """Many may do it at once, and each is told the version."""  # case I7
        async with kit.open() as one, kit.open() as two:
            versions = await asyncio.gather(one.migrate(), two.migrate(), one.migrate())
            assert len(set(versions)) == 1 and versions[0] >= 1

    async def test_a_store_says_what_it_is(self, kit: Kit) -> None:
        """For people: its kind at least."""
        async with kit.open() as store:
            assert store.info()["kind"]


class ArtifactConformance(Conformance):
    """Bytes by content."""

    @pytest.mark.parametrize("data", [b"", b"hello", bytes(range(256)) * 16, b"x" * 3_000_000], ids=len)
    async def test_bytes_come_back_as_they_were(self, kit: Kit, data: bytes) -> None:
        """Under their SHA-256, with a description; nothing is too small."""  # case D6 M5
        async with kit.open() as store:
            stored = await store.put_artifact(data, media_type="image/png", filename="../../x 漢.png")
            assert (stored.id, stored.size, stored.media_type, stored.filename) == (
                hashlib.sha256(data).hexdigest(), len(data), "image/png", "../../x 漢.png",
            )  # fmt: skip
            assert stored.created_at is not None
        async with kit.open() as store:
            assert await store.get_artifact(stored.id) == (stored, data)

    async def test_equal_bytes_are_stored_once(self, kit: Kit) -> None:
        """The first description stands, also when two come at once."""  # case M5
        async with kit.open() as one, kit.open() as two:
            puts = (store.put_artifact(b"same", media_type="text/plain", filename=f"{at}.txt") for at, store in enumerate([one, two] * 3))
            stored = await asyncio.gather(*puts)
            assert len({artifact.id for artifact in stored}) == 1
            assert len({(await store.get_artifact(stored[0].id))[0].filename for store in (one, two)}) == 1

    async def test_a_missing_artifact_is_an_error(self, kit: Kit) -> None:
        """With its id."""
        async with kit.open() as store:
            with pytest.raises(ArtifactNotFoundError):
                await store.get_artifact("0" * 64)


class NoticeConformance(Conformance):
    """`claim_notices` and `note_notice`: everybody is told at least once, by one teller at a time (P5)."""

    async def test_an_open_row_is_told_about_once(self, kit: Kit) -> None:
        """Held while it is being told, then noted for good."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            assert [wait.id for wait in await store.claim_notices(limit=10, hold=HOLD)] == ["w1"]
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == [], "held"
            await note(store, accepted=True)
            wait = await bench.wait("w1")
            assert wait.notified_at is not None and wait.warned_at is None
            assert (await bench.events())[-1] == "wait.notified"
            kit.advance(LATER)
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == []

    async def test_a_teller_that_dies_is_replaced(self, kit: Kit) -> None:
        """The hold runs out."""
        async with kit.open() as store:
            await (await Bench(store).start()).park(approval())
            await store.claim_notices(limit=10, hold=HOLD)
            kit.advance(HOLD + HOLD)
            assert [wait.id for wait in await store.claim_notices(limit=10, hold=HOLD)] == ["w1"]

    async def test_of_tellers_at_once_one_gets_the_row(self, kit: Kit) -> None:
        """By compare-and-set."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            for at in range(4):
                await (await bench.start(f"r{at}")).park(approval(f"w{at}"))
            batches = await asyncio.gather(*(store.claim_notices(limit=2, hold=HOLD) for store in [one, two] * 3))
            held = [wait.id for batch in batches for wait in batch]
            assert sorted(held) == ["w0", "w1", "w2", "w3"]

    async def test_a_refused_notice_is_tried_again_later(self, kit: Kit) -> None:
        """After its back-off, with the tries counted."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            await store.claim_notices(limit=10, hold=HOLD)
            await note(store, accepted=False, tries=1, retry_in=timedelta(minutes=10))
            wait = await bench.wait("w1")
            assert (wait.notify_tries, wait.notified_at) == (1, None)
            kit.advance(timedelta(minutes=5))
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == []
            kit.advance(timedelta(minutes=6))
            (again,) = await store.claim_notices(limit=10, hold=HOLD)
            assert again.notify_tries == 1

    async def test_one_warning_goes_out_before_the_end(self, kit: Kit) -> None:
        """After the request, once, and not when the end has come."""  # case B4
        async with kit.open() as store:
            bench = Bench(store)
            now = await store.now()
            await (await bench.start()).park(approval(expires_at=now + LATER, warn_at=now + timedelta(minutes=48)))
            await store.claim_notices(limit=10, hold=HOLD)
            await note(store, accepted=True)
            kit.advance(timedelta(minutes=30))
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == []
            kit.advance(timedelta(minutes=20))
            (wait,) = await store.claim_notices(limit=10, hold=HOLD)
            assert wait.notified_at is not None
            await note(store, accepted=True, warning=True)
            await note(store, accepted=True, warning=True)
            assert (await bench.wait("w1")).warned_at is not None
            assert (await bench.events()).count("wait.warned") == 1
            kit.advance(LATER)
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == []

    async def test_only_rows_that_wait_for_people_are_told_about(self, kit: Kit) -> None:
        """Events, timers and another run's effect wait for nobody; unknown effects do, in a final run too."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            rows = [wait_row("w1", kind="event", name="paid"), wait_row("w2", kind="timer", expires_at=await store.now() + LATER)]
            rows += [wait_row("w3", kind="budget"), wait_row("w4", kind="attention")]
            await owner.park(*rows)
            second = await bench.start("r2")
            await second.commit(effects=(effect(EffectState.STARTED, "r2"),))
            await (await bench.start("r3")).park(wait_row("w5", kind="effect", effect_key="r2:1:1:0"))
            await second.fail()
            told = [(wait.run_id, wait.kind) for wait in await store.claim_notices(limit=10, hold=HOLD)]
            assert told == [("r1", "budget"), ("r1", "attention"), ("r2", "effect")]

    async def test_a_closed_row_is_told_about_no_more(self, kit: Kit) -> None:
        """And a note that comes late changes nothing."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start()).park(approval())
            await bench.answer()
            assert list(await store.claim_notices(limit=10, hold=HOLD)) == []
            before = await bench.wait("w1")
            await note(store, accepted=True)
            assert await bench.wait("w1") == before


async def note(
    store: Store, *, accepted: bool, tries: int = 1, warning: bool = False, retry_in: timedelta | None = None, token_hash: str | None = None
) -> None:
    await store.note_notice("w1", tries=tries, accepted=accepted, warning=warning, retry_in=retry_in, token_hash=token_hash)


class HintConformance(Conformance):
    """`on_hint`: somebody who waits hears that there may be news, after the write."""

    async def test_news_of_a_run_is_hinted(self, kit: Kit) -> None:
        """Admission, claim, commit, answer, cancel: each is followed by a hint about the run; a commit that goes on, by one that says no more than news."""
        async with kit.open() as store:
            bench = Bench(store)
            heard = Heard(store)
            await bench.admit()
            await heard.about("r1")
            owner = await bench.own()
            await heard.about("r1")
            await owner.commit(events=(EventWrite("step.completed", {}),))
            await heard.news_of("r1")
            await owner.park(approval())
            await heard.about("r1")
            await bench.answer()
            await heard.about("r1")
            await bench.cancel()
            await heard.about("r1")

    async def test_work_is_hinted(self, kit: Kit) -> None:
        """A run that may be claimed: new, handed back, answered, retried, recovered, or freed by another's end."""
        async with kit.open() as store:
            bench = Bench(store)
            heard = Heard(store)
            await bench.admit("r1", concurrency_key="k")
            await heard.work()
            owner = await bench.own("r1")
            await owner.commit(ending=Park())
            await heard.work()
            owner = await bench.own("r1")
            await owner.park(approval())
            await bench.answer()
            await heard.work()
            await bench.own("r1")
            kit.advance(LATER)
            await store.sweep(SweepRequest(10, 5))
            await heard.work()

    async def test_after_a_hint_the_news_can_be_read(self, kit: Kit) -> None:
        """It comes after the write, never before."""
        async with kit.open() as store:
            seen: list[asyncio.Task[object]] = []

            def look(hint: Hint) -> None:
                if hint.run_id in (None, "r1"):  # a late word about another test's run says nothing here
                    seen.append(asyncio.ensure_future(store.get("r1")))

            off = store.on_hint(look)
            await Bench(store).admit()
            async with asyncio.timeout(10):
                while not seen:
                    await asyncio.wait([asyncio.ensure_future(store.now())])
            off()
            assert all(run is not None for run in await asyncio.gather(*seen))

    async def test_a_listener_that_has_left_hears_nothing(self, kit: Kit) -> None:
        """Leaving twice is no error."""
        async with kit.open() as store:
            heard: list[Hint] = []
            off = store.on_hint(heard.append)
            off()
            off()
            still = Heard(store)
            await Bench(store).admit()
            await still.about("r1")
            assert heard == []

    async def test_deltas_are_best_effort(self, kit: Kit) -> None:
        """Sending never raises, and a listener can leave."""
        async with kit.open() as store:
            off = store.on_delta(lambda delta: None)
            await store.send_deltas([])
            off()


class Heard:
    """Collects hints and waits for the one that is due."""

    def __init__(self, store: Store) -> None:
        self._hints: list[Hint] = []
        self._news = asyncio.Event()
        store.on_hint(self._hear)

    def _hear(self, hint: Hint) -> None:
        self._hints.append(hint)
        self._news.set()

    async def about(self, run_id: str) -> None:
        await self._until(Hint("run", run_id))

    async def news_of(self, run_id: str) -> None:
        await self._until(Hint("news", run_id))

    async def work(self) -> None:
        async with asyncio.timeout(10):
            while not any(hint.kind == "work" for hint in self._hints):
                await self._more()
        self._hints.clear()

    async def _until(self, wanted: Hint) -> None:
        async with asyncio.timeout(10):
            while wanted not in self._hints:
                await self._more()
        self._hints.clear()

    async def _more(self) -> None:
        await self._news.wait()
        self._news.clear()
