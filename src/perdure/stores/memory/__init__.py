"""A store in plain Python dicts: for tests and notebooks, and the model that the SQL stores are compared with."""

from perdure.stores.memory._store import MemoryStore

__all__ = ["MemoryStore"]
