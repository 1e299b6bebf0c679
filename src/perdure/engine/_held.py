"""Effects that an earlier life may have performed: a full retry or a fork must not do them again unasked (table E, *held*)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.agents import Call
from perdure.core.effect import Effect, EffectState, effect_key
from perdure.core.run import Run
from perdure.core.wait import ResolutionKind, WaitPoint, WaitWrite
from perdure.effects import HeldEffects

Word = Literal["run", "reuse", "block"]
RANK: Final = {EffectState.DONE: 0, EffectState.UNKNOWN: 1, EffectState.STARTED: 2, EffectState.PLANNED: 3}
"""Of several twins the one that says most stands for them: only one that is done has a result to reuse. What failed for certain holds nobody."""


@dataclass(frozen=True, slots=True)
class Twin:
    """The same tool with the same effective input, in an earlier generation or in the run that this one was forked from."""

    key: str
    state: EffectState
    result: Any = None


def find_twin(run: Run, call: Call, input_hash: str, *, index: int, held: Iterable[Effect], inherited: bool) -> Twin | None:
    """What an earlier life may have done, or may still do, that this call would do again.

    Args:
        run: The run that asks.
        call: The call, with its effective input.
        input_hash: Of that input.
        index: The step of the call.
        held: Effects of earlier generations and of ancestors.
        inherited: Whether the response that asks for the call came with the fork: then it is open in the ancestor too, where it counts as planned.
    """
    rows = [each for each in held if each.state in RANK and (each.state is not EffectState.PLANNED or each.run_id != run.id)]
    same = [each for each in rows if each.row.tool == call.name and each.row.input_hash == input_hash]
    if same:
        best = min(same, key=lambda each: RANK[each.state])
        return Twin(best.key, best.state, best.row.result)
    if not inherited or run.parent_run is None:
        return None
    there = [each for each in held if each.run_id == run.parent_run and (each.row.index, each.row.position) == (index, call.position)]
    if any(each.state is EffectState.FAILED for each in there):
        return None
    return Twin(effect_key(run.parent_run, there[-1].generation if there else 1, index, call.position), EffectState.PLANNED)


def decision(rule: HeldEffects, twin: Twin, asked: WaitPoint | None, input_hash: str) -> str | None:
    """`run`, `reuse` or `block`, or None while nobody has said. An answer holds for the input that it was given about, and for no other."""
    if rule != "ask" and not (rule == "reuse" and twin.state is EffectState.PLANNED):
        return rule
    if asked is None or asked.resolution is None or asked.resolution.kind is not ResolutionKind.ANSWER or asked.row.input_hash != input_hash:
        return None
    return asked.resolution.decision


def question(twin: Twin, call: Call, *, id: str, key: str, index: int, input: Any, input_hash: str) -> WaitWrite:
    """The row that asks. There is nothing to reuse of what has not run yet."""
    words: list[Word] = ["run", "block"] if twin.state is EffectState.PLANNED else ["run", "reuse", "block"]
    return WaitWrite(
        id=id,
        kind="approval",
        question=f"held:{call.position}",
        index=index,
        tool=call.name,
        tool_call_id=call.id,
        position=call.position,
        effect_key=key,
        input=input,
        input_hash=input_hash,
        data={"held": True, "of": twin.key, "state": str(twin.state), "result": twin.result, "decisions": words},
    )
