"""Claims: who may run what, in which order (table R, G2, G3, V1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Park, Release
from perdure.core.run import Activity, RunStatus
from perdure.testing.conformance._bench import DRAIN, LATER, LEASE, Bench, Owner, approval
from perdure.testing.conformance._kit import Conformance, Kit


class ClaimConformance(Conformance):
    """`claim`: conditions, order and batches."""

    async def test_a_claim_takes_the_run_under_a_new_epoch(self, kit: Kit) -> None:
        """Owner, token, lease and counters are on the row."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            request = bench.request()
            (run,) = await store.claim(request)
            now = await store.now()
            assert (run.status, run.epoch, run.executions, run.claim_token) == (RunStatus.RUNNING, 1, 1, request.token)
            assert run.lease_owner == "worker-1"
            assert run.lease_expires_at is not None and now < run.lease_expires_at <= now + LEASE
            assert run.started_at is not None
            assert run == await store.get("r1")
            assert await bench.events() == ["run.created", "run.claimed"]

    async def test_a_running_run_is_not_claimed_again(self, kit: Kit) -> None:
        """Not even when its lease has run out: a sweep must take it first."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start()
            assert await bench.claim() == []
            kit.advance(LATER)
            assert await bench.claim() == []

    async def test_the_same_token_answers_the_same_claim(self, kit: Kit) -> None:
        """A claim whose reply was lost is repeated and takes nothing more."""
        async with kit.open() as store:
            bench = Bench(store)
            for run_id in ("r1", "r2", "r3"):
                await bench.admit(run_id)
            request = bench.request(limit=2)
            first = await store.claim(request)
            again = await store.claim(request)
            assert sorted(run.id for run in again) == sorted(run.id for run in first)
            assert {run.epoch for run in again} == {1}
            assert await bench.status("r3") is RunStatus.PENDING

    async def test_the_same_token_answers_nothing_that_was_taken_away(self, kit: Kit) -> None:
        """A repeated claim after a sweep neither holds nor takes the run."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            request = bench.request()
            await store.claim(request)
            kit.advance(LATER)
            await bench.sweep()
            assert await store.claim(request) == []
            assert await bench.status() is RunStatus.PENDING

    async def test_a_worker_claims_only_agents_that_it_names(self, kit: Kit) -> None:
        """Runs of other agents stay for others."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("r1", agent="one")
            await bench.admit("r2", agent="two")
            assert await bench.claim("two", "three", limit=5) == ["r2"]
            assert await bench.status("r1") is RunStatus.PENDING

    async def test_a_worker_claims_no_format_that_it_can_not_read(self, kit: Kit) -> None:
        """A run whose checkpoint is newer than the worker waits for a newer worker."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=CheckpointWrite(index=1, base=0, keep=0, append=(b"new",), format=2), ending=Park())
            assert await bench.claim(format=1) == []
            assert await bench.claim(format=2) == ["r1"]

    async def test_one_run_can_be_asked_for(self, kit: Kit) -> None:
        """`run_id` narrows the claim."""
        async with kit.open() as store:
            bench = Bench(store)
            for run_id in ("r1", "r2"):
                await bench.admit(run_id)
            assert await bench.claim(run_id="r2", limit=5) == ["r2"]
            assert await bench.claim(run_id="r2") == []

    async def test_the_order_is_interrupted_priority_begun_admission(self, kit: Kit) -> None:
        """Each of the four rules decides only between equals of the one before."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("new-1")
            await bench.admit("new-2")
            await bench.admit("urgent", priority=5)
            for run_id, ending in (("begun", Park()), ("interrupted", DRAIN)):
                owner = await bench.start(run_id)
                await owner.commit(ending=ending)
            taken = [(await bench.claim())[0] for _ in range(5)]
            assert taken == ["interrupted", "urgent", "begun", "new-1", "new-2"]

    async def test_a_batch_takes_up_to_its_limit_in_order(self, kit: Kit) -> None:
        """One claim, several runs, one token."""
        async with kit.open() as store:
            bench = Bench(store)
            for at in range(5):
                await bench.admit(f"r{at}")
            assert await bench.claim(limit=3) == ["r0", "r1", "r2"]
            assert await bench.claim(limit=3) == ["r3", "r4"]

    async def test_workers_that_claim_at_once_share_without_overlap(self, kit: Kit) -> None:
        """Twenty runs, eight claims at once through two handles: each run goes to one of them."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            for at in range(20):
                await bench.admit(f"r{at}")
            requests = [bench.request(limit=3) for _ in range(8)]
            batches = await asyncio.gather(*(store.claim(request) for store, request in zip([one, two] * 4, requests, strict=True)))
            taken = [run.id for batch in batches for run in batch]
            assert len(taken) == len(set(taken))
            rest: list[str] = []
            while more := await bench.claim(limit=5):
                rest += more
            assert sorted(taken + rest) == sorted(f"r{at}" for at in range(20))

    async def test_a_waiting_or_final_run_is_not_claimed(self, kit: Kit) -> None:
        """Only pending and interrupted runs are."""
        async with kit.open() as store:
            bench = Bench(store)
            for status in RunStatus:
                await bench.in_status(status, str(status))
            assert sorted(await bench.claim(limit=10)) == ["interrupted", "pending"]

    async def test_commit_numbers_go_on_from_claim_to_claim(self, kit: Kit) -> None:
        """The next owner continues where the last one stopped."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit()
            await owner.park()
            owner = await bench.own()
            assert (owner.commit_no, owner.epoch) == (2, 2)
            await owner.commit()


class HoldConformance(Conformance):
    """Concurrency keys, limits and threads: who holds what, from when until when."""

    async def test_runs_of_one_key_go_one_at_a_time_in_order_of_admission(self, kit: Kit) -> None:
        """Priority decides between keys, never within one."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("r1", concurrency_key="k")
            await bench.admit("r2", concurrency_key="k", priority=9)
            await bench.admit("other")
            assert sorted(await bench.claim(limit=5)) == ["other", "r1"], "a batch respects what it took itself"
            assert await bench.claim(limit=5) == []
            await Owner(store, await bench.run("r1")).complete()
            assert await bench.claim(limit=5) == ["r2"]

    async def test_keys_are_shared_by_agents(self, kit: Kit) -> None:
        """Two agents with one concurrency key do not run at once."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start("r1", agent="one", concurrency_key="k")
            await bench.admit("r2", agent="two", concurrency_key="k")
            assert await bench.claim("two") == []

    async def test_a_run_handed_back_keeps_its_key(self, kit: Kit) -> None:
        """Pending and interrupted between two claims hold it, a retry-after too."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start("r1", concurrency_key="k")
            await bench.admit("r2", concurrency_key="k")
            for ending in (DRAIN, Park(), Release("retry_after", timedelta(minutes=5))):
                await owner.commit(ending=ending)
                assert await bench.claim(run_id="r2") == []
                kit.advance(timedelta(minutes=6))
                owner = await bench.own("r1")

    async def test_a_dead_owner_keeps_the_key_of_its_run(self, kit: Kit) -> None:
        """After a sweep the recovered run still goes first."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.start("r1", concurrency_key="k")
            await bench.admit("r2", concurrency_key="k")
            kit.advance(LATER)
            await bench.sweep()
            assert await bench.claim(limit=5) == ["r1"]

    async def test_a_waiting_run_gives_its_key_back_and_goes_first_afterwards(self, kit: Kit) -> None:
        """While it waits others of its key run; then it takes the key anew before runs that have not begun."""
        async with kit.open() as store:
            bench = Bench(store)
            for run_id in ("r1", "r2", "r3"):
                await bench.admit(run_id, concurrency_key="k")
            await (await bench.own("r1")).park(approval())
            owner = await bench.own("r2")
            await bench.answer()
            assert await bench.claim(limit=5) == [], "r2 holds the key"
            await owner.complete()
            assert await bench.claim(run_id="r3") == [], "r1 has begun and can be claimed now"
            assert await bench.claim(limit=5) == ["r1"]

    async def test_one_that_can_not_go_now_does_not_stop_its_key(self, kit: Kit) -> None:
        """Order holds among those that can be claimed now: a delayed one lets the next one pass."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit("r1", concurrency_key="k", delay=LATER)
            await bench.admit("r2", concurrency_key="k")
            assert await bench.claim(limit=5) == ["r2"]

    async def test_a_settled_run_gives_its_key_back_whatever_the_end(self, kit: Kit) -> None:
        """Completed, failed, cancelled and poisoned runs hold nothing."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1", concurrency_key="k", thread="t")).complete()
            await (await bench.start("r2", concurrency_key="k", thread="t")).fail()
            await (await bench.start("r3", concurrency_key="k", thread="t")).commit(ending=DRAIN)
            await bench.cancel("r3")
            await bench.start("r4", concurrency_key="k", thread="t")
            kit.advance(LATER)
            await bench.sweep(deaths_max=1)
            assert await bench.status("r4") is RunStatus.FAILED
            await bench.start("r5", concurrency_key="k", thread="t")

    async def test_a_retried_run_takes_its_key_at_its_claim(self, kit: Kit) -> None:
        """A retry waits its turn: the key may be somebody else's by now."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1", concurrency_key="k", thread="t")).fail()
            owner = await bench.start("r2", concurrency_key="k", thread="t")
            assert await bench.retry("r1") == "retried"
            assert await bench.claim(limit=5) == []
            await owner.complete()
            assert await bench.claim(limit=5) == ["r1"]

    async def test_claims_at_once_take_a_key_once(self, kit: Kit) -> None:
        """Two handles that both find the key free do not both get it."""
        async with kit.open() as one, kit.open() as two:
            bench = Bench(one)
            for at in range(12):
                await bench.admit(f"r{at}", concurrency_key=f"k{at % 3}", thread=f"t{at % 2}")
            requests = [bench.request(limit=4) for _ in range(6)]
            batches = await asyncio.gather(*(store.claim(each) for store, each in zip([one, two] * 3, requests, strict=True)))
            taken = [run for batch in batches for run in batch]
            assert len({run.concurrency_key for run in taken}) == len(taken)
            assert len({run.thread for run in taken}) == len(taken)

    async def test_runs_that_have_a_place_go_on_under_a_smaller_limit(self, kit: Kit) -> None:
        """A deploy lowered the limit below what had begun: those keep their places, or none of them could ever go on; a new one waits for room."""
        async with kit.open() as store:
            bench = Bench(store)
            first, second = await bench.start("r1"), await bench.start("r2")
            await first.commit(ending=DRAIN)
            await second.commit(ending=DRAIN)
            await bench.admit("r3")
            limits: dict[str, int | None] = {"agent": 1}
            assert await bench.claim(limits=limits, limit=5) == ["r1", "r2"]
            await Owner(store, await bench.run("r1")).complete()
            assert await bench.claim(limits=limits, limit=5) == [], "r2 has the one place"
            await Owner(store, await bench.run("r2")).complete()
            assert await bench.claim(limits=limits, limit=5) == ["r3"]

    async def test_a_limit_counts_all_workers_runs_of_the_agent(self, kit: Kit) -> None:
        """At most so many at once, within one batch and over batches."""
        async with kit.open() as store:
            bench = Bench(store)
            for at in range(5):
                await bench.admit(f"r{at}")
            await bench.admit("free", agent="free")
            limits: dict[str, int | None] = {"agent": 2, "free": None}
            assert sorted(await bench.claim(limits=limits, limit=10)) == ["free", "r0", "r1"]
            assert await bench.claim(limits=limits, limit=10, worker="worker-2") == []
            await Owner(store, await bench.run("r1")).complete()
            assert await bench.claim(limits=limits, limit=10) == ["r2"]

    async def test_a_slot_is_held_like_a_key(self, kit: Kit) -> None:
        """Until the run waits or settles: handed back it keeps its slot, waiting it does not."""
        async with kit.open() as store:
            bench = Bench(store)
            one = await bench.start("r1")
            await bench.admit("r2")
            limits: dict[str, int | None] = {"agent": 1}
            await one.commit(ending=Release("retry_after", timedelta(minutes=5)))
            assert await bench.claim(limits=limits) == [], "r1 keeps its slot"
            kit.advance(timedelta(minutes=6))
            assert await bench.claim(limits=limits, limit=5) == ["r1"]
            await Owner(store, await bench.run("r1")).park(approval())
            assert await bench.claim(limits=limits, limit=5) == ["r2"]

    async def test_a_thread_is_held_until_its_run_settles(self, kit: Kit) -> None:
        """Waiting included: a conversation has one turn at a time."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start("r1", thread="t")
            await bench.admit("r2", thread="t")
            assert await bench.claim() == []
            await owner.park(approval())
            assert await bench.claim() == [], "r1 waits and holds the thread"
            await bench.answer()
            owner = await bench.own("r1")
            await owner.complete()
            assert await bench.claim() == ["r2"]

    async def test_a_child_of_its_parents_key_runs_while_the_parent_waits(self, kit: Kit) -> None:
        """A waiting ancestor does not stop its descendants."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start("r1", concurrency_key="k")
            await bench.admit("r2", concurrency_key="k", parent_run="r1")
            assert await bench.claim() == []
            await owner.park(approval())
            assert await bench.claim() == ["r2"]

    async def test_a_run_starts_from_the_head_of_its_thread(self, kit: Kit) -> None:
        """The head is read at the first claim of a generation and moved by completed runs only."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1", thread="t")).complete()
            await (await bench.start("r2", thread="t")).fail()
            await bench.start("r3", thread="t")
            assert [(await bench.run(run_id)).head for run_id in ("r1", "r2", "r3")] == [None, "r1", "r1"]

    async def test_a_later_claim_keeps_the_head_that_was_read(self, kit: Kit) -> None:
        """A resumed run goes on from its own history; it completes without moving a head that moved meanwhile, and says so."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1", thread="t")).fail()
            await (await bench.start("r2", thread="t")).complete()
            await bench.retry("r1")
            owner = await bench.own("r1")
            assert (await bench.run("r1")).head is None
            await owner.complete()
            assert (await bench.events("r1"))[-2:] == ["thread.kept", "run.settled"]
            await bench.start("r3", thread="t")
            assert (await bench.run("r3")).head == "r2"

    async def test_a_full_retry_reads_the_head_anew(self, kit: Kit) -> None:
        """The next generation starts from the thread as it stands."""
        async with kit.open() as store:
            bench = Bench(store)
            await (await bench.start("r1", thread="t")).fail()
            await (await bench.start("r2", thread="t")).complete()
            await bench.retry("r1", "full")
            owner = await bench.own("r1")
            assert (await bench.run("r1")).head == "r2"
            await owner.complete()
            assert "thread.kept" not in await bench.events("r1")


class LeaseConformance(Conformance):
    """`renew`, and what an expired lease is worth."""

    async def test_a_renewal_pushes_the_lease(self, kit: Kit) -> None:
        """By the store's clock, from now."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            before = (await bench.run()).lease_expires_at
            kit.advance(timedelta(seconds=20))
            (told,) = await store.renew([owner.lease], LEASE)
            after = (await bench.run()).lease_expires_at
            assert told.held and told.status is RunStatus.RUNNING
            assert before is not None and after is not None and after - before >= timedelta(seconds=20)

    async def test_a_renewal_carries_the_activity(self, kit: Kit) -> None:
        """What the owner is doing can be read from outside."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            activity = Activity(3, "tool pay", await store.now())
            await store.renew([replace(owner.lease, activity=activity)], LEASE)
            assert (await bench.run()).activity == activity

    async def test_all_leases_renew_in_one_call(self, kit: Kit) -> None:
        """Each is told about itself, in the order of asking."""
        async with kit.open() as store:
            bench = Bench(store)
            one, two, three = [await bench.start(run_id) for run_id in ("r1", "r2", "r3")]
            await two.complete()
            told = await store.renew([three.lease, two.lease, one.lease], LEASE)
            assert [(each.run_id, each.held) for each in told] == [("r3", True), ("r2", False), ("r1", True)]
            assert told[1].status is RunStatus.COMPLETED

    async def test_a_run_that_is_not_there_costs_nobody_their_lease(self, kit: Kit) -> None:
        """It was forgotten since: not held, and the others renew."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            told = await store.renew([replace(owner.lease, run_id="forgotten"), owner.lease], LEASE)
            assert [(each.run_id, each.held) for each in told] == [("forgotten", False), ("r1", True)]

    async def test_renewing_nothing_is_no_work(self, kit: Kit) -> None:
        """An idle worker may ask too."""
        async with kit.open() as store:
            assert list(await store.renew([], LEASE)) == []

    async def test_an_expired_lease_that_nobody_took_renews_and_commits(self, kit: Kit) -> None:
        """Taking ends it, not time."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            kit.advance(LATER)
            await owner.commit()
            (told,) = await store.renew([owner.lease], LEASE)
            assert told.held
            assert (await bench.sweep()).count == 0

    async def test_a_lease_that_was_taken_neither_renews_nor_commits(self, kit: Kit) -> None:
        """The old owner is told the new epoch and changes nothing."""  # case H1
        async with kit.open() as store:
            bench = Bench(store)
            old = await bench.start()
            kit.advance(LATER)
            await bench.sweep()
            new = await bench.own()
            before = await store.load("r1")
            (told,) = await store.renew([old.lease], LEASE)
            assert (told.held, told.epoch) == (False, new.epoch)
            answer = await old.send()
            assert (answer.ok, answer.epoch, answer.status) == (False, new.epoch, RunStatus.RUNNING)
            assert await store.load("r1") == before
            await new.commit()

    async def test_epoch_and_token_must_both_be_right(self, kit: Kit) -> None:
        """A worker name or an epoch alone is no claim."""  # case H1
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            wrong = [replace(owner.lease, token="guess"), replace(owner.lease, epoch=owner.epoch + 1)]
            assert [each.held for each in await store.renew(wrong, LEASE)] == [False, False]
            for commit in (replace(owner.next(), token="guess"), replace(owner.next(), epoch=owner.epoch + 1)):
                assert not (await store.commit(commit)).ok

    async def test_a_renewal_needs_no_commit_number(self, kit: Kit) -> None:
        """It comes from a thread of its own and does not know the last one."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            lease = owner.lease
            for _ in range(3):
                await owner.commit()
            (told,) = await store.renew([lease], LEASE)
            assert told.held

    async def test_a_renewal_hears_of_a_cancel(self, kit: Kit) -> None:
        """`cancel_requested` comes back with every renewal and commit."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            assert await bench.cancel() == "cancelling"
            (told,) = await store.renew([owner.lease], LEASE)
            assert told.held and told.cancel_requested
            assert (await owner.commit()).cancel_requested

    async def test_a_renewal_from_another_thread_and_loop_is_served(self, kit: Kit) -> None:
        """The thread that keeps leases has a loop of its own."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()

            def beside() -> bool:
                return asyncio.run(_renewed(owner))

            assert await asyncio.get_running_loop().run_in_executor(None, beside)


async def _renewed(owner: Owner) -> bool:
    (told,) = await owner.store.renew([owner.lease], LEASE)
    return told.held
