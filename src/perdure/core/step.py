"""One row of a run's log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

StepKind = Literal["llm", "tool", "wait"]

ABORTED: Final = "aborted"
"""The finish reason of a model call that was cut off because its execution was stopped: it counts as spend, and as nothing else."""


@dataclass(frozen=True, slots=True)
class StepWrite:
    """A row to add. The store gives it the run's next sequence number.

    `index` is the checkpoint that it belongs to. `message` is the position in that history (of `base`) which holds the
    response or the results, so that the row need not copy them; `input`, `output` and `text` hold only what the history lacks.
    """

    kind: StepKind
    index: int
    name: str
    tool_call_id: str | None = None
    position: int | None = None
    base: int | None = None
    message: int | None = None
    input: Any = None
    output: Any = None
    text: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A stored row: what was written, its place in the run and its generation."""

    run_id: str
    generation: int
    seq: int
    row: StepWrite

    @property
    def kind(self) -> StepKind:
        return self.row.kind
