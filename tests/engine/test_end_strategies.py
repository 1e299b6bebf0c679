"""A final result beside other calls: whatever Pydantic AI's `end_strategy` leaves unrun is on record as such, and no effect of it has begun."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic_ai import Agent

from perdure import effect, plain
from perdure.testing.models import ScriptedModel, call, calls

EndStrategy = Literal["early", "graceful", "exhaustive"]


@pytest.mark.parametrize(
    ("end_strategy", "ran"),
    [("early", []), ("graceful", ["look", "refund", "look"]), ("exhaustive", ["look", "refund", "look"])],
)
def test_every_call_beside_a_final_result_has_its_row(sim: Any, end_strategy: EndStrategy, ran: list[str]) -> None:
    """Run or not: one row each, the unrun ones marked as skipped; only what ran is in the ledger."""
    bodies: list[str] = []

    async def main() -> None:
        script = [calls(call("look", n=1), call("refund", order="7"), call("final_result", response=3), call("look", n=2))]
        agent = Agent(ScriptedModel(script), name="desk", output_type=int, end_strategy=end_strategy)

        @agent.tool_plain(metadata=plain())
        async def look(n: int) -> str:
            bodies.append("look")
            return f"seen {n}"

        @agent.tool_plain(metadata=effect())
        async def refund(order: str) -> str:
            bodies.append("refund")
            return "refunded"

        engine = sim.engine()
        desk = engine.agent(agent)
        async with engine:
            run = await desk.start({})
            assert await run.result() == 3
            rows = [(step.row.name, step.row.error) for step in await run.steps() if step.kind == "tool"]
            assert sorted(name for name, _ in rows) == ["look", "look", "refund"]
            assert {str(error) for _, error in rows} == {str(None if ran else {"outcome": "skipped"})}
            assert sorted(bodies) == sorted(ran)
            assert [each.row.tool for each in await engine.effects(run_id=run.id, state=None)] == [name for name in ran if name == "refund"]
            assert (await run.run()).usage.tool_calls == len(ran)

    sim.run(main)
