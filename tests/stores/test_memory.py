"""What only the memory store promises: it is the model, so it says no to what others may leave undefined."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import ClaimRequest, Commit
from perdure.core.errors import StoreError
from perdure.core.event import EventWrite
from perdure.core.runtime import RealRuntime
from perdure.stores import Hint, Store
from perdure.stores._copies import copied
from perdure.stores.memory import MemoryStore
from perdure.testing.conformance._bench import Bench, new_run


def test_it_is_a_store() -> None:
    """By the protocol, as the type checker reads it too."""
    store: Store = MemoryStore()
    assert store.info()["kind"] == "memory"


async def test_its_clock_is_the_runtimes_and_can_be_moved() -> None:
    """`offset` is for tests."""
    runtime = RealRuntime()
    store = MemoryStore(runtime)
    store.offset = timedelta(days=1)
    assert timedelta(days=1) <= await store.now() - runtime.now() + timedelta(seconds=5)


async def test_it_keeps_what_it_holds_through_any_number_of_openings() -> None:
    """As long as the object lives."""
    store = MemoryStore()
    async with store:
        await store.admit(new_run())
    async with store:
        assert await store.get("r1") is not None


async def test_before_it_is_opened_and_after_it_is_closed_nobody_is_hinted() -> None:
    """There is no loop to call back on."""
    store = MemoryStore()
    heard: list[Hint] = []
    store.on_hint(heard.append)
    await store.admit(new_run("r1"))
    async with store:
        pass
    await store.admit(new_run("r2"))
    await asyncio.wait([asyncio.ensure_future(store.now())])
    assert heard == []


@pytest.mark.parametrize("keep", [0, 3])
async def test_a_checkpoint_that_others_share_is_not_overwritten(keep: int) -> None:
    """Keeping less than others need, or more than there is, is a fault of the caller."""
    async with MemoryStore() as store:
        owner = await Bench(store).start()
        await owner.commit(checkpoint=CheckpointWrite(1, 0, 0, (b"a",)))
        await owner.commit(checkpoint=CheckpointWrite(2, 0, 1, (b"b",)))
        with pytest.raises(StoreError):
            await store.commit(owner.next(checkpoint=CheckpointWrite(2, 0, keep, (b"x",)), usage=Usage(requests=9)))


async def test_all_that_one_call_writes_has_one_time() -> None:
    """A transaction has one clock."""
    async with MemoryStore() as store:
        for at in range(3):
            await store.admit(new_run(f"r{at}"))
        runs = await store.claim(ClaimRequest("w", "h", "t", {"agent": None}, timedelta(seconds=30), limit=3))
        assert len({run.lease_expires_at for run in runs}) == 1


async def test_a_commit_is_copied_on_its_way_in() -> None:
    """What the caller changes later is not stored."""
    async with MemoryStore() as store:
        owner = await Bench(store).start()
        commit: Commit = owner.next(ending=None)
        data = {"n": [1]}
        await store.commit(replace(commit, events=(EventWrite("log", data),)))
        data["n"].append(2)
        assert (await store.events("r1"))[-1].data == {"n": [1]}


def test_copies_share_nothing_that_can_change_and_all_that_can_not() -> None:
    """Dicts and lists are new, frozen values without any are the same object."""
    usage, nested = Usage(1), {"a": [{"b": 1}]}
    assert copied(usage) is usage
    again = copied(nested)
    assert again == nested and again is not nested and again["a"] is not nested["a"] and again["a"][0] is not nested["a"][0]
