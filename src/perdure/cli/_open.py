"""Which engine a command works with: the program's own, or a bare one on a store."""

from __future__ import annotations

import os
from typing import Any, Final

from perdure.cli._load import load_engine
from perdure.core.errors import ConfigurationError
from perdure.core.runtime import RealRuntime
from perdure.engine import Engine
from perdure.stores import Store, open_store
from perdure.stores.sqlite import SqliteStore

STORE_VARIABLE: Final = "PERDURE_STORE"
STORE_DEFAULT: Final = "sqlite:///perdure.db"


def engine_for(app: str | None, store: str | None) -> Engine:
    """For commands that look and answer: nothing is claimed here, and no database is made or changed by looking for one.

    Raises:
        ConfigurationError: The program or the store can't be used; says why.
    """
    if app is not None:
        engine = load_engine(app)
        engine.adjust(store=as_it_is(store) if store else None, workers=0)
        return engine
    return Engine(as_it_is(store or os.environ.get(STORE_VARIABLE) or STORE_DEFAULT), workers=0, migrate=False)


def as_it_is(url: str) -> Store:
    """The store at an address, which must be there already, in the shape that this version works with."""
    store: Any = open_store(url, RealRuntime())
    if not isinstance(store, SqliteStore):
        return store
    if not store.path.exists():
        raise ConfigurationError(
            f"There is no database {str(store.path)!r}. Name one with --store (or {STORE_VARIABLE}), or the program with --app; a run or `perdure migrate` makes it."
        )
    return SqliteStore(store.path, migrate=False)
