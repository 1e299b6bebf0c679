"""What one replica leaves, another goes on with: two engines on one Postgres database."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent

from perdure import Engine, RunHandle, RunStatus, Wait, Waiting, approve, effect
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say
from perdure.testing.postgres import PostgresServer

LONG = timedelta(seconds=30)
"""What nothing here should ever take."""


def replica(postgres: PostgresServer, deeds: list[str], *, name: str, workers: int = 8) -> Engine:
    """An engine of the desk, as each replica builds it for itself. `deeds` tells who did what."""
    agent = Agent(ScriptedModel([call("refund", cents=900), say("refunded")]), name="desk")

    @agent.tool_plain(metadata=effect() | approve())
    async def refund(cents: int) -> str:
        deeds.append(f"{name} refunds {cents}")
        return "done"

    patient = Agent(ScriptedModel([call("listen"), say("heard")]), name="patient")

    @patient.tool_plain(metadata=effect())
    async def listen() -> str:
        deeds.append(f"{name} listens")
        raise Wait.event("mail")

    engine = Engine(PostgresStore(postgres.dsn, schema="two_replicas"), workers=workers)
    engine.agent(agent)
    engine.agent(patient)
    return engine


async def waiting(run: RunHandle[Any]) -> str:
    """Wait until the run waits, and say for what."""
    async with asyncio.timeout(LONG.total_seconds()):
        async for event in run.events():
            if isinstance(event, Waiting):
                return event.waits[0].wait.kind
    raise AssertionError("it ended without waiting")


async def test_a_run_that_one_replica_parked_is_resumed_by_another(postgres: PostgresServer) -> None:
    """The first is gone when the answer comes to a third, which executes nothing. No operator has to move anything."""  # case H10
    deeds: list[str] = []
    async with replica(postgres, deeds, name="first") as first:
        asked = await first.start("desk", "Refund 900.")
        heard = await first.start("patient", "Wait for mail.")
        assert [await waiting(asked), await waiting(heard)] == ["approval", "event"]
    async with replica(postgres, deeds, name="door", workers=0) as door, replica(postgres, deeds, name="second") as second:
        [request] = [each for each in await door.requests() if each.wait.kind == "approval"]
        await request.approve(by="eva")
        assert await door.signal(heard.id, "mail", {"from": "bank"}, id="m1")
        for run in (asked, heard):
            settled = await second.settled(run.id, LONG)
            assert settled.status is RunStatus.COMPLETED
    assert deeds == ["first listens", "second refunds 900"]
