"""The outside world's own book of deeds: a file, where no crash of a replica reaches it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perdure.context import current_run
from perdure.core.errors import ConfigurationError

PRIVATE: Final = 0o600


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

    `crash_everywhere` opens a new book, a file of one line for each deed, for each of its simulations.
    """

    def __init__(self) -> None:
        self._book: Path | None = None

    def open(self, book: Path) -> None:
        """Write into this file from now on."""
        self._book = book

    @property
    def deeds(self) -> dict[str, Deed]:
        """What the file says, by idempotency key."""
        deeds: dict[str, Deed] = {}
        if self._book is None or not self._book.exists():
            return deeds
        for line in self._book.read_text(encoding="utf-8").splitlines():
            key, tool, result = json.loads(line)
            deeds.setdefault(key, Deed(tool, result)).times += 1
        return deeds

    def enter(self, result: Any) -> Any:
        """The deed is done, now; its result (plain JSON) is handed back.

        Raises:
            ConfigurationError: This is not the body of an effect tool, or no book is open.
        """
        run = current_run()
        if run.key is None or run.tool is None:
            raise ConfigurationError("Only the body of an effect tool can enter a deed: declare the tool with effect().")
        if self._book is None:
            raise ConfigurationError("No book is open: pass the ledger to crash_everywhere(ledger=…).")
        line = json.dumps([run.key, run.tool, result], ensure_ascii=False) + "\n"
        book = os.open(self._book, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        try:
            os.write(book, line.encode())
        finally:
            os.close(book)
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
