"""What approval predicates say about the calls of one step: asked once, and kept with the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from perdure.agents import Call
from perdure.approvals import ApprovalCall, ApprovalRule
from perdure.core.run import Run
from perdure.core.step import Step, StepWrite

NEEDED: Final = "needed"
NOT_NEEDED: Final = "not needed"


class Verdicts:
    """The verdicts of one step. `known` are those that an earlier execution wrote, by position."""

    def __init__(self, run: Run, index: int, known: Mapping[int, bool], now: Callable[[], datetime]) -> None:
        self._run, self._index, self._now = run, index, now
        self._said = dict(known)
        self._failed: dict[int, Exception] = {}
        self._unwritten: list[StepWrite] = []

    def judge(self, call: Call, rule: ApprovalRule | None) -> None:
        """Ask the predicate about a call whose input is valid, unless it was asked before."""
        if rule is None or rule.when is None or call.position < 0 or call.position in self._said:
            return
        try:
            said = self._ask(call, rule)
        except Exception as error:
            self._failed[call.position] = error
            return
        self._said[call.position] = said
        self._unwritten.append(_row(call, said, index=self._index, now=self._now()))

    def needed(self, call: Call, rule: ApprovalRule | None) -> bool:
        """Whether somebody's word is needed: the stricter of what was said then and what is declared today.

        Raises:
            Exception: What the predicate raised. The call must not run on that.
        """
        if call.position in self._failed:
            raise self._failed[call.position]
        said = self._said.get(call.position)
        if said is None:
            return rule is not None and self._ask(call, rule)
        return said or (rule is not None and rule.when is None)

    def take(self) -> tuple[StepWrite, ...]:
        """Rows that no commit carries yet. Asking takes them."""
        taken, self._unwritten = tuple(self._unwritten), []
        return taken

    def _ask(self, call: Call, rule: ApprovalRule) -> bool:
        run = self._run
        return rule.needed(ApprovalCall(call.name, call.args or {}, run.id, run.agent, run.trigger))


def read_verdict(step: Step) -> bool | None:
    """What a predicate said, if this row is about that."""
    said = cast("dict[str, Any]", step.row.output or {}).get("decision") if step.kind == "wait" else None
    return {NEEDED: True, NOT_NEEDED: False}.get(said) if isinstance(said, str) else None


def _row(call: Call, needed: bool, *, index: int, now: datetime) -> StepWrite:
    return StepWrite(
        kind="wait",
        index=index,
        name="approval",
        tool_call_id=call.id,
        position=call.position,
        output={"decision": NEEDED if needed else NOT_NEEDED, "by": "the policy"},
        started_at=now,
        finished_at=now,
    )
