"""A provider on a real socket of this machine, as strict as the strictest and as unreliable as the script wants it.

It speaks the streaming wire formats of OpenAI chat completions, OpenAI Responses and Anthropic messages, so that the real client libraries can be
pointed at it: what a library makes of a broken stream is seen only there.

    async with ProviderServer([call("refund", order="7"), break_off(say("Refun"), "reset"), say("Refunded.")]) as server:
        agent = Agent(server.anthropic_model())

The script is read by place, as that of `ScriptedModel`: the reply to a conversation with three assistant turns is the fourth, however often the
client was restarted. The replies are those of `perdure.testing.models`; the faults of the wire are here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, cast

from pydantic_ai.exceptions import ModelHTTPError

from perdure.core.runtime import RealRuntime, Runtime
from perdure.testing._wire_anthropic import AnthropicWire
from perdure.testing._wire_chat import ChatWire
from perdure.testing._wire_http import Exchange, HttpRequest, read_request
from perdure.testing._wire_responses import ResponsesWire
from perdure.testing._wire_script import (
    GARBAGE,
    Answer,
    Garbage,
    How,
    Stamp,
    Where,
    WireEvent,
    answer,
    break_at,
    break_off,
    error_event,
    finish_as,
    garble,
    hold,
    middle,
    pick,
    places,
    unfinished,
)
from perdure.testing._wire_strict import Json, Refused, Signer, Turn, check
from perdure.testing.models import Reply

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

LOOPBACK: Final[dict[str, Any]] = {"verify": False, "trust_env": False}
"""For the client libraries' own HTTP clients: no certificates to load (there is no TLS here), and no proxy between two ends of one machine."""

WireName = Literal["openai-chat", "openai-responses", "anthropic"]


class Wire(Protocol):
    """One wire format: how it reads a request, speaks a response and complains.

    `signs`: it signs thinking. `prefix`: what stands before the data of an event of its stream.
    """

    name: WireName
    path: str
    signs: bool
    prefix: bytes

    def conversation(self, body: Json) -> list[Turn]: ...
    def events(self, answer: Answer, stamp: Stamp, signature: str | None) -> Iterator[WireEvent]: ...
    def error(self, status: int, message: str) -> Json: ...
    def error_event(self, kind: str) -> bytes: ...
    def headers(self, number: int) -> dict[str, str]: ...


WIRES: tuple[Wire, ...] = (cast(Wire, ChatWire()), cast(Wire, ResponsesWire()), cast(Wire, AnthropicWire()))


@dataclass(slots=True)
class Asked:
    """One request as it came over the wire, and what became of it.

    `place` counts the assistant turns in it, `try_no` (from 1) the requests of this conversation at this place. `refusal` is why it was refused.
    `hung_up` is True where the client closed the connection before the answer was over.
    """

    number: int
    wire: WireName
    headers: dict[str, str]
    body: Json
    turns: list[Turn] = field(default_factory=list[Turn])
    place: int = 0
    try_no: int = 1
    status: int = 200
    refusal: str | None = None
    hung_up: bool = False


WireScript = Sequence[Reply | Answer] | Callable[[Asked], Reply | Answer]


class ProviderServer:
    """A provider that listens on loopback while the context is open.

    Args:
        script: The replies, by place; or a function of the request.
        ids: Whether the id of a tool call must be unique within its turn or within the whole request.
        bind_thinking: Sign the conversation before a thinking block too, so that it is refused after any change there.
        secret: What thinking is signed with; two servers with one secret accept each other's blocks.
        strict: Refuse, with a 400 in the provider's own form, what a strict provider refuses. Off, anything goes.
        runtime: Where the seconds of a slow reply pass.
    """

    requests: list[Asked]
    """Every request that reached the wire, in order: retries of a client library too."""

    def __init__(
        self,
        script: WireScript,
        *,
        ids: Literal["turn", "request"] = "turn",
        bind_thinking: bool = False,
        secret: str = "loopback",
        strict: bool = True,
        runtime: Runtime | None = None,
    ) -> None:
        self._script = script
        self._places = [] if callable(script) else places(script)
        self._ids: Literal["turn", "request"] = ids
        self._signer = Signer(secret, bound=bind_thinking)
        self._strict = strict
        self._runtime = runtime or RealRuntime()
        self._given: dict[tuple[str, int], int] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._clients: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._released = asyncio.Event()
        self._news = asyncio.Condition()
        self.requests = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for close in self._clients:
            await close()
        for writer in self._connections.values():
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(list(self._connections))
        await self._server.wait_closed()

    @property
    def base_url(self) -> str:
        """Where it listens, without a path: `http://127.0.0.1:<port>`."""
        assert self._server is not None, "The server listens only inside `async with`."
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def refused(self) -> list[Asked]:
        """The requests that were refused for what was in them. A gate that works leaves this empty."""
        return [each for each in self.requests if each.refusal is not None]

    async def until_asked(self, count: int) -> None:
        """Wait until that many requests have come."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)

    async def until_hung_up(self, count: int) -> None:
        """Wait until that many clients have closed the connection before their answer was over."""
        async with self._news:
            await self._news.wait_for(lambda: sum(each.hung_up for each in self.requests) >= count)

    def release(self) -> None:
        """Let every held stream go on, those that come later too."""
        self._released.set()

    def openai_chat_model(self, name: str = "gpt-4.1", **model: Any) -> OpenAIChatModel:
        """The real model over the real `openai` client with its own retries as they are by default. Needs the extra `openai`."""
        from pydantic_ai.models.openai import OpenAIChatModel

        return OpenAIChatModel(name, provider=self._openai(), **model)

    def openai_responses_model(self, name: str = "gpt-5", **model: Any) -> OpenAIResponsesModel:
        """The real model over the real `openai` client. Needs the extra `openai`."""
        from pydantic_ai.models.openai import OpenAIResponsesModel

        return OpenAIResponsesModel(name, provider=self._openai(), **model)

    def anthropic_model(self, name: str = "claude-sonnet-4-6", **model: Any) -> AnthropicModel:
        """The real model over the real `anthropic` client. Needs the extra `anthropic`."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = AsyncAnthropic(base_url=self.base_url, api_key="loopback", http_client=DefaultAsyncHttpxClient(**LOOPBACK))
        self._clients.append(client.close)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client), **model)

    def _openai(self) -> Any:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        from pydantic_ai.providers.openai import OpenAIProvider

        client = AsyncOpenAI(base_url=f"{self.base_url}/v1", api_key="loopback", http_client=DefaultAsyncHttpxClient(**LOOPBACK))
        self._clients.append(client.close)
        return OpenAIProvider(openai_client=client)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while (request := await read_request(reader)) is not None:
                await self._respond(request, reader, Exchange(writer))
                if writer.is_closing():
                    break
        except ConnectionError:
            pass  # the client went away while it was being answered: `hung_up` says so
        finally:
            writer.close()
            del self._connections[task]

    async def _respond(self, request: HttpRequest, reader: asyncio.StreamReader, exchange: Exchange) -> None:
        wire = next((each for each in WIRES if each.path == request.path), None)
        if wire is None or request.method != "POST":
            known = ", ".join(each.path for each in WIRES)
            await exchange.send_json(404, WIRES[0].error(404, f"There is no {request.method} {request.path} here, only POST {known}."), {})
            return
        asked = Asked(number=len(self.requests) + 1, wire=wire.name, headers=request.headers, body={})
        chosen, refusal = self._read(wire, request, asked)
        self.requests.append(asked)
        async with self._news:
            self._news.notify_all()
        if chosen is None:
            asked.status, asked.refusal = 400, refusal
            await exchange.send_json(400, wire.error(400, refusal), wire.headers(asked.number))
            return
        try:
            await self._speak(wire, asked, chosen, reader, exchange)
        except ConnectionError:
            asked.hung_up = True
            raise
        finally:
            async with self._news:
                self._news.notify_all()

    def _read(self, wire: Wire, request: HttpRequest, asked: Asked) -> tuple[Answer | None, str]:
        """What the request gets: the script's answer, or a refusal in words."""
        try:
            asked.body = cast(Json, json.loads(request.body))
            if not asked.body.get("stream"):
                raise Refused("this server only streams: set `stream` to true")
            asked.turns = wire.conversation(asked.body)
            asked.place = sum(turn.role == "assistant" for turn in asked.turns)
            if self._strict:
                check(asked.turns, ids=self._ids)
                if wire.signs:
                    self._signer.check(asked.turns)
            return self._choose(asked), ""
        except Refused as refused:
            return None, str(refused)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return None, f"the request can't be read: {type(error).__name__}: {error}"

    def _choose(self, asked: Asked) -> Answer:
        key = (_first_words(asked.turns), asked.place)
        given = self._given.get(key, 0)
        self._given[key], asked.try_no = given + 1, given + 1
        if callable(self._script):
            return answer(self._script(asked))
        if asked.place >= len(self._places):
            raise Refused(f"the script has {len(self._places)} replies and the conversation already holds {asked.place} assistant turns")
        return pick(self._places[asked.place], given)

    async def _speak(self, wire: Wire, asked: Asked, chosen: Answer, reader: asyncio.StreamReader, exchange: Exchange) -> None:
        reply = chosen.reply
        if isinstance(reply.error, ModelHTTPError):
            asked.status = reply.error.status_code
            await self._pause(reply)
            default = {"error": f"HTTP {asked.status}"}
            body = wire.error(asked.status, f"HTTP {asked.status}") if reply.error.body in (None, default) else reply.error.body
            await exchange.send_json(asked.status, body, {**wire.headers(asked.number), **(reply.error.headers or {})})
            return
        if reply.error is not None:
            exchange.reset()
            return
        events = list(wire.events(chosen, self._stamp(asked), self._signature(wire, asked, reply)))
        if chosen.unfinished:
            events = [each for each in events if each.stage != "finish"]
        await exchange.open_stream(wire.headers(asked.number))
        if chosen.garbage or chosen.error_event:
            await self._interrupt(wire, chosen, events, exchange)
        elif chosen.how is None:
            await self._send(events, reply, exchange)
            await exchange.end()
        else:
            await self._break(chosen, events, reader, asked, exchange)

    async def _interrupt(self, wire: Wire, chosen: Answer, events: list[WireEvent], exchange: Exchange) -> None:
        at = middle(events)
        await self._send(events[:at], chosen.reply, exchange)
        if chosen.garbage == "frame":
            await exchange.send_bad_frame()
        elif chosen.garbage is not None:
            await exchange.send(wire.prefix + GARBAGE[chosen.garbage])
            await self._send(events[at:], chosen.reply, exchange)
            await exchange.end()
        else:
            await exchange.send(wire.error_event(chosen.error_event or "server_error"))
            await exchange.end()

    async def _break(self, chosen: Answer, events: list[WireEvent], reader: asyncio.StreamReader, asked: Asked, exchange: Exchange) -> None:
        sent, rest, half = break_at(events, chosen.where)
        await self._send(sent, chosen.reply, exchange)
        await exchange.send(half)
        match chosen.how:
            case "cut":
                await exchange.end()
            case "drop":
                exchange.drop()
            case "reset":
                exchange.reset()
            case _:
                if not await self._hold(reader):
                    asked.hung_up = True
                    exchange.drop()
                    return
                await self._send(
                    [*([WireEvent(rest[0].data[len(half) :], rest[0].stage)] if half else []), *rest[bool(half) :]], chosen.reply, exchange
                )
                await exchange.end()

    async def _hold(self, reader: asyncio.StreamReader) -> bool:
        """Stand still until `release`; False where the client hung up first."""
        released = self._runtime.spawn(self._released.wait(), name="provider-hold")
        gone = self._runtime.spawn(_hung_up(reader), name="provider-gone")
        try:
            await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
            return not gone.done()
        finally:
            released.cancel()
            gone.cancel()
            await asyncio.wait({released, gone})

    async def _send(self, events: Sequence[WireEvent], reply: Reply, exchange: Exchange) -> None:
        for each in events:
            if each.stage == "piece":
                await self._pause(reply)
            await exchange.send(each.data)

    async def _pause(self, reply: Reply) -> None:
        if reply.seconds:
            await self._runtime.sleep(reply.seconds)

    def _stamp(self, asked: Asked) -> Stamp:
        return Stamp(model=str(asked.body.get("model", "")), place=asked.place, created=int(self._runtime.now().timestamp()))

    def _signature(self, wire: Wire, asked: Asked, reply: Reply) -> str | None:
        if reply.thinking is None or not wire.signs:
            return None
        return reply.signature or self._signer.sign(reply.thinking, asked.turns)


def _first_words(turns: Sequence[Turn]) -> str:
    """Which conversation this is: known by its first user turn, which no retry or resume changes."""
    first = next((turn for turn in turns if turn.role == "user"), None)
    words = "\n".join(each.text for each in first.blocks if each.kind == "text") if first else ""
    return hashlib.sha256(words.encode(errors="surrogatepass")).hexdigest()


async def _hung_up(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read(1)
    except ConnectionError:
        pass


__all__ = [
    "WIRES",
    "Answer",
    "Asked",
    "Garbage",
    "How",
    "ProviderServer",
    "Turn",
    "Where",
    "WireScript",
    "break_off",
    "error_event",
    "finish_as",
    "garble",
    "hold",
    "unfinished",
]
