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

from perdure import Engine, RunHandle, Waiting
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
