"""What a long run takes: its history once, and little beside it."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.event import EventWrite
from perdure.core.step import StepWrite
from perdure.stores.sqlite import SqliteStore
from perdure.testing.conformance._bench import Bench, Owner

STEPS = 400
RESPONSE = json.dumps({"kind": "response", "text": "x" * 560}).encode()
RESULT = json.dumps({"kind": "request", "content": "y" * 1160}).encode()
AT = datetime(2030, 1, 1, tzinfo=UTC)


async def one_step(owner: Owner, index: int, length: int) -> None:
    """Two commits: the response, then the answer to its call."""
    usage = Usage(1_000 * index, 50 * index, requests=index, tool_calls=index)
    llm = StepWrite("llm", index, "model", base=0, message=length, usage=usage.to_json(), finish_reason="tool_call", started_at=AT, finished_at=AT)
    tool = StepWrite("tool", index, "lookup", tool_call_id=f"call-{index}", position=0, base=0, message=length + 1, started_at=AT, finished_at=AT)
    told = EventWrite("step.completed", {"step": index, "model": "model", "finish_reason": "tool_call"})
    done = EventWrite("tool.completed", {"step": index, "tool": "lookup", "call": f"call-{index}"})
    await owner.commit(
        checkpoint=CheckpointWrite(index, 0, length, (RESPONSE,), "tool_call"), steps=(llm,), events=(told,), usage=usage, progress=True
    )
    await owner.commit(checkpoint=CheckpointWrite(index, 0, length + 1, (RESULT,), "tool_call"), steps=(tool,), events=(done,), progress=True)


def stored(path: Path) -> int:
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    raw.close()
    return path.stat().st_size


async def test_a_run_of_four_hundred_steps_takes_half_as_much_again_as_its_history(tmp_path: Path) -> None:
    """Steps, events, checkpoints, indexes and the room between rows included."""  # case D1
    path = tmp_path / "a.db"
    async with SqliteStore(path) as store:
        owner = await Bench(store).start()
        empty = stored(path)
        await owner.commit(checkpoint=CheckpointWrite(0, 0, 0, (RESULT,)))
        for index in range(1, STEPS + 1):
            await one_step(owner, index, 2 * index - 1)
    history = STEPS * (len(RESPONSE) + len(RESULT)) + len(RESULT)
    assert stored(path) - empty <= 1.5 * history
    assert empty <= 256 * 1024, "an empty file with all its indexes"
