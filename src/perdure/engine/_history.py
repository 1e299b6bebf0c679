"""Which part of a message history is stored already: a step writes only what it added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from perdure.core.checkpoint import Checkpoint, CheckpointWrite


class MessageLog:
    """Compares the history by identity with what is stored, and writes the difference.

    Messages that an earlier index refers to may not be overwritten: a history that was rewritten there takes a new base.
    """

    def __init__(
        self, encode: Callable[[Any], bytes], loaded: Checkpoint | None, messages: Sequence[Any], *, version: str | None, tools_hash: str | None
    ) -> None:
        self._encode, self._version, self.tools_hash = encode, version, tools_hash
        self._base = loaded.base if loaded is not None else 0
        self._index = loaded.index if loaded is not None else 0
        self._stored: list[Any] = list(messages) if loaded is not None else []
        self._bytes: list[bytes | None] = list(loaded.messages) if loaded is not None else []
        # Which length the checkpoint before the loaded index had is not known here: nothing of the loaded one is overwritten.
        self._floor = len(self._stored)

    @property
    def base(self) -> int:
        return self._base

    @property
    def length(self) -> int:
        """How many messages the newest checkpoint has."""
        return len(self._stored)

    def write(self, index: int, messages: Sequence[Any], finish_reason: str | None = None) -> CheckpointWrite:
        """The checkpoint of `index` with this history, as what has to be added."""
        if index != self._index:
            self._index, self._floor = index, len(self._stored)
        keep = self._common(messages)
        if keep < self._floor:
            self._base, keep, self._floor = self._base + 1, 0, 0
        added = [self._encode(message) for message in messages[keep:]]
        self._stored = list(messages)
        self._bytes = [*self._bytes[:keep], *added]
        return CheckpointWrite(
            index=index,
            base=self._base,
            keep=keep,
            append=tuple(added),
            finish_reason=finish_reason,
            version=self._version,
            tools_hash=self.tools_hash,
        )

    def same(self, index: int, finish_reason: str) -> CheckpointWrite:
        """A checkpoint of `index` that holds what the one before it holds: for a step that added nothing."""
        return self.write(index, self._stored, finish_reason)

    def _common(self, messages: Sequence[Any]) -> int:
        """How many leading messages are stored as they stand."""
        most = min(len(messages), len(self._stored))
        if all(map(is_, messages, self._stored)):
            return most
        for at in range(most):
            if messages[at] is not self._stored[at] and self._encode(messages[at]) != self._bytes[at]:
                return at
        return most
