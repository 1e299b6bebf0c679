"""Who follows a run sees its text, also where he was busy with something else while it streamed."""

from __future__ import annotations

from pydantic_ai import Agent

from perdure import Delta, Engine, Settled, Waiting, approve, effect
from perdure.core.event import Event
from perdure.testing.models import ScriptedModel, call, say


async def test_text_that_streamed_while_a_follower_was_busy_is_not_lost() -> None:
    """He answers, and looks up again when the run has long finished: the text comes whole, after the step before it and before the end."""
    agent = Agent(ScriptedModel([call("pay", cents=5), say("The hotel is paid, and the train too.")]), name="desk")

    @agent.tool_plain(metadata=effect() | approve())
    async def pay(cents: int) -> str:
        return "done"

    engine = Engine("memory://")
    desk = engine.agent(agent)
    async with engine:
        run = await desk.start("Pay.")
        seen: list[str] = []
        async for event in run.events():
            match event:
                case Waiting(waits=[request]):
                    await request.approve(by="eva")
                    await run.result()
                case Delta(text=text):
                    seen.append(text)
                case Event(type="step.completed", data=data):
                    seen.append(f"<{data['step']}>")
                case Settled():
                    seen.append("<end>")
                case _:
                    pass
    assert "".join(seen) == "<1>The hotel is paid, and the train too.<2><end>"
