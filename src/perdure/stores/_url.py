"""A store from its address. The stores are imported only when they are asked for."""

from __future__ import annotations

from perdure.core.errors import ConfigurationError
from perdure.core.runtime import Runtime
from perdure.stores._protocol import Store

FORMS = "sqlite:///perdure.db, sqlite:////an/absolute/path.db, memory://, postgresql://user:password@host/database"


def open_store(url: str, runtime: Runtime) -> Store:
    """The store at `url`, not yet entered: no I/O happens here.

    Raises:
        ConfigurationError: The scheme is unknown, or its extra is not installed.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ConfigurationError(f"{url!r} is not the address of a store. Use one of: {FORMS}.")
    if scheme == "memory":
        from perdure.stores.memory import MemoryStore

        return MemoryStore(runtime)
    if scheme == "sqlite":
        from perdure.stores.sqlite import SqliteStore

        if not rest.startswith("/") or rest == "/":
            raise ConfigurationError(f"{url!r} names no file. Use sqlite:///name.db (three slashes: relative) or sqlite:////path/name.db.")
        if rest == "/:memory:":
            raise ConfigurationError(
                "A SQLite database in memory is gone with each connection. Use memory:// for a store that ends with the process."
            )
        return SqliteStore(rest[1:], runtime)
    if scheme in ("postgresql", "postgres"):
        try:
            from perdure.stores.postgres import PostgresStore
        except ImportError as error:
            raise ConfigurationError("A Postgres store needs its driver: pip install 'perdure[postgres]'.") from error
        return PostgresStore(url, runtime)
    raise ConfigurationError(f"{scheme}:// is no kind of store that Perdure knows. Use one of: {FORMS}.")
