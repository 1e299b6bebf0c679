"""When the worker that started an effect was last heard of."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure.core.effect import Effect
from perdure.stores import Store

PAGE: Final = 1_000


async def last_heard(store: Store, effect: Effect) -> datetime | None:
    """The last durable sign of the execution that started it, by the store's clock. None: that execution's events are gone."""
    heard: datetime | None = None
    ours = False
    after = 0
    while page := await store.events(effect.run_id, after=after, limit=PAGE):
        after = page[-1].seq
        for event in page:
            if event.type == "run.claimed":
                ours = event.data.get("epoch") == effect.epoch
            elif event.type == "run.recovered":
                ours = False
            if ours:
                heard = event.at
    return heard
