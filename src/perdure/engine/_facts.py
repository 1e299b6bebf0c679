"""What is known of a step before its tools are entered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.agents import ModelRetry, ToolFailed
from perdure.core.effect import Effect
from perdure.core.wait import WaitPoint


@dataclass(frozen=True, slots=True)
class Known:
    """An answer that an earlier execution, or this one, already has."""

    outcome: Literal["success", "failed", "retry"]
    content: Any

    def replay(self) -> Any:
        if self.outcome == "success":
            return self.content
        raise ModelRetry(str(self.content)) if self.outcome == "retry" else ToolFailed(str(self.content))


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the store knew of this step when it was entered."""

    index: int
    answers: Mapping[int, Known]
    effects: Mapping[str, Effect]
    held: Sequence[Effect]
    waits: Mapping[str, WaitPoint]
    verdicts: Mapping[int, bool] = field(default_factory=dict[int, bool])
    """What approval predicates said about calls of this step: whether somebody's word is needed."""
    inherited: bool = False
    """The response in hand came with the fork: its calls are open in the ancestor too."""
