"""Files of one execution: references in the messages, bytes only on the way to the model, each read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, cast

from pydantic_ai.messages import BinaryContent, BinaryImage, FilePart, ModelMessage, ToolReturnPart, UserPromptPart

from perdure.agents._messages import FileReference, referred
from perdure.agents._values import Shelf, shelved
from perdure.core.artifact import REFERENCE
from perdure.core.errors import ArtifactNotFoundError


class Files:
    """What one session knows of the files that its messages refer to."""

    def __init__(self, shelf: Shelf | None) -> None:
        self._shelf = shelf
        self._bytes: dict[str, bytes] = {}
        self._last: tuple[list[ModelMessage], list[ModelMessage]] = ([], [])

    async def fetch(self, history: Sequence[ModelMessage]) -> None:
        """Read what the history refers to and is not at hand.

        Raises:
            ArtifactNotFoundError: An artifact is gone.
        """
        for message in history:
            for part in message.parts:
                for artifact_id in _references(part):
                    if artifact_id not in self._bytes:
                        if self._shelf is None:
                            raise ArtifactNotFoundError(artifact_id)
                        self._bytes[artifact_id] = await self._shelf.get(artifact_id)

    async def restore(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """The messages with the bytes in place of the references. A new list; what is stored stays as it is.

        Of a history that has grown, only what was added is looked at.
        """
        before, filled = self._last
        same = common(messages, before)
        await self.fetch(messages[same:])
        restored = [*filled[:same], *(self._restored(message) for message in messages[same:])]
        self._last = (list(messages), restored)
        return list(restored)

    async def without_bytes(self, message: ModelMessage) -> ModelMessage:
        """The message with references in place of bytes: of a prompt, of a model's own files."""
        if self._shelf is None or not any(_has_bytes(part) for part in message.parts):
            return message
        parts: Any = [await self._shelve(part) for part in message.parts]
        return replace(message, parts=parts)

    def _restored(self, message: ModelMessage) -> ModelMessage:
        parts: Any = [self._fill(part) for part in message.parts]
        return message if all(new is old for new, old in zip(parts, message.parts, strict=True)) else replace(message, parts=parts)

    def _fill(self, part: Any) -> Any:
        if not any(_references(part)):
            return part
        if isinstance(part, UserPromptPart):
            items = [part.content] if isinstance(part.content, str) else part.content
            return replace(part, content=[self._filled(item) for item in items])
        if isinstance(part, ToolReturnPart):
            return replace(cast("ToolReturnPart[Any]", part), content=self._filled_deep(part.content))
        if isinstance(part, FilePart):
            content = BinaryContent(self._bytes[_own_reference(part) or ""], media_type=part.content.media_type, identifier=part.content.identifier)
            return replace(part, content=BinaryContent.narrow_type(content))
        return part

    def _filled(self, item: Any) -> Any:
        artifact_id = referred(item)
        if artifact_id is None:
            return item
        file = cast("FileReference", item)
        content = BinaryContent(
            self._bytes[artifact_id], media_type=file.media_type, identifier=file.identifier, vendor_metadata=file.vendor_metadata
        )
        return BinaryContent.narrow_type(content)

    def _filled_deep(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled_deep(each) for name, each in cast("dict[str, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self._filled_deep(each) for each in cast("Sequence[Any]", value)]
        return self._filled(value)

    async def _shelve(self, part: Any) -> Any:
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            return replace(part, content=[await self._shelved(item) for item in part.content])
        if isinstance(part, FilePart) and _own_reference(part) is None:
            assert self._shelf is not None
            artifact = await self._shelf.put(part.content.data, media_type=part.content.media_type)
            self._bytes[artifact.id] = part.content.data
            # A file part has no place for a URL: its bytes are the reference.
            data = artifact.reference.encode()
            kind = BinaryImage if isinstance(part.content, BinaryImage) else BinaryContent
            return replace(part, content=kind(data, media_type=part.content.media_type, identifier=part.content.identifier))
        return part

    async def _shelved(self, item: Any) -> Any:
        kept = await shelved(item, self._shelf)
        if kept is not item and (artifact_id := referred(kept)) is not None:
            self._bytes[artifact_id] = item.data
        return kept


def common(one: Sequence[ModelMessage], other: Sequence[ModelMessage]) -> int:
    """How many leading messages are the same objects."""
    shorter = min(len(one), len(other))
    if all(map(is_, one, other)):
        return shorter
    return next(at for at in range(shorter) if one[at] is not other[at])


def _own_reference(part: FilePart) -> str | None:
    data = part.content.data
    return data[len(REFERENCE) :].decode() if data.startswith(REFERENCE.encode()) else None


def _has_bytes(part: Any) -> bool:
    if isinstance(part, FilePart):
        return _own_reference(part) is None
    return isinstance(part, UserPromptPart) and not isinstance(part.content, str) and any(isinstance(item, BinaryContent) for item in part.content)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, (UserPromptPart, ToolReturnPart)):
        yield from _deep(part.content)
    elif isinstance(part, FilePart) and (own := _own_reference(part)) is not None:
        yield own


def _deep(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        return
    if (artifact_id := referred(value)) is not None:
        yield artifact_id
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _deep(each)
    elif isinstance(value, (list, tuple)):
        for each in cast("Sequence[Any]", value):
            yield from _deep(each)
