"""The envelope that starts a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Source = Literal["python", "cli", "http", "webhook", "schedule", "run", "fork"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a trigger: a reference to an artifact, never the bytes."""

    artifact_id: str
    filename: str
    media_type: str
    size: int

    def to_json(self) -> dict[str, Any]:
        return {"artifact_id": self.artifact_id, "filename": self.filename, "media_type": self.media_type, "size": self.size}


@dataclass(frozen=True, slots=True)
class TriggerEnvelope:
    """What started a run, as it was received.

    Args:
        id: UUIDv7 of this trigger.
        source: The way in.
        trigger: Its name there: the schedule's, the webhook's, or the agent's own name.
        payload: JSON.
        key: Idempotency key, unique per agent. The same key again answers with the run that it started.
        concurrency_key: Runs that share it run one at a time, in order of admission.
        thread: The conversation that the run belongs to.
        attachments: Files by reference.
        received_at: When the trigger arrived, by the clock of the process that took it.
    """

    id: str
    source: Source
    trigger: str
    payload: Any
    key: str | None = None
    concurrency_key: str | None = None
    thread: str | None = None
    attachments: tuple[Attachment, ...] = ()
    received_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "source": self.source,
            "trigger": self.trigger,
            "payload": self.payload,
            "key": self.key,
            "concurrency_key": self.concurrency_key,
            "thread": self.thread,
            "attachments": [each.to_json() for each in self.attachments],
            "received_at": None if self.received_at is None else self.received_at.isoformat(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TriggerEnvelope:
        received = data.get("received_at")
        attachments = tuple(Attachment(**each) for each in data.get("attachments") or ())
        fields: dict[str, Any] = {**data, "attachments": attachments, "received_at": datetime.fromisoformat(received) if received else None}
        return cls(**fields)
