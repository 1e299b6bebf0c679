"""A bank as an MCP server on standard input and output.

python mcp_bank.py LEDGER [NEWS]

A file beside LEDGER that ends in `.gone` names a tool that the server has no more; where there is one that ends in `.changed`, a refund takes a reason too.

Each deed is a line of the file LEDGER, and is told on the pipe NEWS once it is done. An order named `error` fails after its deed; one named `slow` is not
answered the first time.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

LEDGER = Path(sys.argv[1])
NEWS = sys.argv[2] if len(sys.argv) > 2 else None
server = MCPServer("bank")


def enter(*words: object) -> int:
    """Do a deed; how many there are now."""
    line = json.dumps(words) + "\n"
    for path in (LEDGER, *([NEWS] if NEWS else [])):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, line.encode())
        os.close(handle)
    return len(LEDGER.read_text().splitlines())


async def deed(tool: str, order: str, context: Context) -> str:
    count = enter(tool, order, dict(context.request_context.meta or {}).get("idempotency-key"))
    if order == "error":
        raise ToolError("the connection to the card network broke")
    if order == "slow" and count == 1:
        await anyio.sleep_forever()
    return f"{tool} {order}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def refund(order: str, context: Context) -> str:
    """Pay an order back."""
    return await deed("refund", order, context)


@server.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True))
async def close_order(order: str, context: Context) -> str:
    """Close an order; one that is closed stays so."""
    return await deed("close_order", order, context)


@server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False))
async def add_note(order: str, context: Context) -> str:
    """Add a note to an order."""
    return await deed("add_note", order, context)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look_up(order: str) -> str:
    """Look an order up."""
    return f"order {order}"


@server.tool()
async def mystery(order: str) -> str:
    """Nobody says what this does."""
    return "?"


async def refund_for(order: str, context: Context, reason: str = "") -> str:
    """Pay an order back, and say why."""
    return await deed("refund", order, context)


def changed() -> None:
    """Be the server that it has become."""
    gone = LEDGER.with_suffix(".gone")
    if gone.exists():
        server.remove_tool(gone.read_text())
    if LEDGER.with_suffix(".changed").exists():
        server.remove_tool("refund")
        server.add_tool(refund_for, name="refund", annotations=ToolAnnotations(destructive_hint=True))


if __name__ == "__main__":
    changed()
    server.run()
