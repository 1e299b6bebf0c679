"""People are told that something waits: over real sockets, once, again after failures, with a secret that is good for one answer."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiosmtpd.smtp import SMTP
from pydantic_ai import Agent
from standardwebhooks import Webhook as Receipt
from standardwebhooks import WebhookVerificationError

from perdure import Engine, RunStatus, StillWaiting, Waiting, approve, effect
from perdure.core.commit import ResolveOutcome
from perdure.core.errors import ConfigurationError
from perdure.notifiers import SEND_SECONDS_MAX, Console, Notice, Notifier, Slack, Smtp, Webhook
from perdure.stores.memory import MemoryStore
from perdure.testing.models import ScriptedModel, call, calls, say

SECRET = "whsec_" + "c2VjcmV0IGZvciB0ZXN0cyBvbmx5LCAyNCBieXRlcw=="
ORDER = "7 <&> größer 😀"


def desk(*script: Any, done: list[str] | None = None, **rule: Any) -> Agent[None, str]:
    agent = Agent(ScriptedModel(script or [call("refund", order=ORDER, cents=900), say("done")]), name="desk")
    refunds = [] if done is None else done

    @agent.tool_plain(metadata=effect() | approve(**rule))
    async def refund(order: str, cents: int) -> str:
        refunds.append(f"{order}: {cents}")
        return "refunded"

    return agent


def quiet(store: Any, *notifiers: Notifier, **options: Any) -> Engine:
    """An engine that ticks only when it is told to."""
    return Engine(store, tick=None, notifiers=notifiers, **options)


async def waiting(run: Any) -> list[Any]:
    async with asyncio.timeout(30):
        async for event in run.events():
            if isinstance(event, Waiting):
                break
    return await run.requests()


@dataclass
class Posts:
    """What a loopback server was sent, and the statuses that it answers with (the last one for ever)."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])
    bodies: list[bytes] = field(default_factory=list[bytes])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
        headers = {name.lower(): value for name, value in lines}
        self.bodies.append(await reader.readexactly(int(headers["content-length"])))
        self.headers.append(headers)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nlocation: /elsewhere\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def http(*statuses: int) -> AsyncIterator[Posts]:
    """A web server on this machine."""
    posts = Posts(statuses=list(statuses) or [200])
    server = await asyncio.start_server(posts.serve, "127.0.0.1", 0)
    async with server:
        posts.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield posts


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers are on this machine."""
    monkeypatch.setenv("NO_PROXY", "*")


# ── the ready ones ─────────────────────────────────────────────────────────────────────────────────────────
async def test_a_webhook_is_signed_so_that_its_receiver_can_check_it() -> None:
    """By the Standard Webhooks library; a changed body, another secret and an old copy are refused."""
    async with http() as posts:
        engine = quiet(MemoryStore(), Webhook(posts.url, SECRET, headers={"x-team": "desk"}), link=lambda wait, token: f"https://x/{wait.id}#{token}")
        agent = engine.agent(desk())
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            await engine.tick()
            [body], [headers] = posts.bodies, posts.headers
            data = Receipt(SECRET).verify(body, headers)
            assert (data["type"], headers["x-team"], headers["webhook-id"]) == ("wait.opened", "desk", f"{request.id}:request")
            said = data["data"]
            assert (said["wait"], said["run"], said["agent"], said["tool"]) == (request.id, run.id, "desk", "refund")
            assert (said["input"], said["input_hash"]) == ({"order": ORDER, "cents": 900}, request.wait.row.input_hash)
            assert said["schema"]["required"] == ["order", "cents"] and said["decisions"] == ["approve", "deny"]
            assert said["link"] == f"https://x/{request.id}#{said['token']}"
            other = "whsec_" + "YW5vdGhlciBzZWNyZXQgb2YgMjQgYnl0ZXMgISE="
            for secret, sent, signed in (
                (SECRET, body.replace(b"900", b"901"), headers),
                (other, body, headers),
                (SECRET, body, {**headers, "webhook-timestamp": "1600000000"}),
            ):
                with pytest.raises(WebhookVerificationError):
                    Receipt(secret).verify(sent, signed)


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!"])
def test_a_webhook_without_a_real_secret_is_refused_when_it_is_declared(secret: str) -> None:
    """Not when the first run waits."""
    with pytest.raises(ConfigurationError, match="whsec_"):
        Webhook("http://127.0.0.1/", secret)


async def test_a_chat_gets_text_that_cannot_forge_mentions_or_links() -> None:
    """Slack's three characters are escaped; the secret is not in the text."""
    async with http() as posts:
        seen: list[str] = []

        class Seen:
            async def notify(self, notice: Notice) -> None:
                seen.append(notice.token)

        engine = quiet(MemoryStore(), Slack(posts.url), Seen())
        agent = engine.agent(desk())
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            await engine.tick()
            text = json.loads(posts.bodies[0])["text"]
            assert "refund needs approval (desk)" in text and run.id in text and request.id in text and "900" in text
            assert "7 &lt;&amp;&gt; größer 😀" in text and "<" not in text
            assert seen[0] not in text


async def test_the_console_shows_the_request_in_a_few_lines() -> None:
    """For development."""
    stream = io.StringIO()
    engine = quiet(MemoryStore(), Console(stream))
    agent = engine.agent(desk())
    async with engine:
        run = await agent.start({})
        [request] = await waiting(run)
        await engine.tick()
        shown = stream.getvalue()
        assert shown.startswith("\nrefund needs approval (desk)\n") and run.id in shown and request.id in shown
        assert ORDER in shown and "Answer before: " in shown and "Decisions: approve, deny" in shown


class Mailbox:
    """What a real SMTP server took."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse, self.taken = refuse, list[Any]()

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.refuse:
            self.refuse -= 1
            return "451 try again later"
        self.taken.append((envelope.mail_from, envelope.rcpt_tos, message_from_bytes(envelope.content, policy=policy.default)))
        return "250 OK"


@asynccontextmanager
async def mail_server(mailbox: Mailbox) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(lambda: SMTP(mailbox, hostname="127.0.0.1"), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_mail_arrives_with_everything_a_person_needs() -> None:
    """Whatever letters are in it; the same notice has the same Message-ID."""
    mailbox = Mailbox()
    async with mail_server(mailbox) as port:
        smtp = Smtp("127.0.0.1", ["eva@example.org", "kim@example.org"], "perdure@example.org", port=port, starttls=False)
        holder = Keyholder()
        engine = quiet(MemoryStore(), smtp, holder, link=lambda wait, token: f"https://desk.example/{wait.id}?token={token}")
        agent = engine.agent(desk(), name="größer")
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            await engine.tick()
            [(sender, to, message)] = mailbox.taken
            assert (sender, to) == ("perdure@example.org", ["eva@example.org", "kim@example.org"])
            assert message["Subject"] == "refund needs approval (größer)"
            assert message["Message-ID"] == f"<{request.id}.request@perdure>"
            text = message.get_content()
            assert ORDER in text and run.id in text and f"https://desk.example/{request.id}?token=" in text
            await smtp.notify(replace(holder.notices[0], agent="x\nBcc: everybody@example.org"))
            assert mailbox.taken[1][2]["Bcc"] is None


async def test_mail_that_is_refused_is_sent_again() -> None:
    """A temporary answer of the server, then a server that is not there."""
    mailbox, store, errors = Mailbox(refuse=1), MemoryStore(), list[BaseException]()
    async with mail_server(mailbox) as port:
        engine = quiet(store, Smtp("127.0.0.1", ["eva@example.org"], "p@example.org", port=port, starttls=False), on_error=errors.append)
        agent = engine.agent(desk())
        async with engine:
            await waiting(await agent.start({}))
            await engine.tick()
            assert (mailbox.taken, len(errors)) == ([], 1)
            store.offset += timedelta(minutes=1)
            await engine.tick()
            assert len(mailbox.taken) == 1


async def test_mail_is_not_sent_in_the_open_where_encryption_was_asked_for() -> None:
    """A server that can't encrypt gets nothing."""
    mailbox, errors = Mailbox(), list[BaseException]()
    async with mail_server(mailbox) as port:
        engine = quiet(MemoryStore(), Smtp("127.0.0.1", ["eva@example.org"], "p@example.org", port=port), on_error=errors.append)
        agent = engine.agent(desk())
        async with engine:
            await waiting(await agent.start({}))
            await engine.tick()
            assert mailbox.taken == [] and "STARTTLS" in str(errors[0])


# ── once, and again ────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_engines_that_tick_at_once_send_one_notice(kind: str, tmp_path: Path) -> None:
    """Sending is claimed."""
    memory = MemoryStore()
    store: Callable[[], Any] = (lambda: memory) if kind == "memory" else (lambda: f"sqlite:///{tmp_path / 'runs.db'}")
    async with http() as posts:
        one, two = (quiet(store(), Webhook(posts.url, SECRET), workers=workers) for workers in (4, 0))
        agent = one.agent(desk(calls(*(call("refund", order=str(n), cents=n) for n in range(30))), say("done")))
        async with one, two:
            requests = await waiting(await agent.start({}))
            for _ in range(3):
                await asyncio.gather(one.tick(), two.tick(), one.tick(), two.tick())
            sent = sorted(headers["webhook-id"] for headers in posts.headers)
            assert sent == sorted(f"{request.id}:request" for request in requests)
            assert len(sent) == 30


@pytest.mark.parametrize("status", [500, 404, 301])
async def test_a_failing_notifier_never_fails_the_run(status: int) -> None:
    """It is reported and called again; the notice keeps its id; the run is answered meanwhile. A redirect is a failure too."""
    errors, done, store = list[BaseException](), list[str](), MemoryStore()
    async with http(status, status, 200) as posts:
        engine = quiet(store, Webhook(posts.url, SECRET), on_error=errors.append)
        agent = engine.agent(desk(done=done))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            for _ in range(4):
                await engine.tick()
                await engine.tick()
                store.offset += timedelta(minutes=2)
            assert len(posts.bodies) == 3 and len(errors) == 2
            assert len({headers["webhook-id"] for headers in posts.headers}) == 1
            assert await run.status() is RunStatus.WAITING
            assert [event.type for event in await engine.store.events(run.id)].count("wait.notified") == 1
            await request.approve(by="eva")
            assert await run.result(timeout=30) == "done"
            assert len(done) == 1


async def test_a_server_that_is_not_there_and_a_notifier_with_a_bug_change_nothing() -> None:
    """Each is reported; another one takes the notice."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    errors, stream = list[BaseException](), io.StringIO()

    class Broken:
        async def notify(self, notice: Notice) -> None:
            raise KeyError(notice.id)

    engine = quiet(MemoryStore(), Webhook(gone, SECRET), Broken(), Console(stream), on_error=errors.append)
    agent = engine.agent(desk())
    async with engine:
        run = await agent.start({})
        [request] = await waiting(run)
        await engine.tick()
        assert len(errors) == 2 and request.id in stream.getvalue()
        await request.deny(by="eva")
        assert await run.result(timeout=30) == "done"


class Recorder:
    """Takes notices, or fails, in virtual time."""

    def __init__(self, sim: Any, *, fails: int = 0, seconds: float = 0) -> None:
        self.sim, self.fails, self.seconds = sim, fails, seconds
        self.sent: list[tuple[float, Notice]] = []

    async def notify(self, notice: Notice) -> None:
        self.sent.append((self.sim.runtime.monotonic(), notice))
        await self.sim.runtime.sleep(self.seconds)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("away")


def test_the_pause_grows_after_each_failure(sim: Any) -> None:
    """Up to an hour; accepted, it is never sent again."""
    recorder = Recorder(sim, fails=12)

    async def main() -> None:
        engine = sim.engine(notifiers=[recorder], tick=timedelta(seconds=5), poll=timedelta(hours=1), lease=timedelta(hours=1))
        agent = engine.agent(desk())
        async with engine:
            await agent.start({})
            await sim.runtime.sleep(timedelta(hours=12).total_seconds())
            times = [at for at, _ in recorder.sent]
            gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
            assert len(times) == 13
            assert all(later > 1.2 * sooner for sooner, later in itertools.pairwise(gaps[:8])), gaps
            assert max(gaps) < 3_700 and min(gaps) > SEND_SECONDS_MAX

    sim.run(main)


def test_a_slow_send_is_not_repeated_by_somebody_else(sim: Any) -> None:
    """The notice is the sender's alone for as long as a send may take."""
    recorder = Recorder(sim, seconds=SEND_SECONDS_MAX - 0.5)

    async def main() -> None:
        engine = sim.engine(notifiers=[recorder])
        other = sim.other("other", notifiers=[recorder], workers=0)
        agent = engine.agent(desk())

        async def tick_on() -> None:
            async with other:
                for _ in range(60):
                    await other.tick()
                    await sim.runtime.sleep(1)

        async with engine:
            await agent.start({})
            await sim.on("other", tick_on())
            assert len(recorder.sent) == 1

    sim.run(main)


def test_a_send_that_hangs_is_given_up(sim: Any) -> None:
    """It counts as failed; ticks go on."""
    recorder = Recorder(sim, seconds=3_600)

    async def main() -> None:
        engine = sim.engine(notifiers=[recorder])
        agent = engine.agent(desk())
        async with engine:
            run = await agent.start({})
            await sim.runtime.sleep(120)
            assert 2 <= len(recorder.sent) <= 4
            assert all(isinstance(error, TimeoutError) for error in sim.errors) and sim.errors
            [request] = await run.requests()
            await request.approve(by="eva")
            assert await run.result() == "done"

    sim.run(main)


def test_one_warning_goes_out_before_the_end(sim: Any) -> None:
    """At 80 %, once; an extension does not bring another; nothing after the answer. # case B4"""
    recorder = Recorder(sim)

    async def main() -> None:
        engine = sim.engine(notifiers=[recorder], tick=timedelta(minutes=1), poll=timedelta(hours=1), lease=timedelta(hours=1))
        agent = engine.agent(desk(within=timedelta(hours=10)))
        async with engine:
            began = sim.runtime.monotonic()
            run = await agent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=timedelta(hours=9))
            [(first, request), (second, warning)] = recorder.sent
            assert (request.warning, warning.warning) == (False, True)
            assert first - began < 120 and 0 <= second - began - timedelta(hours=8).total_seconds() < 120
            assert request.id != warning.id and request.token != warning.token and warning.title.startswith("Last call: ")
            [open_] = await run.requests()
            await open_.extend(timedelta(hours=20))
            await sim.runtime.sleep(timedelta(hours=19).total_seconds())
            await open_.approve(by="eva")
            assert await run.result() == "done"
            await sim.runtime.sleep(timedelta(hours=5).total_seconds())
            assert len(recorder.sent) == 2
            events = [event.type for event in await engine.store.events(run.id)]
            assert (events.count("wait.notified"), events.count("wait.warned")) == (1, 1)

    sim.run(main)


# ── secrets ────────────────────────────────────────────────────────────────────────────────────────────────
class Keyholder:
    """Keeps the notices that it was sent; `look` runs while the first one is on its way."""

    def __init__(self, look: Callable[[Notice], None] = lambda notice: None) -> None:
        self.look, self.notices = look, list[Notice]()

    async def notify(self, notice: Notice) -> None:
        self.look(notice)
        self.notices.append(notice)


async def test_a_token_is_stored_hashed_before_it_is_sent(tmp_path: Path) -> None:
    """Whoever answers at once is known already; whoever reads the database can answer nothing."""
    path = tmp_path / "runs.db"
    hashes: list[str] = []

    def look(notice: Notice) -> None:
        database = sqlite3.connect(path)
        hashes.extend(row[0] for row in database.execute("SELECT hash FROM wait_token"))
        database.close()

    holder = Keyholder(look)
    engine = quiet(f"sqlite:///{path}", holder)
    agent = engine.agent(desk())
    async with engine:
        run = await agent.start({})
        await waiting(run)
        await engine.tick()
        [notice] = holder.notices
        assert hashes == [hashlib.sha256(notice.token.encode()).hexdigest()]
        assert len(notice.token) >= 32
        files = b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir()))  # noqa: ASYNC240 - a local file, in a test
        assert hashes[0].encode() in files and notice.token.encode() not in files
        told = "".join(str(event) for event in await engine.store.events(run.id)) + "".join(str(step) for step in await run.steps())
        assert notice.token not in told


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_token_answers_its_own_request_once(kind: str, tmp_path: Path) -> None:
    """Another request's, a guess and an empty one are refused, before and after; after the decision it changes nothing."""
    done, holder = list[str](), Keyholder()
    engine = quiet(MemoryStore() if kind == "memory" else f"sqlite:///{tmp_path / 'runs.db'}", holder)
    agent = engine.agent(desk(calls(call("refund", order="1", cents=1), call("refund", order="2", cents=2)), say("done"), done=done))
    async with engine:
        run = await agent.start({})
        await waiting(run)
        await engine.tick()
        one, two = sorted(holder.notices, key=lambda notice: notice.wait.row.input["order"])
        strangers = (two.token, "0" * 64, "")
        for token in strangers:
            answered = await engine.resolve(one.wait.id, "approve", by="mallory", token=token)
            assert answered.outcome is ResolveOutcome.REFUSED
        assert (await engine.resolve(one.wait.id, "approve", by="eva", token=one.token)).outcome is ResolveOutcome.RESOLVED
        again = await engine.resolve(one.wait.id, "deny", by="kim", token=one.token)
        assert (again.outcome, again.message) == (ResolveOutcome.CONFLICT, "It was closed by eva already: approve.")
        for token in strangers:
            late = await engine.resolve(one.wait.id, "approve", by="mallory", token=token)
            assert (late.outcome, late.message) == (ResolveOutcome.REFUSED, "This token is not one of this request's."), "a stranger learns nothing"
        assert (await engine.resolve(two.wait.id, "deny", by="eva", token=two.token)).outcome is ResolveOutcome.RESOLVED
        assert await run.result(timeout=30) == "done"
        assert done == ["1: 1"]


@dataclass
class Desk:
    """The page behind the links, as the guide shows it: opening it shows a button, and only the button presents the secret."""

    engine: Engine
    seen: list[str] = field(default_factory=list[str])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        self.seen.append(f"{method} {path}")
        wait_id = path.rpartition("/")[2]
        status, page = 200, f"<form method=post>{wait_id}<button>Approve</button></form>"
        if method == "POST":
            length = next(int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length"))
            token = (await reader.readexactly(length)).decode()
            answered = await self.engine.resolve(wait_id, "approve", by="eva", token=token, via="desk")
            status, page = (200 if answered.outcome is ResolveOutcome.RESOLVED else 409), answered.message or "Done."
        body = b"" if method == "HEAD" else page.encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


async def asked_for(link: str, method: str, *, body: str = "", cookie: str = "") -> int:
    """What a browser, or whoever follows links, gets from this address; what stands after # never leaves it."""
    address = urlsplit(link)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"{method} {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\ncookie: {cookie}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def test_whoever_follows_the_link_in_a_mail_decides_nothing(tmp_path: Path) -> None:
    """A scanner opens it with every method that changes nothing, with and without cookies; it still works for the person, once. # case B5"""
    mailbox, done = Mailbox(), list[str]()
    pages: list[str] = []
    async with mail_server(mailbox) as port:
        smtp = Smtp("127.0.0.1", ["eva@example.org"], "perdure@example.org", port=port, starttls=False)
        engine = quiet(f"sqlite:///{tmp_path / 'runs.db'}", smtp, link=lambda wait, token: f"{pages[0]}/{wait.id}#{token}")
        agent = engine.agent(desk(done=done))
        desk_page = Desk(engine)
        async with await asyncio.start_server(desk_page.serve, "127.0.0.1", 0) as opened, engine:
            pages.append(f"http://127.0.0.1:{opened.sockets[0].getsockname()[1]}/requests")
            run = await agent.start({})
            await waiting(run)
            await engine.tick()
            link = next(line for line in mailbox.taken[0][2].get_content().split() if line.startswith("http://"))
            secret = urlsplit(link).fragment
            before = len(await engine.store.events(run.id))
            for method in ("GET", "HEAD", "OPTIONS"):
                for turn in range(10):
                    assert await asked_for(link, method, cookie="session=eva" if turn % 2 else "") == 200
            assert await asked_for(link, "POST", body="") == 409, "a scanner that presses buttons has no secret either"
            assert not any(secret in line for line in desk_page.seen), "the secret is no part of what is asked for, or logged"
            assert len(await run.requests()) == 1 and len(await engine.store.events(run.id)) == before and done == []
            assert await asked_for(link, "POST", body=secret) == 200
            assert await run.result(timeout=30) == "done" and len(done) == 1
            assert await asked_for(link, "POST", body=secret) == 409


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_token_is_not_two_people(kind: str, tmp_path: Path) -> None:
    """Where two must agree, one token votes once, under one name. # case B21"""
    done, holder = list[str](), Keyholder()
    engine = quiet(MemoryStore() if kind == "memory" else f"sqlite:///{tmp_path / 'runs.db'}", holder)
    agent = engine.agent(desk(done=done, quorum=2))
    async with engine:
        run = await agent.start({})
        [request] = await waiting(run)
        await engine.tick()
        [notice] = holder.notices
        assert (await engine.resolve(request.id, "approve", by="eva", token=notice.token)).outcome is ResolveOutcome.VOTED
        assert (await engine.resolve(request.id, "approve", by="kim", token=notice.token)).outcome is ResolveOutcome.REFUSED
        assert (await engine.resolve(request.id, "approve", by="eva", token=notice.token)).outcome is ResolveOutcome.ALREADY
        assert done == []
        assert (await engine.resolve(request.id, "approve", by="kim")).outcome is ResolveOutcome.RESOLVED
        assert await run.result(timeout=30) == "done"
        assert len(done) == 1
