"""`python -m perdure.testing.crash`: two agents, two stores, killed everywhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent

from perdure.engine import DurableAgent, Engine
from perdure.testing.models import Script, call, calls, say
from perdure.testing.simulation._crash import Points, StoreName, crash_everywhere


@dataclass(frozen=True)
class Subject:
    """An agent, what its model says and what it is asked."""

    agent: DurableAgent[Any, Any]
    script: Script
    input: Any


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


SUBJECTS: dict[str, Callable[[], Subject]] = {"poet": poet, "triage": triage}


def main(arguments: list[str] | None = None) -> int:
    """Run it and print one report for each agent and store; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.crash", description=__doc__)
    parser.add_argument("--agent", choices=sorted(SUBJECTS), action="append", help="only this agent (may be repeated)")
    parser.add_argument("--store", choices=["memory", "sqlite"], action="append", help="only this store (may be repeated)")
    parser.add_argument("--points", choices=["calls", "callbacks", "all"], default="all", help="where to kill (default: all)")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8), help="simulations at once")
    options = parser.parse_args(arguments)
    ok = True
    stores: list[StoreName] = options.store or ["memory", "sqlite"]
    for store in stores:
        for name in options.agent or list(SUBJECTS):
            ok &= _report(SUBJECTS[name](), store, options.points, options.processes)
    return 0 if ok else 1


def _report(subject: Subject, store: StoreName, points: Points, processes: int) -> bool:
    def progress(done: int, todo: int) -> None:
        if sys.stderr.isatty() and (done % 20 == 0 or done == todo):
            print(f"\r{subject.agent.name} on {store}: {done}/{todo}", end="\n" if done == todo else "", file=sys.stderr, flush=True)

    report = crash_everywhere(
        subject.agent, script=subject.script, input=subject.input, store=store, points=points, processes=processes, progress=progress
    )
    print(report, flush=True)
    return report.ok
