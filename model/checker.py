"""A small explicit-state model checker: breadth first, exhaustive, shortest stories.

A world is an immutable, hashable value. A `Model` says where it starts, what may happen next, and what must always hold. The checker visits every
world that can be reached, then asks whether every fair path comes to rest: a world that does not rest and that nobody can move is *stuck*; a circle of the
system's own steps that never rests is a *livelock*.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

World = TypeVar("World", bound=Hashable)


class Kind(IntEnum):
    """Who makes a step."""

    FAIR = 0
    """The system itself: sooner or later it is taken."""
    ENV = 1
    """People and the outside: may never come."""
    FAULT = 2
    """A crash, a stall, a lost reply: may never come."""


FAIR, ENV, FAULT = Kind.FAIR, Kind.ENV, Kind.FAULT


class Step(NamedTuple):
    """One thing that happens. `what` is for invariants, `detail` for readers, `verb` a verb of table R where the run's status may change by it."""

    kind: Kind
    what: str
    detail: str = ""
    verb: str = ""
    call: int = -1

    def __str__(self) -> str:
        return f"{self.what} {self.detail}".strip()


class Model(Protocol[World]):
    """One small world."""

    @property
    def name(self) -> str: ...

    @property
    def always(self) -> Sequence[Callable[[World], bool]]:
        """What holds in every world. Each docstring is the sentence."""
        ...

    @property
    def steps(self) -> Sequence[Callable[[World, Step, World], bool]]:
        """What holds of every step: the world before, the step, the world after."""
        ...

    def start(self) -> World: ...

    def moves(self, world: World, /) -> Iterable[tuple[Step, World]]: ...

    def rests(self, world: World, /) -> bool:
        """Whether the world may stay like this for ever."""
        ...

    def show(self, world: World, /) -> str: ...


@dataclass(slots=True)
class Violation:
    """A sentence that does not hold, and the shortest story that leads there."""

    name: str
    sentence: str
    story: list[tuple[str, str]]


@dataclass(slots=True)
class Report:
    """What an exploration came to."""

    model: str
    states: int = 0
    edges: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = True
    violations: list[Violation] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.complete and not self.violations


def first_sentence(check: Callable[..., bool]) -> str:
    """What an invariant says."""
    return (check.__doc__ or check.__name__).strip().split("\n")[0]


class Exploration(Generic[World]):
    """Every reachable world, each numbered in the order of its discovery, with the step that led there first."""

    def __init__(self, model: Model[World], *, limit: int, stop_first: bool) -> None:
        self.model, self.limit, self.stop_first = model, limit, stop_first
        self.worlds: list[World] = []
        self.numbers: dict[World, int] = {}
        self.parents = array("l")
        self.by: list[Step | None] = []
        self.fair = array("l")  # the fair edges of world n are fair[ends[n-1]:ends[n]]
        self.ends = array("l")
        self.report = Report(model.name)
        self._broken: set[str] = set()

    def run(self) -> Report:
        """Explore, then judge liveness where nothing was violated."""
        began = time.perf_counter()
        start = self.model.start()
        self._discover(start, -1, None)
        self._judge_world(0)
        level_end, current = 1, 0
        while current < len(self.worlds):
            if current == level_end:
                self.report.depth += 1
                level_end = len(self.worlds)
                if self.stop_first and self.report.violations:
                    break
            if len(self.worlds) > self.limit:
                self.report.complete = False
                break
            self._expand(current)
            current += 1
        if not self.report.violations and self.report.complete:
            self._judge_liveness()
        self.report.states, self.report.seconds = len(self.worlds), time.perf_counter() - began
        return self.report

    def _discover(self, world: World, parent: int, step: Step | None) -> int:
        number = len(self.worlds)
        self.numbers[world] = number
        self.worlds.append(world)
        self.parents.append(parent)
        self.by.append(step)
        return number

    def _expand(self, number: int) -> None:
        world, numbers, checks = self.worlds[number], self.numbers, self.model.steps
        for step, after in self.model.moves(world):
            if after == world:
                continue
            self.report.edges += 1
            broken = next((check for check in checks if not check(world, step, after)), None)
            if broken is not None:
                # A story that has gone wrong is not followed: what comes of it says nothing new.
                self._violated(broken.__name__, first_sentence(broken), number, step, after)
                continue
            known = numbers.get(after)
            if known is None:
                known = self._discover(after, number, step)
                self._judge_world(known)
            if step.kind is FAIR:
                self.fair.append(known)
        self.ends.append(len(self.fair))

    def _judge_world(self, number: int) -> None:
        world = self.worlds[number]
        for check in self.model.always:
            if not check(world):
                self._violated(check.__name__, first_sentence(check), number)

    def _violated(self, name: str, sentence: str, number: int, step: Step | None = None, after: World | None = None) -> None:
        if name in self._broken:
            return
        self._broken.add(name)
        story = self.story(number)
        if step is not None and after is not None:
            story.append((f"=> {step}", self.model.show(after)))
        self.report.violations.append(Violation(name, sentence, story))

    def story(self, number: int) -> list[tuple[str, str]]:
        """The steps that lead to a world, each with the world after it."""
        told: list[tuple[str, str]] = []
        while number >= 0:
            told.append((str(self.by[number] or "(start)"), self.model.show(self.worlds[number])))
            number = self.parents[number]
        return told[::-1]

    def _fair_from(self, number: int) -> Sequence[int]:
        return self.fair[self.ends[number - 1] if number else 0 : self.ends[number]]

    def _judge_liveness(self) -> None:
        resting = bytearray(self.model.rests(world) for world in self.worlds)
        for number, rests in enumerate(resting):
            if not rests and not self._fair_from(number):
                self._violated("stuck", "Every world either rests or is moved on by the system itself.", number)
                return
        if (loop := self._circle(resting)) is not None:
            self._violated("livelock", "No circle of the system's own steps goes on for ever.", loop)

    def _circle(self, resting: bytearray) -> int | None:
        """A world on a circle of fair steps outside rest, if there is one: depth first, with colours."""
        white, grey, black = 0, 1, 2
        colour = bytearray(len(self.worlds))
        for root in range(len(self.worlds)):
            if colour[root] != white or resting[root]:
                continue
            colour[root] = grey
            stack: list[tuple[int, Iterator[int]]] = [(root, iter(self._fair_from(root)))]
            while stack:
                number, following = stack[-1]
                for after in following:
                    if resting[after] or colour[after] == black:
                        continue
                    if colour[after] == grey:
                        return after
                    colour[after] = grey
                    stack.append((after, iter(self._fair_from(after))))
                    break
                else:
                    colour[number] = black
                    stack.pop()
        return None


def explore(model: Model[World], *, limit: int = 5_000_000, stop_first: bool = False) -> Report:
    """Visit every world that `model` can reach and check what it promises.

    Args:
        limit: Worlds after which the exploration gives up; the report is then not `complete`.
        stop_first: End with the level of the first violation, so that its story is the shortest.
    """
    return Exploration(model, limit=limit, stop_first=stop_first).run()
