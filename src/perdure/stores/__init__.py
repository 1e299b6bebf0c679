"""Where runs are kept: the `Store` protocol and its implementations."""

from perdure.stores._protocol import Hint, Store
from perdure.stores._url import open_store

__all__ = ["Hint", "Store", "open_store"]
