"""Deeds that outlive whoever asked for them: with real threads and real sockets. Each is *unknown*, and none is issued again by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_ai import Agent

from perdure import Effect, Engine, RunHandle, RunStatus, current_run, effect
from perdure.core.effect import EffectState
from perdure.testing.models import ScriptedModel, call, say

LONG = 20.0
"""Seconds that nothing here should ever take."""


class Bank:
    """A bank on a real socket: the deed is done at once, its answer comes when the test lets it go."""

    def __init__(self) -> None:
        self.deeds: list[str | None] = []
        self.begun, self.answer = threading.Event(), threading.Event()
        self.left: list[str] = []

    def pay(self) -> str:
        """In this process: the deed, and then a long way to the end of the body."""
        self.deeds.append(current_run().key)
        self.begun.set()
        assert self.answer.wait(LONG)
        self.left.append("paid")
        return "paid"

    async def wait_for_deed(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, LONG)


@pytest.fixture
def bank() -> Any:
    bank = Bank()
    yield bank
    bank.answer.set()  # no thread stays behind


def payer(bank: Bank, **declared: Any) -> Agent[None, str]:
    agent = Agent(ScriptedModel([call("pay"), say("done")]), name="payer")
    tool_options = {"timeout": declared.pop("tool_timeout")} if "tool_timeout" in declared else {}
    agent.tool_plain(bank.pay, metadata=effect(**declared), **tool_options)
    return agent


@asynccontextmanager
async def open_engine(tmp_path: Path, agent: Agent[None, str], **options: Any) -> AsyncIterator[tuple[Engine, RunHandle[Any]]]:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", **options) as engine:
        yield engine, await engine.agent(agent).start({})


async def until(true: Callable[[], Any]) -> None:
    """Turn the loop until it is so."""
    async with asyncio.timeout(LONG):
        while not true():  # noqa: ASYNC110 - a thread makes it true, and has no event of this loop
            await asyncio.sleep(0)


async def until_waiting(run: RunHandle[Any]) -> None:
    async with asyncio.timeout(LONG):
        while await run.status() is not RunStatus.WAITING:  # noqa: ASYNC110 - as a user would look
            await asyncio.sleep(0)


async def unknown_of(engine: Engine, run_id: str) -> Effect:
    [row] = await engine.effects(run_id=run_id, state=None)
    assert row.state is EffectState.UNKNOWN
    return row


@pytest.mark.parametrize("where", ["effect", "tool"])
async def test_a_thread_that_outlives_its_time_limit_leaves_the_outcome_unknown(tmp_path: Path, bank: Bank, where: str) -> None:
    """`effect(timeout=…)` and Pydantic AI's own `timeout=` alike: the thread goes on, nobody is told to try again, and what it returns later counts for nothing."""
    limit: dict[str, Any] = {"timeout": timedelta(seconds=0.2)} if where == "effect" else {"tool_timeout": 0.2}
    async with open_engine(tmp_path, payer(bank, **limit)) as (engine, run):
        await until_waiting(run)
        row = await unknown_of(engine, run.id)
        assert "longer than 0.2 s" in row.row.error["message"]
        bank.answer.set()
        await until(lambda: bank.left)
        assert (await unknown_of(engine, run.id)).row.result is None
        assert bank.deeds == [row.key]
        await engine.settle(row.key, "done", "paid, as the statement says", by="eva")
        assert await run.result(timeout=LONG) == "done"
        assert bank.deeds == [row.key]
        assert "as the statement says" in str(await run.messages())


async def test_a_cancelled_thread_leaves_the_outcome_unknown(tmp_path: Path, bank: Bank) -> None:
    """The shield is over, the thread is not: the run is cancelled, the effect is listed, and a person settles it in the final run."""
    async with open_engine(tmp_path, payer(bank), effect_grace=timedelta(seconds=0.2)) as (engine, run):
        await bank.wait_for_deed()
        await run.cancel()
        assert (await engine.settled(run.id, LONG)).status is RunStatus.CANCELLED
        row = await unknown_of(engine, run.id)
        bank.answer.set()
        await until(lambda: bank.left)
        assert [each.key for each in await engine.effects()] == [row.key]
        await engine.settle(row.key, "done", "paid", by="eva")
        assert await engine.effects() == []
        assert bank.deeds == [row.key]


async def test_a_drained_thread_leaves_the_outcome_unknown_and_the_next_process_asks(tmp_path: Path, bank: Bank) -> None:
    """The next owner does not pay again: it waits for a person."""
    async with open_engine(tmp_path, payer(bank), effect_grace=timedelta(seconds=0.2)) as (engine, run):
        await bank.wait_for_deed()
        await engine.drain(timedelta(0))
        row = await unknown_of(engine, run.id)
        assert await run.status() in (RunStatus.INTERRUPTED, RunStatus.WAITING)
    bank.answer.set()
    async with Engine(f"sqlite:///{tmp_path}/runs.db") as after:
        after.agent(payer(bank))
        again = after.handle(run.id)
        await until_waiting(again)
        [request] = await again.requests()
        assert (request.kind, request.wait.row.effect_key) == ("effect", row.key)
        await request.answer("done", "paid", by="eva")
        assert await again.result(timeout=LONG) == "done"
        assert bank.deeds == [row.key]


async def test_a_deed_that_ends_within_the_shield_is_recorded_however_it_was_stopped(tmp_path: Path, bank: Bank) -> None:
    """The neighbour of the above: nothing is unknown where the thread came back in time."""
    async with open_engine(tmp_path, payer(bank), effect_grace=timedelta(seconds=LONG)) as (engine, run):
        await bank.wait_for_deed()
        await run.cancel()
        bank.answer.set()
        assert (await engine.settled(run.id, LONG)).status is RunStatus.CANCELLED
        [row] = await engine.effects(run_id=run.id, state=None)
        assert (row.state, row.row.result) == (EffectState.DONE, "paid")


class PaymentsApi(ThreadingHTTPServer):
    """Does what it is asked to at once, and answers when it is let go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Payment)
        self.keys: list[str | None] = []
        self.answer = threading.Event()
        self.thread = threading.Thread(target=lambda: self.serve_forever(0.01))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/payments"

    def __enter__(self) -> PaymentsApi:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.answer.set()
        self.shutdown()
        self.thread.join()
        self.server_close()


class Payment(BaseHTTPRequestHandler):
    """One request."""

    server: PaymentsApi

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.keys.append(self.headers.get("Idempotency-Key"))
        self.server.answer.wait(LONG)
        try:
            self.send_response(201)
            self.end_headers()
        except OSError:
            pass  # the client has gone: that is the point

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


@pytest.mark.parametrize("sync", [True, False])
async def test_a_read_timeout_after_the_deed_is_unknown_and_the_card_says_all_there_is_to_know(tmp_path: Path, sync: bool) -> None:
    """The server has done it, the client has not heard so; the card names tool, input, key, worker and when it was last heard. # case A1"""
    limit = httpx.Timeout(LONG, read=0.2)
    agent = Agent(ScriptedModel([call("pay", order="7", cents=900), say("done")]), name="payer")
    with PaymentsApi() as api:
        if sync:

            @agent.tool_plain(name="pay", metadata=effect())
            def pay(order: str, cents: int) -> int:
                headers = {"Idempotency-Key": current_run().key or ""}
                with httpx.Client(verify=False, trust_env=False, timeout=limit) as client:
                    return client.post(api.url, json={"order": order, "cents": cents}, headers=headers).status_code

        else:

            @agent.tool_plain(name="pay", metadata=effect())
            async def pay_async(order: str, cents: int) -> int:
                headers = {"Idempotency-Key": current_run().key or ""}
                async with httpx.AsyncClient(verify=False, trust_env=False, timeout=limit) as client:
                    return (await client.post(api.url, json={"order": order, "cents": cents}, headers=headers)).status_code

        async with open_engine(tmp_path, agent) as (engine, run):
            await until_waiting(run)
            row = await unknown_of(engine, run.id)
            assert row.row.error["message"].startswith("ReadTimeout")
            [request] = await run.requests()
            card = request.wait.row
            assert (card.tool, card.input, card.effect_key) == ("pay", {"order": "7", "cents": 900}, row.key)
            assert card.data["worker"] == row.worker == engine.worker.name
            assert card.data["started_at"] is not None
            assert card.data["last_heard"] >= card.data["started_at"]
            api.answer.set()
            await request.answer("done", 201, by="eva")
            assert await run.result(timeout=LONG) == "done"
            assert api.keys == [row.key]
