"""Engines in virtual time: one simulated machine, the memory store or a real Postgres, no second of a lease passes in earnest."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from bridged import BridgedPostgres

from perdure import Engine
from perdure.stores.memory import MemoryStore
from perdure.testing.simulation._loop import SimLoop
from perdure.testing.simulation._runtime import SimRuntime


class Simulated:
    """A simulated machine for one test: `run` drives a coroutine on it to its end."""

    def __init__(self, dsn: str | None = None) -> None:
        self.loop = SimLoop()
        self.replica = self.loop.replica("worker")
        self.runtime = SimRuntime(self.loop, self.replica)
        self.store: Any = MemoryStore(self.runtime) if dsn is None else BridgedPostgres(dsn, self.runtime)
        self.errors: list[BaseException] = []
        self.replicas: dict[str, Any] = {}

    def engine(self, **options: Any) -> Engine:
        """An engine on this machine's store; what it reports is kept in `errors`."""
        options.setdefault("on_error", self.errors.append)
        return Engine(options.pop("store", self.store), runtime=self.runtime, **options)

    def other(self, name: str, **options: Any) -> Engine:
        """An engine on another machine, on the same store. Enter it with `on`."""
        replica = self.loop.replica(name)
        self.replicas[name] = replica
        options.setdefault("on_error", self.errors.append)
        return Engine(self.store, runtime=SimRuntime(self.loop, replica), **options)

    def on(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Start a coroutine on another machine."""
        return self.replicas[name].spawn(work, name=name)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run_until_complete(self.replica.spawn(main(), name="test"))


# Nightly on Postgres: each test makes a schema of its own, and each call is a real one.
@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.nightly)])
def sim(request: pytest.FixtureRequest) -> Iterator[Simulated]:
    machine = Simulated(None if request.param == "memory" else request.getfixturevalue("postgres").dsn)
    yield machine
    machine.loop.close()
    if isinstance(machine.store, BridgedPostgres):
        machine.store.close()
