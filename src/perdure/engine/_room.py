"""How large a model call may be, before it is made: what is reserved for it under a shared budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from perdure.core.budget import Usage
from perdure.core.step import Step

BYTES_PER_TOKEN: Final = 4
"""Of English prose and JSON, about. Only asked where no call of the run has told its real size yet."""


class Size(NamedTuple):
    """Tokens, and US dollars."""

    tokens: int
    cost: Decimal


def size_of_call(recent: Sequence[Step], history: Sequence[bytes], *, output_limit: int | None, price: Callable[[int, int], Decimal | None]) -> Size:
    """The call's output limit plus the size of the last input, priced.

    Args:
        recent: The model steps before this one, oldest first.
        history: The stored messages.
        output_limit: The most tokens that a response may have; None: nobody said, so it is taken to be as long as the last one.
        price: What so many tokens of input and output cost; None: nobody knows, so it is what the last call cost.
    """
    last = next((used for step in reversed(recent) if (used := _usage(step)) is not None), None)
    if last is None:
        asked, answered, before = sum(map(len, history)) // BYTES_PER_TOKEN, 0, Decimal(0)
    else:
        # What the last response said is part of the next input.
        asked, answered, before = last.total_tokens, last.output_tokens, last.cost_at_least
    output = answered if output_limit is None else output_limit
    known = price(asked, output)
    return Size(asked + output, before if known is None else known)


def _usage(step: Step) -> Usage | None:
    """What a step used, where its provider told."""
    usage = None if step.row.usage is None else Usage.from_json(step.row.usage)
    return usage if usage is not None and usage.total_tokens else None
