"""Checkpoints: the whole history back, stored by what was added (C1, C2, C5)."""

from __future__ import annotations

import hashlib

import pytest

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Park
from perdure.core.step import StepWrite
from perdure.testing.conformance._bench import Bench
from perdure.testing.conformance._kit import Conformance, Kit, SizedKit


def write(index: int, keep: int, *append: str | bytes, base: int = 0, **fields: object) -> CheckpointWrite:
    return CheckpointWrite(index, base, keep, tuple(each.encode() if isinstance(each, str) else each for each in append), **fields)  # pyright: ignore[reportArgumentType]


class CheckpointConformance(Conformance):
    """`CheckpointWrite` in, `Checkpoint` out."""

    async def test_a_run_without_a_checkpoint_loads_none(self, kit: Kit) -> None:
        """Before the first one there is nothing."""
        async with kit.open() as store:
            bench = Bench(store)
            await bench.admit()
            assert (await store.load("r1")).checkpoint is None
            assert await store.checkpoint("r1") is None

    async def test_the_highest_index_is_loaded_with_its_whole_history(self, kit: Kit) -> None:
        """Each write adds to what is kept; reading back gives all of it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(0, 0, "start"))
            await owner.commit(checkpoint=write(1, 1, "call", finish_reason="tool_call", version="v1", tools_hash="h1"))
            last = (await store.load("r1")).checkpoint
            assert last is not None
            assert (last.run_id, last.generation, last.index, last.base, last.length) == ("r1", 1, 1, 0, 2)
            assert (last.messages, last.finish_reason) == ((b"start", b"call"), "tool_call")
            assert (last.version, last.tools_hash, last.format) == ("v1", "h1", 1)
            assert last == await store.checkpoint("r1", index=1)

    async def test_an_equal_index_is_replaced(self, kit: Kit) -> None:
        """That is how results are appended to the step that asked; a replaced tail is gone."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(0, 0, "start"))
            await owner.commit(checkpoint=write(1, 1, "call"))
            await owner.commit(checkpoint=write(1, 2, "results"))
            stored = await store.checkpoint("r1")
            assert stored is not None and stored.messages == (b"start", b"call", b"results")
            await owner.commit(checkpoint=write(1, 1, "other"))
            stored = await store.checkpoint("r1")
            assert stored is not None and (stored.length, stored.messages) == (2, (b"start", b"other"))

    async def test_earlier_checkpoints_stay_readable(self, kit: Kit) -> None:
        """Any index can be read, and forked from."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            for index in range(6):
                await owner.commit(checkpoint=write(index, index, f"m{index}"))
            for index in range(6):
                stored = await store.checkpoint("r1", index=index)
                assert stored is not None and stored.messages == tuple(f"m{at}".encode() for at in range(index + 1))
            assert await store.checkpoint("r1", index=6) is None

    async def test_a_rewritten_history_takes_a_new_base(self, kit: Kit) -> None:
        """The old checkpoints go on reading from the old one."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(1, 0, "a", "b", "c"))
            await owner.commit(checkpoint=write(2, 0, "summary", "d", base=1))
            await owner.commit(checkpoint=write(3, 2, "e", base=1))
            read = [await store.checkpoint("r1", index=index) for index in (1, 2, 3)]
            assert [each and each.messages for each in read] == [(b"a", b"b", b"c"), (b"summary", b"d"), (b"summary", b"d", b"e")]

    async def test_a_full_retry_starts_without_the_old_history_and_keeps_it(self, kit: Kit) -> None:
        """Generations share nothing, not even the numbers of their bases."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(2, 0, "old 1", "old 2"))
            await owner.fail()
            await bench.retry(mode="full")
            assert (await store.load("r1")).checkpoint is None
            owner = await bench.own()
            await owner.commit(checkpoint=write(0, 0, "new"))
            new, old = await store.checkpoint("r1"), await store.checkpoint("r1", generation=1)
            assert new is not None and (new.generation, new.index, new.messages) == (2, 0, (b"new",))
            assert old is not None and (old.generation, old.index, old.messages) == (1, 2, (b"old 1", b"old 2"))

    async def test_a_resumed_run_goes_on_from_its_last_checkpoint(self, kit: Kit) -> None:
        """Same generation, same history."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(1, 0, "a"))
            await owner.fail()
            await bench.retry()
            stored = (await store.load("r1")).checkpoint
            assert stored is not None and stored.messages == (b"a",)

    async def test_messages_are_bytes_and_come_back_as_they_were(self, kit: Kit) -> None:
        """Any byte, any size, empty ones too."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            messages = (bytes(range(256)), b"", b"\x00", "\u2400 \U0001f600".encode(), b'{"literal":"\\u0000"}')
            await owner.commit(checkpoint=write(1, 0, *messages))
            stored = await store.checkpoint("r1")
            assert stored is not None and stored.messages == messages

    async def test_a_message_of_five_megabytes_is_stored(self, kit: Kit) -> None:
        """Large ones are rare, and not refused."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            large = b"0123456789abcdef" * (5 * 65_536)
            await owner.commit(checkpoint=write(1, 0, "small", large), ending=Park())
            stored = (await store.load("r1")).checkpoint
            assert stored is not None and stored.messages == (b"small", large)

    async def test_the_history_survives_a_new_handle(self, kit: Kit) -> None:
        """What was acknowledged is there for the next process."""  # case B15
        async with kit.open() as store:
            owner = await Bench(store).start()
            await owner.commit(checkpoint=write(1, 0, "a", "b"), steps=(StepWrite("llm", 1, "m", base=0, message=1),), ending=Park())
        async with kit.open() as store:
            loaded = await store.load("r1")
            assert loaded.checkpoint is not None and loaded.checkpoint.messages == (b"a", b"b")
            assert [(step.row.base, step.row.message) for step in loaded.steps] == [(0, 1)]

    async def test_the_loaded_steps_are_those_of_the_checkpoint(self, kit: Kit) -> None:
        """Results of the step that is being answered, of this generation, and no others."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(1, 0, "a"), steps=(StepWrite("llm", 1, "first"),))
            await owner.commit(checkpoint=write(2, 1, "b"), steps=(StepWrite("llm", 2, "second"), StepWrite("tool", 2, "tool")))
            assert [step.row.name for step in (await store.load("r1")).steps] == ["second", "tool"]
            await owner.fail()
            await bench.retry(mode="full")
            owner = await bench.own()
            assert (await store.load("r1")).steps == ()
            await owner.commit(checkpoint=write(2, 0, "c"), steps=(StepWrite("llm", 2, "third"),))
            assert [step.row.name for step in (await store.load("r1")).steps] == ["third"]

    @pytest.mark.parametrize("steps", [40])
    async def test_a_long_history_is_stored_by_what_each_step_adds(self, kit: Kit, steps: int) -> None:
        """Write 1 keeps all before it, write 2 replaces the same index: the history is whole at every index."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(checkpoint=write(0, 0, "start"))
            whole = [b"start"]
            for index in range(1, steps):
                call, result = f"call {index}".encode(), f"result {index}".encode()
                await owner.commit(checkpoint=write(index, len(whole), call))
                await owner.commit(checkpoint=write(index, len(whole) + 1, result))
                whole += [call, result]
            for index in (1, steps // 2, steps - 1):
                stored = await store.checkpoint("r1", index=index)
                assert stored is not None and list(stored.messages) == whole[: 1 + 2 * index]

    async def test_stored_bytes_grow_with_what_is_added_and_not_with_the_history(self, kit: Kit) -> None:
        """Twice the steps take twice the bytes, also when each tail is replaced."""  # case D6
        if not isinstance(kit, SizedKit):
            pytest.skip("this kit can't tell its size")
        sizes: list[int] = []
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            for index in range(61):
                added = hashlib.sha256(str(index).encode()).hexdigest().encode() * 256  # 16 KiB
                await owner.commit(checkpoint=write(index, 2 * index, added))
                await owner.commit(checkpoint=write(index, 2 * index + 1, added))
                if index in (0, 30, 60):
                    sizes.append(kit.size())
        start, half, whole = sizes
        assert whole - start < 2.2 * (half - start)
        assert whole - start < 1.6 * 120 * 16 * 1024
