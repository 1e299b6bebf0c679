"""A process with an agent whose tools are an MCP server's: `python mcp_payer.py DATABASE LEDGER NEWS TOOL`. It starts one run, and is killed in it."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import CallToolFunc, MCPToolset

from perdure import Engine, current_run
from perdure.testing.models import Reply, ScriptedModel, call, say

BANK = Path(__file__).with_name("mcp_bank.py")
LEASE = timedelta(seconds=1)
"""Short: whoever comes after this process's death has to wait for its end."""


async def with_key(ctx: RunContext[Any], call_tool: CallToolFunc, name: str, args: dict[str, Any]) -> Any:
    """Pass the call's idempotency key on, as MCP's request metadata."""
    return await call_tool(name, args, metadata={"idempotency-key": current_run().key})


def agent_of(ledger: Path, news: Path | None, *script: Reply) -> Agent[None, str]:
    """An agent at the bank's counter. Each execution starts the server anew and ends it."""
    arguments = [str(BANK), str(ledger), *([str(news)] if news else [])]
    transport = StdioTransport(command=sys.executable, args=arguments, keep_alive=False, log_file=ledger.with_suffix(".log"))
    return Agent(ScriptedModel([*script, say("done")]), name="payer", toolsets=[MCPToolset(transport, id="bank", process_tool_call=with_key)])


async def main(database: str, ledger: str, news: str, tool: str) -> None:
    engine = Engine(f"sqlite:///{database}", lease=LEASE)
    payer = engine.agent(agent_of(Path(ledger), Path(news), call(tool, order="slow")))
    async with engine:
        await payer.run({}, key="once")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
