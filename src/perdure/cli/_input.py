"""What a user gives on the command line: payloads, values, files. Read whole and checked before anything is stored."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.core.errors import InvalidTrigger


def read_text(given: str, field: str) -> tuple[str, str]:
    """What `TEXT`, `@FILE` or `-` stands for, and how to name where it came from.

    Raises:
        InvalidTrigger: The file can't be read, or is no UTF-8.
    """
    if given == "-":
        return _decoded(sys.stdin.buffer.read(), "stdin", field), "stdin"
    if given.startswith("@"):
        return _decoded(_bytes(Path(given[1:]), field), given[1:], field), given[1:]
    return given, field


def read_json(given: str, field: str = "payload", *, or_text: bool = False) -> Any:
    """The JSON that `JSON`, `@FILE` or `-` stands for. `or_text`: the command has a --text that the message may name.

    Raises:
        InvalidTrigger: It is no JSON; says where it stops to be.
    """
    text, where = read_text(given, field)
    named = field if where == field else f"{field} ({where})"
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        if not text.strip():
            raise InvalidTrigger(f"{named}: it is empty, and JSON is never empty. For no value write null.", field=field) from None
        place = f"line {error.lineno}, column {error.colno}"
        hint = f" Quote a plain text as '\"…\"'{', or say --text' if or_text else ''}." if where == field and field == "payload" else ""
        raise InvalidTrigger(f"{named}: not JSON: {error.msg} at {place}.{hint}", field=field) from None
    except (ValueError, RecursionError) as error:
        raise InvalidTrigger(f"{named}: not JSON: {error}.", field=field) from None


def check_files(paths: Sequence[Path]) -> None:
    """All of them can be read: asked before the first one is stored.

    Raises:
        InvalidTrigger: Names the first that can't.
    """
    for path in paths:
        if path.is_dir():
            raise InvalidTrigger(f"attach: {str(path)!r} is a folder. Attach its files one by one.", field="attachments")
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise InvalidTrigger(f"attach: {str(path)!r} can't be read: {error.strerror}.", field="attachments") from error


def whoever(said: str | None) -> str | None:
    """Who decided, for the record: who was `said` to, also an empty name, which the engine refuses; else the user's name on this machine."""
    if said is not None:
        return said
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None


def _bytes(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidTrigger(f"{field}: {str(path)!r} can't be read: {error.strerror}.", field=field) from error


def _decoded(data: bytes, where: str, field: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTrigger(
            f"{field} ({where}): not UTF-8 text (byte {error.start:,}). Save it as UTF-8, or send the file with --attach.", field=field
        ) from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
