"""Telling people that something waits for them.

A notifier is called after the wait is durable, at least once; `Notice.id` deduplicates. One that raises is called again later, with back-off, and never
fails a run. Ready: `Console`, `Webhook` (signed by Standard Webhooks), `Smtp`, `Slack` (and what speaks its incoming webhooks).
"""

from __future__ import annotations

import json
import smtplib
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any, Protocol, TextIO

from perdure.core.errors import ConfigurationError
from perdure.core.runtime import RealRuntime, Runtime
from perdure.core.wait import WaitPoint

SEND_SECONDS_MAX = 15.0
"""How long one send may take before it counts as failed."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to people: a request that waits, or the one warning before it runs out.

    `token` is a secret of this notice alone: whoever presents it may answer, once, until the request is decided. `link` is the page where a person
    decides, if the engine knows one; opening it decides nothing.
    """

    wait: WaitPoint
    agent: str
    token: str
    warning: bool = False
    link: str | None = None

    @property
    def id(self) -> str:
        """The same over every repetition of this notice."""
        return f"{self.wait.id}:{'warning' if self.warning else 'request'}"

    @property
    def title(self) -> str:
        row = self.wait.row
        what = {
            "approval": f"{row.tool or 'A call'} needs approval",
            "effect": f"Did {row.tool or 'this call'} happen? Its outcome is unknown",
            "budget": "A run needs a larger budget",
            "attention": "A run needs an operator",
        }.get(row.kind, "A run waits")
        return f"{'Last call: ' if self.warning else ''}{what} ({self.agent})"

    @property
    def text(self) -> str:
        """The request in a few plain lines."""
        row = self.wait.row
        lines = [self.title, "", f"Run: {self.wait.run_id}", f"Request: {self.wait.id}"]
        if row.input is not None:
            lines += ["Input:", json.dumps(row.input, ensure_ascii=False, indent=2)]
        if row.kind == "effect":
            lines.append(f"Worker: {row.data.get('worker') or 'unknown'}; last heard of: {row.data.get('started_at') or 'unknown'}")
        if row.expires_at is not None:
            lines.append(f"Answer before: {row.expires_at.isoformat()}")
        lines.append(f"Decisions: {', '.join(row.data.get('decisions') or [])}")
        if self.link is not None:
            lines.append(f"Decide here: {self.link}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """What a webhook carries."""
        row = self.wait.row
        return {
            "type": "wait.warning" if self.warning else "wait.opened",
            "id": self.id,
            "data": {
                "wait": self.wait.id,
                "run": self.wait.run_id,
                "agent": self.agent,
                "kind": row.kind,
                "tool": row.tool,
                "input": row.input,
                "input_hash": row.input_hash,
                "schema": row.data.get("schema"),
                "decisions": row.data.get("decisions") or [],
                "expires_at": None if row.expires_at is None else row.expires_at.isoformat(),
                "token": self.token,
                "link": self.link,
            },
        }


class Notifier(Protocol):
    """Sends one notice, or raises."""

    async def notify(self, notice: Notice) -> None: ...


@dataclass(frozen=True)
class Console:
    """Writes to a stream, for development."""

    stream: TextIO | None = None

    async def notify(self, notice: Notice) -> None:
        print(f"\n{notice.text}\n", file=self.stream or sys.stderr, flush=True)


@dataclass(frozen=True)
class Webhook:
    """POSTs JSON, signed by Standard Webhooks (https://www.standardwebhooks.com), so that the receiver can check sender and age.

    Args:
        url: Where to.
        secret: `whsec_` and base64, or plain base64.
        headers: Sent along.
    """

    url: str
    secret: str
    headers: dict[str, str] = field(default_factory=dict[str, str])
    clock: Callable[[], datetime] = field(default_factory=lambda: RealRuntime().now)

    def __post_init__(self) -> None:
        try:
            from standardwebhooks import Webhook as Signer

            Signer(self.secret)
        except ImportError as error:
            raise ConfigurationError("Signed webhooks need an extra: pip install 'perdure[webhook]'.") from error
        except Exception as error:
            raise ConfigurationError(f"Webhook(secret=…): not a Standard Webhooks secret ({error}). Use whsec_ and base64.") from error

    async def notify(self, notice: Notice) -> None:
        from standardwebhooks import Webhook as Signer

        body = json.dumps(notice.to_json(), ensure_ascii=False)
        now = self.clock()
        signed = {
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Signer(self.secret).sign(notice.id, now.astimezone(UTC), body),
        }
        await post(self.url, body, {"content-type": "application/json", **self.headers, **signed})


@dataclass(frozen=True)
class Slack:
    """An incoming webhook of Slack, Mattermost or whatever speaks the same."""

    url: str

    async def notify(self, notice: Notice) -> None:
        text = notice.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        await post(self.url, json.dumps({"text": text}, ensure_ascii=False), {"content-type": "application/json"})


@dataclass(frozen=True)
class Smtp:
    """E-mail through a server.

    Args:
        host: The server.
        to: Addresses.
        sender: From whom.
        port: 587 by default.
        starttls: Whether to upgrade the connection; off only for servers on this machine.
    """

    host: str
    to: Sequence[str]
    sender: str
    port: int = 587
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    starttls: bool = True
    runtime: Runtime = field(default_factory=RealRuntime, repr=False)

    async def notify(self, notice: Notice) -> None:
        message = EmailMessage()
        # A name with a line break in it would be another header.
        message["Subject"], message["From"], message["To"] = " ".join(notice.title.split()), self.sender, ", ".join(self.to)
        message["Message-ID"] = f"<{notice.id.replace(':', '.')}@perdure>"
        message.set_content(notice.text)
        await self.runtime.in_thread(lambda: self._send(message))

    def _send(self, message: EmailMessage) -> None:
        with smtplib.SMTP(self.host, self.port, timeout=SEND_SECONDS_MAX) as server:
            if self.starttls:
                server.starttls(context=ssl.create_default_context())
            if self.user is not None:
                server.login(self.user, self.password or "")
            server.send_message(message)


async def post(url: str, body: str, headers: dict[str, str]) -> None:
    """POST, and raise unless the answer is 2xx."""
    import httpx2

    async with httpx2.AsyncClient(timeout=SEND_SECONDS_MAX, follow_redirects=False) as client:
        response = await client.post(url, content=body.encode(), headers=headers)
    response.raise_for_status()
    if not response.is_success:
        raise ConnectionError(f"{url} answered {response.status_code}")
