"""The outside world's own book of deeds, kept where no crash of a replica reaches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.context import current_run
from perdure.core.errors import ConfigurationError


@dataclass(slots=True)
class Deed:
    """What was done under one idempotency key: by which tool, how often, with what result."""

    tool: str
    result: Any
    times: int = 0


class Ledger:
    """Which deeds were really done, as a bank's statement says it.

    A tool calls `enter` at the moment of its deed, which may be long after its body began and long before it ends:

        @agent.tool_plain(metadata=effect())
        async def refund(order: str) -> str:
            await ask_the_bank()
            return ledger.enter(f"refunded {order}")
    """

    def __init__(self) -> None:
        self.deeds: dict[str, Deed] = {}
        """By idempotency key."""

    def enter(self, result: Any) -> Any:
        """The deed is done, now; its result is handed back.

        Raises:
            ConfigurationError: This is not the body of an effect tool.
        """
        run = current_run()
        if run.key is None or run.tool is None:
            raise ConfigurationError("Only the body of an effect tool can enter a deed: declare the tool with effect().")
        self.deeds.setdefault(run.key, Deed(run.tool, result)).times += 1
        return result

    def happened(self, key: str | None) -> bool:
        """Whether the deed of this key was done."""
        return key in self.deeds

    def result(self, key: str) -> Any:
        """What the deed of this key came to.

        Raises:
            KeyError: It was not done.
        """
        return self.deeds[key].result

    def clear(self) -> None:
        """Begin a new book."""
        self.deeds.clear()
