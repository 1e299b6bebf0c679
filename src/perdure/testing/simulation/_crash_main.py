"""`python -m perdure.testing.crash`: three agents, two stores, killed everywhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
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
from perdure.testing.simulation._crash import CrashReport, Points, StoreName, crash_everywhere
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
    return Subject(Engine("memory://").agent(agent), script, {"order": "o1"}, ledger)


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
    parser.add_argument("--points", choices=["calls", "callbacks", "all"], default="all", help="where to kill (default: everywhere)")
    parser.add_argument("--every", type=int, default=1, help="kill at every so-manieth place only")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8), help="simulations at once")
    options = parser.parse_args(arguments)
    began, reports = time.monotonic(), list[CrashReport]()
    stores: list[StoreName] = options.store or ["memory", "sqlite"]
    for store in stores:
        for name in options.agent or list(SUBJECTS):
            report = _report(SUBJECTS[name](), store, options.points, options.processes, options.every)
            print(report, flush=True)
            reports.append(report)
    print(_total(reports, time.monotonic() - began))
    return 0 if all(report.ok for report in reports) else 1


def _total(reports: Sequence[CrashReport], seconds: float) -> str:
    """The sum of all, in one line."""
    return (
        f"All: {sum(each.points for each in reports)} points, {sum(each.finished for each in reports)} runs finished, "
        f"model calls repeated in one run at most {max(each.model_calls_repeated_most for each in reports)}, "
        f"histories refused {sum(len(each.refused) for each in reports)}, "
        f"effects performed twice {sum(len(each.performed_twice) for each in reports)}, "
        f"asked about although never started {sum(len(each.asked_never_started) for each in reports)}, "
        f"other promises broken {sum(len(each.violations) for each in reports)}; {seconds:.0f} s"
    )


def _report(subject: Subject, store: StoreName, points: Points, processes: int, every: int) -> CrashReport:
    began = time.monotonic()
    told = 0

    def progress(done: int, todo: int) -> None:
        nonlocal told
        tenth = 10 * done // todo
        if sys.stderr.isatty():
            if done % 20 == 0 or done == todo:
                print(f"\r{subject.agent.name} on {store}: {done}/{todo}", end="\n" if done == todo else "", file=sys.stderr, flush=True)
        elif tenth > told:
            told = tenth
            print(f"{subject.agent.name} on {store}: {done}/{todo} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    return crash_everywhere(
        subject.agent,
        script=subject.script,
        input=subject.input,
        store=store,
        points=points,
        ledger=subject.ledger,
        processes=processes,
        every=every,
        progress=progress,
    )
