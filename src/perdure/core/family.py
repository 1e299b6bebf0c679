"""What a run and its children may spend together (table B of docs/concepts/protocol.md). Values in, a verdict out.

Nothing here is counted up: what a family has spent is the sum of its members' own usage, and of the reservations that stand beside it, each time that it is asked.
A reservation is *in flight* while the claim that made it is held. After that it is *estimated* spend, because the call may have been made; nobody has to come by and
say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal

from perdure.core.budget import Budget, Limit
from perdure.core.run import RunStatus
from perdure.core.wait import Resolution, ResolutionKind, WaitWrite


@dataclass(frozen=True, slots=True)
class Reserve:
    """Room for one model call, asked for before the call is made. Conditional as a commit is; `commit_no` is the row's own, not the next one.

    `step` is the step that the call belongs to: asked again for the same one, the answer is the same. `tokens` and `cost` (US dollars) are what the call may come to,
    as far as that can be known.
    """

    run_id: str
    epoch: int
    token: str
    commit_no: int
    step: int
    tokens: int
    cost: Decimal = Decimal(0)


class Room(StrEnum):
    """What came of asking for room."""

    RESERVED = "reserved"
    FREE = "free"
    """No cap is shared here: nobody needs to reserve."""
    FULL = "full"
    """Others have reservations in flight: wait until one of them ends."""
    REACHED = "reached"
    """Nobody is in flight: room that nobody will make is not waited for."""
    LOST = "lost"
    """Somebody else owns the run."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The answer. `family` is the id of the family's eldest run; `cap` the run whose `limit` leaves no room, `budget` that run's own."""

    room: Room
    epoch: int
    status: RunStatus
    cancel_requested: bool
    family: str | None = None
    cap: str | None = None
    limit: Limit | None = None
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class ReservationEnds:
    """A commit ends the reservation of its claim. `kept`: the call may have been made, so that it stays as estimated spend; otherwise the real figure stands in the
    run's usage, or the call was not made."""

    family: str
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A run of the family. `held` is the epoch of the claim that is held, if one is. `parent` is None for the eldest."""

    id: str
    parent: str | None
    tokens: int
    cost: Decimal
    budget: Budget
    held: int | None


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that was taken, under one claim of a run."""

    run_id: str
    epoch: int
    step: int
    tokens: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether there is room, and if not, whose limit leaves none."""

    room: Literal[Room.RESERVED, Room.FREE, Room.FULL, Room.REACHED]
    cap: Member | None = None
    limit: Limit | None = None


FREE: Final = Verdict(Room.FREE)


def capped(budget: Budget) -> bool:
    """Whether the budget holds what children share: steps, timeouts and deadlines are each run's own."""
    return budget.max_tokens is not None or budget.max_cost is not None


def judge(ask: Reserve, members: Sequence[Member], reservations: Sequence[Reservation]) -> Verdict:
    """Whether a call finds room under every cap above it: spent + reserved + this ≤ cap.

    Args:
        ask: The call.
        members: The whole family, as it stands under the lock of its eldest.
        reservations: All of its members'.
    """
    known = {member.id: member for member in members}
    caps = [member for member in line(ask.run_id, known) if capped(member.budget)]
    if not caps or len(members) == 1:
        return FREE
    if any((each.run_id, each.epoch, each.step) == (ask.run_id, ask.epoch, ask.step) for each in reservations):
        return Verdict(Room.RESERVED)
    full = Verdict(Room.RESERVED)
    for cap in caps:
        under = {member.id for member in members if cap in line(member.id, known)}
        beside = [each for each in reservations if each.run_id in under]
        limit = _too_much(cap, ask, [member for member in members if member.id in under], beside)
        if limit is None:
            continue
        if not any(in_flight(each, known) for each in beside if each.run_id != ask.run_id):
            return Verdict(Room.REACHED, cap, limit)
        full = Verdict(Room.FULL, cap, limit)
    return full


def shares(run_id: str, members: Sequence[Member]) -> bool:
    """Whether a run must ask for room: somebody above it has a cap, or it has one itself and children."""
    above = [capped(member.budget) for member in line(run_id, {member.id: member for member in members})]
    return any(above[1:]) or (above[0] and any(member.parent == run_id for member in members))


def _too_much(cap: Member, ask: Reserve, under: Sequence[Member], beside: Sequence[Reservation]) -> Limit | None:
    """The limit of `cap` that this call does not fit under. A call whose size nobody knows needs at least something to be left."""
    budget = cap.budget
    tokens = sum(member.tokens for member in under) + sum(each.tokens for each in beside)
    if budget.max_tokens is not None and tokens + max(1, ask.tokens) > budget.max_tokens:
        return "max_tokens"
    cost = sum((each.cost for each in (*under, *beside)), Decimal(0))
    if budget.max_cost is not None and (cost >= budget.max_cost or cost + ask.cost > budget.max_cost):
        return "max_cost"
    return None


def line(run_id: str, known: dict[str, Member]) -> Iterator[Member]:
    """A run and those above it, up to the eldest."""
    member = known.get(run_id)
    while member is not None:
        yield member
        member = None if member.parent is None else known.get(member.parent)


def in_flight(reservation: Reservation, known: dict[str, Member]) -> bool:
    """Whether the call may still end with its real figure: its claim is held."""
    member = known.get(reservation.run_id)
    return member is not None and member.held == reservation.epoch


def held(status: RunStatus, epoch: int) -> int | None:
    """The epoch of the claim that is held, if one is."""
    return epoch if status is RunStatus.RUNNING else None


# ── who waits ──────────────────────────────────────────────────────────────────────────────────────────────
ROOM: Final = "room:"
"""Begins the question of a row that waits for room. Such a row asks nobody; it closes when a reservation of its family ends, and by itself after a while."""


def waits_for_room(row: WaitWrite) -> bool:
    """Whether the row waits for room, and not for a person."""
    return row.kind == "budget" and row.question.startswith(ROOM)


def room_news(now: datetime) -> Resolution:
    """What a row that waits for room is told: look again."""
    return Resolution(ResolutionKind.EVENT, decision="look", at=now)


def room_at_birth(row: WaitWrite, run_id: str, members: Sequence[Member], reservations: Sequence[Reservation], now: datetime) -> Resolution | None:
    """The answer that came before the row: nobody else is in flight any more, so nothing would wake it."""
    known = {member.id: member for member in members}
    waited_for = any(in_flight(each, known) for each in reservations if each.run_id != run_id)
    return None if waited_for or not waits_for_room(row) else room_news(now)


def taken(ask: Reserve) -> Reservation:
    """The row that a granted request becomes."""
    return Reservation(ask.run_id, ask.epoch, ask.step, ask.tokens, ask.cost)


def with_room(answer: Reserved, verdict: Verdict, family: str) -> Reserved:
    """The answer of a verdict."""
    cap = verdict.cap
    return replace(
        answer, room=verdict.room, family=family, cap=None if cap is None else cap.id, limit=verdict.limit, budget=None if cap is None else cap.budget
    )
