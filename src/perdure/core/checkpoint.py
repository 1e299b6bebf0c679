"""The message history after a step, stored by what it added."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

FORMAT: Final = 1
"""The newest checkpoint format that this version writes and reads. A worker claims nothing newer."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One row: the history of `(generation, index)` is the first `length` messages of message list `base`.

    Index 0 is the start message; the first model call is step 1. `messages` are encoded, one each.
    """

    run_id: str
    generation: int
    index: int
    base: int
    length: int
    finish_reason: str | None
    created_at: datetime
    format: int = FORMAT
    version: str | None = None
    tools_hash: str | None = None
    messages: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """The history of `(generation, index)`: the first `keep` messages of `base`, then `append`.

    An equal (generation, index) is replaced. Messages of `base` at `keep` and later are replaced too, so `keep` may not be
    below the length of a checkpoint with another index on that base: a rewritten history takes a new base and `keep=0`.
    """

    index: int
    base: int
    keep: int
    append: tuple[bytes, ...]
    finish_reason: str | None = None
    format: int = FORMAT
    version: str | None = None
    tools_hash: str | None = None
