"""What an execution does with the checkpoint that it loads (table T of docs/concepts/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Act(StrEnum):
    """The next thing that an execution does."""

    PARK = "park"
    ATTENTION = "attention"
    REISSUE = "reissue"
    """Answer each call with "issue it again", run none."""
    TOOLS = "tools"
    OUTPUT = "output"
    MODEL = "model"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Tail:
    """What is known about the end of a stored history."""

    waiting: bool = False
    readable: bool = True
    response: bool = False
    open_calls: int = 0
    cut: bool = False
    tool_gone: bool = False
    room: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One row of table T: the first that fits decides."""

    when: str
    then: Act


TABLE: Final = (
    Row("a wait row of this generation is open", Act.PARK),
    Row("format newer, or unreadable", Act.ATTENTION),
    Row("a response cut at the token limit, its calls not answered", Act.REISSUE),
    Row("a response with an open or approved call whose tool is gone", Act.ATTENTION),
    Row("a response with calls not all answered", Act.TOOLS),
    Row("a response without calls", Act.OUTPUT),
    Row("none, or a request; budget left", Act.MODEL),
    Row("none, or a request; budget used up", Act.LIMIT),
)


def next_act(tail: Tail) -> Act:
    """Table T as a function."""
    fits = (
        tail.waiting,
        not tail.readable,
        tail.response and tail.cut and tail.open_calls > 0,
        tail.response and tail.open_calls > 0 and tail.tool_gone,
        tail.response and tail.open_calls > 0,
        tail.response,
        tail.room,
        True,
    )
    return next(row.then for row, fit in zip(TABLE, fits, strict=True) if fit)
