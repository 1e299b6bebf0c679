"""The cast of `make sim`: small agents that use everything the engine has, and a world that knows what really happened."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.settings import ModelSettings

from perdure.approvals import approve
from perdure.context import Wait, current_run
from perdure.core.budget import Budget
from perdure.effects import EffectCall, Happened, NotDone, Retry, effect, plain
from perdure.engine import Engine
from perdure.testing.models import Reply, call, calls, say
from perdure.testing.simulation._checkers import Rows
from perdure.testing.simulation._play import Cast, Order
from perdure.testing.simulation._stage import Part, Stage

RUNS: int = 6
"""Runs of one simulation: enough for replicas to get in each other's way."""


class Ticket(BaseModel):
    """What the triage agent has to come to."""

    order: str
    urgency: Literal["low", "high"]


class World:
    """What the tools ask about the outside."""

    stage: Stage | None = None

    def happened(self, key: str) -> bool:
        """Whether an effect's body has begun."""
        return self.stage is not None and any(each == key for _, each in self.stage.tally.effects)


def poet(engine: Engine, world: World) -> Part:
    """Text, and nothing else."""
    return Part(engine.agent(Agent("test", name="poet")), [say("Roses are red, violets are blue.")])


def triage(engine: Engine, world: World) -> Part:
    """Plain tools side by side, then a typed output of which the first is refused."""
    agent = Agent("test", name="triage", output_type=Ticket)

    @agent.tool_plain
    async def find_order(order: str) -> dict[str, Any]:
        return {"order": order}

    @agent.tool_plain
    def find_customer(email: str) -> str:
        return f"customer {email}"

    script = [
        calls(call("find_order", order="o1"), call("find_customer", email="ada@example.org")),
        call("final_result", order="o1", urgency="tomorrow"),
        call("final_result", order="o1", urgency="high"),
    ]
    return Part(engine.agent(agent, tools={"find_*": plain()}), script)


def bank(engine: Engine, world: World) -> Part:
    """Effects of every declaration, alone and in a batch, with a plain tool beside them."""
    agent = Agent("test", name="bank")

    @agent.tool_plain
    async def refund(order: str) -> str:
        return f"refunded {order}"

    @agent.tool_plain
    async def charge(order: str) -> str:
        return f"charged {order}"

    @agent.tool_plain
    async def ship(order: str) -> str:
        return f"shipped {order}"

    @agent.tool_plain
    async def look(order: str) -> str:
        return f"looked at {order}"

    async def shipped(asked: EffectCall) -> Happened | NotDone:
        return Happened("shipped, as the carrier says") if world.happened(asked.key) else NotDone()

    rules = {
        "refund": effect("ask"),
        "charge": effect("retry", retries=Retry(attempts=4)),
        "ship": effect(shipped),
        "look": plain(),
    }
    script = [
        calls(call("refund", order="o1"), call("look", order="o1"), call("charge", order="o1")),
        call("ship", order="o1"),
        calls(call("charge", order="o2"), call("refund", order="o2")),
        say("All done."),
    ]
    return Part(engine.agent(agent, tools=rules), script)


def clerk(engine: Engine, world: World) -> Part:
    """Calls that need somebody's word, some of them effects, some with an end soon; and one beside them that needs none, whose result is stored with the wait."""
    agent = Agent("test", name="clerk")

    @agent.tool_plain
    async def delete(name: str) -> str:
        return f"deleted {name}"

    @agent.tool_plain
    async def publish(name: str) -> str:
        return f"published {name}"

    @agent.tool_plain
    async def look(name: str) -> str:
        return f"looked at {name}"

    rules = {
        "look": plain(),
        "delete": effect("ask") | approve(within=timedelta(seconds=20)),
        "publish": approve(within=timedelta(seconds=45)) | plain(),
    }
    script = [
        calls(call("publish", name="a"), call("look", name="b"), call("delete", name="b")),
        calls(call("delete", name="c"), call("delete", name="d")),
        say("Filed."),
    ]
    return Part(engine.agent(agent, tools=rules), script)


def courier(engine: Engine, world: World) -> Part:
    """Tools that end with a wait: for a signal, and for a time."""
    agent = Agent("test", name="courier")

    @agent.tool_plain
    async def await_payment(order: str) -> str:
        raise Wait.event("payment", expires=timedelta(seconds=40))

    @agent.tool_plain
    async def nap() -> str:
        raise Wait.until(timedelta(seconds=7))

    script = [call("await_payment", order="o1"), call("nap"), say("Delivered.")]
    return Part(engine.agent(agent, tools={"*": plain()}), script)


def writer(engine: Engine, world: World) -> Part:
    """A budget that runs out and is topped up."""
    agent = Agent("test", name="writer")

    @agent.tool_plain
    async def note(text: str) -> str:
        return "noted"

    script = [call("note", text="one"), call("note", text="two"), call("note", text="three"), say("Written.")]
    return Part(engine.agent(agent, tools={"note": plain()}, budget=Budget(max_steps=2, on_limit="pause")), script)


def manager(engine: Engine, world: World) -> Part:
    """Two child runs, of which one asks people; it waits for both."""
    agent = Agent("test", name="manager")

    @agent.tool_plain
    async def delegate(to: str) -> str:
        raise Wait.run(await current_run().start(to, {"n": 0}))

    script = [calls(call("delegate", to="poet"), call("delegate", to="clerk")), say("All is done.")]
    return Part(engine.agent(agent, tools={"delegate": plain()}), script)


def scribe(engine: Engine, world: World) -> Part:
    """A child that asks for more where its parent's budget is used up."""
    agent = Agent("test", name="scribe", model_settings=ModelSettings(max_tokens=100))

    @agent.tool_plain
    async def note(text: str) -> str:
        return "noted"

    script = [call("note", text="one"), call("note", text="two"), say("Noted.")]
    return Part(engine.agent(agent, tools={"note": plain()}, budget=Budget(on_limit="pause")), hundreds(script))


def director(engine: Engine, world: World) -> Part:
    """Two child runs at once under one budget, that is not enough for all of them."""
    agent = Agent("test", name="director", model_settings=ModelSettings(max_tokens=100))

    @agent.tool_plain
    async def delegate(n: int) -> str:
        raise Wait.run(await current_run().start("scribe", {"n": n}))

    script = [calls(call("delegate", n=1), call("delegate", n=2)), say("All is written.")]
    return Part(engine.agent(agent, tools={"delegate": plain()}, budget=Budget(max_tokens=550)), hundreds(script))


def hundreds(script: Sequence[Reply]) -> list[Reply]:
    """Replies of 100 tokens each."""
    return [replace(reply, input_tokens=90, output_tokens=10) for reply in script]


def talker(engine: Engine, world: World) -> Part:
    """Turns of one conversation: each sees those before it."""
    return Part(engine.agent(Agent("test", name="talker"), history="thread"), lambda messages: say(f"Turn {len(messages)}."))


MAKERS = (poet, triage, bank, clerk, courier, writer)
FAMILY = (poet, clerk, manager, talker, scribe, director)
FAMILY_SEEDS = 5
"""One seed in so many is about runs that belong together: children and their parents, turns of a thread."""


def cast_for(seed: int) -> Cast:
    """The agents, and the orders of this seed: some under keys, some sharing a concurrency key or a thread."""
    return _family(seed) if seed % FAMILY_SEEDS == FAMILY_SEEDS - 1 else _strangers(seed)


def _family(seed: int) -> Cast:
    chance = random.Random(f"family/{seed}")
    engine, world = Engine("memory://"), World()
    parts = [make(engine, world) for make in FAMILY]
    orders: list[Order] = []
    for number in range(RUNS):
        agent = chance.choice(["manager", "talker", "talker", "director"])
        thread = "talk" if agent == "talker" else None
        orders.append(Order(agent, {"n": number}, at=round(chance.random() ** 2 * 20, 3), key=f"order-{number}", thread=thread))
    return Cast(parts, orders, edits={"name": "edited"}, expects=children_once)


def children_once(rows: Sequence[Rows]) -> Iterator[str]:
    """A manager or director starts two children in each of its lives, however often its calls are entered."""
    for parent in rows:
        if parent.run.agent in ("manager", "director"):
            children = [each.run.id for each in rows if each.run.parent_run == parent.run.id]
            if len(children) > 2 * parent.run.generation:
                yield f"run {parent.run.id[-6:]} started {len(children)} children in {parent.run.generation} lives"


def _strangers(seed: int) -> Cast:
    chance = random.Random(f"cast/{seed}")
    engine, world = Engine("memory://"), World()
    parts = [make(engine, world) for make in MAKERS]
    orders: list[Order] = []
    for number in range(RUNS):
        agent = chance.choice(parts).name
        shared = chance.random()
        signals: tuple[tuple[float, str, Any], ...] = ()
        if agent == "courier" and chance.random() < 0.8:
            signals = ((round(chance.uniform(0, 50), 3), "payment", {"cents": 100 + number}),)
        orders.append(
            Order(
                agent,
                {"n": number},
                at=round(chance.random() ** 2 * 20, 3),
                key=f"order-{number}" if chance.random() < 0.7 else None,
                concurrency_key="shared" if shared < 0.25 else None,
                thread="talk" if 0.25 <= shared < 0.4 else None,
                signals=signals,
            )
        )

    def bind(stage: Stage) -> None:
        world.stage = stage

    return Cast(parts, orders, bind)
