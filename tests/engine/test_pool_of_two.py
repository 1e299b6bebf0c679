"""No run holds a connection while its model answers, so two are enough for any number of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure import Engine, RunStatus, Waiting, approve, effect
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say
from perdure.testing.postgres import PostgresServer

SCHEMA = "pool_of_two"
RUNS, READERS, QUESTIONS = 50, 20, 5
LONG = timedelta(seconds=120)
"""What nothing here should ever take."""


class SlowModel:
    """A model that has begun to answer and says no more until it is let."""

    def __init__(self) -> None:
        self.asked, self.all_asked, self.may_go_on = 0, asyncio.Event(), asyncio.Event()

    async def answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        self.asked += 1
        if self.asked == RUNS:
            self.all_asked.set()
        yield "This takes "
        await self.may_go_on.wait()
        yield "a while."


def states(postgres: PostgresServer) -> set[str]:
    """What this store's sessions are doing, as the server sees it."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        found = connection.execute(b"SELECT state FROM pg_stat_activity WHERE application_name = 'perdure' AND query LIKE '%pool_of_two%'").fetchall()
    return {state for (state,) in found}


async def test_fifty_model_calls_twenty_readers_and_five_answers_share_two_connections(postgres: PostgresServer) -> None:
    """While every model call is open, people are answered and their runs finish; no session sits in a transaction; then all finish."""  # case I4
    model, paid = SlowModel(), list[int]()
    slow = Agent(FunctionModel(stream_function=model.answer), name="slow")
    desk = Agent(ScriptedModel([call("pay", cents=5), say("paid")]), name="desk")

    @desk.tool_plain(metadata=effect() | approve())
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "done"

    engine = Engine(PostgresStore(postgres.dsn, schema=SCHEMA, pool_max=2), workers=RUNS + QUESTIONS)
    engine.agent(slow)
    engine.agent(desk)
    async with asyncio.timeout(LONG.total_seconds()), engine:
        runs = [await engine.start("slow", f"Question {at}") for at in range(RUNS)]
        await model.all_asked.wait()
        told: list[str] = []

        async def read(at: int) -> None:
            async for event in runs[at].events():
                told.append(type(event).__name__)

        readers = [asyncio.create_task(read(at)) for at in range(READERS)]
        asked = [await engine.start("desk", f"Pay 5 for {at}.") for at in range(QUESTIONS)]
        for each in asked:
            async for event in each.events():
                if isinstance(event, Waiting):
                    await event.waits[0].approve(by="eva")
        for each in asked:
            assert (await engine.settled(each.id, LONG)).status is RunStatus.COMPLETED
        assert paid == [5] * QUESTIONS
        assert model.asked == RUNS and not model.may_go_on.is_set()
        seen = await asyncio.to_thread(states, postgres)
        assert seen and not {state for state in seen if "transaction" in state}
        model.may_go_on.set()
        for run in runs:
            assert (await engine.settled(run.id, LONG)).output == "This takes a while."
        await asyncio.gather(*readers)
        assert told.count("Settled") == READERS
