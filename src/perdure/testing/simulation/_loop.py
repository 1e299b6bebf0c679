"""A deterministic asyncio loop: virtual time, replicas that can die, a scheduler that can be seeded.

Everything that runs belongs to a *strand*: one thread's event loop inside one *replica* (a simulated process). The strand of a callback is
read from its context, so tasks, timers and futures find their way home without help. Inside a strand callbacks run in the order in which
they became ready, as asyncio promises; between strands the scheduler chooses. Time moves a little with each callback and jumps to the next
timer when nothing is ready, so an hour of waiting costs nothing.

A killed replica stops between two callbacks and never runs again: no `finally`, no `except`, no cancellation. That is what `kill -9` does.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Protocol, TypeVar, cast

T = TypeVar("T")
Context = contextvars.Context

CALLBACK_SECONDS: Final = 20e-6
"""Virtual time that one callback takes: enough for timers to fire between the callbacks of a busy loop."""

STEPS_MAX: Final = 5_000_000
"""Callbacks after which a simulation is called a livelock."""

EPOCH: Final = 1_000.0
"""Where virtual time starts. Not 0, so that a time taken for a duration shows."""


UNWIND_MAX: Final = 100
"""Awaits in `finally` blocks that one coroutine is led through when the simulation is over."""


class SimulationError(Exception):
    """The simulation itself can't go on."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is set; the message says what every task waits for."""


class Livelock(SimulationError):
    """Too many callbacks without an end."""


class Strand:
    """One thread of one replica: a queue of ready callbacks and the tasks that live on it."""

    __slots__ = ("_prune_at", "context", "name", "number", "paused_until", "ready", "replica", "tasks")

    def __init__(self, replica: Replica, name: str, number: int, base: Context) -> None:
        self.replica, self.name, self.number = replica, name, number
        self.ready: deque[SimHandle] = deque()
        self.paused_until = 0.0
        self.tasks: list[SimTask[Any]] = []
        self._prune_at = 64
        self.context = base.copy()
        self.context.run(_strand.set, self)

    def adopt(self, task: SimTask[Any]) -> None:
        """Hold a task until it is done; a dead strand holds it for ever."""
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at and self.replica.alive:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._prune_at = 2 * len(self.tasks) + 64

    def __repr__(self) -> str:
        return self.name


class Replica:
    """A simulated process: some strands that live, pause and die together."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self._loop, self.name = loop, name
        self.alive = True
        self.doomed = False
        """Dies as soon as the callback that runs comes to its next pause."""
        self.steps = 0
        """Callbacks run so far."""
        self.woke_at: float | None = None
        """When the last pause of the process or of one of its threads ended, or will end."""
        self.strands: list[Strand] = []
        self.grave: list[SimHandle] = []
        self.signals: dict[int, SimHandle] = {}
        self.main = self.strand("main")

    def strand(self, name: str) -> Strand:
        """One more thread in this process."""
        strand = Strand(self, f"{self.name}/{name}", self._loop.number("strand"), self._loop.context)
        self.strands.append(strand)
        if self.alive:
            self._loop.add_strand(strand)
        return strand

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task on the main strand. Each gets a context of its own, as each thread of a process does."""
        return self._loop.create_task(work, name=name, context=self.main.context.copy())

    def kill(self) -> None:
        """Stop between two callbacks, for ever. Nothing unwinds."""
        if not self.alive:
            return
        self.alive = False
        for strand in self.strands:
            self.grave.extend(strand.ready)
            strand.ready.clear()
            self._loop.remove_strand(strand)

    def pause(self, seconds: float) -> None:
        """Stop as under SIGSTOP; goes on after `seconds`. Timers that come due meanwhile fire then."""
        self.woke_at = self._loop.time() + seconds
        for strand in self.strands:
            strand.paused_until = max(strand.paused_until, self.woke_at)

    def signal(self, number: int) -> bool:
        """Deliver a signal to the handler that the process set; False where it set none."""
        handle = self.signals.get(number)
        if handle is None or not self.alive:
            return False
        self._loop.call_soon(handle.callback, *handle.arguments, context=self.main.context)
        return True

    def __repr__(self) -> str:
        return self.name


_strand: contextvars.ContextVar[Strand] = contextvars.ContextVar("perdure_strand")


def current_strand() -> Strand | None:
    """The strand that runs now; None outside a simulation."""
    return _strand.get(None)


class SimHandle(asyncio.TimerHandle):
    """A callback with its strand. One class for ready and timed ones: what is ready has a time that has come."""

    __slots__ = ("arguments", "callback", "context", "serial", "strand")

    def __init__(self, when: float, callback: Callable[..., object], arguments: tuple[Any, ...], loop: SimLoop, context: Context) -> None:
        super().__init__(when, callback, arguments, loop, context)
        self.callback, self.arguments, self.context = callback, arguments, context
        self.strand = loop.home(context)
        self.serial = loop.number("handle")


class SimFuture(asyncio.Future[T]):
    """Hashed by number: a set of futures is iterated in the same order in every process."""

    def __init__(self, number: int, *, loop: SimLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimTask(asyncio.Task[T]):
    """Hashed by number: task groups cancel the members of a set, and addresses differ from process to process."""

    def __init__(self, number: int, work: Coroutine[Any, Any, T], **options: Any) -> None:
        # Before the base class: it puts the new task into a weak set, which hashes it.
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Schedule(Protocol):
    """Which of the strands that could run runs next."""

    def pick(self, strands: list[Strand]) -> Strand: ...


class InOrder:
    """The strand whose callback became ready first: what one asyncio loop would do."""

    def pick(self, strands: list[Strand]) -> Strand:
        return min(strands, key=lambda strand: strand.ready[0].serial)


class Shuffled:
    """Any strand, by seed; sticks to one for a few callbacks at times, so that long stretches happen too."""

    def __init__(self, seed: int | str) -> None:
        self._chance = random.Random(f"schedule/{seed}")
        self._favourite: Strand | None = None

    def pick(self, strands: list[Strand]) -> Strand:
        if self._favourite in strands and self._chance.random() < 0.7:
            return self._favourite
        self._favourite = strands[int(self._chance.random() * len(strands))]
        return self._favourite


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. Everything on it is a function of the schedule and of the code that runs.

    `before` is called before every callback with its strand; it may kill or pause replicas, that one's too.
    """

    def __init__(self, schedule: Schedule | None = None, *, callback_seconds: float = CALLBACK_SECONDS, steps_max: int = STEPS_MAX) -> None:
        self._schedule = schedule or InOrder()
        self._callback_seconds, self._steps_max = callback_seconds, steps_max
        self._now = EPOCH
        # What the caller has set (an agent's overridden model, say) holds in every replica.
        self.context = contextvars.copy_context()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._strands: list[Strand] = []
        self._numbers = {"strand": 0, "handle": 0, "future": 0}
        self._stopping = self._closed = self._running = False
        self.steps = 0
        self.before: Callable[[Strand, SimHandle], None] | None = None
        self.errors: list[str] = []
        """What nobody caught in a living replica: exceptions of callbacks and of tasks whose result was never read."""
        self.replicas: list[Replica] = []
        self.world = self.replica("world")
        """Whoever is not a replica: people, the network, the test itself. Never killed."""

    # ── replicas ───────────────────────────────────────────────────────────────────────────────────────────
    def replica(self, name: str) -> Replica:
        """A new process."""
        replica = Replica(self, name)
        self.replicas.append(replica)
        return replica

    def add_strand(self, strand: Strand) -> None:
        self._strands.append(strand)

    def remove_strand(self, strand: Strand) -> None:
        self._strands.remove(strand)

    def number(self, kind: str) -> int:
        self._numbers[kind] += 1
        return self._numbers[kind]

    # ── running ────────────────────────────────────────────────────────────────────────────────────────────
    def run_until_complete(self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:  # type: ignore[override]
        """Run until `future` is done. A coroutine becomes a task of the world.

        Raises:
            Deadlock: Nothing can happen any more and `future` is not done.
            Livelock: More than `steps_max` callbacks ran.
        """
        task: asyncio.Future[T] = (
            future if isinstance(future, asyncio.Future) else self.world.spawn(cast(Coroutine[Any, Any, T], future), name="main")
        )
        with self._entered():
            while not task.done():
                self._run_once()
        return task.result()

    def run_forever(self) -> None:
        self._stopping = False
        with self._entered():
            while not self._stopping:
                self._run_once()

    @contextmanager
    def _entered(self) -> Generator[None]:
        if self._closed:
            raise RuntimeError("The simulation is over.")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("A simulation has a loop of its own: start it from plain code, not from a coroutine.")
        hooks = sys.get_asyncgen_hooks()
        # A garbage collection in mid-run would finalise generators at a moment that no seed decides.
        collects = gc.isenabled()
        gc.disable()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalise)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            if collects:
                gc.enable()

    def _run_once(self) -> None:
        """One callback of one strand, after moving time as far as it must."""
        self._fire()
        strands = self._runnable()
        while not strands:
            self._jump()
            self._fire()
            strands = self._runnable()
        strand = strands[0] if len(strands) == 1 else self._schedule.pick(strands)
        handle = strand.ready[0]
        if handle.cancelled():
            strand.ready.popleft()
            return
        self.steps += 1
        strand.replica.steps += 1
        if self.steps > self._steps_max:
            raise Livelock(f"{self.steps} callbacks, and no end.\n{self.describe()}")
        if self.before is not None:
            self.before(strand, handle)
            if not strand.replica.alive or strand.paused_until > self._now:
                return
        strand.ready.popleft()
        self._now += self._callback_seconds
        self._run(handle)
        if strand.replica.doomed:
            strand.replica.kill()

    def _run(self, handle: SimHandle) -> None:
        try:
            handle.context.run(handle.callback, *handle.arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"Exception in callback {handle.callback!r}", "exception": error, "handle": handle})

    def drain(self, strand: Strand) -> None:
        """Run what is ready on another strand, now, inside the callback that runs: how joining a thread looks from here."""
        task = asyncio.current_task(self)
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        try:
            while strand.ready and strand.replica.alive:
                handle = strand.ready.popleft()
                if not handle.cancelled():
                    self._run(handle)
        finally:
            if task is not None:
                asyncio.tasks._enter_task(self, task)

    def _runnable(self) -> list[Strand]:
        now = self._now
        return [strand for strand in self._strands if strand.ready and strand.paused_until <= now]

    def _fire(self) -> None:
        """Queue the timers that are due."""
        timers = self._timers
        while timers and (timers[0][0] <= self._now or timers[0][2].cancelled()):
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                self._queue(timer)

    def _queue(self, handle: SimHandle) -> None:
        if handle.strand.replica.alive:
            handle.strand.ready.append(handle)
        else:
            handle.strand.replica.grave.append(handle)

    def _jump(self) -> None:
        """Nothing is ready: go to the next timer or the end of the next pause."""
        moments = [strand.paused_until for strand in self._strands if strand.ready]
        if self._timers:
            moments.append(self._timers[0][0])
        if not moments:
            raise Deadlock(f"Nothing is ready and no timer is set.\n{self.describe()}")
        self._now = max(self._now, min(moments))

    def describe(self) -> str:
        """What the tasks of every living replica wait for: one line each."""
        lines: list[str] = []
        for strand in self._strands:
            tasks = [task for task in strand.tasks if not task.done()]
            lines += [f"  {strand.name}: task {task.get_name()} waits at {_place(task)}" for task in tasks]
        return "\n".join(lines) or "  no task is left"

    # ── what asyncio asks of a loop ────────────────────────────────────────────────────────────────────────
    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        context = contextvars.copy_context() if context is None else context
        handle = SimHandle(self._now, callback, args, self, context)
        if not self._closed:
            self._queue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> SimHandle:  # type: ignore[override]
        context = contextvars.copy_context() if context is None else context
        timer = SimHandle(when, callback, args, self, context)
        if not self._closed:
            heapq.heappush(self._timers, (when, timer.serial, timer))
        return timer

    def home(self, context: Context) -> Strand:
        return context.get(_strand) or self.world.main

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # `_fire` drops it when it comes to the top

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture[Any](self.number("future"), loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[T]:
        context = contextvars.copy_context() if context is None else context
        number = self.number("future")
        # asyncio numbers unnamed tasks over the whole process; ours start anew with each simulation.
        task = SimTask(number, cast(Coroutine[Any, Any, T], coro), loop=self, name=name or f"task-{number}", context=context, **options)
        self.home(context).adopt(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        raise NotImplementedError("A simulation makes its own tasks.")

    def get_task_factory(self) -> None:
        return None

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run it inline, as a callback: there are no threads here, and what a thread does is one step."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if isinstance(error, (SystemExit, KeyboardInterrupt)):
                    raise
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(work)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        context = contextvars.copy_context()
        self.home(context).replica.signals[sig] = SimHandle(self._now, callback, args, self, context)

    def remove_signal_handler(self, sig: int) -> bool:
        strand = current_strand()
        return strand is not None and strand.replica.signals.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        strand = current_strand()
        if self._closed or (strand is not None and not strand.replica.alive):
            return
        error = context.get("exception")
        task: Any = context.get("future") or context.get("task")
        who = f" ({task.get_name()})" if isinstance(task, asyncio.Task) else ""
        self.errors.append(f"{context.get('message')}{who}" + (f": {error!r}" if error is not None else ""))

    def set_exception_handler(self, handler: Any) -> None:
        pass  # everything goes to `errors`

    def get_exception_handler(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    def _finalise(self, generator: Any) -> None:
        if not self._closed and _alive():
            self.create_task(generator.aclose(), name="aclose")

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────
    def close(self) -> None:
        """End the simulation and clear the graveyard: what is left is closed without a word, and what it does then reaches nobody."""
        if self._closed:
            return
        self._closed = True
        with _silence(self):
            for replica in self.replicas:
                for strand in replica.strands:
                    while strand.tasks:  # a `finally` block may start another
                        _put_to_rest(self, strand.tasks.pop())
                    strand.ready.clear()
                replica.grave.clear()
            self._timers.clear()


def _alive() -> bool:
    strand = current_strand()
    return strand is None or strand.replica.alive


class _Over(BaseException):
    """Thrown into what is left when a simulation is over. Not `GeneratorExit`: that one may not be awaited under, and `finally` blocks do await."""


def _put_to_rest(loop: SimLoop, task: SimTask[Any]) -> None:
    """Unwind the coroutine of an unfinished task, whatever its `finally` blocks say about it."""
    if task.done():
        if not task.cancelled():
            task.exception()  # read, so that nobody is told that it was not
        return
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    work = cast(Coroutine[Any, Any, Any], task.get_coro())
    asyncio.tasks._enter_task(loop, task)
    try:
        for _ in range(UNWIND_MAX):
            work.throw(_Over())
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        pass  # it has ended
    finally:
        asyncio.tasks._leave_task(loop, task)
        work.close()


@contextmanager
def _silence(loop: SimLoop | None) -> Generator[None]:
    """No warnings, no logs, no unraisable errors, no generator hooks; and a loop that looks as if it ran, for those who ask while they unwind."""
    hook, hooks, level = sys.unraisablehook, sys.get_asyncgen_hooks(), logging.root.manager.disable
    running = asyncio._get_running_loop()
    sys.unraisablehook = lambda _: None
    sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)
    logging.disable(logging.CRITICAL)
    if loop is not None:
        asyncio._set_running_loop(loop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        asyncio._set_running_loop(running)
        sys.unraisablehook = hook
        sys.set_asyncgen_hooks(*hooks)
        logging.disable(level)


@contextmanager
def tidy() -> Generator[Callable[[], None]]:
    """Many simulations in a row: what they leave is collected in silence, when the function that this gives is called, and at the end."""

    def collect() -> None:
        with _silence(None):
            gc.collect()

    collects = gc.isenabled()
    gc.disable()
    try:
        yield collect
    finally:
        collect()
        if collects:
            gc.enable()


def _place(task: asyncio.Task[Any]) -> str:
    """Where the innermost coroutine of a task stands, with its caller."""
    places: list[str] = []
    work: Any = task.get_coro()
    while work is not None:
        frame: FrameType | None = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_qualname} line {frame.f_lineno}")
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None) or getattr(work, "ag_await", None)
    return " < ".join(reversed(places[-3:])) or "its start"
