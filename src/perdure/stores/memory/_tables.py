"""The rows of the memory store, and the small things that every move does to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint
from perdure.core.commit import Committed, Signal
from perdure.core.effect import Effect
from perdure.core.errors import RunNotFoundError, WaitNotFoundError
from perdure.core.event import Event, EventWrite
from perdure.core.family import Member, Reservation, held
from perdure.core.run import Run, RunStatus
from perdure.core.step import Step, StepWrite
from perdure.core.wait import WaitPoint
from perdure.stores._protocol import Hint


@dataclass(slots=True)
class Row:
    """A run and all that hangs on it.

    `holds` is the hold on its concurrency key and on its agent's slot: from the claim until it waits or settles. `holds_thread` lasts until it settles.
    `answer` is what the last commit of the present claim was told, for its repetition.
    """

    run: Run
    payload_hash: str
    key_retention: timedelta
    holds: bool = False
    holds_thread: bool = False
    head_generation: int = 0
    answer: Committed | None = None
    ended_by_commit: bool = False
    settled_at: datetime | None = None
    """When a run settled that was forgotten since."""
    messages: dict[tuple[int, int], list[bytes]] = field(default_factory=dict[tuple[int, int], list[bytes]])
    checkpoints: dict[tuple[int, int], Checkpoint] = field(default_factory=dict[tuple[int, int], Checkpoint])
    steps: list[Step] = field(default_factory=list[Step])
    events: list[Event] = field(default_factory=list[Event])
    effects: dict[str, Effect] = field(default_factory=dict[str, Effect])
    waits: dict[str, WaitPoint] = field(default_factory=dict[str, WaitPoint])
    signals: dict[str, tuple[Signal, int]] = field(default_factory=dict[str, tuple[Signal, int]])
    """Each signal with the generation that took it; 0: nobody yet."""

    def current_waits(self) -> list[WaitPoint]:
        return [wait for wait in self.waits.values() if wait.generation == self.run.generation]

    def current_effects(self) -> list[Effect]:
        return [effect for effect in self.effects.values() if effect.generation == self.run.generation]

    def open_waits(self) -> list[WaitPoint]:
        return [wait for wait in self.current_waits() if wait.open]

    def inbox(self, name: str | None) -> Signal | None:
        """The oldest signal of this name that the present generation has not taken."""
        free = (signal for signal, taken in self.signals.values() if taken != self.run.generation and signal.name == name)
        return next(free, None)


class Tables:
    """Everything that is stored. Each list of ids is in the order in which its rows came."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.rows: dict[str, Row] = {}
        self.pruned: dict[str, Row] = {}
        """What keys still know of runs that were forgotten."""
        self.admitted = 0
        self.keys: dict[tuple[str, str], str] = {}
        self.heads: dict[str, str] = {}
        self.waits: dict[str, str] = {}
        self.open: dict[str, str] = {}
        self.effects: dict[str, str] = {}
        self.artifacts: dict[str, tuple[Artifact, bytes]] = {}
        self.tokens: dict[str, set[str]] = {}
        self.reservations: list[Reservation] = []
        self.news: dict[Hint, None] = {}

    def now(self) -> datetime:
        return self.clock()

    def row(self, run_id: str) -> Row:
        row = self.rows.get(run_id)
        if row is None:
            raise RunNotFoundError(run_id)
        return row

    def wait_row(self, wait_id: str) -> tuple[Row, WaitPoint]:
        if wait_id not in self.waits:
            raise WaitNotFoundError(wait_id)
        row = self.rows[self.waits[wait_id]]
        return row, row.waits[wait_id]

    def effect(self, key: str) -> Effect | None:
        return None if key not in self.effects else self.rows[self.effects[key]].effects[key]

    def keyed(self, agent: str, key: str) -> Row | None:
        """The run that this key stands for: while it is unsettled, and then for its retention."""
        run_id = self.keys.get((agent, key))
        if run_id is None:
            return None
        row = self.rows.get(run_id) or self.pruned[run_id]
        settled = row.settled_at or row.run.finished_at
        return None if settled is not None and settled + row.key_retention <= self.now() else row

    def all_open(self) -> list[WaitPoint]:
        """Every open row, oldest first."""
        return [self.rows[run_id].waits[wait_id] for wait_id, run_id in self.open.items()]

    def read_checkpoint(self, row: Row, generation: int, index: int | None) -> Checkpoint | None:
        stored = [each for (of, at), each in row.checkpoints.items() if of == generation and index in (None, at)]
        if not stored:
            return None
        last = max(stored, key=lambda each: each.index)
        return replace(last, messages=tuple(row.messages[generation, last.base][: last.length]))

    def fork_ancestors(self, run: Run) -> list[Row]:
        """The runs that this one goes back to by forks, oldest first."""
        if not run.forked or run.parent_run not in self.rows:
            return []
        parent = self.rows[run.parent_run]
        return [*self.fork_ancestors(parent.run), parent]

    def eldest(self, run_id: str) -> str:
        """The run at the head of this one's family: a fork begins a family of its own."""
        run = self.row(run_id).run
        above = self.above(run)
        return run.id if above is None else self.eldest(above.run.id)

    def above(self, run: Run) -> Row | None:
        """Who started this run. A parent was admitted before its child: an id that was forgotten and used again makes no circle."""
        row = None if run.forked or run.parent_run is None else self.rows.get(run.parent_run)
        return row if row is not None and row.run.seq < run.seq else None

    def family(self, eldest: str) -> tuple[list[Member], list[Reservation]]:
        """A run and all that it started, however deep, with their reservations."""
        members: list[Member] = []
        todo = [self.row(eldest).run]
        while todo:
            run = todo.pop(0)
            spent = run.usage
            parent = None if run.id == eldest else run.parent_run
            members.append(Member(run.id, parent, spent.total_tokens, spent.cost_at_least, run.budget, held(run.status, run.epoch)))
            todo += [row.run for row in self.rows.values() if row.run.parent_run == run.id and self.above(row.run) is not None]
        ids = {member.id for member in members}
        return members, [each for each in self.reservations if each.run_id in ids]

    def put_effect(self, row: Row, effect: Effect) -> None:
        row.effects[effect.key] = effect
        self.effects[effect.key] = row.run.id

    def tell(self, row: Row, *events: EventWrite) -> None:
        """Number events from the run row's counter."""
        now, first = self.now(), row.run.next_event
        row.events += [Event(row.run.id, first + at, each.type, each.data, now) for at, each in enumerate(events)]
        row.run = replace(row.run, next_event=first + len(events))

    def log(self, row: Row, steps: Sequence[StepWrite]) -> None:
        """Number steps from the run row's counter."""
        first = row.run.next_step
        row.steps += [Step(row.run.id, row.run.generation, first + at, each) for at, each in enumerate(steps)]
        row.run = replace(row.run, next_step=first + len(steps))

    def touch(self, row: Row, *, moved: bool = True) -> None:
        """Note what to hint at once the write is done; `moved`: the run may have another status. A run that rests may leave its key to others."""
        self.news[Hint("run" if moved else "news", row.run.id)] = None
        if row.run.status is not RunStatus.RUNNING:
            self.news[Hint("work")] = None
