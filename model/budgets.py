"""One cap, several runs: reservations before each model call, crashes at the worst moment, and nobody who waits for room that never comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule

CAP, ESTIMATE, PRICES, CALLS = 5, 2, (1, 2), 2
"""Units of money. A call is estimated at 2 and costs 1 or 2; each run wants two calls."""


class Run(NamedTuple):
    """`at`: `ready`, `looked` (found room, where looking and reserving are two statements), `reserving` (its reply is not there), `calling`,
    `called` (the response is in memory), `stored` (the response is stored, where the price is another commit), `waits`, `dead`, `over`."""

    at: str = "ready"
    reserved: int = 0
    spent: int = 0
    calls: int = 0
    price: int = 0
    """What the call under way has cost: not known to the store."""
    paid: int = 0
    """What this run has really paid."""
    lost_price: bool = False
    """A stored response whose real price is not recorded."""


class World(NamedTuple):
    runs: tuple[Run, ...]


class BudgetModel(Ruled):
    """A parent and its children under one cap."""

    name = "shared budget"

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.always = (self.never_over_the_cap, self.what_was_paid_is_recorded, self.one_reservation_per_run, self.a_stored_response_has_its_price)
        self.steps = ()

    def never_over_the_cap(self, w: World) -> bool:
        """Spend and reservations together stay within the cap."""
        return recorded(w) <= CAP

    def what_was_paid_is_recorded(self, w: World) -> bool:
        """What is recorded, reservations included, is never less than what was paid."""
        return all(run.paid + run.price <= run.spent + run.reserved for run in w.runs)

    def one_reservation_per_run(self, w: World) -> bool:
        """A run has at most one reservation."""
        return all(run.reserved <= ESTIMATE for run in w.runs)

    def a_stored_response_has_its_price(self, w: World) -> bool:
        """A response that is stored is booked at its real price."""
        return not any(run.lost_price for run in w.runs)

    def start(self) -> World:
        return World((Run(),) * 3)

    def rests(self, w: World) -> bool:
        return all(run.at == "over" for run in w.runs)

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        for i, run in enumerate(w.runs):
            if i and run == w.runs[i - 1]:
                continue
            for step, after in self._run(w, i, run):
                yield step, after._replace(runs=tuple(sorted(after.runs)))

    def _run(self, w: World, i: int, run: Run) -> Iterator[tuple[Step, World]]:
        room = recorded(w) + ESTIMATE <= CAP
        if run.at == "ready":
            yield from self._asks(w, i, run, room)
        elif run.at == "looked":
            yield Step(FAIR, "reserves", "what it found free"), self._reserves(w, i, run)
        elif run.at == "reserving":
            yield Step(FAIR, "hears that it has reserved"), put(w, i, run._replace(at="calling"))
            again = run if self.rule("reserve-once") else run._replace(reserved=run.reserved + ESTIMATE)
            if recorded(put(w, i, again)) <= CAP:
                yield Step(FAULT, "its reply is lost, it reserves again"), put(w, i, again._replace(at="calling"))
        elif run.at == "calling":
            for price in PRICES:
                yield Step(FAIR, "the model answers", f"for {price}"), put(w, i, run._replace(at="called", price=price))
            yield Step(FAULT, "the call is not made", "the owner gives the room back"), self._ends(w, i, run._replace(reserved=0), "over")
        elif run.at == "called":
            yield from self._stores(w, i, run)
        elif run.at == "stored":
            yield Step(FAIR, "books the price"), self._booked(w, i, run)
        elif run.at == "waits" and not self.rule("room-wakes"):
            pass
        elif run.at == "dead":
            yield from self._swept(w, i, run)
        if run.at in ("reserving", "calling", "called", "stored", "ready"):
            yield Step(FAULT, "its worker dies", f"({run.at})"), put(w, i, run._replace(at="dead", lost_price=run.lost_price or run.at == "stored"))

    def _asks(self, w: World, i: int, run: Run, room: bool) -> Iterator[tuple[Step, World]]:
        if run.calls == CALLS:
            yield Step(FAIR, "is done"), put(w, i, run._replace(at="over"))
        elif room and self.rule("reserve-first"):
            yield Step(FAIR, "reserves", "in one conditional update"), self._reserves(w, i, run)
        elif room:
            yield Step(FAIR, "looks", "and finds room"), put(w, i, run._replace(at="looked"))
        elif any(other.reserved for j, other in enumerate(w.runs) if j != i) or not self.rule("no-room"):
            yield Step(FAIR, "finds no room", "and waits"), put(w, i, run._replace(at="waits"))
        else:
            yield Step(FAIR, "finds no room", "and nobody in flight: its budget is reached"), put(w, i, run._replace(at="over"))

    def _reserves(self, w: World, i: int, run: Run) -> World:
        return put(w, i, run._replace(at="reserving", reserved=run.reserved + ESTIMATE))

    def _stores(self, w: World, i: int, run: Run) -> Iterator[tuple[Step, World]]:
        if self.rule("replace"):
            yield Step(FAIR, "stores the response and its price"), self._booked(w, i, run)
        else:
            yield Step(FAIR, "stores the response"), put(w, i, run._replace(at="stored"))

    def _booked(self, w: World, i: int, run: Run) -> World:
        paid = run._replace(paid=run.paid + run.price, spent=run.spent + run.price, reserved=run.reserved - ESTIMATE, price=0, calls=run.calls + 1)
        return self._ends(w, i, paid, "ready")

    def _swept(self, w: World, i: int, run: Run) -> Iterator[tuple[Step, World]]:
        """The claim of a dead worker ends: nobody knows whether the call was made."""
        booked = run._replace(spent=run.spent + run.reserved if self.rule("book") else run.spent, reserved=0, paid=run.paid + run.price, price=0)
        yield Step(FAIR, "sweep:", "the run goes on elsewhere"), self._ends(w, i, booked, "ready")
        yield Step(ENV, "sweep:", "the run was cancelled or has died too often"), self._ends(w, i, booked, "over")

    def _ends(self, w: World, i: int, run: Run, then: str) -> World:
        """A reservation ends: whoever waits for room looks again, also where none was made."""
        w = put(w, i, run._replace(at=then))
        if not self.rule("room-wakes"):
            return w
        return w._replace(runs=tuple(each._replace(at="ready") if each.at == "waits" else each for each in w.runs))

    def show(self, w: World) -> str:
        runs = "; ".join(f"{run.at} reserved {run.reserved} spent {run.spent} paid {run.paid + run.price}" for run in w.runs)
        return f"recorded {recorded(w)} of {CAP} | {runs}"


def recorded(w: World) -> int:
    """Spend and reservations of all."""
    return sum(run.spent + run.reserved for run in w.runs)


def put(w: World, i: int, run: Run) -> World:
    """The world with one run replaced."""
    return w._replace(runs=(*w.runs[:i], run, *w.runs[i + 1 :]))


rule("reserve-first", "two runs find the same room", "shared budget", "never_over_the_cap")
rule("reserve-once", "a lost reply reserves twice", "shared budget", "one_reservation_per_run")
rule("replace", "a stored response is booked at a guess", "shared budget", "a_stored_response_has_its_price")
rule("book", "a dead worker's call is paid and recorded nowhere", "shared budget", "what_was_paid_is_recorded")
rule("room-wakes", "a run waits for room that is there", "shared budget", "stuck")
rule("no-room", "all wait for room that nobody will make", "shared budget", "stuck")
