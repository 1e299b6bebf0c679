"""Where runs are kept: the `Store` protocol and its implementations."""

from perdure.stores._protocol import Hint, Store

__all__ = ["Hint", "Store"]
