"""A real proxy before a real Postgres: it cuts connections at the moment that a test names."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Literal, Self

When = Literal["before", "after"]


class Wiretap:
    """Forwards a Unix socket. `cut` ends the connection that next says something: before the server hears it, or after it has answered."""

    def __init__(self, server: Path) -> None:
        self._server = server / ".s.PGSQL.5432"
        self._folder = tempfile.TemporaryDirectory()
        self._cuts: list[tuple[bytes, When]] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.closed_to_new = False

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder.name}"

    def cut(self, words: bytes, when: When) -> None:
        """The next time that a client says these words, its connection ends."""
        self._cuts.append((words, when))

    @property
    def pending(self) -> int:
        """Cuts that have not happened yet."""
        return len(self._cuts)

    def cut_all(self) -> None:
        """End every connection now."""
        for writer in self._open:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_unix_server(self._serve, str(Path(self._folder.name) / ".s.PGSQL.5432"))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listening.close()
        self.cut_all()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._folder.cleanup()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.closed_to_new:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        server_reader, server_writer = await asyncio.open_unix_connection(str(self._server))
        answers = asyncio.ensure_future(self._answers(server_reader, writer))
        try:
            while data := await reader.read(1 << 20):
                cut = next((cut for cut in self._cuts if cut[0] in data), None)
                if cut is not None:
                    self._cuts.remove(cut)
                    if cut[1] == "after":
                        # The answer is read here and not passed on: what was asked for has happened, and nobody was told.
                        answers.cancel()
                        await asyncio.wait([answers])
                        server_writer.write(data)
                        await server_reader.read(1 << 20)
                    return
                server_writer.write(data)
                await server_writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            answers.cancel()
            self._open.discard(writer)
            self._tasks.discard(task)
            for each in (writer, server_writer):
                each.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.transport.abort()
