"""One deed, two runs: a business key that both hold, or a fork of a run that still has the call open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule
from perdure.core.effect import EffectState

PLANNED, STARTED, DONE, FAILED, UNKNOWN = EffectState


class Ledger(NamedTuple):
    state: EffectState = PLANNED
    by: int = -1


class World(NamedTuple):
    """`runs`: `pending`, `tools`, `body`, `waits` (for the other's row), `asks` (a person), `held`, `over`."""

    runs: tuple[str, str] = ("pending", "pending")
    rows: tuple[Ledger, ...] = (Ledger(),)
    spent: int = 0
    """Permissions given and not taken back."""
    allowed: int = 1
    """How many permissions there may be: one, and one more for each "run it" about the held call."""
    hold: str = ""


class SharingModel(Ruled):
    """Two runs about to do the same thing."""

    def __init__(self, name: str, without: frozenset[str] = frozenset(), *, fork: bool) -> None:
        super().__init__(without)
        self.name, self.fork = name, fork
        self.always = (self.the_deed_is_permitted_once,)
        self.steps = (self.nobody_is_asked_about_a_living_body,)

    def the_deed_is_permitted_once(self, w: World) -> bool:
        """The deed is permitted once, and again only where a person said so."""
        return w.spent <= w.allowed

    def nobody_is_asked_about_a_living_body(self, before: World, step: Step, after: World) -> bool:
        """No person is asked about a body that is running under a living claim."""
        return self.fork or not (step.what.startswith("a person says") and "body" in before.runs)

    def start(self) -> World:
        return World(rows=(Ledger(), Ledger()) if self.fork else (Ledger(),))

    def rests(self, w: World) -> bool:
        """Over, or a person is asked; whoever waits for the other's row waits for that person too."""
        asked = bool({"asks", "held"} & set(w.runs))
        return all(run in ("over", "asks", "held") or (run == "waits" and asked) for run in w.runs)

    def own(self, i: int) -> int:
        """The row of run i: a business key is one row, a fork has its own."""
        return i if self.fork else 0

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        for i, run in enumerate(w.runs):
            row = w.rows[self.own(i)]
            if run == "pending":
                yield Step(FAIR, "is claimed", f"run {i}"), at(w, i, "tools")
            elif run == "tools":
                yield self._enters(w, i, row)
            elif run == "body":
                for kind, what, state, then in (
                    (FAIR, "the body returns", DONE, "tools"), (FAULT, "the body fails for certain", FAILED, "tools"), (FAULT, "the worker dies in the body", UNKNOWN, "asks"),
                ):  # fmt: skip
                    after = at(self._write(w, i, state), i, then)
                    yield Step(kind, what, f"run {i}"), after._replace(spent=w.spent - (state is FAILED))
            elif run == "asks":
                for word, state in (("it happened", DONE), ("run it", PLANNED), ("fail", FAILED)):
                    said = at(self._write(w, i, state), i, "pending")
                    yield Step(ENV, "a person says", f"{word} (run {i})"), said._replace(spent=w.spent - (state is not DONE))
            elif run == "held":
                yield Step(ENV, "a person says of the held call", "run it"), at(w, i, "pending")._replace(hold="run", allowed=w.allowed + 1)
                yield Step(ENV, "a person says of the held call", "block"), at(w, i, "over")._replace(hold="block")

    def _enters(self, w: World, i: int, row: Ledger) -> tuple[Step, World]:
        if row.state in (DONE, FAILED):
            return Step(FAIR, "takes the recorded answer", f"run {i}"), at(w, i, "over")
        if self.fork and i == 1 and w.hold != "run" and self._held(w.rows[0].state):
            return Step(FAIR, "is held", f"run {i}"), at(w, i, "held")
        if row.state is UNKNOWN and (row.by == i or not self.rule("business-key")):
            return Step(FAIR, "asks a person", f"run {i}"), at(w, i, "asks")
        if row.state in (STARTED, UNKNOWN) and self.rule("business-key"):
            return Step(FAIR, "waits for the other's row", f"run {i}"), at(w, i, "waits")
        return Step(FAIR, "starts the effect", f"run {i}"), at(self._write(w, i, STARTED), i, "body")._replace(spent=w.spent + 1)

    def _held(self, ancestor: EffectState) -> bool:
        """Planned counts: the call is open in the ancestor, which may still run it."""
        return ancestor is not FAILED if self.rule("fork-held") else ancestor in (DONE, UNKNOWN)

    def _write(self, w: World, i: int, state: EffectState) -> World:
        """The row changes; a row that is settled wakes whoever waits for it."""
        own = self.own(i)
        w = w._replace(rows=(*w.rows[:own], Ledger(state, i), *w.rows[own + 1 :]))
        return w if state in (STARTED, UNKNOWN) else w._replace(runs=tuple("pending" if run == "waits" else run for run in w.runs))  # type: ignore[arg-type]

    def show(self, w: World) -> str:
        return f"runs {' / '.join(w.runs)}; rows {' / '.join(row.state for row in w.rows)}"


def at(w: World, i: int, what: str) -> World:
    """The world with run i somewhere else."""
    return w._replace(runs=(what, w.runs[1]) if i == 0 else (w.runs[0], what))


rule("business-key", "two runs of one business key both do it", "business key", "the_deed_is_permitted_once")
rule("fork-held", "a fork does what its ancestor is about to do", "fork", "the_deed_is_permitted_once")
