"""Messages as bytes, and the message that starts a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, cast

from pydantic_ai.messages import (
    AudioUrl,
    CompactionPart,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)

from perdure.core.artifact import REFERENCE
from perdure.core.codec import clean
from perdure.core.trigger import Attachment, TriggerEnvelope

FileReference = ImageUrl | AudioUrl | VideoUrl | DocumentUrl


_PLAIN: Final[frozenset[type]] = frozenset(
    (SystemPromptPart, UserPromptPart, ToolReturnPart, NativeToolReturnPart, TextPart, ThinkingPart, ToolCallPart, NativeToolCallPart, CompactionPart)
)
"""Parts whose own fields are None by default, wherever they may be None. In others None may be the news: the settings that a part records, for one."""


def encode(message: ModelMessage) -> bytes:
    """One message as JSON.

    Fields that say nothing are left out, which is a third of what a short message takes: they are the same nothing when it is read.
    """
    return ModelMessagesTypeAdapter.dump_json([message], exclude_none=_says_no_other_nothing(message))[1:-1]


def _says_no_other_nothing(message: ModelMessage) -> bool:
    """Whether every None in this message is a field that may be left out: none is one that must be there, and none lies within an object of somebody else's."""
    if not all(map(_is_plain, message.parts)):
        return False
    return _is_data(message.metadata) and (isinstance(message, ModelRequest) or _is_data(message.provider_details))


def _is_plain(part: object) -> bool:
    # A tool may answer None, and its part can't be read without an answer.
    return type(part) in _PLAIN and getattr(part, "content", "") is not None and all(map(_is_data, vars(part).values()))


def _is_data(value: Any) -> bool:
    if value is None or isinstance(value, (str, int, float, datetime, RetryInfo)):
        return True
    if isinstance(value, FileReference):
        return _is_data(value.vendor_metadata)
    if isinstance(value, dict):
        return all(map(_is_data, cast("dict[Any, Any]", value).values()))
    return isinstance(value, (list, tuple)) and all(map(_is_data, cast("Sequence[Any]", value)))


def decode(data: bytes) -> ModelMessage:
    """The message that `encode` wrote. Inert: no stored data names code to run.

    Raises:
        pydantic.ValidationError: Not a message that this version of Pydantic AI reads.
    """
    return ModelMessagesTypeAdapter.validate_json(b"[" + data + b"]")[0]


def decode_all(stored: Iterable[bytes]) -> list[ModelMessage]:
    """A whole history at once, which is faster than one by one."""
    return ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(stored) + b"]")


def ends_on_response(messages: Sequence[ModelMessage]) -> bool:
    """Whether the history ends on a response."""
    return bool(messages) and isinstance(messages[-1], ModelResponse)


def text_of(response: ModelResponse) -> str:
    """The text of a response: its text parts, put together as they streamed."""
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def last_text(messages: Sequence[ModelMessage], since: int = 0) -> str:
    """The newest text that the model wrote, of the messages from `since` on; empty where it wrote none."""
    return next((text for message in reversed(messages[since:]) if isinstance(message, ModelResponse) and (text := text_of(message))), "")


def start_message(trigger: TriggerEnvelope) -> str | list[UserContent]:
    """What a new run tells the model first: the trigger as a fenced JSON block, then each attachment with its name before it."""
    shown = {"source": trigger.source, "trigger": trigger.trigger, "payload": clean(trigger.payload)}
    text = f"```json\n{json.dumps(shown, ensure_ascii=False, indent=2, allow_nan=False)}\n```"
    if not trigger.attachments:
        return text
    content: list[UserContent] = [text]
    for number, attachment in enumerate(trigger.attachments, start=1):
        content += [_label(number, attachment), reference(attachment.artifact_id, attachment.media_type, identifier=attachment.filename)]
    return content


def _label(number: int, attachment: Attachment) -> str:
    name = json.dumps(clean(attachment.filename), ensure_ascii=False)
    return f"Attachment {number}: {name}, {attachment.media_type}, {attachment.size:,} bytes"


def reference(artifact_id: str, media_type: str, *, identifier: str | None = None, vendor_metadata: dict[str, Any] | None = None) -> FileReference:
    """A file part that holds no bytes: `perdure-artifact:<id>`."""
    kinds: dict[str, type[FileReference]] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    kind = kinds.get(media_type.partition("/")[0], DocumentUrl)
    return kind(url=f"{REFERENCE}{artifact_id}", media_type=media_type, identifier=identifier, vendor_metadata=vendor_metadata)


def referred(item: object) -> str | None:
    """The artifact that a file part refers to, if it does."""
    if isinstance(item, (ImageUrl, AudioUrl, VideoUrl, DocumentUrl)) and item.url.startswith(REFERENCE):
        return item.url[len(REFERENCE) :]
    return None
