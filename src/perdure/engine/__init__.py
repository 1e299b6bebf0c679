"""The engine: runs agents durably on one store."""

from perdure.engine._engine import Engine
from perdure.engine._handle import DurableAgent, Request, RunHandle
from perdure.engine._news import RunEvent, Settled, Waiting

__all__ = ["DurableAgent", "Engine", "Request", "RunEvent", "RunHandle", "Settled", "Waiting"]
