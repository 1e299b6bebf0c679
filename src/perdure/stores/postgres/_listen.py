"""News for other processes, and from them: hints and streaming text, over LISTEN and NOTIFY. Only ever a hint: polling finds what was not heard."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg

from perdure.core.event import Delta, Reset
from perdure.core.runtime import Runtime
from perdure.stores._protocol import Hint
from perdure.stores.postgres._wire import Raw

log = logging.getLogger("perdure")

PAYLOAD_MAX: Final = 7_000
"""Bytes of one notification; Postgres takes fewer than 8,000."""

TEXT_MAX: Final = 1_500
"""Characters of one piece of streaming text: at most 4 bytes each, so one piece always fits into a notification."""

WAITING_MAX: Final = 2_000
"""Pieces of news that wait to be sent. What is more than that is dropped, oldest first: the text is stored with its step."""

RECONNECT_SECONDS_MAX: Final = 5.0

GATHER_SECONDS: Final = 0.05
"""The pause after news was sent, in which more gathers: the first of it goes out at once, and no commit costs a notification of its own."""


class Announcer:
    """Sends news in its own transactions, after the commit, as many at once as have gathered."""

    def __init__(self, runtime: Runtime, sender: str, send: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        self._runtime, self._sender, self._send = runtime, sender, send
        self._news: dict[str, list[Any]] = {}
        self._waiting: list[list[Any]] = []
        self._something = asyncio.Event()
        self._task = runtime.spawn(self._run(), name="perdure-postgres-announcer")

    def tell(self, hints: Iterable[Hint]) -> None:
        """Send these soon. The same hint waits only once."""
        for hint in hints:
            self._news[f"{hint.kind}:{hint.run_id}"] = [hint.kind, hint.run_id]
        self._something.set()

    def stream(self, deltas: Iterable[Delta | Reset]) -> None:
        """Send streaming text soon."""
        for delta in deltas:
            self._waiting += _pieces(delta)
        del self._waiting[:-WAITING_MAX]
        self._something.set()

    async def _run(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            news = [*self._news.values(), *self._waiting]
            self._news.clear()
            self._waiting.clear()
            await self._send(list(_chunks(self._sender, news)))
            await self._runtime.sleep(GATHER_SECONDS)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def _pieces(delta: Delta | Reset) -> Iterator[list[Any]]:
    if isinstance(delta, Reset):
        yield ["reset", delta.run_id, delta.step, delta.epoch, delta.try_no]
        return
    for at in range(0, len(delta.text), TEXT_MAX):
        yield ["delta", delta.run_id, delta.step, delta.epoch, delta.try_no, delta.kind, delta.text[at : at + TEXT_MAX]]


def _chunks(sender: str, news: Sequence[list[Any]]) -> Iterator[str]:
    """Notifications of at most `PAYLOAD_MAX` bytes that carry all of `news`, in order."""
    payload: list[str] = []
    size = 0
    for each in news:
        text = json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        length = len(text.encode()) + 1
        if payload and size + length > PAYLOAD_MAX:
            yield _payload(sender, payload)
            payload, size = [], 0
        payload.append(text)
        size += length
    if payload:
        yield _payload(sender, payload)


def _payload(sender: str, texts: Sequence[str]) -> str:
    return f'["{sender}",{",".join(texts)}]'


class Ears:
    """What a listener hears, sorted out: hints and streaming text of other processes."""

    def __init__(self, sender: str, hinted: Callable[[Hint], None], streamed: Callable[[Delta | Reset], None]) -> None:
        self._sender, self._hinted, self._streamed = sender, hinted, streamed

    def hear(self, payload: str) -> None:
        """Take one notification. What this process sent itself it knows already; what it can't read comes from a newer one."""
        sender, *news = json.loads(payload)
        if sender == self._sender:
            return
        for kind, *rest in news:
            match kind:
                case "work" | "run" | "news":
                    self._hinted(Hint(kind, rest[0]))
                case "delta":
                    self._streamed(Delta(*rest))
                case "reset":
                    self._streamed(Reset(*rest))
                case _:
                    pass


class Listener:
    """A connection that only listens. When it breaks it is made anew, with growing pauses; what was missed meanwhile is found by looking."""

    def __init__(self, runtime: Runtime, connect: Callable[[], Awaitable[Raw]], channel: str, ears: Ears, missed: Callable[[], None]) -> None:
        self._runtime, self._connect, self._channel, self._ears, self._missed = runtime, connect, channel, ears, missed
        self.connected = asyncio.Event()
        """Set while notifications are heard."""
        self._task = runtime.spawn(self._run(), name="perdure-postgres-listener")

    async def _run(self) -> None:
        failed = 0
        while True:
            try:
                async with await self._connect() as raw:
                    await raw.execute(f'LISTEN "{self._channel}"'.encode())
                    failed = 0
                    self.connected.set()
                    self._missed()
                    async for notification in raw.notifies():
                        self._ears.hear(notification.payload)
            except psycopg.Error as error:
                failed += 1
                log.log(logging.WARNING if failed == 1 else logging.DEBUG, "listening on Postgres stopped, polling goes on: %s", error)
            self.connected.clear()
            await self._runtime.sleep(min(0.1 * 2**failed, RECONNECT_SECONDS_MAX) * (0.5 + self._runtime.random()))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
