"""Quorum and edits: several people, one row, answers that cross in the network and arrive twice."""

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
    """An answer on its way: who, what, about which input, and the edit if there is one."""

    by: str
    word: str
    about: int
    edit: int = -1


class World(NamedTuple):
    """The row, what each person has seen, and the answers in the network (each may arrive any number of times)."""

    input: int = ORIGINAL
    state: str = "open"
    """`open`, `yes`, `no`, `expired`."""
    votes: tuple[str, ...] = ()
    due: bool = False
    seen: tuple[int, ...] = (-1, -1, ORIGINAL)
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
            yield Step(ENV, "arrives:", f"{vote.word} of {vote.by} about {vote.about}: {answer}"), drop(after, vote)
            yield Step(FAULT, "arrives and will come again:", f"{vote.word} of {vote.by} about {vote.about}: {answer}"), after

    def _people(self, w: World) -> Iterator[tuple[Step, World]]:
        for p, who in enumerate(PEOPLE):
            if w.seen[p] != w.input and who != REQUESTER:
                yield Step(ENV, f"{who} looks", f"at input {w.input}"), w._replace(seen=(*w.seen[:p], w.input, *w.seen[p + 1 :]))
            about = w.seen[p]
            if about < 0 or any(vote.by == who for vote in w.network):
                continue
            yield Step(ENV, f"{who} says yes", f"to {about}"), sent(w, Vote(who, "yes", about), who, about)
            if who == "ann" and not any(vote.by == LINK for vote in w.network):
                yield Step(ENV, f"{who} says yes by a link", f"to {about}"), sent(w, Vote(LINK, "yes", about), who, about)
            edit = EDITED if about == ORIGINAL else ORIGINAL
            if who != REQUESTER:
                yield Step(ENV, f"{who} edits", f"{about} to {edit}"), sent(w, Vote(who, "yes", about, edit), who, edit)
            if who == "ben":
                yield Step(ENV, f"{who} says no", f"to {about}"), sent(w, Vote(who, "no", about), who, -1)

    def _judge(self, w: World, vote: Vote) -> tuple[World, str]:
        """What the store does with an answer."""
        if w.state != "open" or w.due:
            return w, "conflict"
        if vote.by == REQUESTER and self.rule("requester"):
            return w, "refused"
        if vote.word == "no":
            return w._replace(state="no", first_no=True), "settled"
        if vote.by == LINK and self.rule("vote-named"):
            return w, "refused"
        if vote.about != w.input and self.rule("vote-bound"):
            return w, "conflict"
        if vote.edit >= 0:
            w = w._replace(input=vote.edit, votes=() if self.rule("edit-revotes") else w.votes)
        if vote.by in w.votes and self.rule("vote-once"):
            return w, "already"
        votes = tuple(sorted((*w.votes, vote.by)))
        return w._replace(votes=votes, state="yes" if len(votes) >= NEEDED else "open"), "voted"

    def show(self, w: World) -> str:
        return f"{w.state}{' due' if w.due else ''}, input {w.input}, votes {', '.join(w.votes) or 'none'}, {len(w.network)} on the way"


def sent(w: World, vote: Vote, who: str, wants: int) -> World:
    """The answer is in the network, and what its author wants is known to us alone."""
    wanted = w.wanted if wants < 0 else w.wanted | {(who, wants)}
    return w._replace(network=tuple(sorted((*w.network, vote))), wanted=wanted)


def drop(w: World, vote: Vote) -> World:
    """The last copy of an answer has arrived."""
    left = list(w.network)
    left.remove(vote)
    return w._replace(network=tuple(left))


rule("vote-bound", "a yes to one input counts for another", "quorum", "a_yes_has_its_quorum")
rule("vote-once", "one person's answer, delivered twice, is two votes", "quorum", "a_yes_has_its_quorum")
rule("vote-named", "one person votes by name and by link", "quorum", "a_yes_has_its_quorum")
rule("edit-revotes", "votes for the old input carry over to the new one", "quorum", "a_yes_has_its_quorum")
rule("requester", "who asked for it approves it", "quorum", "a_yes_has_its_quorum")
