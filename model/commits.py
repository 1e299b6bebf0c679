"""Table C in numbers: tasks of one execution that commit at the same time, lost replies, delayed copies, a second claim, and others who write too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule

SENDS_MAX = 3


class Task(NamedTuple):
    """One commit of one task. `at`: `ready`, `sent`, `judged`, `told`."""

    claim: int = 1
    at: str = "ready"
    number: int = 0
    answer: str = ""
    sends: int = 0
    stored: int = 0
    """How often the store has applied it: not known to anybody."""
    step: int = 0
    """The step number that it would take by itself, where the store does not number."""


class World(NamedTuple):
    """The row's counters, what the two claims remember, and what is under way."""

    tasks: tuple[Task, ...]
    claim: int = 1
    number: int = 0
    seen: tuple[int, int] = (0, 0)
    """The last number that each claim has seen."""
    copy: int = -1
    """The task whose delayed copy is still in the network."""
    renewal: int = -1
    """The number that the renewal under way has read (-1: none)."""
    renewals: int = 0
    renewal_lost: bool = False
    next_step: int = 1
    step_clash: bool = False
    answered: bool = False
    own: int = 0
    others: int = 0
    total: int = 0
    """The run's spend as stored, where it is one figure for all."""
    stale: bool = False
    false_lost: bool = False


class CommitModel(Ruled):
    """Several committers, one counter."""

    def __init__(self, name: str, without: frozenset[str] = frozenset(), *, tasks: int, second: bool, others: bool) -> None:
        super().__init__(without)
        self.name, self.tasks, self.second, self.others = name, tasks, second, others
        self.always = (self.acknowledged_is_stored, self.stored_once, self.renewals_are_held, self.steps_have_their_own_numbers, self.spend_is_complete,
                       self.no_stale_write, self.the_owner_is_not_told_lost)  # fmt: skip
        self.steps = ()

    def acknowledged_is_stored(self, w: World) -> bool:
        """What was answered *applied* or *already applied* is in the store."""
        return all(task.stored for task in w.tasks if task.at == "told" and task.answer != "lost")

    def stored_once(self, w: World) -> bool:
        """No commit is applied twice."""
        return all(task.stored <= 1 for task in w.tasks)

    def renewals_are_held(self, w: World) -> bool:
        """The owner of the latest claim is never told *lost* by a renewal."""
        return not w.renewal_lost

    def steps_have_their_own_numbers(self, w: World) -> bool:
        """No two steps have one number."""
        return not w.step_clash

    def spend_is_complete(self, w: World) -> bool:
        """What others have added to the spend is never overwritten."""
        return w.total == w.own + w.others

    def no_stale_write(self, w: World) -> bool:
        """Nothing of an earlier claim is stored after a new claim."""
        return not w.stale

    def the_owner_is_not_told_lost(self, w: World) -> bool:
        """The owner of the latest claim is never told *lost* about a commit."""
        return not w.false_lost

    def start(self) -> World:
        return World(tuple(Task() for _ in range(self.tasks)) + ((Task(claim=2),) if self.second else ()))

    def rests(self, w: World) -> bool:
        """Everybody who may commit has heard."""
        return all(task.at == "told" for task in w.tasks if task.claim <= w.claim) and w.renewal < 0

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        for i, task in enumerate(w.tasks):
            if task.claim <= w.claim:
                yield from self._task(w, i, task)
        if w.copy >= 0:
            yield Step(FAULT, "a delayed copy arrives", f"of task {w.copy}'s commit"), self._judge(w._replace(copy=-1), w.copy)[0]
        if self.others:
            yield from self._others(w)
        if self.second and w.claim == 1:
            yield Step(FAULT, "a second claim"), w._replace(claim=2, seen=(w.seen[0], w.number))

    def _task(self, w: World, i: int, task: Task) -> Iterator[tuple[Step, World]]:
        if task.at == "ready":
            under_way = any(other.at in ("sent", "judged") and other.claim == task.claim for other in w.tasks)
            if not (under_way and self.rule("serial")):
                sent = task._replace(at="sent", number=w.seen[task.claim - 1] + 1, step=w.seen[task.claim - 1] + 1, sends=1)
                yield Step(FAIR, "sends", f"task {i}, number {sent.number}"), put(w, i, sent)
        elif task.at == "sent":
            judged, answer = self._judge(w, i)
            yield Step(FAIR, "the store says", f"{answer} to task {i}"), put(judged, i, judged.tasks[i]._replace(at="judged", answer=answer))
            if w.copy < 0:
                yield Step(FAULT, "a copy is delayed", f"of task {i}'s commit"), w._replace(copy=i)
        elif task.at == "judged":
            seen = list(w.seen)
            if task.answer != "lost":
                seen[task.claim - 1] = max(seen[task.claim - 1], task.number)
            told = put(w, i, task._replace(at="told"))._replace(seen=(seen[0], seen[1]))
            yield (
                Step(FAIR, "hears", f"task {i}: {task.answer}"),
                told._replace(false_lost=w.false_lost or (task.answer == "lost" and task.claim == w.claim)),
            )
            if task.sends < SENDS_MAX:
                yield Step(FAULT, "a reply is lost", f"task {i} sends it again"), put(w, i, task._replace(at="sent", answer="", sends=task.sends + 1))
            if not self.rule("in-doubt"):
                yield Step(FAULT, "a reply is lost", f"task {i} gives up, and others go on"), put(w, i, task._replace(at="told", answer="lost"))

    def _judge(self, w: World, i: int) -> tuple[World, str]:
        """The store's condition: claim, then number."""
        task = w.tasks[i]
        if task.claim != w.claim and self.rule("fence"):
            return w, "lost"
        if task.number == w.number + 1 or not self.rule("commit-no"):
            return self._store(put(w._replace(number=w.number + 1), i, task._replace(stored=task.stored + 1)), task), "applied"
        return w, "already applied" if task.number <= w.number else "lost"

    def _store(self, w: World, task: Task) -> World:
        clash = not self.rule("numbers") and task.step < w.next_step
        total = w.total + 1 if self.rule("absolute") else w.own + 1
        return w._replace(
            next_step=w.next_step + 1, step_clash=w.step_clash or clash, own=w.own + 1, total=total, stale=w.stale or task.claim != w.claim
        )

    def _others(self, w: World) -> Iterator[tuple[Step, World]]:
        """A renewal thread, a person who answers, a child that spends."""
        if w.claim == 1 and w.renewals < 2:
            if w.renewal < 0:
                yield Step(FAIR, "a renewal", "is sent"), w._replace(renewal=w.seen[0])
            else:
                lost = not self.rule("renew-apart") and w.renewal != w.number
                yield Step(FAIR, "a renewal", "arrives"), w._replace(renewal=-1, renewals=w.renewals + 1, renewal_lost=lost)
        elif w.renewal >= 0:
            yield Step(FAIR, "a renewal", "of the old claim arrives"), w._replace(renewal=-1)
        if not w.answered:
            yield Step(ENV, "a person answers", "and a wait step is written"), w._replace(answered=True, next_step=w.next_step + 1)
        if not w.others:
            yield Step(ENV, "a child spends"), w._replace(others=1, total=w.total + 1)

    def show(self, w: World) -> str:
        tasks = "; ".join(f"{i}: {t.at} {t.number or ''} {t.answer} stored {t.stored}" for i, t in enumerate(w.tasks))
        return f"claim {w.claim}, number {w.number}, next step {w.next_step}, spend {w.total} | {tasks}"


def put(w: World, i: int, task: Task) -> World:
    """The world with one task replaced."""
    return w._replace(tasks=(*w.tasks[:i], task, *w.tasks[i + 1 :]))


rule("serial", "two commits take one number, and one of them is lost", "commits", "acknowledged_is_stored")
rule("in-doubt", "another commit takes the number of one that was in doubt, and is lost", "commits", "acknowledged_is_stored")
rule("renew-apart", "a renewal is told *lost* while a commit is on its way", "commits and others", "renewals_are_held")
rule("numbers", "an answer's wait step and the owner's step get one number", "commits and others", "steps_have_their_own_numbers")
rule("absolute", "a child's spend is overwritten", "commits and others", "spend_is_complete")
