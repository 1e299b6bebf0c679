"""Live news of runs inside one process: deltas as they stream, and hints that something durable happened."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perdure.core.errors import ConfigurationError
from perdure.core.event import Delta, Event, Reset
from perdure.stores import Hint

log = logging.getLogger("perdure")

QUEUE_MAX = 10_000
"""News that one subscriber may fall behind by. A slower one loses deltas (never durable events) and is told to look again."""

Listener = Callable[[Any], None]


@dataclass(eq=False)
class Subscription:
    """What one follower of one run has not read yet. Durable events are read from the store; `news` only says to look.

    `moves`: nothing matters to this follower but that the run may have another status.
    """

    run_id: str
    moves: bool = False
    news: asyncio.Queue[Delta | Reset | None] = field(default_factory=lambda: asyncio.Queue(QUEUE_MAX))

    def put(self, item: Delta | Reset | None) -> None:
        try:
            self.news.put_nowait(item)
        except asyncio.QueueFull:
            pass  # the durable events are in the store; the text is in the next step


class Hub:
    """Hands news to listeners and followers of this process. A listener that raises is reported and dropped, and never fails a run."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self._followers: dict[str, set[Subscription]] = {}

    def on(self, kind: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` for each `kind` of news (`run.delta`, `run.reset`, a durable event's type, or `error`; `*` for all). Answers the way to stop."""
        if inspect.iscoroutinefunction(listener):
            raise ConfigurationError(f"A listener of {kind!r} is called, not awaited: give a plain function, which may start a task of its own.")
        self._listeners.setdefault(kind, []).append(listener)

        def off() -> None:
            if listener in self._listeners.get(kind, ()):
                self._listeners[kind].remove(listener)

        return off

    @property
    def listening(self) -> bool:
        """Whether anybody listens to durable events here."""
        return any(kind not in ("run.delta", "run.reset", "error") and found for kind, found in self._listeners.items())

    def follow(self, run_id: str, *, moves: bool = False) -> Subscription:
        subscription = Subscription(run_id, moves)
        self._followers.setdefault(run_id, set()).add(subscription)
        return subscription

    def unfollow(self, subscription: Subscription) -> None:
        followers = self._followers.get(subscription.run_id)
        if followers is not None:
            followers.discard(subscription)
            if not followers:
                del self._followers[subscription.run_id]

    def stream(self, item: Delta | Reset) -> None:
        """A piece of text, or that it starts anew."""
        for follower in self._followers.get(item.run_id, ()):
            if not follower.moves:
                follower.put(item)
        self._call("run.delta" if isinstance(item, Delta) else "run.reset", item)

    def happened(self, event: Event) -> None:
        """A durable event, after its commit."""
        self._call(event.type, event)

    def failed(self, error: BaseException) -> None:
        """An error that no caller hears of."""
        self._call("error", error)

    def hint(self, hint: Hint) -> None:
        """The store says that something may have changed."""
        if hint.run_id is not None:
            for follower in self._followers.get(hint.run_id, ()):
                if hint.kind == "run" or not follower.moves:
                    follower.put(None)

    def _call(self, kind: str, item: Any) -> None:
        for name in (kind, "*"):
            for listener in list(self._listeners.get(name, ())):
                try:
                    listener(item)
                except (Exception, asyncio.CancelledError):
                    log.exception("A listener of %r raised and is dropped; the run goes on.", name)
                    self._listeners[name].remove(listener)
