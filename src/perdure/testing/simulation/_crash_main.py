"""`python -m perdure.testing.crash`: three agents, two stores, killed everywhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent

from perdure.effects import EffectCall, Happened, NotDone, effect, plain
from perdure.engine import DurableAgent, Engine
from perdure.testing.models import Reply, Script, call, calls, say
from perdure.testing.simulation._crash import Points, StoreName, crash_everywhere
from perdure.testing.simulation._ledger import Ledger

EndStrategy = Literal["early", "graceful", "exhaustive"]
PATIENCE = timedelta(seconds=1)
"""How long the tool may take whose deed is done at once."""


@dataclass(frozen=True)
class Subject:
    """An agent, what its model says and what it is asked."""

    agent: DurableAgent[Any, Any]
    script: Script
    input: Any
    ledger: Ledger | None = None
    callbacks_on: Sequence[StoreName] = ("memory", "sqlite")
    """Where it is killed at every callback too, unless every place is named."""


class Ticket(BaseModel):
    """What the triage agent has to come to."""

    order: str
    urgency: Literal["low", "high"]
    cents: int = Field(ge=0)


def poet() -> Subject:
    """Text, and nothing else."""
    agent = Agent("test", name="poet", instructions="Write a short poem.")
    return Subject(
        Engine("memory://").agent(agent), [say("Roses are red, violets are blue, what has been stored will still be with you.")], {"about": "storage"}
    )


def triage() -> Subject:
    """Two plain tools side by side, then a typed output of which the first is refused."""
    agent = Agent("test", name="triage", output_type=Ticket, instructions="Triage the mail.")

    @agent.tool_plain
    async def find_order(order: str) -> dict[str, Any]:
        """Look an order up."""
        return {"order": order, "cents": 4_250}

    @agent.tool_plain
    async def find_customer(email: str) -> dict[str, Any]:
        """Look a customer up."""
        return {"email": email, "since": 2019}

    script = [
        calls(call("find_order", order="o-17"), call("find_customer", email="ada@example.org"), text="Let me look."),
        call("final_result", order="o-17", urgency="yesterday", cents=4_250),
        call("final_result", order="o-17", urgency="high", cents=4_250),
    ]
    return Subject(Engine("memory://").agent(agent), script, {"from": "ada@example.org", "text": "Where is order o-17?"})


class Receipt(BaseModel):
    """What the cashier has to come to."""

    order: str


def cashier(end_strategy: EndStrategy) -> Subject:
    """Effects of every declaration in one response, one of which times out after its deed, beside plain tools; then one of each beside the output."""
    agent = Agent("test", name=f"cashier-{end_strategy}", output_type=Receipt, end_strategy=end_strategy)
    ledger = Ledger()

    @agent.tool_plain(metadata=effect("ask"))
    async def refund(order: str) -> str:
        await asyncio.sleep(0.1)
        done = ledger.enter(f"refunded {order}")
        await asyncio.sleep(0.1)
        return done

    @agent.tool_plain(metadata=effect("retry"))
    async def charge(order: str) -> str:
        await asyncio.sleep(0.1)
        done = ledger.enter(f"charged {order}")
        await asyncio.sleep(0.1)
        return done

    async def look_up(asked: EffectCall) -> Happened | NotDone:
        return Happened(ledger.result(asked.key)) if ledger.happened(asked.key) else NotDone()

    @agent.tool_plain(metadata=effect(look_up))
    async def ship(order: str) -> str:
        await asyncio.sleep(0.1)
        done = ledger.enter(f"shipped {order}")
        await asyncio.sleep(0.1)
        return done

    @agent.tool_plain(metadata=effect("ask", timeout=PATIENCE))
    async def send(order: str) -> str:
        done = ledger.enter(f"wrote to the customer of {order}")
        await asyncio.sleep(3 * PATIENCE.total_seconds())
        return done

    @agent.tool_plain(metadata=plain())
    async def look(order: str) -> str:
        return f"looked at {order}"

    @agent.tool_plain(metadata=plain())
    def count() -> int:
        return 4

    def each(*tools: str, order: str) -> list[Reply]:
        return [call(tool, order=order) for tool in tools]

    script = [
        calls(*each("charge", "look", "refund", "send", "ship", order="o1"), call("count")),
        calls(*each("look", "refund", order="o2"), call("final_result", order="o2"), *each("charge", "ship", order="o2")),
    ]
    # The three differ in their last response alone, and a callback on a file costs most.
    callbacks_on: Sequence[StoreName] = ("memory", "sqlite") if end_strategy == "graceful" else ("memory",)
    return Subject(Engine("memory://").agent(agent), script, {"order": "o1"}, ledger, callbacks_on)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "poet": poet,
    "triage": triage,
    "cashier-early": partial(cashier, "early"),
    "cashier-graceful": partial(cashier, "graceful"),
    "cashier-exhaustive": partial(cashier, "exhaustive"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run it and print one report for each agent and store; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.crash", description=__doc__)
    parser.add_argument("--agent", choices=sorted(SUBJECTS), action="append", help="only this agent (may be repeated)")
    parser.add_argument("--store", choices=["memory", "sqlite"], action="append", help="only this store (may be repeated)")
    parser.add_argument(
        "--points", choices=["calls", "callbacks", "all"], help="where to kill (default: at every call, and at the callbacks of most)"
    )
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8), help="simulations at once")
    options = parser.parse_args(arguments)
    ok = True
    stores: list[StoreName] = options.store or ["memory", "sqlite"]
    for store in stores:
        for name in options.agent or list(SUBJECTS):
            subject = SUBJECTS[name]()
            points: Points = options.points or ("all" if store in subject.callbacks_on else "calls")
            ok &= _report(subject, store, points, options.processes)
    return 0 if ok else 1


def _report(subject: Subject, store: StoreName, points: Points, processes: int) -> bool:
    def progress(done: int, todo: int) -> None:
        if sys.stderr.isatty() and (done % 20 == 0 or done == todo):
            print(f"\r{subject.agent.name} on {store}: {done}/{todo}", end="\n" if done == todo else "", file=sys.stderr, flush=True)

    report = crash_everywhere(
        subject.agent,
        script=subject.script,
        input=subject.input,
        store=store,
        points=points,
        ledger=subject.ledger,
        processes=processes,
        progress=progress,
    )
    print(report, flush=True)
    return report.ok
