"""Which call a body works for, and the current run that it sees."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from perdure.agents import Call
from perdure.context import CurrentRun, enter, leave
from perdure.core.errors import Suspend
from perdure.core.wait import WaitWrite


@dataclass(eq=False)
class Position:
    """The call at work, and what its body has asked for so far."""

    call: Call
    effect: bool
    waits: int = 0
    children: int = 0


POSITION: Final[ContextVar[Position | None]] = ContextVar("perdure_position", default=None)


class AtWork:
    """The current run and call, while a body runs."""

    def __init__(self, current: CurrentRun, position: Position) -> None:
        self._current, self._position = current, position

    def __enter__(self) -> None:
        self._tokens = enter(self._current), POSITION.set(self._position)

    def __exit__(self, *exc: object) -> None:
        leave(self._tokens[0])
        POSITION.reset(self._tokens[1])


class Outside(Suspend):
    """A body waits for something outside."""

    def __init__(self, row: WaitWrite) -> None:
        super().__init__(f"this tool waits for {row.data['event']}")
        self.row = row
