"""What a strict provider refuses, for all three wires: one look at the conversation, one complaint or none."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

Json = dict[str, Any]


def items(value: Any) -> list[Json]:
    """A list of objects from a request body; nothing where there is none."""
    return cast(list[Json], value or [])


class Refused(Exception):
    """The request is not one that the provider accepts. The message says what a provider would say."""


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a turn. `id` is the call's for a call and for its result; `text` is arguments, result, thinking or words."""

    kind: Literal["text", "call", "result", "thinking", "file"]
    text: str = ""
    id: str = ""
    name: str = ""
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """All that one side said until the other side spoke."""

    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]

    @property
    def calls(self) -> list[Block]:
        return [each for each in self.blocks if each.kind == "call"]

    @property
    def results(self) -> list[Block]:
        return [each for each in self.blocks if each.kind == "result"]


def merged(turns: Sequence[Turn]) -> list[Turn]:
    """Neighbours of one role as one turn."""
    found: list[Turn] = []
    for turn in turns:
        if found and found[-1].role == turn.role:
            found[-1] = Turn(turn.role, found[-1].blocks + turn.blocks)
        else:
            found.append(turn)
    return found


def check(turns: Sequence[Turn], *, ids: Literal["turn", "request"]) -> None:
    """Raise `Refused` for the first thing that a strict provider does not accept.

    Args:
        turns: The conversation, neighbours merged.
        ids: Whether a call's id must be unique within its turn, or within the whole request.
    """
    if not turns:
        raise Refused("at least one message is required")
    if turns[0].role != "user":
        raise Refused("the first message must be the user's")
    if turns[-1].role != "user":
        raise Refused("the conversation must end with a user message or with tool results")
    seen: set[str] = set()
    for at, turn in enumerate(turns):
        _check_content(turn, at)
        _check_ids(turn, at, seen if ids == "request" else set())
        if turn.role == "assistant":
            _check_answered(turn, turns[at + 1], at)
        else:
            _check_results(turn, turns[at - 1] if at else None, at)


def _check_content(turn: Turn, at: int) -> None:
    if not any(each.kind != "thinking" for each in turn.blocks):
        raise Refused(f"messages.{at}: content must not be empty")
    for block in turn.blocks:
        if block.kind in {"text", "result"} and not block.text.strip():
            raise Refused(f"messages.{at}: {block.kind} content blocks must be non-empty")
        if block.kind == "call" and not _is_object(block.text):
            raise Refused(f"messages.{at}: arguments of call {block.id!r} are not a JSON object")


def _check_ids(turn: Turn, at: int, seen: set[str]) -> None:
    for block in turn.calls:
        if not block.id or block.id in seen:
            raise Refused(f"messages.{at}: tool call ids must be unique; {block.id!r} is there twice")
        seen.add(block.id)


def _check_answered(turn: Turn, after: Turn, at: int) -> None:
    answered = {each.id for each in after.results}
    missing = [each.id for each in turn.calls if each.id not in answered]
    if missing:
        raise Refused(f"messages.{at}: tool calls without a result right after them: {', '.join(missing)}")


def _check_results(turn: Turn, before: Turn | None, at: int) -> None:
    asked = {each.id for each in before.calls} if before else set[str]()
    given: set[str] = set()
    for block in turn.results:
        if block.id not in asked:
            raise Refused(f"messages.{at}: result {block.id!r} answers no tool call of the message before")
        if block.id in given:
            raise Refused(f"messages.{at}: tool call {block.id!r} has two results")
        given.add(block.id)
    kinds = [each.kind == "result" for each in turn.blocks]
    if True in kinds and kinds != sorted(kinds, reverse=True):
        raise Refused(f"messages.{at}: tool results must come first in their message")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


class Signer:
    """Signs thinking so that the provider knows it again.

    Args:
        secret: What the signatures are made with; the same secret accepts them in another process.
        bound: Sign the conversation before the block too, so that it is refused after any change there.
    """

    def __init__(self, secret: str, *, bound: bool) -> None:
        self._secret, self._bound = secret.encode(), bound

    def sign(self, thinking: str, before: Sequence[Turn]) -> str:
        signed = json.dumps([thinking, _canonical(before) if self._bound else None], ensure_ascii=True)
        return base64.b64encode(hmac.digest(self._secret, signed.encode(), hashlib.sha256)).decode()

    def check(self, turns: Sequence[Turn]) -> None:
        """Raise `Refused` for a thinking block without a signature, or with one that is not ours for exactly these bytes."""
        for at, turn in enumerate(turns):
            for place, block in enumerate(turn.blocks):
                if block.kind != "thinking":
                    continue
                if not block.signature:
                    raise Refused(f"messages.{at}.content.{place}.thinking.signature: Field required")
                if hmac.compare_digest(block.signature, self.sign(block.text, turns[:at])):
                    continue
                if self._bound and block.signature:
                    raise Refused(
                        f"messages.{at}.content.{place}: Invalid `signature` in `thinking` block. The block is bound to a different conversation"
                    )
                raise Refused(f"messages.{at}.content.{place}: Invalid `signature` in `thinking` block")


def _canonical(turns: Sequence[Turn]) -> list[Any]:
    return [[turn.role, [[each.kind, each.text, each.id, each.name] for each in turn.blocks]] for turn in turns]
