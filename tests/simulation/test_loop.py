"""The simulated loop: asyncio as it is, time that jumps, replicas that die without a word."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import warnings
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from perdure.testing.simulation._loop import Deadlock, Livelock, Replica, Shuffled, SimLoop, Strand


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


def test_an_hour_of_waiting_takes_no_time(loop: SimLoop) -> None:
    """When nothing is ready, time jumps to the next timer."""

    async def main() -> float:
        begun = loop.time()
        await asyncio.sleep(3600)
        return loop.time() - begun

    assert loop.run_until_complete(main()) == pytest.approx(3600, abs=0.01)
    assert loop.steps < 10


def test_asyncio_works_as_usual(loop: SimLoop) -> None:
    """Tasks, groups, time-outs, locks, events, queues and anyio's scopes behave as on any loop."""

    async def main() -> list[str]:
        seen: list[str] = []
        queue: asyncio.Queue[str] = asyncio.Queue()

        async def put(text: str, after: float) -> None:
            await asyncio.sleep(after)
            await queue.put(text)

        async with asyncio.TaskGroup() as group:
            group.create_task(put("second", 2))
            group.create_task(put("first", 1))
            seen += [await queue.get(), await queue.get()]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with anyio.move_on_after(3):
            await anyio.sleep_forever()
        seen.append(await asyncio.wait_for(asyncio.sleep(1, "third"), 2))
        assert asyncio.current_task() is not None
        return seen

    assert loop.run_until_complete(main()) == ["first", "second", "third"]
    assert loop.errors == []


def test_a_killed_replica_does_not_unwind(loop: SimLoop) -> None:
    """No `finally`, no `except`, no context manager and no generator of a dead replica runs, while the others go on."""
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(1_000):
                await asyncio.sleep(1)
                yield number
        finally:
            seen.append("generator closed")

    async def work(name: str) -> None:
        try:
            async for number in numbers():
                seen.append(f"{name} {number}")
                if number == 4:
                    return
        except BaseException as error:
            seen.append(f"{name} saw {type(error).__name__}")
            raise
        finally:
            seen.append(f"{name} left")

    async def main() -> None:
        doomed, other = loop.replica("doomed"), loop.replica("other")
        task = doomed.spawn(work("doomed"))
        survivor = other.spawn(work("other"))
        await asyncio.sleep(2.5)
        doomed.kill()
        task.cancel()  # from outside: reaches nobody
        await survivor
        assert not task.done()

    loop.run_until_complete(main())
    assert [line for line in seen if line.startswith("doomed")] == ["doomed 0", "doomed 1"]
    assert "other left" in seen


def test_the_graveyard_is_cleared_without_a_word() -> None:
    """Closing the simulation closes what died in it: no warning, no error, no unfinished coroutine that Python complains about later."""

    async def stubborn() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(100)  # refuses to go at first
            raise RuntimeError("nobody hears this")

    async def main() -> None:
        doomed = loop.replica("doomed")
        doomed.spawn(stubborn())
        doomed.spawn(asyncio.sleep(5))
        await asyncio.sleep(1)
        doomed.spawn(stubborn())  # never started
        doomed.kill()

    loop = SimLoop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.run_until_complete(main())
        loop.close()
        gc.collect()
    assert loop.errors == []


def test_a_paused_replica_finds_its_timers_due(loop: SimLoop) -> None:
    """A pause stops a whole process; what came due meanwhile happens when it goes on, and others are not held up."""

    async def nap(seen: list[float]) -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(round(loop.time() - begun, 1))

    async def main() -> None:
        stopped, other = loop.replica("stopped"), loop.replica("other")
        tasks = [stopped.spawn(nap(slow)), other.spawn(nap(fast))]
        await asyncio.sleep(1.5)
        stopped.pause(10)
        await asyncio.wait(tasks)

    slow: list[float] = []
    fast: list[float] = []
    begun = loop.time()
    loop.run_until_complete(main())
    assert fast == [1.0, 2.0, 3.0]
    assert slow == [1.0, 11.5, 12.5]


def test_a_strand_keeps_its_order(loop: SimLoop) -> None:
    """However strands are shuffled, one strand runs its callbacks in the order in which they became ready."""

    async def main(loop: SimLoop) -> list[str]:
        order: list[str] = []
        replicas = [loop.replica(name) for name in "ab"]
        for number in range(20):
            for replica in replicas:
                loop.call_soon(order.append, f"{replica.name}{number}", context=replica.main.context)
        await asyncio.sleep(1)
        return order

    shuffled = SimLoop(Shuffled(3))
    order = shuffled.run_until_complete(main(shuffled))
    shuffled.close()
    for name in "ab":
        assert [each for each in order if each.startswith(name)] == [f"{name}{number}" for number in range(20)]
    assert order != loop.run_until_complete(main(loop))


def test_the_same_seed_gives_the_same_order() -> None:
    """The schedule is a function of its seed."""

    def once(seed: int) -> str:
        loop = SimLoop(Shuffled(seed))

        async def main() -> str:
            seen: list[str] = []

            async def run(name: str) -> None:
                for _ in range(10):
                    seen.append(name)
                    await asyncio.sleep(0)

            await asyncio.wait([loop.replica(name).spawn(run(name)) for name in "abc"])
            return "".join(seen)

        try:
            return loop.run_until_complete(main())
        finally:
            loop.close()

    assert once(1) == once(1)
    assert len({once(seed) for seed in range(10)}) > 5


def test_the_hook_may_kill_before_any_callback(loop: SimLoop) -> None:
    """A crash can be put before every single callback of a replica."""

    async def work(seen: list[int]) -> None:
        for number in range(5):
            seen.append(number)
            await asyncio.sleep(0)

    def killed_before(step: int) -> int:
        loop = SimLoop()
        seen: list[int] = []

        async def main() -> None:
            replica = loop.replica("r")

            def before(strand: Strand, _: object) -> None:
                if strand.replica is replica and replica.steps == step:
                    replica.kill()

            loop.before = before
            replica.spawn(work(seen))
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        loop.close()
        return len(seen)

    assert [killed_before(step) for step in range(1, 8)] == [0, 1, 2, 3, 4, 5, 5]


def test_a_deadlock_says_who_waits_for_what(loop: SimLoop) -> None:
    """Nothing ready and no timer: the error names each replica's tasks and where they stand."""

    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await loop.replica("r1").spawn(waits_for_ever(), name="listener")

    with pytest.raises(Deadlock, match=r"r1/main: task listener waits at .*waits_for_ever"):
        loop.run_until_complete(main())


def test_a_livelock_ends() -> None:
    """A loop that never waits for time is stopped after a bound."""

    async def spin() -> None:
        while True:  # noqa: ASYNC110 -- spinning is the point
            await asyncio.sleep(0)

    loop = SimLoop(steps_max=1_000)
    with pytest.raises(Livelock):
        loop.run_until_complete(spin())
    loop.close()


def test_errors_that_nobody_caught_are_kept(loop: SimLoop, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is an error of the simulation, not a line that scrolls by."""

    def broken() -> None:
        raise ValueError("oops")

    async def main() -> None:
        loop.call_soon(broken)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert len(loop.errors) == 1 and "oops" in loop.errors[0]


def test_context_variables_reach_their_tasks(loop: SimLoop) -> None:
    """Context works as usual, and the replica travels in it."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    async def child() -> str:
        return name.get()

    async def parent() -> str:
        name.set("set by the parent")
        return await asyncio.create_task(child())

    async def main() -> str:
        replica: Replica = loop.replica("r")
        return await replica.spawn(parent())

    assert loop.run_until_complete(main()) == "set by the parent"
