"""Tool results as plain JSON: what a ledger stores and hands back, and what the history shows, are one value.

Most results are plain data already. One that carries files, or Pydantic AI's `ToolReturn`, becomes an envelope, `{"kind": "perdure-result", …}`: the data, and beside it
what stood where. Data that happens to look like an envelope is put into one, so that no tool's data can pass for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

import pydantic
from pydantic_ai.messages import BinaryContent, MultiModalContent, ToolReturn, UserContent, is_multi_modal_content

from perdure.agents._messages import reference
from perdure.core.artifact import Artifact
from perdure.core.codec import clean, dump
from perdure.core.errors import UnserializableError
from perdure.core.limits import INLINE_MAX, PREVIEW_CHARS

ENVELOPE: Final = "perdure-result"
_FILE: Final[pydantic.TypeAdapter[Any]] = pydantic.TypeAdapter(MultiModalContent)
_CONTENT: Final[pydantic.TypeAdapter[Any]] = pydantic.TypeAdapter(
    str | list[UserContent] | None, config=pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)

Path = list[str | int]


class Shelf(Protocol):
    """Where bytes go and come from."""

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream", filename: str | None = None) -> Artifact: ...

    async def get(self, artifact_id: str) -> bytes: ...


async def keep(value: Any, shelf: Shelf | None = None, *, inline_max: int = INLINE_MAX) -> Any:
    """A tool's result as what may be stored: plain JSON by the rule of `core.codec`, files as references, a large one as an artifact with a preview.

    Without a shelf, large data stays where it is, and files stay in the data as base64.

    Raises:
        UnserializableError: Something in it has no JSON form; its path is named.
    """
    try:
        return await _kept(value, shelf, inline_max)
    except RecursionError as error:
        raise UnserializableError("$: it contains itself, or is nested too deeply. Return plain data.", path="$") from error


async def _kept(value: Any, shelf: Shelf | None, inline_max: int) -> Any:
    if isinstance(value, ToolReturn):
        given = cast("ToolReturn[Any]", value)
        files: list[tuple[Path, Any]] = []
        data = await _plain(given.return_value, files, shelf)
        content = await _content(given.content, shelf)
        return _envelope(
            await _small(data, shelf, inline_max), files, content=content, metadata=clean(given.metadata, path="$.metadata"), tools=clean(given.tools)
        )
    files = []
    data = await _plain(value, files, shelf)
    data = await _small(data, shelf, inline_max)
    return _envelope(data, files) if files or is_envelope(data) else data


def is_envelope(value: Any) -> bool:
    return isinstance(value, dict) and cast("dict[str, Any]", value).get("kind") == ENVELOPE


def revive(value: Any) -> Any:
    """What Pydantic AI is handed for a kept result."""
    if not is_envelope(value):
        return value
    stored = cast("dict[str, Any]", value)
    data = stored["value"]
    for path, file in cast("list[tuple[Path, Any]]", stored.get("files") or []):
        data = _put(data, path, _FILE.validate_python(file))
    if "content" not in stored:
        return data
    return ToolReturn(
        return_value=data, content=_CONTENT.validate_python(stored["content"]), metadata=stored.get("metadata"), tools=stored.get("tools")
    )


def _envelope(data: Any, files: Sequence[tuple[Path, Any]], **more: Any) -> dict[str, Any]:
    return {"kind": ENVELOPE, "value": data, "files": [[path, file] for path, file in files], **more}


async def _plain(value: Any, files: list[tuple[Path, Any]], shelf: Shelf | None) -> Any:
    found: list[tuple[Path, Any]] = []
    data = clean(_without_files(value, [], found))
    for path, file in found:
        files.append((path, await _file(file, shelf)))
    return data


def _without_files(value: Any, path: Path, found: list[tuple[Path, Any]]) -> Any:
    if is_multi_modal_content(value):
        found.append((path, value))
        return None
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, Any]", value).items()
        return {name: _without_files(each, [*path, str(name)], found) for name, each in entries}
    if isinstance(value, (list, tuple)):
        return [_without_files(each, [*path, at], found) for at, each in enumerate(cast("Sequence[Any]", value))]
    return value


async def _file(file: Any, shelf: Shelf | None) -> Any:
    return _FILE.dump_python(await shelved(file, shelf), mode="json")


async def shelved(file: Any, shelf: Shelf | None) -> Any:
    """A file without its bytes, where there is a shelf for them; anything else as it is."""
    if shelf is None or not isinstance(file, BinaryContent):
        return file
    artifact = await shelf.put(file.data, media_type=file.media_type)
    return reference(artifact.id, file.media_type, identifier=file.identifier, vendor_metadata=file.vendor_metadata)


async def _content(content: Any, shelf: Shelf | None) -> Any:
    if content is None or isinstance(content, str):
        return clean(content)
    items = [await shelved(each, shelf) for each in cast("Sequence[Any]", content)]
    return clean(_CONTENT.dump_python(items, mode="json"), path="$.content")


async def _small(data: Any, shelf: Shelf | None, inline_max: int) -> Any:
    if shelf is None:
        return data
    text = data if isinstance(data, str) else dump(data)
    raw = text.encode()
    if len(raw) <= inline_max:
        return data
    artifact = await shelf.put(raw, media_type="text/plain" if isinstance(data, str) else "application/json")
    return {
        "artifact": artifact.reference,
        "bytes": len(raw),
        "preview": text[:PREVIEW_CHARS],
        "note": f"Longer than {inline_max:,} bytes: this is the beginning.",
    }


def _put(data: Any, path: Path, file: Any) -> Any:
    if not path:
        return file
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = file
    return data


def to_plain(value: Any) -> Any:
    """`value` as plain JSON, where no shelf is at hand."""
    return clean(value)
