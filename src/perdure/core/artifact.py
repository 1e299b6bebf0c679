"""Stored bytes, referred to by id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

REFERENCE: Final = "perdure-artifact:"
"""What a stored message holds in place of an artifact's bytes: this prefix and the id."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The description of stored bytes. `id` is their SHA-256 in hex, so equal bytes are stored once."""

    id: str
    media_type: str
    size: int
    created_at: datetime | None = None
    filename: str | None = None

    @property
    def reference(self) -> str:
        return f"{REFERENCE}{self.id}"
