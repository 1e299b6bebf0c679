"""The log of a run as people read it: rows joined with what the history knows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart

from perdure.agents import decode
from perdure.core.step import Step
from perdure.engine import Engine
from perdure.stores import Store

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Told:
    """A row of the log and what it is about: `text` of a response, `input` and `answer` of a call."""

    step: Step
    text: str | None = None
    input: Any = None
    answer: Any = None

    @property
    def seconds(self) -> float | None:
        row = self.step.row
        if row.started_at is None or row.finished_at is None:
            return None
        return (row.finished_at - row.started_at).total_seconds()

    def to_json(self) -> dict[str, Any]:
        if self.step.kind == "llm":
            return {"text": self.text}
        return {"input": self.input, "output": self.answer} if self.step.kind == "tool" else {}


class Story:
    """Reads a run's log from where it stopped before; `told` is the number of the last row that is not told again."""

    def __init__(self, store: Store, run_id: str, *, told: int = 0) -> None:
        self._store, self._run_id, self._told = store, run_id, told
        self._seen = 0
        self._edited: dict[tuple[int, int, str | None], Any] = {}
        self._messages: dict[tuple[int, int], list[Any]] = {}

    async def more(self) -> list[Told]:
        """The rows since the last call."""
        rows: list[Step] = []
        while page := await self._store.steps(self._run_id, after=self._seen, limit=PAGE):
            rows += page
            self._seen = page[-1].seq
        for step in rows:
            self._note_edit(step)
        rows = [step for step in rows if step.seq > self._told]
        await self._read_messages(rows)
        return [self._tell(step) for step in rows]

    def _note_edit(self, step: Step) -> None:
        """An approval that changed the input: the history keeps what was proposed, the wait row what was decided."""
        said = cast("Mapping[str, Any]", (step.row.output if step.kind == "wait" else None) or {})
        if said.get("decision") == "approve" and said.get("value") is not None:
            self._edited[step.generation, step.row.index, step.row.tool_call_id] = said["value"]

    async def _read_messages(self, rows: Sequence[Step]) -> None:
        """The histories that the rows point into, each read once, at its newest row."""
        newest: dict[tuple[int, int], Step] = {}
        for step in rows:
            if step.row.base is not None and step.row.message is not None:
                newest[step.generation, step.row.base] = step
        for (generation, base), step in newest.items():
            checkpoint = await self._store.checkpoint(self._run_id, generation=generation, index=step.row.index)
            if checkpoint is not None and checkpoint.base == base:
                self._messages[generation, base] = [decode(each) for each in checkpoint.messages]

    def _message(self, step: Step, offset: int = 0) -> Any:
        row = step.row
        messages = self._messages.get((step.generation, row.base)) if row.base is not None else None
        at = None if row.message is None else row.message + offset
        return messages[at] if messages is not None and at is not None and 0 <= at < len(messages) else None

    def _tell(self, step: Step) -> Told:
        if step.kind == "llm":
            return Told(step, text=step.row.text or _text(self._message(step)))
        if step.kind == "tool":
            call = step.row.tool_call_id
            edited = self._edited.get((step.generation, step.row.index, call))
            given = step.row.input or edited or _input(self._message(step, -1), call)
            answer = step.row.output if step.row.output is not None else _answer(self._message(step), call)
            return Told(step, input=given, answer=answer)
        return Told(step, input=step.row.input, answer=step.row.output)


async def whole_story(engine: Engine, run_id: str) -> list[Told]:
    """Every row of a run's log."""
    return await Story(engine.store, run_id).more()


def _text(message: Any) -> str | None:
    if not isinstance(message, ModelResponse):
        return None
    return "".join(part.content for part in message.parts if isinstance(part, TextPart)) or None


def _input(message: Any, call_id: str | None) -> Any:
    if not isinstance(message, ModelResponse):
        return None
    found = next((part for part in message.parts if isinstance(part, ToolCallPart) and part.tool_call_id == call_id), None)
    if found is None:
        return None
    try:
        return found.args_as_dict()
    except ValueError:
        return found.args


def _answer(message: Any, call_id: str | None) -> Any:
    if not isinstance(message, ModelRequest):
        return None
    for part in message.parts:
        if isinstance(part, ToolReturnPart) and part.tool_call_id == call_id:
            return part.content
    return None
