"""The stage of a simulation: replicas of the real engine on one store, the world around them, and those who watch."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic_ai.messages import ModelMessage

from perdure.agents import Call as ToolCall
from perdure.context import current_run
from perdure.core.errors import ConfigurationError
from perdure.core.event import Event
from perdure.engine import DurableAgent, Engine
from perdure.engine._agents import AgentType
from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.models import Script
from perdure.testing.simulation._checkers import Sight, SightKind
from perdure.testing.simulation._history import refused, responses
from perdure.testing.simulation._loop import Replica, Schedule, SimHandle, SimLoop, SimulationError, Strand, current_strand
from perdure.testing.simulation._plan import Fault
from perdure.testing.simulation._port import Call, Faults, FaultyStore, Record
from perdure.testing.simulation._props import staged, watched
from perdure.testing.simulation._runtime import SimRuntime
from perdure.testing.simulation._watch import Watch

LEASE: Final = timedelta(seconds=10)
"""Short, so that many leases run out in one simulation."""

WAKING_SECONDS: Final = 0.1
"""How long somebody who was stopped in the middle of a sentence may go on with it before noticing that time has passed."""

Main = Callable[[Engine], Awaitable[None]]


@dataclass(frozen=True)
class Part:
    """One agent with what its model will say."""

    agent: DurableAgent[Any, Any]
    script: Script

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def kind(self) -> AgentType:
        """What was registered: the same value may be registered with any number of engines."""
        return self.agent.kind


@dataclass
class Tally:
    """What the outside world counted."""

    model_calls: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """By run and place in the history."""
    bodies: dict[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    """By run, plain tool and call id."""
    effects: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By tool and idempotency key."""
    refused: list[str] = field(default_factory=list[str])
    """Requests that a strict provider would have refused, and why."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """What each tool returned last."""

    @property
    def model_calls_repeated(self) -> int:
        return sum(count - 1 for count in self.model_calls.values())


class Actor:
    """One replica's life: a process, its wire, its runtime and its engine."""

    def __init__(self, stage: Stage, slot: int, life: int, *, faults: Faults | None, skew: float, version: str | None) -> None:
        self.slot, self.life, self.version = slot, life, version
        self.process: Replica = stage.loop.replica(f"r{slot}" if life == 1 else f"r{slot}.{life}")
        self.runtime = SimRuntime(stage.loop, self.process, seed=stage.seed, skew=skew)
        self.port = stage.wire(self.process, self.runtime, faults)
        self.leave = asyncio.Event()
        self.ended = False
        """Whether it came to its own end, rather than being killed."""
        self.error: Exception | None = None
        self.engine = Engine(self.port, runtime=self.runtime, on_error=stage.heard, **stage.options)
        for part in stage.parts:
            kind = watched(part.kind, stage)
            if version is not None:
                kind.version = version
            self.engine.register(kind)

    @property
    def busy(self) -> bool:
        """Whether it holds a run."""
        worker = self.engine._worker  # pyright: ignore[reportPrivateUsage] - `worker` raises while the engine is closed
        return worker is not None and not worker.idle

    async def live(self, shown: Callable[[Event], None] | None, main: Main | None) -> None:
        """The process's main: its program, or work until told to leave. Then the process ends."""
        if shown is not None:
            self.engine.on("*", lambda item: shown(item) if isinstance(item, Event) else None)
        try:
            async with self.engine:
                await (self.leave.wait() if main is None else main(self.engine))
            self.ended = True
        except Exception as error:
            # A program that fails ends its process; who runs it starts it again.
            self.error = error
        finally:
            self.process.doomed = True


class Stage:
    """Everything that one simulation needs, from the loop to the tally.

    Args:
        parts: The agents.
        seed: Of ids, tokens, paces and jitter. (The schedule has its own.)
        schedule: Which strand runs next.
        open_store: Makes a replica's own store (a connection to one file). None: all share one `MemoryStore`, which is watched.
        store: The shared store, in place of a plain `MemoryStore`.
        latency: Seconds that a call takes on its way, by chance.
        options: For every `Engine`.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        seed: int = 0,
        schedule: Schedule | None = None,
        open_store: Callable[[SimRuntime], Store] | None = None,
        store: Callable[[SimRuntime], Store] | None = None,
        faults: Callable[[int], Faults] | None = None,
        pace: float = 0.0,
        latency: float = 0.0,
        tool_fault: Callable[[], Fault | None] | None = None,
        model_fault: Callable[[], Fault | None] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.parts, self.seed = parts, seed
        self.loop = SimLoop(schedule)
        self.runtime = SimRuntime(self.loop, self.loop.world, seed=seed)
        self.record = Record()
        self.tally = Tally()
        self.options: dict[str, Any] = {"lease": LEASE, **(options or {})}
        self.log: list[str] = []
        """What was logged, in place of standard error."""
        self.errors: list[str] = []
        """What replicas reported through `on_error`."""
        self.actors: dict[int, Actor] = {}
        self._faults, self._tool_fault, self._model_fault = faults, tool_fault, model_fault
        self._pace, self._latency = pace, latency
        self._chance = random.Random(f"stage/{seed}")
        self._lives: dict[int, int] = {}
        self._open_store = open_store
        self.shared: Store | None = None if open_store else (store or MemoryStore)(self.runtime)
        self.watch: Watch | None = Watch(self.shared, self.record) if self.shared is not None else None
        self._trace = hashlib.sha256()
        self.record.on_applied.append(self._traced)
        self.loop.before = self._before
        self.before: Callable[[Strand, SimHandle], None] | None = None
        self._policies = {part.name: part.kind.policy for part in parts}

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────
    @contextmanager
    def open(self) -> Generator[None]:
        """The simulation, from its props to its graveyard."""
        agents = [(part.name, part.kind.what.agent, part.script) for part in self.parts]
        with staged(agents, self, self.runtime), quiet(self.log):
            self.loop.context = contextvars.copy_context()
            try:
                yield
            finally:
                self.loop.close()

    def start(self, slot: int, *, main: Main | None = None, skew: float = 0.0, version: str | None = None) -> Actor:
        """Start a replica in this slot: its first life, or the next one."""
        life = self._lives[slot] = self._lives.get(slot, 0) + 1
        faults = self._faults(slot) if self._faults else None
        actor = Actor(self, slot, life, faults=faults, skew=skew, version=version)
        self.actors[slot] = actor
        actor.process.spawn(actor.live(self._shown if self.watch else None, main), name="main")
        return actor

    def people(self) -> Engine:
        """An engine of the world: it starts and answers, and executes nothing."""
        port = self.wire(self.loop.world, self.runtime)
        engine = Engine(port, runtime=self.runtime, workers=0, on_error=self.heard)
        for part in self.parts:
            engine.register(part.kind)
        return engine

    def wire(self, process: Replica, runtime: SimRuntime, faults: Faults | None = None) -> FaultyStore:
        """A process's way to the store: the shared one, or its own connection, whose threads are threads of this process."""
        own = self.shared is None
        store = self.shared
        if store is None:
            assert self._open_store is not None
            store = self._open_store(runtime)
        return FaultyStore(store, process, self.loop, record=self.record, faults=faults, own=own, latency=self.latency)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the world's own coroutine to its end."""
        self.loop.run_until_complete(main)

    def latency(self) -> float:
        return self._chance.random() ** 3 * self._latency if self._latency else 0.0

    def pace(self) -> float:
        return self._chance.random() * self._pace if self._pace else 0.0

    async def heard(self, error: BaseException) -> None:
        strand = current_strand()
        self.errors.append(f"{strand.replica.name if strand else '?'}: {type(error).__name__}: {error}")

    # ── what is seen ───────────────────────────────────────────────────────────────────────────────────────
    @property
    def trace(self) -> str:
        """A fingerprint of everything that happened, in order."""
        return self._trace.hexdigest()

    def _traced(self, call: Call) -> None:
        self._trace.update(str(call).encode())

    def _before(self, strand: Strand, handle: SimHandle) -> None:
        self._trace.update(strand.number.to_bytes(2, "little"))
        if self.before is not None:
            self.before(strand, handle)

    def asked(self, agent: str, messages: Sequence[ModelMessage]) -> Fault | None:
        if self.loop.is_closed():
            return None
        run_id = current_run().id
        place = responses(messages) + 1
        self.tally.model_calls[run_id, place] = self.tally.model_calls.get((run_id, place), 0) + 1
        self.tally.refused += [f"run {run_id}, request {place}: {fault}" for fault in refused(messages, to_send=True)]
        self._see("model", run_id, name=f"response {place}", messages=tuple(messages))
        return self._model_fault() if self._model_fault else None

    def began(self, agent: str, call: ToolCall) -> Fault | None:
        if self.loop.is_closed():
            return None
        run = current_run()
        if self._is_effect(agent, call):
            name = (call.name, run.key or call.id)
            self.tally.effects[name] = self.tally.effects.get(name, 0) + 1
            self._see("deed", run.id, name=call.name, key=run.key)
        else:
            body = (run.id, call.name, call.id)
            self.tally.bodies[body] = self.tally.bodies.get(body, 0) + 1
            self._see("body", run.id, name=call.name, key=call.id)
        return self._tool_fault() if self._tool_fault else None

    def ended(self, agent: str, call: ToolCall, result: Any) -> None:
        if self.loop.is_closed():
            return
        self.tally.results[call.name] = result
        run = current_run()
        self._see("done", run.id, name=call.name, key=run.key if self._is_effect(agent, call) else call.id)

    def _is_effect(self, agent: str, call: ToolCall) -> bool:
        return self._policies[agent](call.name, call.metadata).effect is not None

    def _shown(self, event: Event) -> None:
        if not self.loop.is_closed():
            self._see("shown", event.run_id, event=event)

    def _see(self, kind: SightKind, run_id: str, **more: Any) -> None:
        strand = current_strand()
        if self.watch is None or strand is None:
            return
        replica = strand.replica
        # Whoever was stopped wakes up in the middle of something, and may need a moment to find out that time has passed.
        paused = replica.woke_at is not None and self.loop.time() - replica.woke_at < WAKING_SECONDS
        sight = Sight(kind, replica.name, run_id, self.loop.time(), self.watch.epoch(replica.name, run_id), paused=paused, **more)
        self.watch.see(sight)


@contextmanager
def quiet(lines: list[str]) -> Generator[None]:
    """Keep what Perdure logs to ourselves: a thousand simulations are told about a thousand dead workers."""
    logger = logging.getLogger("perdure")
    keeper = logging.Handler(logging.WARNING)
    keeper.emit = lambda record: lines.append(record.getMessage())
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(keeper)
    try:
        yield
    finally:
        logger.removeHandler(keeper)
        logger.propagate = propagates


def parts_of(agents: DurableAgent[Any, Any] | Sequence[DurableAgent[Any, Any]], script: Any) -> list[Part]:
    """One agent with its script, or several with a script for each by name.

    Raises:
        ConfigurationError: An agent has no script.
    """
    if isinstance(agents, DurableAgent):
        return [Part(agents, script)]
    parts: list[Part] = []
    for agent in agents:
        if agent.name not in script:
            raise ConfigurationError(f"There is no script for agent {agent.name!r}: pass script={{{agent.name!r}: [say(…)]}}.")
        parts.append(Part(agent, script[agent.name]))
    return parts


__all__ = ["LEASE", "Actor", "Part", "SimulationError", "Stage", "Tally", "parts_of"]
