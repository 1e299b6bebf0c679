"""A host that keeps no records, and shortcuts for sessions in tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from perdure.agents import Answered, Call, Decision, Finished, Reply, open_session
from perdure.core.artifact import Artifact
from perdure.core.errors import ArtifactNotFoundError, Suspend
from perdure.core.runtime import RealRuntime

RUNTIME = RealRuntime()


class Parked(Suspend):
    """What these tests end an execution with."""


class Host:
    """Runs every body, decides by `decisions` (by tool name), answers from `known` (by position)."""

    def __init__(self, decisions: dict[str, Decision] | None = None, known: dict[int, Any] | None = None) -> None:
        self.decisions = decisions or {}
        self.known = known or {}
        self.deltas: list[tuple[str, str]] = []
        self.tries: list[int] = []
        self.valid: list[Call] = []
        self.ran: list[Call] = []
        self.approved: list[str] = []
        self.asked: list[tuple[Call, ...]] = []
        self.around: Callable[[Call, Callable[[], Awaitable[Any]]], Awaitable[Any]] | None = None

    def delta(self, kind: Literal["text", "reasoning"], text: str) -> None:
        self.deltas.append((kind, text))

    def try_begins(self, try_no: int) -> None:
        self.tries.append(try_no)

    def validated(self, call: Call) -> None:
        self.valid.append(call)

    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        if call.position in self.known:
            return self.known[call.position]
        self.ran.append(call)
        if approved:
            self.approved.append(call.name)
        return await (self.around(call, body) if self.around is not None else body())

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        self.asked.append(tuple(calls))
        if any(call.name not in self.decisions for call in calls):
            raise Parked("a decision is missing")
        return {call.id: self.decisions[call.name] for call in calls}

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.ran]


class Drawer:
    """Artifacts in memory, with a count of reads."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.reads: list[str] = []

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream", filename: str | None = None) -> Artifact:
        name = f"a{len(self.files)}" if data not in self.files.values() else next(key for key, each in self.files.items() if each == data)
        self.files[name] = data
        return Artifact(name, media_type, len(data), filename=filename)

    async def get(self, artifact_id: str) -> bytes:
        self.reads.append(artifact_id)
        if artifact_id not in self.files:
            raise ArtifactNotFoundError(artifact_id)
        return self.files[artifact_id]


def session(agent: Agent[Any, Any], host: Any, history: Sequence[ModelMessage] = (), **options: Any) -> Any:
    """An open session; without a history, one that starts with a prompt."""
    if not history:
        options.setdefault("prompt", "Go.")
    return open_session(agent, history=list(history), host=host, runtime=RUNTIME, run_id="run", **options)


async def step(opened: Any) -> tuple[Reply, Answered | Finished]:
    """One model call and what becomes of it."""
    return await opened.ask(), await opened.answer()


async def to_the_end(opened: Any, most: int = 20) -> Finished:
    """Steps until the run is finished."""
    for _ in range(most):
        _, outcome = await step(opened)
        if isinstance(outcome, Finished):
            return outcome
    raise AssertionError(f"not finished after {most} steps")
