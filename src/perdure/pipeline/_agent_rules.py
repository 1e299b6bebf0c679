"""What tools declare about themselves, as far as a pipeline by itself can keep it. What it can't keep is refused by name, never passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.toolsets import FunctionToolset

from perdure.approvals import approval_rule
from perdure.core.errors import ConfigurationError
from perdure.effects import effect_rule


def check_agent(agent: Agent[Any, Any]) -> None:
    """Check what is known of the agent's tools before it runs; tools that only appear later are checked when they are called.

    Raises:
        ConfigurationError: A tool declares what an agent phase can't keep; it is named.
    """
    for toolset in agent.toolsets:
        if isinstance(toolset, FunctionToolset):
            for name, tool in toolset.tools.items():
                check_tool(name, tool.metadata)


def check_tool(name: str, metadata: Mapping[str, Any] | None) -> None:
    """Raises a `ConfigurationError` unless an agent phase can keep what this tool declares."""
    effect, approval = effect_rule(metadata), approval_rule(metadata)
    wants: list[str] = []
    if approval is not None:
        # Whoever answers a paused job says who they are; nothing in a pipeline checks it.
        wants += [f"approve({each}=…)" for each in ("approvers", "not_requester") if getattr(approval, each)]
        wants += ["approve(quorum=…)"] if approval.quorum > 1 else []
    if effect is not None:
        # A key that holds over jobs needs a ledger of all of them; rows of a transaction need the engine's store.
        wants += ["effect(key=…)"] if effect.key is not None else []
        wants += ["effect('transaction')"] if effect.transaction else []
    if wants:
        raise ConfigurationError(
            f"Tool {name!r} declares {' and '.join(wants)}, which an agent phase can't keep. Run the agent with an engine (`engine.agent(…)`), or leave it out.",
            tool=name,
        )
