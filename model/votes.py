"""Quorum and edits: several people, one row, answers that cross in the network and arrive twice.

Votes count per input: an edit is a vote for the edited input, and the first input with enough votes is the one that runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule

ORIGINAL, EDITED = 0, 1
PEOPLE = ("ann", "ben", "cas")
LINK = "a link"
"""A vote that came by a link whose addressee nobody knows: ann may have clicked it."""
REQUESTER = "cas"
NEEDED = 2


class Vote(NamedTuple):
    """An answer on its way: who, what, and for which input."""

    by: str
    word: str
    input: int


class World(NamedTuple):
    """The row, and the answers in the network (each may arrive any number of times)."""

    state: str = "open"
    """`open`, `yes`, `no`, `expired`."""
    input: int = ORIGINAL
    """The input that runs, once the state is `yes`."""
    votes: tuple[tuple[str, int], ...] = ()
    due: bool = False
    network: tuple[Vote, ...] = ()
    wanted: frozenset[tuple[str, int]] = frozenset()
    """Who has ever said yes to which input: the truth, kept apart from the row."""
    first_no: bool = False
    """A no was accepted."""


class VoteModel(Ruled):
    """Two yeses of two people about one input."""

    name = "quorum"

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.always = (self.a_yes_has_its_quorum, self.a_no_settles_it)
        self.steps = (self.decided_once, self.nothing_is_decided_late)

    def a_yes_has_its_quorum(self, w: World) -> bool:
        """A row is approved only if as many different people as needed, and not the requester, said yes to the very input that will run."""
        if w.state != "yes":
            return True
        return len({who for who, about in w.wanted if about == w.input and who != REQUESTER}) >= NEEDED

    def a_no_settles_it(self, w: World) -> bool:
        """After a no nothing is approved."""
        return not w.first_no or w.state == "no"

    def decided_once(self, before: World, step: Step, after: World) -> bool:
        """A decision stands, and so does its input."""
        return before.state == "open" or (before.state == after.state and before.input == after.input)

    def nothing_is_decided_late(self, before: World, step: Step, after: World) -> bool:
        """At or after `expires_at` only *expired* is possible, however many votes there are."""
        return before.state == after.state or not before.due or after.state == "expired"

    def start(self) -> World:
        return World()

    def rests(self, w: World) -> bool:
        """People may take their time; a row that is due is closed by the system."""
        return w.state != "open" or not w.due

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        if w.state == "open":
            yield from self._people(w)
            if not w.due:
                yield Step(ENV, "time:", "expires_at"), w._replace(due=True)
            else:
                yield Step(FAIR, "sweep:", "expired"), w._replace(state="expired")
        for vote in w.network:
            after, answer = self._judge(w, vote)
            yield Step(ENV, "arrives:", f"{vote.word} of {vote.by} to input {vote.input}: {answer}"), drop(after, vote)
            yield Step(FAULT, "arrives and will come again:", f"{vote.word} of {vote.by} to input {vote.input}: {answer}"), after

    def _people(self, w: World) -> Iterator[tuple[Step, World]]:
        for who in PEOPLE:
            if any(vote.by == who for vote in w.network):
                continue  # one answer of each on its way at a time
            for input in (ORIGINAL, EDITED):
                yield Step(ENV, f"{who} says yes", f"to input {input}"), sent(w, Vote(who, "yes", input), who)
                if who == "ann" and not any(vote.by == LINK for vote in w.network):
                    yield Step(ENV, f"{who} says yes by a link", f"to input {input}"), sent(w, Vote(LINK, "yes", input), who)
            if who == "ben":
                yield Step(ENV, f"{who} says no"), sent(w, Vote(who, "no", ORIGINAL), who)

    def _judge(self, w: World, vote: Vote) -> tuple[World, str]:
        """What the store does with an answer."""
        if w.state != "open" or w.due:
            return w, "conflict"
        if vote.by == REQUESTER and self.rule("requester"):
            return w, "refused"
        if vote.by == LINK and self.rule("vote-named"):
            return w, "refused"
        if vote.word == "no":
            return w._replace(state="no", first_no=True), "settled"
        agreeing = [who for who, input in w.votes if input == vote.input or not self.rule("vote-bound")]
        if vote.by in agreeing and self.rule("vote-once"):
            return w, "already"
        votes = tuple(sorted((*w.votes, (vote.by, vote.input))))
        if len(agreeing) + 1 < NEEDED:
            return w._replace(votes=votes), "voted"
        return w._replace(votes=votes, state="yes", input=vote.input), "approved"

    def show(self, w: World) -> str:
        votes = ", ".join(f"{who} for {input}" for who, input in w.votes) or "none"
        return f"{w.state}{f', input {w.input}' if w.state == 'yes' else ''}{' due' if w.due else ''}, votes {votes}, {len(w.network)} on the way"


def sent(w: World, vote: Vote, who: str) -> World:
    """The answer is in the network, and what its author wants is known to us alone."""
    wanted = w.wanted | {(who, vote.input)} if vote.word == "yes" else w.wanted
    return w._replace(network=tuple(sorted((*w.network, vote))), wanted=wanted)


def drop(w: World, vote: Vote) -> World:
    """The last copy of an answer has arrived."""
    left = list(w.network)
    left.remove(vote)
    return w._replace(network=tuple(left))


rule("vote-bound", "yeses to two inputs are counted together", "quorum", "a_yes_has_its_quorum")
rule("vote-once", "one person's answer, delivered twice, is two votes", "quorum", "a_yes_has_its_quorum")
rule("vote-named", "one person votes by name and by link", "quorum", "a_yes_has_its_quorum")
rule("requester", "who asked for it approves it", "quorum", "a_yes_has_its_quorum")
