"""What a follower of a run sees, in order: text as it streams, and durable events as they are committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perdure.core.commit import WaitFilter
from perdure.core.errors import RunNotFoundError
from perdure.core.event import Delta, Event, Reset
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.core.wait import WaitPoint
from perdure.events import Hub
from perdure.stores import Store

FOLLOW_POLL = timedelta(seconds=0.3)
"""How often a follower looks for events that another process wrote, where the store sends no hints."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The run waits; `waits` are its open requests."""

    run_id: str
    seq: int
    waits: list[Any]


@dataclass(frozen=True, slots=True)
class Settled:
    """The run has ended: the last thing that a follower sees."""

    run_id: str
    seq: int
    run: Run


RunEvent = Delta | Reset | Waiting | Settled | Event


async def follow(
    store: Store, runtime: Runtime, hub: Hub, run_id: str, *, after: int, request: Callable[[WaitPoint], Any], check: Callable[[], None],
    poll: timedelta = FOLLOW_POLL,
) -> AsyncIterator[RunEvent]:  # fmt: skip
    """Events of a run with a number above `after`, and deltas between them, until it has settled.

    Subscribes first, then reads, so that nothing falls between. Text comes where it belongs, however late somebody looks: after the step before it, before the end of
    its own. `check` says whether it may be followed here, once somebody does.
    """
    check()
    subscription = hub.follow(run_id)
    heard: deque[Delta | Reset] = deque()
    try:
        cursor = after
        while True:
            found = False
            events = await store.events(run_id, after=cursor)
            # Read first, heard second: what streamed before these events were committed is at hand now.
            heard.extend(_at_hand(subscription.news))
            for event in events:
                found, cursor = True, event.seq
                if event.type == "run.waiting":
                    opened = await store.waits(WaitFilter(run_id=run_id, open=True))
                    for item in _up_to(heard, max((each.row.index for each in opened), default=0)):
                        yield item
                    yield Waiting(run_id, event.seq, [request(each) for each in opened])
                elif event.type == "run.settled":
                    run = await store.get(run_id)
                    if run is None:
                        raise RunNotFoundError(run_id)
                    if run.status.final and run.settlement == event.data.get("settlement"):
                        for item in _up_to(heard, None):
                            yield item
                        yield Settled(run_id, event.seq, run)
                        return
                    yield event  # an earlier life; a retry followed
                else:
                    if event.type == "step.completed":
                        for item in _up_to(heard, event.data["step"]):
                            yield item
                    yield event
            if found:
                continue
            for item in _up_to(heard, None):
                yield item
            run = await store.get(run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            if run.status.final and run.next_event == cursor + 1:
                yield Settled(run_id, cursor, run)
                return
            if (item := await _next(subscription.news, poll)) is not None:
                heard.append(item)
    finally:
        hub.unfollow(subscription)


def _at_hand(news: asyncio.Queue[Delta | Reset | None]) -> Iterator[Delta | Reset]:
    """What has been heard and not yet taken."""
    while not news.empty():
        if (item := news.get_nowait()) is not None:
            yield item


def _up_to(heard: deque[Delta | Reset], step: int | None) -> Iterator[Delta | Reset]:
    """Take what belongs to this step or to one before it; None: all."""
    while heard and (step is None or heard[0].step <= step):
        yield heard.popleft()


async def _next(news: asyncio.Queue[Delta | Reset | None], poll: timedelta) -> Delta | Reset | None:
    try:
        async with asyncio.timeout(poll.total_seconds()):
            return await news.get()
    except TimeoutError:
        return None


async def until_final(store: Store, hub: Hub, run_id: str, *, seconds: float | None, runtime: Runtime, poll: timedelta = FOLLOW_POLL) -> Run:
    """The run once it is final, or as it stands when the time is up."""
    subscription = hub.follow(run_id, moves=True)
    until = None if seconds is None else runtime.monotonic() + seconds
    try:
        while True:
            run = await store.get(run_id)
            if run is None:
                raise RunNotFoundError(run_id)
            if run.status.final:
                return run
            left = None if until is None else until - runtime.monotonic()
            if left is not None and left <= 0:
                return run
            pause = poll if left is None else min(poll, timedelta(seconds=left))
            await _next(subscription.news, pause)
    finally:
        hub.unfollow(subscription)
