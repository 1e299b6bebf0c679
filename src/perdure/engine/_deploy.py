"""What differs between the agent that wrote a checkpoint and the one that goes on from it (V1). Pure.

The hash of a checkpoint has two parts: the tools that are known without running the agent, and after a `+` those that showed themselves only then (a factory's,
an MCP server's).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from perdure.agents import Call
from perdure.core.checkpoint import Checkpoint
from perdure.core.step import Step, StepWrite


def whole_hash(static: str, found: str | None) -> str:
    """What is stored with a checkpoint."""
    return static if found is None else f"{static}+{found}"


def differences(stored: Checkpoint | None, version: str | None, static: str, *, before: str | None = None) -> dict[str, Any] | None:
    """What an event says of a checkpoint that another version wrote, or one with other tools; None where nothing differs.

    Args:
        stored: The checkpoint; None: there is none yet.
        version: The agent's, as it is now.
        static: The hash of the tools that are known without running it.
        before: The version that wrote last to the run; absent: the checkpoint's.
    """
    before = before or (None if stored is None else stored.version)
    other = before is not None and version is not None and before != version
    tools = stored is not None and stored.tools_hash is not None and stored.tools_hash.partition("+")[0] != static
    return {**({"from": before, "to": version} if other else {}), "tools": tools} if other or tools else None


def found_changed(stored: str | None, found: str | None) -> bool:
    """Whether the tools that showed themselves are others. A checkpoint that was written before any had says nothing of them."""
    before = "" if stored is None else stored.partition("+")[2]
    return bool(before) and before != found


def imaginary(calls: Iterable[Call]) -> dict[str, Any] | None:
    """What the row of a response keeps of its calls whose tool never was: they are no sign of a tool that is gone."""
    unknown = [call.position for call in calls if not call.known]
    return {"unknown": unknown} if unknown else None


def tool_gone(calls: Iterable[Call], rows: Iterable[Step], *, index: int, asked: set[int | None], answered: Iterable[int]) -> bool:
    """Whether a tool is gone of which a call is open.

    Args:
        calls: The response's, with what is known of their tools today.
        rows: The steps of that index.
        index: Of the response.
        asked: Positions about which somebody was asked, or that have an effect row.
        answered: Positions whose answer is stored.
    """
    row: StepWrite | None = next((step.row for step in rows if step.row.kind == "llm" and step.row.index == index), None)
    done = set(answered)
    never = None if row is None else set(cast("dict[str, list[int]]", row.input or {}).get("unknown", []))
    # Where the row is another run's (a fork's first step), only a call that something is known of can be told from one whose tool never was.
    return any(
        not call.known and call.position not in done and (call.position in asked or (never is not None and call.position not in never))
        for call in calls
    )
