"""An approved effect that is stopped between its mark and its body: it has not run, and runs when the run goes on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, Waiting, approve, effect
from perdure.core.effect import EffectState
from perdure.core.event import EventWrite
from perdure.engine._tools import ToolDesk
from perdure.stores.memory import MemoryStore
from perdure.testing.models import ScriptedModel, call, say


@pytest.mark.parametrize("reason", ["drain", "lease_lost", "no time left"])
async def test_an_approved_effect_that_is_stopped_before_its_body_does_not_fail_the_run(reason: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes while its mark is written: the run is handed back, claimed again, and the tool runs once."""
    bodies: list[str] = []
    stops: list[EventWrite] = []
    store = MemoryStore()
    agent = Agent(ScriptedModel([call("refund"), say("done")]), name="desk")

    @agent.tool_plain(metadata=effect() | approve())
    async def refund() -> str:
        bodies.append("refund")
        return "ok"

    engine = Engine(store)
    commit = store.commit

    async def stopping(write: Any) -> Any:
        answer = await commit(write)
        if not stops and any(each.state is EffectState.STARTED for each in write.effects):
            stops.extend(write.events)
            for execution in engine.worker.executions.values():
                if reason != "no time left":
                    execution.abort(reason)
        return answer

    store.commit = stopping
    looks: list[bool] = []

    def enough_time(desk: ToolDesk) -> bool:
        """The acknowledgement came late; the renewal that gives time again comes right after."""
        looks.append(not stops or reason != "no time left" or False in looks)
        return looks[-1]

    monkeypatch.setattr(ToolDesk, "_enough_time", enough_time)
    desk = engine.agent(agent)
    async with engine:
        run = await desk.start({})
        async for event in run.events():
            if isinstance(event, Waiting):
                await event.waits[0].approve(by="eva")
        assert await run.result(20) == "done"
    assert stops and bodies == ["refund"]
