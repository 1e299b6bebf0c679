"""As much of HTTP/1.1 as a provider's clients speak: requests in, JSON or a chunked event stream out, and the ways in which that can break."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

HEAD_MAX = 64 * 1024
BODY_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; None once the client has closed it."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), BODY_MAX))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return HttpRequest(method, target.partition("?")[0], headers, body)


class Exchange:
    """The answer to one request. Either `send_json`, or `open_stream`, any number of `send`, and one way to end."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send_json(self, status: int, data: Any, headers: Mapping[str, str]) -> None:
        body = json.dumps(data).encode()
        self._head(status, {**headers, "content-type": "application/json", "content-length": str(len(body))})
        self._writer.write(body)
        await self._writer.drain()

    async def open_stream(self, headers: Mapping[str, str]) -> None:
        self._head(200, {**headers, "content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"})
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        """One chunk."""
        if data:
            self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await self._writer.drain()

    async def send_bad_frame(self) -> None:
        """A chunk whose length is no number; nothing after it can be understood."""
        self._writer.write(b"zz\r\n")
        await self._writer.drain()
        self._writer.close()

    async def end(self) -> None:
        """End the body as HTTP asks for it."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def drop(self) -> None:
        """Close the connection (FIN) in the middle of the body."""
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection (RST): a linger time of 0 makes the kernel forget it without a word."""
        raw: socket.socket | None = self._writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = "Unknown"
        lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._writer.write("\r\n".join(lines).encode("latin-1"))
