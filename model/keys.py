"""Concurrency keys, threads and children: up to three runs, claims, waits, deaths, drains, retries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule
from perdure.core.run import RunStatus, moves_from

PENDING, RUNNING, WAITING, INTERRUPTED, COMPLETED, FAILED, CANCELLED = RunStatus


class Run(NamedTuple):
    """One run. `number` of admission is its place."""

    status: RunStatus = PENDING
    admitted: bool = True
    begun: bool = False
    has_key: bool = False
    has_thread: bool = False
    midway: bool = False
    """Claimed, and neither waiting nor final since: not asked by anybody, it is what the key is for."""
    head: int = 0
    """The thread's head as this run read it."""
    on_child: bool = False
    looks: bool = False
    """A claim has looked and found the key free, where looking and taking are two statements."""
    tells: bool = False
    """Its settlement is still to be told to its parent, where that is not part of the settling commit."""
    refused: bool = False


class World(NamedTuple):
    runs: tuple[Run, ...]
    head: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """Who shares the key, who is in the thread, whose child is whom."""

    name: str
    about: str
    keyed: tuple[bool, ...]
    threaded: tuple[bool, ...]
    parent: tuple[int | None, ...]
    retries: bool = True
    keeps: bool = False
    """The key is kept while its run waits."""


class KeyModel(Ruled):
    """A few runs that must not meet."""

    def __init__(self, family: Family, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.family, self.name = family, family.name
        self.always = (self.one_run_of_a_key, self.one_run_in_a_thread)
        self.steps = (self.moves_are_in_table_r, self.a_turn_is_not_overwritten)

    def one_run_of_a_key(self, w: World) -> bool:
        """Of the runs of one key, one is on its way at a time; drained or recovered, it still is."""
        return sum(run.midway for run, keyed in zip(w.runs, self.family.keyed, strict=True) if keyed) <= 1

    def one_run_in_a_thread(self, w: World) -> bool:
        """A thread is in one run's hands at a time, waiting included."""
        within = (
            run.begun and run.status in (RUNNING, WAITING, INTERRUPTED)
            for run, threaded in zip(w.runs, self.family.threaded, strict=True)
            if threaded
        )
        return sum(within) <= 1

    def moves_are_in_table_r(self, before: World, step: Step, after: World) -> bool:
        """Every run moves by table R."""
        return all(a.status is b.status or not step.verb or b.status in moves_from(a.status, step.verb)  # type: ignore[arg-type]
                   for a, b in zip(before.runs, after.runs, strict=True) if not (a.on_child and not b.on_child))  # fmt: skip

    def a_turn_is_not_overwritten(self, before: World, step: Step, after: World) -> bool:
        """The head moves only if it is still the one that the run read."""
        return not (step.what == "completes" and after.head > before.head and before.runs[step.call].head != before.head)

    def start(self) -> World:
        return World(tuple(Run(admitted=parent is None) for parent in self.family.parent))

    def holds_key(self, w: World, i: int) -> bool:
        return self.family.keyed[i] and w.runs[i].has_key

    def holds_thread(self, w: World, i: int) -> bool:
        return self.family.threaded[i] and w.runs[i].has_thread

    def ancestor_waits(self, w: World, child: int, of: int) -> bool:
        """Whether `of` is a waiting ancestor of `child`."""
        parent = self.family.parent[child]
        while parent is not None:
            if parent == of:
                return w.runs[of].status is WAITING
            parent = self.family.parent[parent]
        return False

    def free(self, w: World, i: int) -> bool:
        """Run i may be claimed now, its turn apart."""
        run = w.runs[i]
        if not run.admitted or run.refused or not run.status.claimable:
            return False
        for j in range(len(w.runs)):
            if j == i:
                continue
            over = self.rule("ancestor") and self.ancestor_waits(w, i, j)
            if self.family.keyed[i] and self.holds_key(w, j) and not over:
                return False
            if self.family.threaded[i] and self.holds_thread(w, j):
                return False
        return True

    def claimable(self, w: World, i: int) -> bool:
        """Nobody who could be claimed now stands before it."""
        if not self.free(w, i):
            return False
        for j, other in enumerate(w.runs):
            if j == i or not (self.family.keyed[i] and self.family.keyed[j] and other.admitted and not other.refused and other.status.claimable):
                continue
            earlier = other.begun if other.begun != w.runs[i].begun else j < i
            if earlier and (self.free(w, j) or not self.rule("key-order")):
                return False
        return True

    def rests(self, w: World) -> bool:
        """Every run is final, or waits for a person, or stands behind one that does."""
        there = [(i, run) for i, run in enumerate(w.runs) if run.admitted and not run.refused]
        if any(run.status is RUNNING or (run.status.claimable and self.claimable(w, i)) for i, run in there):
            return False
        person = any(run.status is WAITING and not run.on_child for _, run in there)
        return person or all(run.status.final for _, run in there)

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        for i, run in enumerate(w.runs):
            if not run.admitted or run.refused:
                continue
            yield from self._claims(w, i, run)
            if run.status is RUNNING:
                yield from self._runs(w, i, run)
            if run.status is WAITING and not run.on_child:
                yield Step(ENV, "is answered", f"run {i}", "resolve", i), put(w, i, status=PENDING)
            if run.status is FAILED and self.family.retries:
                yield Step(ENV, "is retried", f"run {i}", "retry", i), put(w, i, status=PENDING)
            if run.tells:
                yield Step(FAIR, "tells its parent", f"run {i}", "", i), self._told(put(w, i, tells=False), i)
                yield Step(FAULT, "dies before it tells its parent", f"run {i}", "", i), put(w, i, tells=False)

    def _claims(self, w: World, i: int, run: Run) -> Iterator[tuple[Step, World]]:
        may = self.claimable(w, i)
        if not self.rule("key-unique"):
            if may and not run.looks:
                yield Step(FAIR, "a claim looks", f"run {i}: free", "", i), put(w, i, looks=True)
            if not run.looks:
                return
            w = put(w, i, looks=False)
            may = run.status.claimable
        if may:
            first = {} if run.begun else {"head": w.head}
            taken = put(
                w,
                i,
                status=RUNNING,
                begun=True,
                midway=True,
                has_key=self.family.keyed[i],
                has_thread=self.family.threaded[i] and self.rule("thread-held"),
                **first,
            )
            yield Step(FAIR, "is claimed", f"run {i}", "claim", i), taken

    def _runs(self, w: World, i: int, run: Run) -> Iterator[tuple[Step, World]]:
        children = [j for j, parent in enumerate(self.family.parent) if parent == i]
        unborn = [j for j in children if not w.runs[j].admitted]
        busy = [j for j in children if w.runs[j].admitted and not w.runs[j].refused and not w.runs[j].status.final]
        if not unborn and not busy:
            yield Step(FAIR, "completes", f"run {i}", "settle", i), self._settle(w, i, COMPLETED)
        if self.family.retries:
            yield Step(FAULT, "fails", f"run {i}", "settle", i), self._settle(w, i, FAILED)
        yield Step(FAULT, "its worker dies", f"run {i}", "sweep", i), self._back(w, i, PENDING)
        yield Step(ENV, "is drained", f"run {i}", "release", i), self._back(w, i, INTERRUPTED)
        if not children:
            yield Step(ENV, "parks for a person", f"run {i}", "park", i), self._park(w, i, on_child=False)
        for j in unborn:
            shared = self.family.threaded[i] and self.family.threaded[j] and self.rule("child-thread")
            yield (
                Step(FAIR, "starts a child", f"run {j}{' (refused: it holds that thread itself)' if shared else ''}", "", i),
                put(w, j, admitted=True, refused=shared),
            )
        if busy and not unborn:
            yield Step(FAIR, "parks for its child", f"run {i}", "park", i), self._park(w, i, on_child=True)

    def _back(self, w: World, i: int, status: RunStatus) -> World:
        """Pending or interrupted: the key is kept."""
        return put(w, i, status=status, has_key=w.runs[i].has_key and self.rule("key-held"))

    def _park(self, w: World, i: int, *, on_child: bool) -> World:
        return put(w, i, status=WAITING, midway=False, on_child=on_child, has_key=w.runs[i].has_key and self.family.keeps)

    def _settle(self, w: World, i: int, status: RunStatus) -> World:
        run = w.runs[i]
        if status is COMPLETED and self.family.threaded[i] and (run.head == w.head or not self.rule("head")):
            w = w._replace(head=w.head + 1)
        w = put(w, i, status=status, midway=False, has_key=False, has_thread=False)
        if self.family.parent[i] is None:
            return w
        return self._told(w, i) if self.rule("child-told") else put(w, i, tells=True)

    def _told(self, w: World, child: int) -> World:
        """The parent's wait row that names the child is resolved."""
        parent = self.family.parent[child]
        assert parent is not None
        waiting = w.runs[parent].status is WAITING and w.runs[parent].on_child
        return put(w, parent, status=PENDING, on_child=False) if waiting else w

    def show(self, w: World) -> str:
        words = []
        for i, run in enumerate(w.runs):
            if run.admitted:
                flags = [
                    name
                    for name, on in (("key", run.has_key), ("thread", run.has_thread), ("for child", run.on_child), ("refused", run.refused))
                    if on
                ]
                words.append(f"{i}: {run.status}{' (' + ', '.join(flags) + ')' if flags else ''}")
        return f"{'; '.join(words)}; head {w.head}"


def put(w: World, i: int, **changes: object) -> World:
    """The world with one run changed."""
    return w._replace(runs=(*w.runs[:i], w.runs[i]._replace(**changes), *w.runs[i + 1 :]))  # type: ignore[arg-type]


NONE: tuple[int | None, ...] = (None, None, None)
FAMILIES = (
    Family("keys", "three runs of one key", (True,) * 3, (False,) * 3, NONE),
    Family("keys kept", "the key is kept while its run waits", (True,) * 3, (False,) * 3, NONE, keeps=True),
    Family("key and thread", "one key, two of them in one thread", (True,) * 3, (True, True, False), NONE),
    Family("threads", "three runs of one thread", (False,) * 3, (True,) * 3, NONE),
    Family(
        "child with key",
        "a child that shares its parent's key, and a stranger",
        (True,) * 3,
        (False,) * 3,
        (None, 0, None),
        retries=False,
        keeps=True,
    ),
    Family("child in thread", "a child that names its parent's thread", (False,) * 3, (True,) * 3, (None, 0, None), retries=False),
    Family("child and all", "keys, threads and a child", (True,) * 3, (True, True, False), (None, None, 0)),
)

rule("key-held", "a run that was drained or died comes back beside the next one", "keys", "one_run_of_a_key")
rule("key-unique", "two claims at once both find the key free", "keys", "one_run_of_a_key")
rule("key-order", "nobody is claimed because somebody stands before who can't be", "child and all", "stuck")
rule("ancestor", "a child waits for the key that its waiting parent holds", "child with key", "stuck")
rule("thread-held", "two runs take turns inside one conversation", "threads", "one_run_in_a_thread")
rule("head", "a turn that completed is overwritten", "threads", "a_turn_is_not_overwritten")
rule("child-thread", "a child waits for the thread that its parent holds", "child in thread", "stuck")
rule("child-told", "a parent waits for a child that is over", "child with key", "stuck")
