"""The program that the tests of the command line run: an agent that looks an order up and pays money back after an approval."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent

from perdure import Budget, Engine, approve, current_run, effect, plain
from perdure.testing.models import ScriptedModel, call, calls, fail, say


class Complaint(BaseModel):
    order: str
    cents: int = 9_000


HOLD = Path(os.environ.get("SHOP_HOLD", "hold"))
"""While this file is there, looking an order up never ends."""
GATE = os.environ.get("SHOP_GATE")
"""A pipe: looking an order up ends once somebody has opened it to write."""
BANK = Path(os.environ.get("SHOP_BANK", "bank.txt"))

agent = Agent(
    ScriptedModel(
        [
            calls(call("lookup_order", order="7"), text="I look the order up."),
            calls(call("refund", order="7", cents=9_000), text="It arrived broken.\x1b[2J"),
            say("Paid back."),
        ]
    ),
)


def held() -> bool:
    return HOLD.exists()


@agent.tool_plain(metadata=plain())
async def lookup_order(order: str) -> dict[str, object]:
    """What was bought."""
    print("looking", order)  # what a tool prints must not get between a program and our answer
    current_run().log("looking up", order=order)
    if held():
        await asyncio.Event().wait()
    if GATE is not None:
        await asyncio.to_thread(Path(GATE).read_bytes)
    return {"order": order, "items": ["kettle"]}


@agent.tool_plain(metadata=effect("ask") | approve(when=lambda call: call.input["cents"] > 5_000, within=timedelta(days=2)))
def refund(order: str, cents: int) -> str:
    """Pay money back."""
    with BANK.open("a") as bank:
        print(order, cents, current_run().key, file=bank)
    if os.environ.get("SHOP_BREAKS"):
        raise ConnectionError("the bank hung up")
    return f"paid {cents}"


engine = Engine("sqlite:///shop.db", lease=timedelta(seconds=2), effect_grace=timedelta(seconds=1))
engine.agent(agent, name="complaints", version="1", input=Complaint)
engine.agent(Agent(ScriptedModel([say("Hello, Ünï 👋")])), name="hello", input=str)
engine.agent(Agent(ScriptedModel([fail(400)])), name="broken")
once = Agent(ScriptedModel([call("refund", order="7", cents=900), say("Paid once.")]))
once.tool_plain(refund, metadata=effect(key="order", scope="agent"))
engine.agent(once, name="once")
thrifty = Agent(ScriptedModel([replace(call("look"), input_tokens=90, output_tokens=10, cost=Decimal("0.02")), say("Found.")]))
thrifty.tool_plain(held, name="look", metadata=plain())
for limit, budget in {
    "steps": Budget(max_steps=1, on_limit="pause"),
    "tokens": Budget(max_tokens=100, on_limit="pause"),
    "cost": Budget(max_cost=Decimal("0.02"), on_limit="pause", unknown_price="ignore"),
}.items():
    engine.agent(thrifty, name=f"thrifty-{limit}", budget=budget)
