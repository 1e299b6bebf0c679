"""`perdure worker`: executes runs until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Final, Optional

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._json import event_json
from perdure.cli._leave import run_and_leave
from perdure.cli._load import load_engine
from perdure.cli._options import App, Json, StoreOption
from perdure.cli._output import STATUS_LOOK, Output
from perdure.cli._signals import stop_on_signals
from perdure.cli._words import brief, plural, safe, span, tail
from perdure.core.errors import ConfigurationError
from perdure.core.event import Event
from perdure.core.limits import DRAIN_GRACE
from perdure.core.run import RunStatus
from perdure.engine import Engine
from perdure.stores import Hint

LOOK: Final = 0.3
"""Seconds between two looks for news."""
CURSORS_MAX: Final = 10_000
"""Of how many runs it is remembered what was told; the longest unheard go first."""
TOLD: Final = {
    "run.claimed": "running",
    "run.settled": "",
    "run.waiting": "waiting",
    "run.released": "interrupted",
    "run.recovered": "recovering",
    "effect.unknown": "waiting",
    "step.retried": "pending",
}
"""The events that are worth a line, and the status that gives it its look."""


def worker(
    app: App,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--workers", "-w", min=1, max=10_000, help="Runs at once; else what the program says.", show_default=False),
    ] = None,
    grace: Annotated[float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long steps may finish after the signal to stop.")] = (
        DRAIN_GRACE.total_seconds()
    ),
    store: StoreOption = None,
    json: Json = False,
) -> int:
    """Execute runs as they come, until SIGTERM or Ctrl-C.

    The first signal drains: nothing new is claimed, steps finish within --grace, what is left is handed back to other workers. A second one
    stops hard; then the leases run out, and nothing is lost either.

    [bold]Examples[/bold]

    $ perdure worker app.py:engine

    $ perdure worker shop.agents:engine --workers 8 --grace 60
    """
    output = Output(json=json)
    output.keep_stdout()
    engine = load_engine(app)
    if not engine.agents:
        raise ConfigurationError(f"{app} registers no agent: there is nothing that a worker could execute. Register one with engine.agent(…).")
    engine.adjust(store=store, workers=workers or max(1, engine.size))
    engine.check_models()
    return run_and_leave(lambda: _work(engine, output, timedelta(seconds=grace)))


async def _work(engine: Engine, output: Output, grace: timedelta) -> int:
    stopped = asyncio.Event()
    with stop_on_signals(stopped.set):
        async with engine:
            news = News(engine, await engine.store.now(), lambda event: _tell(output, event))
            telling = engine.runtime.spawn(news.tell_forever(), name="perdure-news")
            if not output.json:
                output.note(_banner(engine))
            await stopped.wait()
            left = len(engine.worker.executions)
            if not output.json:
                output.note(f"draining: {plural(left, 'run')} may finish a step within {span(grace.total_seconds())}; once more stops hard")
            await engine.drain(grace)
            telling.cancel()
            await asyncio.wait([telling])
            await news.tell()
    if not output.json:
        output.note("stopped; what was left goes on at the next worker")
    return _exit.DONE


class News:
    """What happens to the runs of this process, read from the store: it tells of claims and ends too, which the store itself writes down."""

    def __init__(self, engine: Engine, since: datetime, told: Callable[[Event], None]) -> None:
        self._engine, self._since, self._told = engine, since, told
        self._cursors: dict[str, int] = {}
        self._changed: set[str] = set()
        engine.store.on_hint(self._hear)

    def _hear(self, hint: Hint) -> None:
        if hint.run_id is not None:
            self._changed.add(hint.run_id)

    async def tell_forever(self) -> None:
        while True:
            await self.tell()
            await self._engine.runtime.sleep(LOOK)

    async def tell(self) -> None:
        """Everything since the last call, run by run."""
        active = self._engine.worker.executions
        for run_id, execution in active.items():
            # The claim is the last event of a run that was just claimed; what came before is not ours to tell.
            self._cursors.setdefault(run_id, max(0, execution.run.next_event - 2))
        changed, self._changed = self._changed | set(active), set()
        for run_id in changed:
            known = run_id in self._cursors
            cursor = self._cursors.pop(run_id, 0)
            for event in await self._engine.store.events(run_id, after=cursor):
                cursor = event.seq
                if known or event.at >= self._since:
                    self._told(event)
            self._cursors[run_id] = cursor
        for forgotten in list(self._cursors)[: max(0, len(self._cursors) - CURSORS_MAX)]:
            del self._cursors[forgotten]


def _banner(engine: Engine) -> Text:
    line = Text("● ", style="cyan").append(f"worker {engine.worker.name}", style="bold")
    line.append(f"  {plural(engine.size, 'run')} at once on {safe(str(engine.store.info().get('address', '')))}\n", style="default")
    return line.append(f"  agents: {', '.join(safe(each) for each in sorted(engine.agents))}. Ctrl-C drains.", style="bright_black")


def _tell(output: Output, event: Event) -> None:
    if output.json:
        output.line(event_json(event))
    elif event.type in TOLD:
        output.err.print(_line(event), soft_wrap=True)


def _line(event: Event) -> Text:
    data = event.data
    status = TOLD[event.type] or str(data.get("status"))
    sign, colour = STATUS_LOOK.get(status, ("·", ""))
    line = Text(f"{event.at.astimezone():%H:%M:%S} ", style="bright_black").append(f"{tail(event.run_id)} ", style="bold")
    line.append(f"{sign} {event.type.removeprefix('run.') if event.type != 'run.settled' else status}", style=colour)
    detail = _detail(event)
    return line.append(f"  {detail}", style="bright_black") if detail else line


def _detail(event: Event) -> str:
    data = event.data
    match event.type:
        case "run.claimed":
            return f"execution {data.get('execution')}"
        case "run.settled" if data.get("status") == RunStatus.FAILED and data.get("error"):
            return f"{data['error'].get('code')}: {brief(data['error'].get('message'), 120)}"
        case "run.waiting":
            return plural(len(data.get("waits") or ()), "request")
        case "run.released":
            return str(data.get("reason"))
        case "run.recovered":
            return f"{data.get('worker')} was not heard of any more"
        case "effect.unknown":
            return f"{data.get('tool')}: outcome unknown"
        case "step.retried":
            return brief(data.get("error"), 120)
        case _:
            return ""
