"""One effect call (table E of docs/concepts/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

Unknown = Literal["ask", "verify", "retry"]
Scope = Literal["run", "thread", "agent"]
STRICTNESS: dict[str, int] = {"retry": 0, "verify": 1, "ask": 2}
"""How careful each declaration is; of two, the stricter wins."""


def stricter(one: Unknown, other: Unknown) -> Unknown:
    """The more careful of two declarations."""
    return one if STRICTNESS[one] >= STRICTNESS[other] else other


class EffectState(StrEnum):
    """Where an effect call stands. `planned` as a row means planned *again*: it is known not to have happened."""

    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


_E = EffectState
EFFECT_MOVES: Final = frozenset(
    {
        (_E.PLANNED, _E.STARTED), (_E.PLANNED, _E.DONE),
        (_E.STARTED, _E.DONE), (_E.STARTED, _E.FAILED), (_E.STARTED, _E.PLANNED), (_E.STARTED, _E.UNKNOWN),
        (_E.UNKNOWN, _E.DONE), (_E.UNKNOWN, _E.FAILED), (_E.UNKNOWN, _E.PLANNED), (_E.UNKNOWN, _E.STARTED),
    }
)  # fmt: skip
"""The only moves of an effect; no row is `planned`. `done` and `failed` are for ever. Planned → done is a record and its deed in one commit."""


@dataclass(frozen=True, slots=True)
class EffectWrite:
    """The new state of one effect call; `key` names it.

    The key is ours: `<run>:<generation>:<step>:<position>`. `input` is the effective input, after validation, hooks and edits. `try_no` counts
    declared tries, from 1; a crash is not one. `permit` is a person's "run it", used once. `claim` is a business key
    (`<scope>:<owner>:<tool>:<key>`) that holds over runs. `time_limit` is how long, in seconds, the body may go on by itself.
    """

    key: str
    state: EffectState
    index: int
    position: int
    tool: str
    tool_call_id: str
    unknown: Unknown = "ask"
    input: Any = None
    input_hash: str | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    try_no: int = 1
    permit: bool = False
    claim: str | None = None
    time_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A stored effect call: who started it, under which epoch, when, and how it ended."""

    run_id: str
    generation: int
    row: EffectWrite
    worker: str | None = None
    epoch: int | None = None
    started_at: datetime | None = None
    settled_at: datetime | None = None
    settled_by: str | None = None

    @property
    def key(self) -> str:
        return self.row.key

    @property
    def state(self) -> EffectState:
        return self.row.state

    def became(self, state: EffectState, **changes: Any) -> Effect:
        """This effect in another state."""
        return replace(self, row=replace(self.row, state=state, **changes))


def effect_key(run_id: str, generation: int, index: int, position: int) -> str:
    """The idempotency key of one effect call: stable over crashes, resumes and replicas."""
    return f"{run_id}:{generation}:{index}:{position}"
