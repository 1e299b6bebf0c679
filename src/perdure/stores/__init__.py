"""Where runs are kept: the `Store` protocol and its implementations."""

from perdure.stores._protocol import Hint, Joined, JoiningStore, Store
from perdure.stores._url import open_store

__all__ = ["Hint", "Joined", "JoiningStore", "Store", "open_store"]
