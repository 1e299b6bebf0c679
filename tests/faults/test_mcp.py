"""Tools of a real MCP server, which says itself what they do; its client is killed between a deed and its record."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_payer import agent_of

from perdure import Engine, RunHandle, Waiting, approve
from perdure.core.effect import EffectState
from perdure.testing.models import call, calls

LONG = 60.0
"""Seconds that nothing here should ever take."""
PAYER = Path(__file__).with_name("mcp_payer.py")


def deeds(ledger: Path) -> list[list[Any]]:
    """What the bank did: tool, order, idempotency key."""
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


async def until_waiting(run: RunHandle[Any]) -> None:
    async with asyncio.timeout(LONG):
        async for event in run.events():
            if isinstance(event, Waiting):
                return


def killed_after_its_deed(tool: str, database: Path, ledger: Path, news: Path) -> list[Any]:
    """Let a process call the tool, and kill it once there is news of the deed, which it has not heard of."""
    os.mkfifo(news)
    process = subprocess.Popen([sys.executable, str(PAYER), str(database), str(ledger), str(news), tool])

    def hang_up() -> None:
        process.wait()
        os.close(os.open(news, os.O_RDWR | os.O_NONBLOCK))  # whoever still waits to open it is let go

    threading.Thread(target=hang_up, daemon=True).start()
    try:
        text = news.read_text()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(LONG)
    return json.loads(text) if text else []


async def test_a_server_says_what_its_tools_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Read-only is plain, idempotent retries, what destroys or adds asks; one without annotations is named in a warning; keys reach the server."""
    caplog.set_level(logging.WARNING, "perdure")
    ledger = tmp_path / "ledger"
    names = ["refund", "close_order", "add_note", "look_up", "mystery"]
    async with Engine("memory://") as engine:
        payer = engine.agent(agent_of(ledger, None, calls(*(call(name, order="7") for name in names))))
        run = await payer.start({})
        assert await run.result(timeout=LONG) == "done"
        rows = await engine.effects(run_id=run.id, state=None)
    assert [(each.row.tool, each.row.unknown, each.state) for each in rows] == [
        ("refund", "ask", EffectState.DONE),
        ("close_order", "retry", EffectState.DONE),
        ("add_note", "ask", EffectState.DONE),
    ]
    assert deeds(ledger) == [[each.row.tool, "7", each.key] for each in rows]
    [warning] = [record.getMessage() for record in caplog.records if "nobody declared" in record.getMessage()]
    assert "mystery" in warning


async def test_an_error_of_the_server_proves_nothing(tmp_path: Path) -> None:
    """It says that the call failed, and the deed was done before: a person is asked, and the call is not sent again."""
    ledger = tmp_path / "ledger"
    async with Engine("memory://") as engine:
        payer = engine.agent(agent_of(ledger, None, call("refund", order="error")))
        run = await payer.start({})
        await until_waiting(run)
        [unknown] = await engine.effects()
        assert "card network" in unknown.row.error["message"]
        await engine.settle(unknown.key, "done", "refunded", by="eva")
        assert await run.result(timeout=LONG) == "done"
    assert deeds(ledger) == [["refund", "error", unknown.key]]


@pytest.mark.parametrize(("tool", "asked"), [("refund", True), ("close_order", False)])
async def test_a_client_killed_between_the_deed_and_its_record(tmp_path: Path, tool: str, asked: bool) -> None:
    """SIGKILL once the bank has done it: the ledger says unknown. What may be repeated goes out again under the same key, the rest asks. # case A1, # case A2"""
    database, ledger, news = tmp_path / "runs.db", tmp_path / "ledger", tmp_path / "news"
    first = await asyncio.to_thread(killed_after_its_deed, tool, database, ledger, news)
    assert first[:2] == [tool, "slow"], "the process ended before its deed"
    engine = Engine(f"sqlite:///{database}", tick=timedelta(seconds=0.25))
    payer = engine.agent(agent_of(ledger, None, call(tool, order="slow")))
    async with engine:
        run = await payer.start({}, key="once")
        if asked:
            await until_waiting(run)
            [unknown] = await engine.effects()
            assert (unknown.state, unknown.key, unknown.row.input) == (EffectState.UNKNOWN, first[2], {"order": "slow"})
            await engine.settle(unknown.key, "done", "refunded", by="eva")
        assert await run.result(timeout=LONG) == "done"
        [row] = await engine.effects(run_id=run.id, state=None)
        assert row.state is EffectState.DONE
    assert deeds(ledger) == [first] * (1 if asked else 2)


async def waiting_for_approval(ledger: Path, engine: Engine) -> RunHandle[Any]:
    """A run that waits for the approval of a refund at the bank."""
    payer = engine.agent(agent_of(ledger, None, call("refund", order="7")), tools={"refund": approve()})
    run = await payer.start({})
    await until_waiting(run)
    return run


async def until_waiting_again(run: RunHandle[Any], kind: str) -> None:
    """Until the run waits for something of this kind."""
    async with asyncio.timeout(LONG):
        async for event in run.events():
            if isinstance(event, Waiting) and any(request.kind == kind for request in await run.requests()):
                return


async def test_an_approved_call_whose_tool_the_server_has_no_more_waits_for_an_operator(tmp_path: Path) -> None:
    """It is not answered with "unknown tool", nothing is done, and the approval holds once the server has its tool again. # case L3"""
    ledger = tmp_path / "ledger"
    async with Engine("memory://") as engine:
        run = await waiting_for_approval(ledger, engine)
        [request] = await engine.requests()
        ledger.with_suffix(".gone").write_text("refund")
        await request.approve(by="eva")
        await until_waiting_again(run, "attention")
        [attention] = await engine.requests()
        assert (attention.kind, attention.wait.row.data["why"]) == ("attention", "tool_gone")
        assert deeds(ledger) == []
        ledger.with_suffix(".gone").unlink()
        await attention.answer("resume", by="ops")
        assert await run.result(timeout=LONG) == "done"
    assert [deed[:2] for deed in deeds(ledger)] == [["refund", "7"]]


async def test_a_server_that_changed_its_tools_is_told_of_and_the_run_goes_on(tmp_path: Path) -> None:
    """The schema of the tool is another one than when the call was made: an event says so. # case L3"""
    ledger = tmp_path / "ledger"
    async with Engine("memory://") as engine:
        run = await waiting_for_approval(ledger, engine)
        [request] = await engine.requests()
        ledger.with_suffix(".changed").touch()
        await request.approve(by="eva")
        assert await run.result(timeout=LONG) == "done"
        events = await engine.store.events(run.id)
        assert [event.data for event in events if event.type == "version.changed"] == [{"tools": True}]
    assert [deed[:2] for deed in deeds(ledger)] == [["refund", "7"]]


async def test_a_server_that_stayed_as_it_was_is_no_news(tmp_path: Path) -> None:
    """Listed anew by each execution, the same tools are the same. # case L3"""
    ledger = tmp_path / "ledger"
    async with Engine("memory://") as engine:
        run = await waiting_for_approval(ledger, engine)
        [request] = await engine.requests()
        await request.approve(by="eva")
        assert await run.result(timeout=LONG) == "done"
        events = await engine.store.events(run.id)
        assert "version.changed" not in [event.type for event in events]
        checkpoint = await engine.store.checkpoint(run.id)
        assert checkpoint is not None and "+" in (checkpoint.tools_hash or ""), "the server's tools are part of the checkpoint"
