"""The turn, as its two callers see it: the engine loops over it, the pipeline's agent phase calls it once.

A `Session` is one Pydantic AI agent loop over a history. `ask` makes the model call, `answer` runs what the response asks for. Between the
two, and around every tool body, the session tells its `Host`, which decides what is written and whether a body may run. There is no second agent loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol

from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse

from perdure.core.budget import Usage
from perdure.core.errors import PerdureError

ReplyKind = Literal["calls", "final", "cut", "empty", "filtered"]
"""`calls`: tools to run. `final`: text or output calls alone. `cut`: ended at the token limit with calls in it. `empty`: nothing in it. `filtered`: the
provider's content filter ended it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of a response. `position` is its place among the response's calls, from 0.

    `args` is the parsed input as the model gave it, or None where it does not parse; in `Host.run_tool` it is the effective input, after validation and
    hooks. `metadata` is the tool's own. `output` is True for an output tool, `known` False for a name that no tool has.
    """

    position: int
    id: str
    name: str
    args: dict[str, Any] | None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    schema: dict[str, Any] = field(default_factory=dict[str, Any])
    output: bool = False
    known: bool = True
    requires_approval: bool = False
    sequential: bool = False
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What one model call came to. `usage` is this call's alone, with its cost."""

    kind: ReplyKind
    message: ModelResponse
    text: str
    calls: tuple[Call, ...]
    usage: Usage
    finish_reason: str | None
    started_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Result:
    """How one call was answered in the history."""

    call: Call
    outcome: Literal["success", "failed", "denied", "retry", "skipped"]
    content: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """Every call of the response is answered, or its output was refused: `request` goes to the model next."""

    request: ModelRequest
    results: tuple[Result, ...]
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """The response ended the run. `output` is the agent's output, `output_json` its JSON form; `messages` the whole history."""

    output: Any
    output_json: Any
    results: tuple[Result, ...] = ()


class ModelFailed(PerdureError):
    """A model call failed. `text` is what had streamed, `usage` what it cost as far as known.

    `retryable`: 429, 5xx, a reset or cut connection. `retry_after` is the provider's wish, in whatever form it came. `wire` is the provider's own
    error as text.
    """

    code = "model_error"

    def __init__(
        self, message: str, *, code: str | None = None, text: str = "", usage: Usage | None = None, retryable: bool = False,
        retry_after: timedelta | None = None, started_at: datetime | None = None, model: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, code=code, model=model)
        self.text, self.usage, self.retryable, self.retry_after, self.started_at, self.model = (
            text,
            usage or Usage(),
            retryable,
            retry_after,
            started_at,
            model,
        )


@dataclass(frozen=True, slots=True)
class CutOff:
    """What a model call that was stopped from here had come to: its text, and what it cost as far as its provider had told."""

    text: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about a call that needed approval or was deferred.

    `approved` runs it (with `args` in place of the model's, where given), otherwise `message` is the denial that the model sees. `answered` True means that
    the call's result is `result` and no body runs: for deferred and external calls.
    """

    approved: bool
    args: dict[str, Any] | None = None
    message: str | None = None
    answered: bool = False
    result: Any = None


class Host(Protocol):
    """What a session asks of whoever drives it. Anything here may raise `Suspend` to end the execution."""

    def delta(self, kind: Literal["text", "reasoning"], text: str) -> None:
        """A piece of the response, as it streams."""
        ...

    def try_begins(self, try_no: int) -> None:
        """The model call starts, or starts anew after a failure."""
        ...

    def validated(self, call: Call) -> None:
        """The input of a call is valid: `call.args` is what came out. Told of every call that runs together with others before the first of their bodies."""
        ...

    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        """Run one tool body, or answer for it. `call.args` is the effective input.

        `body` returns what the tool returned. What is stored of it, and handed back when the call is answered from a record, is `perdure.agents.keep(value, artifacts)`:
        plain JSON. `position` is -1 for a call that no response made (a tool that runs other tools). A `Suspend` raised here ends the session once the
        siblings have finished.

        Returns the value for the model; raises what the tool raised (`ModelRetry`, `ToolFailed`, `ApprovalRequired`, `CallDeferred` keep their
        Pydantic AI meaning; any other `Exception` becomes a failed result that the model sees).
        """
        ...

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        """Decisions by tool call id for calls that need approval or were deferred, asked once the other calls have finished; raises `Suspend` where one is missing.

        `metadata["deferred"]` says why: `kind` (`approval`, `external` or `question`) and what the tool said with it. `answered` for an approval means that
        `run_tool`, called next with `approved=True`, gives the result itself.
        """
        ...


class Session(Protocol):
    """One agent loop over one history. Use as `async with`, and ask from the task that opened it."""

    @property
    def messages(self) -> list[ModelMessage]:
        """The whole history as it stands, ending on the response after `ask` and on the request after `answer`."""
        ...

    @property
    def tools(self) -> Mapping[str, Mapping[str, Any]]:
        """The schemas of the tools that the model is offered, by name, those of toolsets and MCP servers among them. Empty until a call was made or entered again."""
        ...

    @property
    def cut_off(self) -> CutOff | None:
        """The last call, where it was cancelled after its response had begun; None where nothing had come of it."""
        ...

    async def calls(self) -> tuple[Call, ...]:
        """The calls of the response that the history ends on, with what is known of their tools today (`known` False: gone); empty where it ends otherwise.

        For an execution that enters a stored step again: it connects toolsets, and calls no model and no tool.
        """
        ...

    async def ask(self) -> Reply:
        """One model call. After `ModelFailed`, `ask` again tries the same request anew; the history is as before the call.

        One exception: where the provider refused its own thinking, the history goes on without it.
        """
        ...

    async def answer(self) -> Answered | Finished:
        """Run the calls of the last response through the host, or process its output."""
        ...

    def reissue(self, text: str) -> Answered:
        """Answer every call of the last response with `text`, running none."""
        ...

    def drop(self) -> None:
        """Forget the last response (an empty one), so that `ask` sends the same request again."""
        ...


__all__ = [
    "Answered",
    "ApprovalRequired",
    "Call",
    "CallDeferred",
    "CutOff",
    "Decision",
    "Finished",
    "Host",
    "ModelFailed",
    "ModelRetry",
    "Reply",
    "ReplyKind",
    "Result",
    "Session",
    "ToolFailed",
]
