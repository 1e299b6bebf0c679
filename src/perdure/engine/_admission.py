"""What a caller gives, as a run to admit: everything is checked before anything is stored."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.agents import decode, edited, encode
from perdure.core.artifact import Artifact
from perdure.core.budget import Budget
from perdure.core.checkpoint import Checkpoint, CheckpointWrite
from perdure.core.codec import clean, dump, fingerprint
from perdure.core.commit import NewRun
from perdure.core.errors import InvalidTrigger
from perdure.core.limits import ARTIFACT_MAX, KEY_MAX, PAYLOAD_MAX
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.core.trigger import Attachment, Source, TriggerEnvelope
from perdure.engine._jobtype import JobType

File = Path | Artifact | tuple[str, bytes] | tuple[str, bytes, str]
"""An attachment: a path, stored bytes, or (filename, bytes[, media type])."""


PRIORITY_MAX = 1_000_000
"""What every store's integer holds, with room to spare."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one start; see `DurableAgent.start`."""

    key: str | None = None
    concurrency_key: str | None = None
    thread: str | None = None
    budget: Budget | None = None
    priority: int = 0
    labels: Mapping[str, str] | None = None
    delay: timedelta | None = None
    run_id: str | None = None
    source: Source = "python"
    trigger: str | None = None
    parent: str | None = None


def checked(kind: JobType, payload: Any, wish: Wish) -> Any:
    """The payload as it is stored.

    Raises:
        InvalidTrigger: What is wrong, by its field.
    """
    value = kind.check(payload)
    if len(dump(value).encode()) > PAYLOAD_MAX:
        raise InvalidTrigger(
            f"The payload is over the limit of {PAYLOAD_MAX:,} bytes (PAYLOAD_MAX). Send large data as attachments.", field="payload"
        )
    for field in ("key", "concurrency_key", "thread"):
        given = getattr(wish, field)
        if given is not None and not 0 < len(given) <= KEY_MAX:
            raise InvalidTrigger(f"{field}: must have 1 to {KEY_MAX} characters (KEY_MAX); it has {len(given)}.", field=field)
    if not isinstance(wish.priority, int) or abs(wish.priority) > PRIORITY_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidTrigger(f"priority: a whole number of at most {PRIORITY_MAX} either way, not {wish.priority!r}.", field="priority")
    return value


async def read_file(file: File, runtime: Runtime) -> tuple[str, bytes, str] | Attachment:
    """An attachment's name, bytes and media type; or the reference, where the bytes are stored already.

    Raises:
        InvalidTrigger: It can't be read, or is too large.
    """
    if isinstance(file, Artifact):
        return Attachment(file.id, file.filename or file.id, file.media_type, file.size)
    if isinstance(file, Path):
        try:
            data = await runtime.in_thread(file.read_bytes)
        except OSError as error:
            raise InvalidTrigger(f"attachments: {str(file)!r} can't be read: {error.strerror}.", field="attachments") from error
        name, media = file.name, None
    else:
        name, data, media = file if len(file) == 3 else (*file, None)
    if len(data) > ARTIFACT_MAX:
        raise InvalidTrigger(f"attachments: {name!r} has {len(data):,} bytes; the limit is {ARTIFACT_MAX:,} (ARTIFACT_MAX).", field="attachments")
    return clean(name), data, media or mimetypes.guess_type(name)[0] or "application/octet-stream"


def new_run(kind: JobType, payload: Any, wish: Wish, attachments: Sequence[Attachment], runtime: Runtime) -> NewRun:
    """The run to admit, of a checked payload and stored attachments."""
    envelope = TriggerEnvelope(
        id=runtime.new_id(),
        source=wish.source,
        trigger=wish.trigger or kind.name,
        payload=payload,
        key=clean(wish.key),
        concurrency_key=clean(wish.concurrency_key),
        thread=clean(wish.thread),
        attachments=tuple(attachments),
        received_at=runtime.now(),
    )
    return NewRun(
        id=wish.run_id or runtime.new_id(),
        agent=kind.name,
        trigger=envelope,
        payload_hash=fingerprint([payload, [each.artifact_id for each in attachments]]),
        budget=wish.budget or kind.budget,
        priority=wish.priority,
        labels=_labels(wish.labels),
        delay=wish.delay,
        parent_run=wish.parent,
    )


def fork_of(
    run: Run,
    checkpoint: Checkpoint,
    runtime: Runtime,
    *,
    message: str | None,
    results: Mapping[str, Any] | None,
    budget: Budget | None,
    labels: Mapping[str, str] | None,
) -> NewRun:
    """A new run that starts from another's checkpoint, with one thing changed.

    Raises:
        InvalidTrigger: The change does not fit the history.
    """
    messages = edited([decode(each) for each in checkpoint.messages], message=message, results=results)
    stored = tuple(encode(each) for each in messages)
    return NewRun(
        id=runtime.new_id(),
        agent=run.agent,
        trigger=replace(run.trigger, id=runtime.new_id(), source="fork", key=None, received_at=runtime.now()),
        payload_hash=fingerprint(run.trigger.payload),
        budget=budget or run.budget,
        priority=run.priority,
        labels={**run.labels, **_labels(labels)},
        parent_run=run.id,
        checkpoint=CheckpointWrite(checkpoint.index, 0, 0, stored, checkpoint.finish_reason, version=checkpoint.version),
    )


def _labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {clean(name): clean(str(value)) for name, value in (labels or {}).items()}
