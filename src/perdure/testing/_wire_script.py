"""What a provider server does with one request: a reply of the script, and how the wire treats it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from perdure.testing.models import Reply, say

How = Literal["cut", "drop", "reset", "hold"]
"""`cut`: the HTTP body ends cleanly. `drop`: the connection is closed in the middle of the body. `reset`: it is reset (RST). `hold`: nothing more comes
until the server is told to go on."""

Where = Literal["piece", "event", "block", "finish"]
"""`piece`: after the last piece of the content, its block still open. `event`: there, and half of the next event. `block`: after the last block was
closed, before the finish part. `finish`: after the finish part, before whatever the wire sends last."""

Garbage = Literal["json", "utf8", "frame"]
"""`json`: an event that is no JSON. `utf8`: an event that is no UTF-8. `frame`: a chunk of the HTTP body whose length is no number."""

GARBAGE: Final = {"json": b'data: {"type": "x", "del\n\n', "utf8": b'data: {"type": "\xff\xfe"}\n\n'}


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply and what goes wrong with it on the wire. Nothing, by default.

    Args:
        reply: What is said. Its `fault`s mean `cut` and `reset` after the last piece; its `error` is sent as an HTTP status.
        how: How the stream breaks off, at `where`.
        unfinished: The stream ends as it should, but its finish part is left out.
        finish: What the finish part says in place of the truth: a finish reason of Pydantic AI, or the provider's own word.
        garbage: What comes in the middle of the content.
        error_event: The error that the stream itself reports in the middle of the content.
    """

    reply: Reply = field(default_factory=Reply)
    how: How | None = None
    where: Where = "piece"
    unfinished: bool = False
    finish: str | None = None
    garbage: Garbage | None = None
    error_event: str | None = None

    @property
    def leaves_no_response(self) -> bool:
        """True where the conversation stays as it was, so that the next request finds the script at the same place."""
        # Only a clean end after the finish part goes unnoticed: clients read the body to its end.
        broken = self.how in {"drop", "reset"} or (self.how == "cut" and self.where != "finish")
        return self.reply.leaves_no_response or broken or self.unfinished or self.garbage is not None or self.error_event is not None


def answer(reply: Reply | Answer) -> Answer:
    """A reply as the wire gives it; the faults that a `Reply` itself knows become those of the wire."""
    if isinstance(reply, Answer):
        return reply
    return Answer(replace(reply, fault=None), how=reply.fault)


def _changed(reply: Reply | Answer | str, **faults: Any) -> Answer:
    return replace(answer(say(reply) if isinstance(reply, str) else reply), **faults)


def break_off(reply: Reply | Answer | str, how: How, where: Where = "piece") -> Answer:
    """The stream of `reply` ends too early."""
    return _changed(reply, how=how, where=where)


def hold(reply: Reply | Answer | str, where: Where = "piece") -> Answer:
    """The stream stands still there until `ProviderServer.release()`, then goes on."""
    return _changed(reply, how="hold", where=where)


def unfinished(reply: Reply | Answer | str) -> Answer:
    """The stream ends as it should, but without its finish part."""
    return _changed(reply, unfinished=True)


def finish_as(reply: Reply | Answer | str, word: str) -> Answer:
    """The finish part says `word`, whatever is true: a gateway that rewrites `length` to `tool_call`, for example."""
    return _changed(reply, finish=word)


def garble(reply: Reply | Answer | str, garbage: Garbage = "json") -> Answer:
    """Something that is no part of the protocol comes in the middle of the content."""
    return _changed(reply, garbage=garbage)


def error_event(reply: Reply | Answer | str, kind: str = "overloaded_error") -> Answer:
    """The stream itself reports an error in the middle of the content, long after the HTTP 200."""
    return _changed(reply, error_event=kind)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a response carries besides its content. `place` is the number of turns before it."""

    model: str
    place: int
    created: int


Stage = Literal["open", "piece", "close", "finish", "end"]


@dataclass(frozen=True, slots=True)
class WireEvent:
    """One event of a stream, and where in the response it stands."""

    data: bytes
    stage: Stage


def places(script: Sequence[Reply | Answer]) -> list[list[Answer]]:
    """The script by place: what is given there on the first request, the second, and so on."""
    found: list[list[Answer]] = []
    tries: list[Answer] = []
    for each in map(answer, script):
        tries.append(each)
        if not each.leaves_no_response:
            found.append(tries)
            tries = []
    return [*found, tries] if tries else found


def pick(tries: Sequence[Answer], given: int) -> Answer:
    """The answer to request number `given` (from 0) at one place; the last one from then on."""
    return tries[min(given, len(tries) - 1)]


def pieces(text: str, size: int = 8) -> Iterator[str]:
    for at in range(0, len(text), size):
        yield text[at : at + size]


def break_at(events: Sequence[WireEvent], where: Where) -> tuple[list[WireEvent], list[WireEvent], bytes]:
    """What is sent before the break, what would have come, and the half event between them."""
    stages = [each.stage for each in events]
    if where == "finish":
        at = len(stages) - stages[::-1].index("finish")
    elif where == "block":
        at = stages.index("finish")
    else:
        at = max((place + 1 for place, stage in enumerate(stages) if stage == "piece"), default=stages.index("finish"))
    half = events[at].data[: len(events[at].data) // 2] if where == "event" else b""
    return list(events[:at]), list(events[at:]), half


def middle(events: Sequence[WireEvent]) -> int:
    """The place in the middle of the content, where something else can come in between."""
    content = [place for place, each in enumerate(events) if each.stage == "piece"]
    return content[len(content) // 2] if content else next(place for place, each in enumerate(events) if each.stage == "finish")
