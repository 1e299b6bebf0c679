"""A terminal that is behind shows each thing once."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent

from perdure import Engine, plain
from perdure.cli._cards import Here
from perdure.cli._output import Output
from perdure.cli._watch import Watcher
from perdure.testing.models import ScriptedModel, call, say


async def test_text_that_the_log_told_already_is_not_streamed_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The run has long finished when its first event is shown: the log, read at the first step's end, is ahead of the text that streamed."""
    agent = Agent(ScriptedModel([call("look", n=1), say("The hotel has a room.")]), name="desk")

    @agent.tool_plain(metadata=plain())
    async def look(n: int) -> str:
        return "found"

    engine = Engine("memory://")
    desk = engine.agent(agent)
    async with engine:
        run = await desk.start("Look.")
        watcher = Watcher(engine, await run.run(), Output(), Here.of(engine, None), until_waiting=False, takes=True)
        with watcher._screen:
            async for event in run.events():
                await run.result()
                await watcher._tell(event)
    said = capsys.readouterr().err
    assert said.count("The hotel has a room.") == 1
    assert said.index("look(n=1)") < said.index("The hotel has a room.")
