"""What a caller gives, as a run to admit: everything is checked before anything is stored."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from perdure.agents import decode, edited, encode
from perdure.core import given
from perdure.core.artifact import Artifact
from perdure.core.budget import Budget
from perdure.core.checkpoint import Checkpoint, CheckpointWrite
from perdure.core.codec import clean, dump, fingerprint
from perdure.core.commit import NewRun
from perdure.core.errors import InvalidTrigger
from perdure.core.limits import ARTIFACT_MAX, PAYLOAD_MAX
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.core.trigger import Attachment, Source, TriggerEnvelope
from perdure.engine._jobtype import JobType

File = Path | Artifact | tuple[str, bytes] | tuple[str, bytes, str]
"""An attachment: a path, stored bytes, or (filename, bytes[, media type])."""


PRIORITY_MAX: Final = 1_000_000
"""What every store's integer holds, with room to spare."""

MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(;[ -~]*)?", re.ASCII)


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
    _check_options(wish)
    value = kind.check(payload)
    if len(dump(value).encode()) > PAYLOAD_MAX:
        raise InvalidTrigger(
            f"The payload is over the limit of {PAYLOAD_MAX:,} bytes (PAYLOAD_MAX). Send large data as attachments.", field="payload"
        )
    return value


def _check_options(wish: Wish) -> None:
    for field in ("key", "concurrency_key", "thread", "trigger", "parent"):
        value = getattr(wish, field)
        given.refuse(field, None if value is None else given.text(value))
    given.refuse("run_id", None if wish.run_id is None else given.uuid(wish.run_id))
    given.refuse("delay", None if wish.delay is None else given.span(wish.delay))
    given.refuse("labels", None if wish.labels is None else given.labels(wish.labels))
    given.refuse("priority", given.whole(wish.priority, least=-PRIORITY_MAX, most=PRIORITY_MAX))
    check_budget(wish.budget)


def check_budget(budget: Any) -> None:
    """Raises `InvalidTrigger` where it is neither a budget nor None."""
    given.refuse("budget", None if budget is None or isinstance(budget, Budget) else f"must be a Budget, not {given.shown(budget)}")


async def read_file(file: File, runtime: Runtime) -> tuple[str, bytes, str] | Attachment:
    """An attachment's name, bytes and media type; or the reference, where the bytes are stored already.

    Raises:
        InvalidTrigger: It can't be read, or is too large.
    """
    given.refuse("attachments", _wrong_file(file))
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


def files_of(attachments: Any) -> list[File]:
    """The attachments one by one. Raises `InvalidTrigger` where it is one thing that only looks like several, or nothing of the kind."""
    if not isinstance(attachments, Sequence) or isinstance(attachments, (str, bytes, bytearray, memoryview)):
        raise InvalidTrigger(f"attachments: must be a list of files, not {given.shown(cast(object, attachments))}.", field="attachments")
    return list(cast("Sequence[File]", attachments))


def _wrong_file(file: Any) -> str | None:
    if isinstance(file, (Path, Artifact)):
        return None
    if not isinstance(file, tuple) or len(cast("tuple[Any, ...]", file)) not in (2, 3):
        return f"each is a Path, an Artifact, or a (name, bytes[, media type]) tuple, not {given.shown(cast(object, file))}"
    name, data, *media = cast("tuple[Any, ...]", file)
    if (wrong := given.text(name)) is not None:
        return f"each name {wrong}"
    if not isinstance(data, bytes):
        return f"the content of {given.shown(name)} must be bytes, not {given.shown(data)}"
    if media and not (isinstance(media[0], str) and MEDIA_TYPE.fullmatch(media[0])):
        return f"the media type of {given.shown(name)} is written type/subtype, not {given.shown(media[0])}"
    return None


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
        key_retention=kind.key_retention,
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
    check_budget(budget)
    given.refuse("labels", None if labels is None else given.labels(labels))
    given.refuse("message", given.words(message))
    if results is not None and not isinstance(results, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
        raise InvalidTrigger(f"results: must be a mapping of results by tool call id, not {given.shown(results)}.", field="results")
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
