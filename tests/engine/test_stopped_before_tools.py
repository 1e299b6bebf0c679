"""A response has come, and its execution is stopped before any of its calls has begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

from perdure import Engine, RunStatus, plain
from perdure.core.budget import Usage
from perdure.testing.models import ScriptedModel, call, say


class Looks(AbstractCapability[Any]):
    """A hook of the user's that looks at each call first, and takes its time."""

    def __init__(self) -> None:
        self.looking, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def before_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: str | dict[str, Any]
    ) -> str | dict[str, Any]:
        self.looking.set()
        await self.may_go_on.wait()
        return args


async def test_a_response_that_came_is_stored_when_its_execution_is_drained(tmp_path: Path) -> None:
    """It is paid for: the next execution runs its calls and does not ask again, and the run's spend is that of its steps."""
    model, looks = ScriptedModel([call("look"), say("done")]), Looks()
    agent = Agent(model, name="desk", capabilities=[looks])
    agent.tool_plain(metadata=plain())(look)

    def engine() -> Engine:
        made = Engine(f"sqlite:///{tmp_path}/p.db", drain_grace=timedelta(0))
        made.agent(agent)
        return made

    async with engine() as first:
        run = await first.start("desk", "Look.")
        await looks.looking.wait()
    looks.may_go_on.set()
    async with engine() as second:
        settled = await second.settled(run.id, 60)
        assert (settled.status, settled.output) == (RunStatus.COMPLETED, "done")
        steps = await second.steps(run.id)
    assert [step.kind for step in steps] == ["llm", "tool", "llm"]
    assert len(model.requests) == 2
    spent = sum((Usage.from_json(step.row.usage) for step in steps if step.row.usage is not None), Usage())
    assert replace(spent, tool_calls=1) == settled.usage


def look() -> str:
    """Look around."""
    return "seen"
