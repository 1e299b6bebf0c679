"""What `make demo` runs: a worker triages the inbox, is killed three times with SIGKILL, and nothing is lost or done twice.

    python demo.py            triage the inbox; a second call starts nothing twice
    python demo.py --fresh    forget the last demo and begin anew

This process starts the runs, watches, and answers what people are asked. The work is done by worker processes, of which each is killed at the worst
moment that comes first: while the model speaks, while a tool runs, and after the bank has paid but before anybody could write that down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Before anything reads the settings: a demo can't wait half a minute for a dead worker's lease.
os.environ.setdefault("TRIAGE_DATA", str(HERE / "data"))
os.environ.setdefault("TRIAGE_CALLS", str(Path(os.environ["TRIAGE_DATA"]) / "model-calls.log"))
os.environ.setdefault("TRIAGE_LEASE", "1.5")
os.environ.setdefault("TRIAGE_GRACE", "0.5")
os.environ.setdefault("TRIAGE_LATENCY", "0.25")

from rich import box  # noqa: E402
from rich.console import Console, Group, RenderableType  # noqa: E402
from rich.live import Live  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.spinner import Spinner  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

import app  # noqa: E402
import settings  # noqa: E402
from mail import Email, MailError, read  # noqa: E402
from perdure import Delta, Engine, Event, Request, RunStatus  # noqa: E402
from perdure.core.run import Run  # noqa: E402
from rules import euros  # noqa: E402
from witness import model_calls  # noqa: E402

PATIENCE = 150
"""Seconds after which the demo gives up. It takes about half a minute."""


# ── the worker: a process of its own ────────────────────────────────────────────────────────────────────────


async def work() -> None:
    """Wait to be called upon, then execute runs until the parent goes away, telling it on stdout what happens."""

    def tell(news: Any) -> None:
        if isinstance(news, Delta):
            line: dict[str, Any] = {"run": news.run_id, "step": news.step, "text": news.text}
        elif isinstance(news, Event):
            line = {"run": news.run_id, "event": news.type, **news.data}
        else:
            return
        sys.stdout.write(json.dumps(line, default=str) + "\n")
        sys.stdout.flush()

    app.engine.on("*", tell)
    if not await asyncio.to_thread(sys.stdin.buffer.readline):
        return  # never called upon
    async with app.engine:
        await asyncio.to_thread(sys.stdin.buffer.read)


@dataclass
class Killing:
    """One SIGKILL: which worker, and what was going on in it."""

    pid: int
    moment: str
    victims: dict[str, str]


# ── what is known about the runs ────────────────────────────────────────────────────────────────────────────


@dataclass
class Job:
    """One e-mail and its run, as far as this process has heard."""

    file: str
    email: Email
    run_id: str
    run: Run
    new: bool
    step: int = 1
    said: str = ""
    doing: str = ""
    orphaned: bool = False
    repeated: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.file.removesuffix(".eml")


@dataclass
class Board:
    """Everything that the screen shows."""

    console: Console
    jobs: dict[str, Job]
    started: float = field(default_factory=time.monotonic)
    killings: list[Killing] = field(default_factory=list)
    planned: list[str] = field(default_factory=lambda: ["stream", "tool", "effect"])
    pid: int | None = None
    cards: int = 0

    @property
    def done(self) -> bool:
        return all(job.run.status.final for job in self.jobs.values())

    def say(self, text: str) -> None:
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(f"{time.monotonic() - self.started:5.1f} s", "dim"), Text.from_markup(text))
        self.console.print(line)

    def hear(self, line: dict[str, Any]) -> None:
        """Take in one line of the worker."""
        job = next((each for each in self.jobs.values() if each.run_id == line["run"]), None)
        if job is None:
            return
        job.orphaned = False
        if "text" in line:
            if line["step"] != job.step or job.doing != "model":
                job.step, job.said, job.doing = line["step"], "", "model"
            job.said += line["text"]
        elif line["event"] in {"step.completed", "effect.started", "tool.completed"}:
            job.doing = "tools"

    def __rich__(self) -> RenderableType:
        table = Table(box=None, padding=(0, 1), show_header=False)
        for column in ({"width": 2}, {"no_wrap": True}, {"width": 66, "no_wrap": True, "overflow": "ellipsis"}):
            table.add_column(**column)  # type: ignore[arg-type]
        for job in self.jobs.values():
            table.add_row(*self._row(job))
        who = f"worker {self.pid}" if self.pid else "no worker"
        done = sum(job.run.status.final for job in self.jobs.values())
        return Group(Text(), table, Text(f"  {who} · {done} of {len(self.jobs)} done · killed {len(self.killings)} ×", style="dim"))

    def _row(self, job: Job) -> tuple[RenderableType, Text, Text]:
        name = Text(job.name)
        match job.run.status:
            case RunStatus.COMPLETED:
                return Text("✓", "green"), name, ticket_line(job.run.output)
            case RunStatus.FAILED | RunStatus.CANCELLED:
                return Text("✗", "red"), name, Text(job.run.error.message if job.run.error else "cancelled", "red")
            case RunStatus.WAITING:
                return Text("?", "bold yellow"), name, Text("waits for a person", "yellow")
            case RunStatus.RUNNING if job.orphaned:
                return Text("†", "red"), name, Text(f"step {job.step}  its worker is dead; the lease runs out", "red")
            case RunStatus.RUNNING:
                said = " ".join(job.said.split())[-56:] if job.doing == "model" else "tools"
                return Spinner("dots", style="cyan"), name, Text(f"step {job.step}  {said}", "cyan" if job.doing == "model" else "blue")
            case _:
                return Text("·", "dim"), name, Text(f"step {job.step}  recovered, next in line" if job.run.deaths else "", "dim")


def ticket_line(output: Any) -> Text:
    style = {"urgent": "bold red", "high": "yellow", "normal": "", "low": "dim"}[output["priority"]]
    return Text.assemble(output["category"], ", ", (output["priority"], style))


# ── starting, watching, killing ─────────────────────────────────────────────────────────────────────────────


def open_inbox(console: Console) -> list[tuple[str, Email]]:
    """Every message that can be read; the others are named."""
    good: list[tuple[str, Email]] = []
    for path in sorted((HERE / "inbox").glob("*.eml")):
        try:
            good.append((path.name, read(path)))
        except MailError as error:
            line = Table.grid(padding=(0, 2))
            line.add_row(Text("refused", "yellow"), Text.assemble((error.file, "bold"), f": {error.what}.\n", (error.todo, "dim")))
            console.print(line)
    return good


async def start_all(engine: Engine, messages: list[tuple[str, Email]]) -> dict[str, Job]:
    """One run for each message. Its message id is the key, so that it is started once, whoever asks how often."""
    jobs: dict[str, Job] = {}
    for file, email in messages:
        files = [(each.name, each.content, each.media_type) for each in email.attachments]
        handle = await engine.start("triage", email, key=email.message_id, attachments=files)
        jobs[email.message_id] = Job(file, email, handle.id, await handle.run(), handle.created)
    return jobs


class Workers:
    """Worker processes: one that works, and the next one, which has imported everything and waits for its turn."""

    def __init__(self) -> None:
        self.log = (settings.DATA / "workers.log").open("ab")
        self.all: list[asyncio.subprocess.Process] = []

    async def spawn(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--work", stdin=pipe, stdout=pipe, stderr=self.log)
        self.all.append(process)
        return process

    async def close(self) -> None:
        """End them all: each ends with its standard input, so none is left behind, whatever happens here."""
        for process in self.all:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.all:
            await process.wait()
        self.log.close()


def go(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def run_workers(engine: Engine, board: Board) -> None:
    """Worker after worker, until every run has settled."""
    workers = Workers()
    try:
        following = await workers.spawn()
        while not board.done:
            process = following
            if board.planned:
                following = await workers.spawn()
            go(process)
            board.pid = process.pid
            board.say(f"worker [bold]{process.pid}[/] {'takes over' if board.killings else 'starts'}")
            await watch(engine, board, process)
            board.pid = None
    finally:
        await workers.close()


async def watch(engine: Engine, board: Board, process: asyncio.subprocess.Process) -> None:
    """Follow one worker: to the end of all runs, or to its death."""
    listening = asyncio.create_task(listen(board, process))
    looked = 0.0
    try:
        while process.returncode is None and not listening.done():
            if (moment := worst_moment(board)) is not None:
                await refresh(engine, board)
                await kill(board, process, *moment)
                return
            if time.monotonic() - looked > 0.1:
                looked = time.monotonic()
                await refresh(engine, board)
                await answer_requests(engine, board)
            if board.done:
                return
            if time.monotonic() - board.started > PATIENCE:
                raise SystemExit(f"Not done after {PATIENCE} s. The runs are kept in {settings.DATA}; call the demo again to go on.")
            await asyncio.sleep(0.01)
        raise SystemExit(f"Worker {process.pid} ended by itself; {settings.DATA / 'workers.log'} says why.")
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def listen(board: Board, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        board.hear(json.loads(line))


async def refresh(engine: Engine, board: Board) -> None:
    for job in board.jobs.values():
        if not job.run.status.final:
            job.run = await engine.run(job.run_id)


PAID_UNRECORDED = """
    SELECT payments.* FROM payments JOIN access_log ON subject = order_id AND request = 'refund' AND NOT answered WHERE reference IS NOT NULL
"""
WAITING_FOR_THE_SHOP = "SELECT subject FROM access_log WHERE request = 'shipment' AND NOT answered AND pid = ?"


def worst_moment(board: Board) -> tuple[str, str, Job | None] | None:
    """The first of the moments still planned that has come: its kind, what to say about it, and whose run it is."""
    shop, jobs = app.open_shop(), board.jobs.values()
    if "effect" in board.planned and (paid := shop.rows(PAID_UNRECORDED)):
        owner = next((job for job in jobs if paid[0]["reference"].startswith(job.run_id)), None)
        return "effect", f"the bank has just paid {euros(-paid[0]['cents'])} back, and nobody has written that down", owner
    if "stream" in board.planned:
        speaking = next((job for job in jobs if job.doing == "model" and job.step >= 2 and len(job.said) > 24), None)
        return speaking and ("stream", f"the model was saying “{' '.join(speaking.said.split())[-40:]}”", speaking)
    if "tool" in board.planned and (calls := shop.rows(WAITING_FOR_THE_SHOP, board.pid)):
        order = calls[0]["subject"]
        owner = next((job for job in jobs if order in job.email.text + job.email.subject), None)
        return "tool", f"shipment_status({order}) was waiting for the shop", owner
    return None


async def kill(board: Board, process: asyncio.subprocess.Process, kind: str, what: str, job: Job | None) -> None:
    """SIGKILL: no handler, no `finally`, no goodbye."""
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    board.planned.remove(kind)
    victims = {each.run_id: each.name for each in board.jobs.values() if each.run.status is RunStatus.RUNNING}
    for each in board.jobs.values():
        each.orphaned = each.run_id in victims
    board.killings.append(Killing(process.pid, what, victims))
    where = {"stream": "in a model stream", "tool": "in a tool", "effect": "between an effect and its record"}[kind]
    board.say(f"[bold red]SIGKILL[/] worker {process.pid} [red]{where}[/]\n{f'[bold]{job.name}[/]: ' if job else ''}{what}")


# ── what people are asked ───────────────────────────────────────────────────────────────────────────────────


async def answer_requests(engine: Engine, board: Board) -> None:
    """The person in this demo says yes to the refund, and looks at the bank's statement when its outcome is unknown."""
    for request in await engine.requests():
        if request.wait.kind == "approval":
            board.console.print(approval_card(request))
            await request.approve(by="support-lead@kettleandloom.example")
            board.say("[yellow]approved[/] by support-lead@kettleandloom.example")
        elif request.wait.kind == "effect" and request.wait.row.effect_key:
            await settle_unknown(engine, board, request.wait.row.effect_key)


def approval_card(request: Request) -> Panel:
    call = request.wait.row
    facts = grid(("call", f"{call.tool}({arguments(call.input)})"), ("run", request.wait.run_id), ("lapses", f"{call.expires_at:%d %b %H:%M} UTC"))
    return Panel(facts, title="[bold yellow]A person has to say yes", title_align="left", border_style="yellow", width=79)


async def settle_unknown(engine: Engine, board: Board, key: str) -> None:
    effect = next(each for each in await engine.effects() if each.key == key)
    facts = grid(
        ("call", f"{effect.row.tool}({arguments(effect.row.input)})"),
        ("key", effect.key),
        ("started", f"{effect.started_at:%H:%M:%S} UTC by worker {effect.worker}, silent since" if effect.started_at else "?"),
        ("answers", "it happened, with this result · run it again · give up on it"),
    )
    board.console.print(
        Panel(facts, title="[bold red]Outcome unknown: nobody knows whether this happened", title_align="left", border_style="red", width=79)
    )
    board.cards += 1
    receipt = await app.open_shop().find_refund(key)
    if receipt is None:
        await engine.settle(key, "run", by="support-lead@kettleandloom.example", reason="The bank's statement has no such payment.")
        board.say("[yellow]run it again[/], said a person: the bank's statement has no payment with this key")
    else:
        await engine.settle(key, "done", receipt.model_dump(), by="support-lead@kettleandloom.example", reason="It is on the bank's statement.")
        board.say(f"[yellow]it happened[/], said a person: the bank's statement has {receipt.payment}, {euros(receipt.cents)}, with this key")


def grid(*rows: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, "dim"), Text(value))
    return table


def arguments(given: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


# ── what came of it ─────────────────────────────────────────────────────────────────────────────────────────


async def count_repeats(engine: Engine, board: Board) -> tuple[int, int, int]:
    """Fill in what each run repeated, by the books of the outside world: the witness at the model, the access log of the shop.

    Answers the model calls in all, those that were repeated, and the tool calls that were repeated.
    """
    asked = model_calls(Path(settings.CALLS or ""))
    log = app.open_shop().rows("SELECT request, subject, count(*) AS calls FROM access_log GROUP BY request, subject")
    tools = {(row["request"], row["subject"]): row["calls"] for row in log}
    repeated_tools = 0
    for job in board.jobs.values():
        for (message_id, step), count in sorted(asked.items()):
            if message_id == job.email.message_id and count > 1:
                job.repeated.append(f"model call {step}{times(count)}")
        for row in await engine.steps(job.run_id):
            request, subject = seen_as(row.row.name, row.row.input if isinstance(row.row.input, dict) else {}, row.row.tool_call_id, job)
            if row.kind == "tool" and (count := tools.pop((request, subject), 0)) > 1:
                repeated_tools += count - 1
                job.repeated.append(f"{row.row.name}{times(count)}")
    return sum(asked.values()), sum(count - 1 for count in asked.values()), repeated_tools


def seen_as(tool: str, given: dict[str, Any], call_id: str | None, job: Job) -> tuple[str, str]:
    """Under which words the shop logged a call."""
    order = job.run.output["order_id"] if job.run.output else None
    return {"lookup_order": "order", "shipment_status": "shipment", "refund": "refund"}.get(tool, ""), given.get("order_id") or order or ""


def times(count: int) -> str:
    return "" if count == 2 else f" {count - 1} ×"


def many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def result_table(board: Board) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("e-mail", "ticket", "order", "for people", "repeated"):
        table.add_column(name, no_wrap=name != "repeated")
    for job in board.jobs.values():
        repeated = Text(", ".join(job.repeated) or "nothing", "" if job.repeated else "dim")
        if job.run.status is RunStatus.COMPLETED:
            output = job.run.output
            table.add_row(job.name, ticket_line(output), output["order_id"] or "", "yes" if output["needs_human"] else "", repeated)
        else:
            table.add_row(job.name, Text(str(job.run.status), "red"), "", "", repeated)
    return table


def verdicts(board: Board, calls: int, repeated: int, repeated_tools: int) -> list[tuple[bool, str]]:
    """What the demo promises, each with whether it held."""
    shop = app.open_shop()
    refunds = shop.rows("SELECT * FROM payments WHERE reference IS NOT NULL")
    tickets = Counter(row["reference"] for row in shop.rows("SELECT reference FROM tickets"))
    settled = sum(job.run.status is RunStatus.COMPLETED for job in board.jobs.values())
    kills = len(board.killings)
    hit = {run_id: sum(run_id in killing.victims for killing in board.killings) for run_id in (job.run_id for job in board.jobs.values())}
    bounded = not kills or all(len(job.repeated) <= hit[job.run_id] for job in board.jobs.values())
    return [
        (settled == len(board.jobs), f"{settled} of {len(board.jobs)} runs completed" + (f", {kills} workers killed on the way" if kills else "")),
        (bounded, f"repeated: {repeated} of {many(calls, 'model call')} and {many(repeated_tools, 'tool call')}, each in progress at a kill"),
        (set(tickets.values()) <= {1} and len(tickets) == settled, f"{many(len(tickets), 'ticket')} filed, none twice"),
        (len(refunds) <= 1, f"{many(len(refunds), 'refund')} paid"),
    ]


async def second_run(engine: Engine, board: Board, messages: list[tuple[str, Email]]) -> tuple[bool, str]:
    """The same inbox again."""
    before = sum(model_calls(Path(settings.CALLS or "")).values())
    again = await start_all(engine, messages)
    new = sum(job.new for job in again.values())
    calls = sum(model_calls(Path(settings.CALLS or "")).values()) - before
    return new == calls == 0, f"the same inbox again: {many(len(again), 'key')} known, {many(new, 'run')} started, {many(calls, 'model call')}"


# ── the demo ────────────────────────────────────────────────────────────────────────────────────────────────


async def demo(console: Console) -> bool:
    console.print(app.MODEL_LINE)
    console.print()
    messages = open_inbox(console)
    engine = Engine(f"sqlite:///{settings.DATA / 'triage.db'}", workers=0)
    engine.register(app.triage.kind)
    async with engine:
        board = Board(console, await start_all(engine, messages))
        new = sum(job.new for job in board.jobs.values())
        left = [job for job in board.jobs.values() if not job.run.status.final]
        board.say(
            f"{len(messages)} e-mails: {new} runs started, {len(messages) - new} known by their key" + ("" if left else "; all of them are done")
        )
        if left:
            with Live(board, console=console, refresh_per_second=12, transient=True):
                await run_workers(engine, board)
        counts = await count_repeats(engine, board)
        console.print(result_table(board))
        found = verdicts(board, *counts)
        found.append(await second_run(engine, board, messages))
    for good, text in found:
        console.print(Text.assemble(("  ✓  ", "bold green") if good else ("  ✗  ", "bold red"), text))
    console.print()
    console.print(Text("Call it again: nothing starts twice. To begin anew, and to look closer:", "dim"))
    console.print(Text(f"{shown(Path(sys.executable))} {shown(HERE / 'demo.py')} --fresh", "dim"), soft_wrap=True)
    console.print(Text(f"{shown(Path(sys.executable).parent / 'perdure')} runs list --app {shown(HERE / 'app.py')}", "dim"), soft_wrap=True)
    return all(good for good, _ in found)


def shown(path: Path) -> Path:
    """A path as somebody here would type it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="forget the last demo first")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        asyncio.run(work())
        return 0
    if chosen.fresh:
        shutil.rmtree(settings.DATA, ignore_errors=True)
        settings.DATA.mkdir(parents=True)
    try:
        return 0 if asyncio.run(demo(Console())) else 1
    except KeyboardInterrupt:
        print("\nStopped. The runs are kept; call the demo again to go on.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
