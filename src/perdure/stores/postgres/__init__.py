"""The Postgres store: many workers on many machines, one owner a run."""

from perdure.stores.postgres._store import PostgresStore

__all__ = ["PostgresStore"]
