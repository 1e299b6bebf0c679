"""The input of an effect: proposed, edited by a person, changed by a hook, held because an earlier life did the same, tried again under one key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.checker import ENV, FAIR, FAULT, Step
from model.rules import Ruled, rule
from perdure.core.effect import EffectState

PLANNED, STARTED, DONE, FAILED, UNKNOWN = EffectState
BEFORE, NEW = 0, 1
"""The input that an earlier life has performed, and another."""


class World(NamedTuple):
    """One call of the second life. `at`: `tools`, `body`, `asks` (a wait row is open), `over`."""

    at: str = "tools"
    proposed: int = NEW
    effect: EffectState = PLANNED
    stored: int = -1
    """The effective input in the effect's row."""
    approved: int = -1
    """The input that was approved."""
    gate: bool = False
    """The body itself asked for an approval."""
    question: str = ""
    held_run: frozenset[int] = frozenset()
    """Inputs for which a person said "run it" though an earlier life did the same."""
    tries: int = 2
    out: frozenset[int] = frozenset()
    """Inputs that may have gone out under this key."""
    said_no: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the approval comes from."""

    name: str
    about: str
    gated: bool
    gate_in_body: bool = False


class EditModel(Ruled):
    """One key, one input; one deed, one permission."""

    def __init__(self, setting: Setting, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.setting, self.name = setting, setting.name
        self.always = (self.one_key_goes_out_with_one_input, self.what_was_done_before_is_asked_about)
        self.steps = ()

    def one_key_goes_out_with_one_input(self, w: World) -> bool:
        """Under one idempotency key no two inputs go out."""
        return len(w.out) <= 1

    def what_was_done_before_is_asked_about(self, w: World) -> bool:
        """An input that an earlier life has performed goes out again only if a person said so about that very input."""
        return BEFORE not in w.out or BEFORE in w.held_run

    def start(self) -> World:
        return World()

    def rests(self, w: World) -> bool:
        return w.at in ("over", "asks")

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        if w.at == "tools":
            yield from self._tools(w)
        elif w.at == "body":
            yield from self._body(w)
        elif w.at == "asks":
            yield from self._people(w)

    def effective(self, w: World) -> int:
        """The input that the body gets: the row's where there is one, else what was approved, else what was proposed."""
        if w.stored >= 0 and self.rule("one-input"):
            return w.stored
        return w.approved if w.approved >= 0 else w.proposed

    def _tools(self, w: World) -> Iterator[tuple[Step, World]]:
        if w.effect in (DONE, FAILED) or w.said_no:
            yield Step(FAIR, "answers the call"), w._replace(at="over")
            return
        if w.effect is UNKNOWN:
            yield Step(FAIR, "asks", "what became of it"), w._replace(at="asks", question="effect")
            return
        needs_approval = (self.setting.gated or w.gate) and w.approved < 0
        if needs_approval and self.rule("hold-last"):
            yield Step(FAIR, "asks", "for approval"), w._replace(at="asks", question="approval")
            return
        if self.effective(w) == BEFORE and BEFORE not in w.held_run and not (w.approved >= 0 and not self.rule("hold-last")):
            yield Step(FAIR, "asks", "because an earlier life did the same"), w._replace(at="asks", question="held")
            return
        if needs_approval:
            yield Step(FAIR, "asks", "for approval"), w._replace(at="asks", question="approval")
            return
        started = w._replace(at="body", effect=STARTED, stored=self.effective(w))
        yield Step(FAIR, "starts", f"with input {started.stored}"), started
        if w.effect is PLANNED and w.approved < 0:
            hooked = w._replace(proposed=BEFORE if w.proposed == NEW else NEW)
            if self.effective(hooked) != self.effective(w) and w.tries < 2:
                yield Step(FAULT, "a hook makes another input of it"), hooked

    def _body(self, w: World) -> Iterator[tuple[Step, World]]:
        if self.setting.gate_in_body and not w.gate:
            # The body asked before it did anything: nothing has gone out, so an edit may still replace the input.
            yield Step(FAIR, "the body asks for approval"), w._replace(at="asks", question="approval", gate=True, effect=PLANNED, stored=-1)
            return
        out = w._replace(out=w.out | {w.stored})
        yield Step(FAIR, "the body returns"), out._replace(at="tools", effect=DONE)
        yield Step(FAULT, "the worker dies in the body"), out._replace(at="tools", effect=UNKNOWN)
        left = w.tries > 1
        yield Step(FAULT, "the body fails for certain"), out._replace(at="tools", effect=PLANNED if left else FAILED, tries=w.tries - 1)

    def _people(self, w: World) -> Iterator[tuple[Step, World]]:
        back = w._replace(at="tools", question="")
        if w.question == "approval":
            yield Step(ENV, "a person approves", f"input {w.proposed}"), back._replace(approved=w.proposed)
            other = BEFORE if w.proposed == NEW else NEW
            yield Step(ENV, "a person edits", f"to {other} and approves"), back._replace(approved=other)
            yield Step(ENV, "a person denies"), back._replace(said_no=True)
        elif w.question == "held":
            yield Step(ENV, "a person says", "run it again"), back._replace(held_run=w.held_run | {self.effective(w)})
            yield Step(ENV, "a person says", "block"), back._replace(said_no=True)
        else:
            yield Step(ENV, "a person says", "it happened"), back._replace(effect=DONE)
            yield Step(ENV, "a person says", "run it"), back._replace(effect=PLANNED, tries=1)
            yield Step(ENV, "a person says", "fail"), back._replace(effect=FAILED)

    def show(self, w: World) -> str:
        return f"{w.at}{' ' + w.question if w.question else ''}; effect {w.effect}, proposed {w.proposed}, approved {w.approved}, stored {w.stored}, out {sorted(w.out)}"


SETTINGS = (
    Setting("edits", "an approval before the call, with an edit", gated=True),
    Setting("edits asked by the body", "an approval that the body asks for, with an edit", gated=False, gate_in_body=True),
    Setting("hooks", "no approval; hooks that change the input between tries", gated=False),
)

rule(
    "hold-last", "an edit turns the call into one that an earlier life has done, and nobody is asked", "edits", "what_was_done_before_is_asked_about"
)
rule("one-input", "a second try goes out under the same key with another input", "hooks", "one_key_goes_out_with_one_input")
