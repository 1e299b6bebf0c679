"""What an agent phase keeps between two advances, and what it leaves behind when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from pydantic import ConfigDict
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, UserPromptPart

from perdure.agents import Call
from perdure.core.budget import Usage
from perdure.pipeline._records import PendingToolCall

OutputT = TypeVar("OutputT")
AgentTurn: TypeAlias = ModelMessage
"""One message of an agent's history, in the form that Pydantic AI gives and takes."""

StoppedBy = Literal["answer", "max_turns", "length", "content_filter", "unknown"]
"""Why an agent phase was done: the model answered; its turns were used up; its response was cut at the token limit; the provider's filter ended
it; it ended for a reason that nobody knows."""


@dataclass
class CallRecord:
    """What is known of one tool call of the response in hand.

    `started`: an effect tool's body was let begin; whether it happened is not known. `done`: `value` is its result. `failed` and `retry`: what it raised, and what the model
    is told is `value`. `waits`: the tool itself asked for an approval, or is done elsewhere.
    """

    status: Literal["started", "done", "failed", "retry", "waits"]
    value: Any = None


@dataclass
class Ruling:
    """What was decided about one tool call, by a person or by time."""

    approved: bool
    value: Any = None
    reason: str | None = None
    lapsed: bool = False


@dataclass
class AgentCheckpoint:
    """The state of an agent phase. `messages` can be handed straight back to the agent as its history.

    `turn` counts the model calls so far. While `messages` ends on a response with calls, `pending_tool_calls` are those without a result;
    `records` and `rulings` are of those calls, by their ids, and `asking` is the one that a person is asked about. `prompt` is what starts the conversation where there
    are no messages yet. `since` messages at the beginning were there before; `carry` is the caller's own, handed on untouched.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])
    pending_tool_calls: list[PendingToolCall] = field(default_factory=list[PendingToolCall])
    turn: int = 0
    prompt: str | None = None
    since: int = 0
    max_turns: int | None = None
    conversation: str = ""
    empty: int = 0
    records: dict[str, CallRecord] = field(default_factory=dict[str, CallRecord])
    rulings: dict[str, Ruling] = field(default_factory=dict[str, Ruling])
    asking: str | None = None
    carry: Any = None

    @classmethod
    def start(
        cls, messages: str | Sequence[ModelMessage], *, system: str | None = None, max_turns: int | None = None, carry: Any = None
    ) -> AgentCheckpoint:  # fmt: skip
        """A conversation that begins with this prompt, or goes on from these messages.

        A text begins as the agent would begin it, with its own system prompts; `system` takes their place, or is put before messages that have none.
        """
        if isinstance(messages, str):
            if system is None:
                return cls(prompt=messages, max_turns=max_turns, carry=carry)
            first = ModelRequest(parts=[SystemPromptPart(system), UserPromptPart(messages)])
            return cls([first], since=1, max_turns=max_turns, carry=carry)
        history = list(messages)
        if system is not None:
            history = [ModelRequest(parts=[SystemPromptPart(system)]), *history] if not history else _with_system(history, system)
        return cls(history, since=len(history), max_turns=max_turns, carry=carry)

    @property
    def answering(self) -> bool:
        """Whether the history ends on a response whose calls have to be answered."""
        return bool(self.messages) and isinstance(self.messages[-1], ModelResponse)


def _with_system(history: list[ModelMessage], system: str) -> list[ModelMessage]:
    first = history[0]
    if isinstance(first, ModelRequest):
        kept = [part for part in first.parts if not isinstance(part, SystemPromptPart)]
        return [ModelRequest(parts=[SystemPromptPart(system), *kept], instructions=first.instructions), *history[1:]]
    return [ModelRequest(parts=[SystemPromptPart(system)]), *history]


@dataclass
class AgentOutcome(Generic[OutputT]):
    """How an agent phase ended. `output` is the agent's output, or the text so far where it did not come to one; `usage` is of all its turns."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    output: OutputT
    messages: list[ModelMessage]
    usage: Usage
    turns: int
    stopped_by: StoppedBy


def pending(calls: Sequence[Call], records: Mapping[str, CallRecord]) -> list[PendingToolCall]:
    """The calls that have no result yet."""
    settled = {call_id for call_id, record in records.items() if record.status not in ("started", "waits")}
    return [PendingToolCall(call.id, call.name, call.args) for call in calls if not call.output and call.id not in settled]
