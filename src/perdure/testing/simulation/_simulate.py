"""Many seeds: each a play with its own plan; a failing one is shrunk, told and made repeatable by one command."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from perdure.core.errors import ConfigurationError
from perdure.engine import DurableAgent
from perdure.stores import Store
from perdure.testing.models import Script
from perdure.testing.simulation._loop import tidy
from perdure.testing.simulation._plan import KINDS, Plan, plan_for, shrunk
from perdure.testing.simulation._play import Cast, Order, Play, Result
from perdure.testing.simulation._runtime import SimRuntime
from perdure.testing.simulation._stage import Part

REPLICAS: Final = 3
BATCH: Final = 10
"""Seeds that one process plays before it reports and collects its garbage."""
TOLD_MAX: Final = 3
"""Failing seeds that are shrunk and told; the others are only counted."""

CastMaker = Callable[[int], Cast]
StoreMaker = Callable[[SimRuntime], Store]


@dataclass
class SimulationReport:
    """What many seeds came to.

    Attributes:
        seeds: Seeds that were played.
        events: Callbacks that ran in them.
        faults: How often each kind of fault struck.
        runs: How many runs ended how.
        violations: Broken promises, each with its seed; empty when all is well.
        stories: For the first failing seeds: what was broken, by which faults, and the calls before it.
    """

    seeds: int = 0
    events: int = 0
    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    runs: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])
    failing: list[int] = field(default_factory=list[int])
    stories: list[str] = field(default_factory=list[str])

    @property
    def ok(self) -> bool:
        return not self.violations

    def add(self, result: Result) -> None:
        """Count one seed."""
        self.seeds += 1
        self.events += result.events
        self.calls += result.calls
        self.faults += result.struck
        self.runs += result.runs
        self.violations += [f"seed {result.seed}: {violation}" for violation in result.violations]
        if result.violations:
            self.failing.append(result.seed)

    def __str__(self) -> str:
        faults = ", ".join(f"{name} {count:,}" for name, count in sorted(self.faults.items()))
        runs = ", ".join(f"{name} {count:,}" for name, count in sorted(self.runs.items()))
        lines = [
            f"{self.seeds:,} seeds, {self.events:,} events, {self.calls:,} store calls",
            f"runs: {runs}",
            f"faults: {sum(self.faults.values()):,} ({faults})",
            f"violations: {len(self.failing)}" + (f" (seeds {', '.join(map(str, self.failing[:20]))})" if self.failing else ""),
        ]
        return "\n".join([*lines, *self.stories])


class Series:
    """Plays seeds of one cast.

    Args:
        cast: Makes the agents and orders of a seed.
        store: Makes the shared store; a plain memory store where absent.
        kinds: The kinds of faults to draw from; all where absent.
    """

    def __init__(
        self, cast: CastMaker, *, store: StoreMaker | None = None, replicas: int = REPLICAS, kinds: Sequence[str] | None = None, **options: Any
    ) -> None:
        unknown = set(kinds or ()) - set(KINDS)
        if unknown:
            raise ConfigurationError(f"There are no faults called {sorted(unknown)}. There are: {', '.join(KINDS)}.")
        self._cast, self._store, self._replicas, self._kinds, self._options = cast, store, replicas, kinds, options

    def plan(self, seed: int) -> Plan:
        """What goes wrong in this seed."""
        return plan_for(seed, replicas=self._replicas, runs=len(self._cast(seed).orders), kinds=self._kinds)

    def play(self, seed: int, plan: Plan | None = None) -> Result:
        """One seed, with its own plan or another one."""
        planned = self.plan(seed) if plan is None else plan
        return Play(self._cast(seed), seed, planned, replicas=self._replicas, store=self._store, **self._options).run()

    def run(
        self,
        seeds: Iterable[int],
        *,
        processes: int = 1,
        stop_at: int | None = None,
        progress: Callable[[SimulationReport], None] | None = None,
        tell: Callable[[int, Sequence[int]], str] | None = None,
    ) -> SimulationReport:
        """Play seeds until they are through, or until `stop_at` of them failed. `tell` names the command that repeats a seed with some of its faults."""
        report = SimulationReport()
        for result in self._results(list(seeds), processes):
            report.add(result)
            if progress is not None:
                progress(report)
            if stop_at is not None and len(report.failing) >= stop_at:
                break
        with tidy():
            report.stories = [self._story(seed, tell) for seed in report.failing[:TOLD_MAX]]
        return report

    def _results(self, seeds: list[int], processes: int) -> Iterator[Result]:
        batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
        if processes <= 1:
            for batch in batches:
                yield from self._batch(batch)
            return
        _working.append(self)
        try:
            with multiprocessing.get_context("fork").Pool(processes) as pool:
                for results in pool.imap(_play_batch, batches):
                    yield from results
        finally:
            _working.pop()

    def _batch(self, seeds: Sequence[int]) -> Iterator[Result]:
        with tidy():
            for seed in seeds:
                yield self.play(seed)

    def shrink(self, seed: int) -> tuple[Plan, Result]:
        """The fewest faults with which this seed still breaks the same promise."""
        plan = self.plan(seed)
        result = self.play(seed)
        broken = result.violations[0].checker

        def fails(smaller: Plan) -> bool:
            return any(violation.checker == broken for violation in self.play(seed, smaller).violations)

        smallest = shrunk(plan, fails)
        return smallest, self.play(seed, smallest)

    def _story(self, seed: int, tell: Callable[[int, Sequence[int]], str] | None) -> str:
        plan = self.plan(seed)
        smallest, result = self.shrink(seed)
        lines = [f"\nseed {seed}: {result.violations[0]}"]
        lines += [f"  fault {fault}" for fault in smallest] or ["  no fault is needed"]
        lines += [f"  {line[:200]}" for line in result.story]
        if tell is not None:
            lines.append(f"  again: {tell(seed, [plan.index(fault) for fault in smallest])}")
        return "\n".join(lines)


_working: list[Series] = []


def _play_batch(seeds: Sequence[int]) -> list[Result]:
    with tidy():
        return [_working[-1].play(seed) for seed in seeds]


def simulate(
    agents: DurableAgent[Any, Any] | Sequence[DurableAgent[Any, Any]],
    *,
    script: Script | Mapping[str, Script],
    inputs: Sequence[Any] | Mapping[str, Sequence[Any]],
    seeds: Iterable[int] = range(100),
    replicas: int = REPLICAS,
    faults: Sequence[str] | None = None,
    processes: int = 1,
    **options: Any,
) -> SimulationReport:
    """Run your own agents on simulated replicas under faults, once for each seed, and report every broken promise.

    Args:
        agents: One registered agent, or several.
        script: What the model says; for several agents a script for each name.
        inputs: Payloads, a run for each; for several agents a list for each name.
        seeds: Which simulations to play. The same seed is the same simulation.
        replicas: Simulated processes that work on the runs.
        faults: Kinds of faults to draw from (`KINDS` lists them); all of them where absent.
        processes: Real processes that play seeds side by side.
        options: For the engines (`lease=…`, `deaths_max=…`).

    Raises:
        ConfigurationError: An agent has no script, or a kind of fault does not exist.
    """
    parts = _parts(agents, script)
    orders = _orders(parts, inputs)
    return Series(lambda _: Cast(parts, orders), replicas=replicas, kinds=faults, **options).run(seeds, processes=processes)


def _parts(agents: DurableAgent[Any, Any] | Sequence[DurableAgent[Any, Any]], script: Script | Mapping[str, Script]) -> list[Part]:
    listed = [agents] if isinstance(agents, DurableAgent) else list(agents)
    parts: list[Part] = []
    for agent in listed:
        own = cast("Mapping[str, Script]", script).get(agent.name) if isinstance(script, Mapping) else script
        if own is None or (len(listed) > 1 and not isinstance(script, Mapping)):
            raise ConfigurationError(f"There is no script for agent {agent.name!r}: pass script={{{agent.name!r}: [say(…)], …}}.")
        parts.append(Part(agent, own))
    return parts


def _orders(parts: Sequence[Part], inputs: Sequence[Any] | Mapping[str, Sequence[Any]]) -> list[Order]:
    by_name = inputs if isinstance(inputs, Mapping) else {parts[0].name: inputs}
    listed = [(name, each) for name, payloads in by_name.items() for each in payloads]
    return [Order(name, each, at=number * 0.5, key=f"simulated-{number}") for number, (name, each) in enumerate(listed)]
