"""Admission: one run for one id and one key, and nothing stored of what is refused (G1, table R)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import NewRun
from perdure.core.errors import ArtifactNotFoundError, Conflict, RunNotFoundError
from perdure.core.run import RunStatus
from perdure.core.trigger import Attachment
from perdure.testing.conformance._bench import LATER, Bench, new_run
from perdure.testing.conformance._kit import Conformance, Kit


class AdmitConformance(Conformance):
    """`admit`."""

    async def test_a_new_run_is_pending_and_reads_back_as_it_was_given(self, kit: Kit) -> None:
        """Everything that the caller said is on the run."""
        async with kit.open() as store:
            new = new_run(payload={"n": 1}, key="k", concurrency_key="c", thread="t", priority=3, labels={"team": "ops"})
            admitted = await store.admit(new)
            run = admitted.run
            assert admitted.created
            assert (run.id, run.agent, run.status, run.trigger) == ("r1", "agent", RunStatus.PENDING, new.trigger)
            assert (run.priority, run.labels, run.budget) == (3, {"team": "ops"}, new.budget)
            assert (run.generation, run.epoch, run.executions, run.deaths, run.settlement, run.commit_no) == (1, 0, 0, 0, 0, 0)
            assert run.created_at is not None and run.available_at is not None and run.created_at.tzinfo is not None
            assert run == await store.get("r1")

    async def test_the_first_event_says_that_the_run_was_created(self, kit: Kit) -> None:
        """The log starts at 1 with `run.created`."""
        async with kit.open() as store:
            await store.admit(new_run())
            assert [(event.seq, event.type) for event in await store.events("r1")] == [(1, "run.created")]

    async def test_admitting_the_same_id_twice_makes_one_run(self, kit: Kit) -> None:
        """A repeated call after a lost reply is told about the run that the first one made."""
        async with kit.open() as store:
            first = await store.admit(new_run())
            again = await store.admit(new_run())
            assert (first.created, again.created) == (True, False)
            assert again.run == first.run
            assert len(await store.events("r1")) == 1

    async def test_the_same_key_answers_the_run_that_it_started(self, kit: Kit) -> None:
        """A second trigger with the key of a first one starts nothing, whatever became of the run."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start(key="k")
            await owner.fail()
            again = await store.admit(new_run("r2", key="k"))
            assert (again.created, again.run.id, again.run.status) == (False, "r1", RunStatus.FAILED)
            assert await store.get("r2") is None

    async def test_the_same_key_with_another_payload_is_a_conflict(self, kit: Kit) -> None:
        """The error names the run that has the key."""  # case J3
        async with kit.open() as store:
            await store.admit(new_run(key="k", payload={"body": "A"}))
            with pytest.raises(Conflict) as caught:
                await store.admit(new_run("r2", key="k", payload={"body": "B"}))
            assert caught.value.details["run_id"] == "r1"
            assert await store.get("r2") is None
            assert not (await store.admit(new_run("r3", key="k", payload={"body": "A"}))).created

    async def test_keys_of_two_agents_do_not_meet(self, kit: Kit) -> None:
        """A key is unique per agent."""
        async with kit.open() as store:
            await store.admit(new_run("r1", agent="one", key="k"))
            assert (await store.admit(new_run("r2", agent="two", key="k"))).created

    @pytest.mark.parametrize("key", ["two words", "ключ 🗝", "k" * 512, "a:b/c?d#e", "%00"])
    async def test_any_text_is_a_key(self, kit: Kit, key: str) -> None:
        """Keys are compared as they are."""  # case J3
        async with kit.open() as store:
            await store.admit(new_run(key=key))
            assert not (await store.admit(new_run("r2", key=key))).created
            found = await store.find("agent", key)
            assert found is not None and found.id == "r1"

    async def test_racing_duplicates_start_one_run(self, kit: Kit) -> None:
        """Fifty first uses of one key at once, through two handles, make one run."""  # case J3
        async with kit.open() as one, kit.open() as two:
            handles = [one, two] * 25
            answers = await asyncio.gather(*(store.admit(new_run(f"r{at}", key="k")) for at, store in enumerate(handles)))
            assert sum(answer.created for answer in answers) == 1
            assert len({answer.run.id for answer in answers}) == 1

    async def test_a_key_answers_until_its_retention_is_over(self, kit: Kit) -> None:
        """From the settlement on the key lives for its retention, then it may start a new run."""  # case J4
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start(key="k", key_retention=timedelta(days=2))
            kit.advance(timedelta(days=3))
            assert not (await store.admit(new_run("r2", key="k"))).created, "its run is not settled"
            await owner.complete()
            kit.advance(timedelta(days=1))
            assert not (await store.admit(new_run("r2", key="k"))).created
            kit.advance(timedelta(days=2))
            assert await store.find("agent", "k") is None
            assert (await store.admit(new_run("r2", key="k", payload={"other": True}))).created
            found = await store.find("agent", "k")
            assert found is not None and found.id == "r2"

    async def test_a_delay_postpones_the_first_claim(self, kit: Kit) -> None:
        """A run with a delay is pending and can't be claimed before its time, by the store's clock."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit(delay=timedelta(minutes=5))
            assert await bench.claim() == []
            kit.advance(timedelta(minutes=6))
            assert await bench.claim() == ["r1"]

    async def test_a_deadline_counts_from_admission(self, kit: Kit) -> None:
        """`deadline` is a moment on the store's clock."""
        async with kit.open() as store:
            new = new_run()
            run = (await store.admit(NewRun(new.id, new.agent, new.trigger, new.payload_hash, budget=new.budget.merged(deadline=LATER)))).run
            assert run.deadline is not None and run.created_at is not None
            assert run.deadline - run.created_at == LATER

    async def test_a_missing_attachment_is_refused(self, kit: Kit) -> None:
        """Nothing of the run is stored."""
        async with kit.open() as store:
            gone = Attachment("0" * 64, "a.txt", "text/plain", 1)
            with pytest.raises(ArtifactNotFoundError):
                await store.admit(new_run(attachments=(gone,)))
            assert await store.get("r1") is None

    async def test_a_stored_attachment_is_accepted(self, kit: Kit) -> None:
        """The run keeps the reference."""
        async with kit.open() as store:
            stored = await store.put_artifact(b"hello", media_type="text/plain", filename="a.txt")
            run = (await store.admit(new_run(attachments=(Attachment(stored.id, "a.txt", "text/plain", 5),)))).run
            assert run.trigger.attachments[0].artifact_id == stored.id

    async def test_a_fork_starts_from_its_checkpoint(self, kit: Kit) -> None:
        """The history is there before the first claim."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            write = CheckpointWrite(index=3, base=0, keep=0, append=(b"one", b"two"), finish_reason="tool_call")
            await bench.admit("r2", source="fork", parent_run="r1", checkpoint=write)
            loaded = await store.load("r2")
            assert loaded.checkpoint is not None
            assert (loaded.checkpoint.index, loaded.checkpoint.messages) == (3, (b"one", b"two"))

    async def test_a_parent_must_exist(self, kit: Kit) -> None:
        """A run can't be the child of nobody."""
        async with kit.open() as store:
            with pytest.raises(RunNotFoundError):
                await store.admit(new_run(parent_run="nobody"))
            assert await store.get("r1") is None

    async def test_a_child_may_not_name_a_thread_that_an_ancestor_holds(self, kit: Kit) -> None:
        """It could never be claimed: refused at once, at any depth, and allowed once the ancestor has settled."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start(thread="t")
            await bench.admit("r2", parent_run="r1")
            for child in (new_run("r3", parent_run="r1", thread="t"), new_run("r3", parent_run="r2", thread="t")):
                with pytest.raises(Conflict):
                    await store.admit(child)
            assert (await store.admit(new_run("r4", parent_run="r1", thread="another"))).created
            await owner.complete()
            assert (await store.admit(new_run("r3", parent_run="r2", thread="t"))).created

    async def test_what_the_caller_changes_later_is_not_stored(self, kit: Kit) -> None:
        """Values are copied on their way in and out."""
        async with kit.open() as store:
            payload = {"list": [1]}
            await store.admit(new_run(payload=payload))
            payload["list"].append(2)
            run = await store.get("r1")
            assert run is not None
            run.trigger.payload["list"].append(3)
            again = await store.get("r1")
            assert again is not None and again.trigger.payload == {"list": [1]}

    async def test_the_order_of_admission_is_the_order_of_seq(self, kit: Kit) -> None:
        """`seq` grows, whatever the ids."""
        async with kit.open() as store:
            runs = [(await store.admit(new_run(run_id))).run for run_id in ("zz", "aa", "mm")]
            assert [run.id for run in sorted(runs, key=lambda run: run.seq)] == ["zz", "aa", "mm"]
