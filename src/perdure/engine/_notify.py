"""Sending what waits to people: claimed, at least once, with back-off."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

from perdure.core.runtime import Runtime
from perdure.core.wait import WaitPoint
from perdure.notifiers import SEND_SECONDS_MAX, Notice, Notifier
from perdure.stores import Store

logger = logging.getLogger("perdure")

BATCH: Final = 20
"""Notices that one tick sends: a slow notifier holds up the tick by that many at the most."""
HOLD: Final = timedelta(seconds=2 * SEND_SECONDS_MAX)
"""How long a claimed notice is this worker's alone."""
BACK_OFF_MAX: Final = timedelta(hours=1)
"""The longest pause before a notice is sent again."""

Report = Callable[[BaseException], Awaitable[None]]
Link = Callable[[WaitPoint, str], str]


def token_hash(token: str) -> str:
    """What the store keeps of a secret token."""
    return hashlib.sha256(token.encode()).hexdigest()


def back_off(tries: int) -> timedelta:
    """The pause before the next send after `tries` failed ones."""
    return min(timedelta(seconds=5 * 2 ** min(tries, 12)), BACK_OFF_MAX)


class Messenger:
    """Sends due notices through every notifier; a notice counts as accepted when one of them took it."""

    def __init__(self, store: Store, runtime: Runtime, notifiers: Sequence[Notifier], report: Report, link: Link | None = None) -> None:
        self._store, self._runtime, self._notifiers, self._report, self._link = store, runtime, notifiers, report, link

    async def send_due(self) -> None:
        """One bounded pass."""
        if not self._notifiers:
            return
        due = await self._store.claim_notices(limit=BATCH, hold=HOLD)
        await asyncio.gather(*(self._send(wait) for wait in due))

    async def _send(self, wait: WaitPoint) -> None:
        warning = wait.notified_at is not None
        run = await self._store.get(wait.run_id)
        token = self._runtime.new_token() + self._runtime.new_token()
        tries = wait.notify_tries + 1
        # The token is stored before anybody can present it, and nobody else sends this notice while we may still be at it.
        again = timedelta(seconds=SEND_SECONDS_MAX) + back_off(tries)
        await self._store.note_notice(wait.id, tries=tries, accepted=False, warning=warning, retry_in=again, token_hash=token_hash(token))
        link = self._link(wait, token) if self._link is not None else None
        notice = Notice(wait, run.agent if run is not None else "", token, warning, link)
        took = await asyncio.gather(*(self._try(notifier, notice) for notifier in self._notifiers))
        if any(took):
            await self._store.note_notice(wait.id, tries=0, accepted=True, warning=warning, retry_in=None, token_hash=None)

    async def _try(self, notifier: Notifier, notice: Notice) -> bool:
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await notifier.notify(notice)
        except Exception as error:
            logger.warning("%s could not send notice %s: %s", type(notifier).__name__, notice.id, error)
            await self._report(error)
            return False
        return True
