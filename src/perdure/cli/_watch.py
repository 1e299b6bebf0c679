"""Following one run: what happens to it, as lines that stay, streamed text, and one gauge."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.text import Text

from perdure.cli import _exit
from perdure.cli._cards import Here, card
from perdure.cli._json import event_json
from perdure.cli._output import Output
from perdure.cli._screen import INDENT, Gauge, Screen, screen_for, spread
from perdure.cli._story import Story, Told
from perdure.cli._words import arguments, brief, safe, spent, tail, took
from perdure.cli._words import span as span_of
from perdure.core.budget import Usage
from perdure.core.event import Delta, Event, Reset
from perdure.core.run import Run, RunStatus
from perdure.engine import Engine, Request, RunEvent, Settled, Waiting

FRAME: Final = 0.1
"""Seconds between two drawings of the gauge."""
LOOK: Final = 1.0
"""Seconds between two looks at a run that executes somewhere else."""
GOES_ON: Final = frozenset({"run.claimed", "run.waiting", "run.settled"})
PLAIN_WIDTH: Final = 160
"""How long a call's line may be where no terminal sets it."""
ANSWER_ROOM: Final = 24
"""A call's answer is shown on its line where at least so many cells are left."""


class Watcher:
    """Tells one run's news on a screen, until it settles or waits for somebody."""

    def __init__(self, engine: Engine, run: Run, output: Output, here: Here, *, until_waiting: bool, takes: bool, after: int | None = None) -> None:
        self._engine, self._run, self._output, self._here = engine, run, output, here
        self._until_waiting, self._takes = until_waiting, takes
        fresh = run.executions == 0 and not run.status.final
        # A run that goes on here is told from now on: what it did before would look as if it were done again.
        self._after = after if after is not None else 0 if fresh else run.next_event - 1
        self._story = Story(engine.store, run.id, told=0 if self._after == 0 else run.next_step - 1)
        self._screen: Screen = screen_for(output)
        self._step, self._told_steps = 0, set[int]()
        self._logged = set[int]()
        """Steps whose text was told from the log, which may be ahead of the text that streams."""
        self._text = ""
        self._began = engine.runtime.monotonic()
        self._looked = 0.0

    async def watch(self) -> None:
        """Follow the run until it settles, or waits and that is enough."""
        events = self._engine.events(self._run.id, after=self._after)
        if self._output.json:
            if self._rests_already:
                requests = await self._engine.requests(run_id=self._run.id)
                self._output.line(event_json(Waiting(self._run.id, self._run.next_event - 1, list(requests))))
                return
            async for event in events:
                self._output.line(event_json(event))
                if await self._is_over(event):
                    return
            return
        with self._screen:
            await self._open()
            if self._rests_already:
                return
            drawing = self._engine.runtime.spawn(self._draw(), name="perdure-gauge")
            try:
                async for event in events:
                    await self._tell(event)
                    if await self._is_over(event):
                        return
            finally:
                drawing.cancel()
                self._screen.gauge(None)

    @property
    def _at_end(self) -> bool:
        """Whether nothing has happened that is still to be told."""
        return self._after >= self._run.next_event - 1

    @property
    def _rests_already(self) -> bool:
        return self._until_waiting and self._run.status is RunStatus.WAITING and self._at_end

    async def close(self) -> int:
        """The last lines and the output; answers the exit code."""
        run = await self._engine.run(self._run.id)
        if not self._output.json:
            now = await self._engine.store.now()
            with_text = run.status is RunStatus.COMPLETED and isinstance(run.output, str) and run.output == self._text
            for line in closing(run, now, self._here, takes=self._takes):
                self._screen.line(line)
            # On a terminal the text stands there already, as it streamed.
            if run.status is RunStatus.COMPLETED and not (with_text and self._output.rich):
                self._output.value(run.output)
        return _exit.of_status(run.status)

    def remark(self, text: str) -> None:
        """A line from outside."""
        if not self._output.json:
            self._screen.end_text()
            self._line(text, "magenta")

    async def _open(self) -> None:
        run = self._run
        self._screen.line(headline(run))
        if self._after and run.usage != Usage():
            self._line(f"so far: {spent(run.usage)}")
        if run.status is RunStatus.WAITING and self._at_end:
            await self._cards(await self._engine.requests(run_id=run.id))

    async def _is_over(self, event: RunEvent) -> bool:
        if isinstance(event, Settled):
            return True
        if not isinstance(event, Waiting) or not self._until_waiting:
            return False
        # It may have been answered since, and the run may even wait again: then there is more to tell.
        later = await self._engine.store.events(self._run.id, after=event.seq)
        return not any(each.type in GOES_ON for each in later) and (await self._engine.run(self._run.id)).status is RunStatus.WAITING

    # ── the gauge ──────────────────────────────────────────────────────────────────────────────────────────
    async def _draw(self) -> None:
        runtime = self._engine.runtime
        while True:
            if runtime.monotonic() - self._looked >= LOOK:
                self._looked = runtime.monotonic()
                self._run = await self._engine.run(self._run.id)
            self._screen.gauge(self._gauge())
            await runtime.sleep(FRAME)

    def _gauge(self) -> Gauge:
        run, elapsed = self._run, self._engine.runtime.monotonic() - self._began
        here = self._engine.worker.executions.get(run.id)
        step, usage = self._step, run.usage
        if here is not None:
            usage = here.journal.usage
            step = here.activity.step if here.activity else step
            what = _doing(here.activity.what) if here.activity else "starting"
            return Gauge(what, step, run.budget.max_steps, usage, elapsed)
        if run.status is RunStatus.RUNNING:
            activity = run.activity
            what = _doing(activity.what) if activity else "starting"
            if run.lease_owner is not None:
                what += f" on {run.lease_owner}" if not self._takes else f": {run.lease_owner} has it, unless its lease runs out"
            return Gauge(what, activity.step if activity else step, run.budget.max_steps, usage, elapsed)
        if run.status is RunStatus.WAITING:
            return Gauge("waiting", step, run.budget.max_steps, usage, elapsed, busy=False)
        return Gauge("waits for a worker" if not run.status.final else str(run.status), step, run.budget.max_steps, usage, elapsed)

    # ── news ───────────────────────────────────────────────────────────────────────────────────────────────
    async def _tell(self, event: RunEvent) -> None:
        match event:
            case Delta():
                self._stream(event)
            case Reset():
                self._text = ""
                self._told_steps.discard(event.step)
                if self._screen.void_text():
                    self._line("↻ asked again: what stands above of this step is void", "yellow")
            case Waiting():
                await self._rows()
                await self._cards(event.waits)
            case Settled():
                await self._rows()
            case Event():
                await self._happened(event)

    async def _cards(self, requests: Sequence[Request]) -> None:
        now = await self._engine.store.now()
        for request in requests:
            for line in card(request.wait, self._here, now):
                self._screen.line(line)

    def _stream(self, delta: Delta) -> None:
        if delta.step in self._logged:
            return
        if delta.step != self._step:
            self._begin_step(delta.step)
        if delta.kind == "text":
            self._told_steps.add(delta.step)
            self._text += delta.text
        self._screen.text(delta.text, delta.kind)

    def _begin_step(self, step: int) -> None:
        self._screen.end_text()
        self._step, self._text = step, ""

    async def _happened(self, event: Event) -> None:
        if event.type == "run.retried":
            self._logged.clear()  # steps may have the numbers of those before it
        if event.type in ("step.completed", "step.failed"):
            await self._rows()
            return
        line = _remark(event)
        if line is not None:
            self._screen.end_text()
            self._line(*line)

    async def _rows(self) -> None:
        """The rows of the log that came since, as lines."""
        self._screen.end_text()
        for told in await self._story.more():
            if told.step.kind == "llm":
                self._response(told)
            elif told.step.kind == "tool":
                self._screen.line(call_line(told, self._screen.width))
        self._run = await self._engine.run(self._run.id)

    def _response(self, told: Told) -> None:
        step = told.step.row.index
        if told.text and step not in self._told_steps:
            self._logged.add(step)
            self._begin_step(step)
            self._text = told.text
            self._screen.text(told.text)
            self._screen.end_text()
        self._told_steps.discard(step)
        self._step = step

    def _line(self, text: str, style: str = "bright_black") -> None:
        self._screen.line(Text(" " * INDENT + safe(text), style=style))


def call_line(told: Told, screen_width: int | None) -> Text:
    """One tool call: `✓ refund(order="KL-1", cents=900) → "ok"      0.2 s`."""
    row = told.step.row
    width = screen_width or PLAIN_WIDTH
    room = width - INDENT - len(row.name) - 14
    failed = row.error is not None
    line = Text(" " * INDENT).append("✗ " if failed else "✓ ", style="red" if failed else "green").append(safe(row.name), style="bold")
    line.append(f"({arguments(told.input, max(12, room)) if told.input else ''})")
    left = width - len(line.plain) - 14
    if failed:
        message = (row.error or {}).get("message") or brief(told.answer or (row.error or {}).get("outcome") or "failed", 200)
        line.append(f" {brief(message, max(ANSWER_ROOM, left))}", style="red")
    elif told.answer is not None and left >= ANSWER_ROOM:
        line.append(f" → {brief(told.answer, left - 3)}", style="bright_black")
    return spread(line, "" if told.seconds is None else span_of(told.seconds), screen_width)


def _doing(what: str) -> str:
    return what.removeprefix("tool ") if what != "model" else "model"


def _remark(event: Event) -> tuple[str, str] | None:
    """A durable event that deserves a line of its own."""
    data = event.data
    match event.type:
        case "run.claimed" if data.get("execution", 1) > 1:
            return f"● goes on: execution {data['execution']}, {data.get('worker')}", "cyan"
        case "run.recovered":
            return f"↻ {data.get('worker')} was not heard of any more: its lease ran out", "yellow"
        case "run.released" if data.get("reason") == "drain":
            return "◇ handed back: its worker stopped", "magenta"
        case "run.released" if data.get("reason") == "retry_after":
            return "○ put aside: the provider asked to come back later", "blue"
        case "run.retried":
            return f"↻ retried: {data.get('mode')}", "cyan"
        case "run.settled":
            return f"{data.get('status')}, before it was retried", "bright_black"
        case "run.cancel_requested":
            return f"× cancel asked for{_by(data.get('by'))}{_because(data.get('reason'))}", "magenta"
        case "step.retried":
            return (
                f"↻ try {data.get('try_no')} of the model call failed: {brief(data.get('error'), 200)}; again in {span_of(float(data.get('delay') or 0))}",
                "yellow",
            )
        case "wait.resolved":
            return _resolved(data), "yellow"
        case "effect.unknown":
            return f"? {data.get('tool')}: outcome unknown", "yellow"
        case "effect.held":
            return f"◆ {data.get('tool')}: held, it may have run in an earlier life of this run", "yellow"
        case "budget.reached":
            return f"◆ {data.get('limit')} is reached", "yellow"
        case "version.changed":
            return f"goes on under version {data.get('to')} of the code; it began under {data.get('from')}", "bright_black"
        case "signal.received":
            return f"◆ signal {data.get('name')!r}", "yellow"
        case "log":
            colour = {"warning": "yellow", "error": "red"}.get(str(data.get("level")), "bright_black")
            return f"{data.get('message')}", colour
        case _:
            return None


def _resolved(data: dict[str, object]) -> str:
    about = f"{data.get('kind')} of {data['tool']}" if data.get("tool") else f"{data.get('kind')}"
    said = data.get("decision") or data.get("resolution")
    return f"◆ {about}: {said}{_by(data.get('by'))}"


def _by(who: object) -> str:
    return f" by {who}" if who else ""


def _because(reason: object) -> str:
    return f": {reason}" if reason else ""


# ── the frame round it ─────────────────────────────────────────────────────────────────────────────────────
def headline(run: Run) -> Text:
    """The first line: which run this is."""
    line = Text("● ", style="cyan").append(safe(run.agent), style="bold").append(f"  {run.id}", style="bright_black")
    if run.trigger.key:
        line.append(f"  key {safe(run.trigger.key)}", style="bright_black")
    return line


def closing(run: Run, now: datetime, here: Here, *, takes: bool) -> list[Text]:
    """The last lines: how it stands, what it cost, and what one can do next."""
    seconds = took(run, now)
    facts = " · ".join(([] if seconds is None else [span_of(seconds)]) + ([spent(run.usage)] if run.usage != Usage() else []))
    match run.status:
        case RunStatus.COMPLETED:
            why = f" ({run.finish_reason})" if run.finish_reason not in (None, "stop", "tool_call") else ""
            return [Text(f"✓ completed{why}", style="green").append(f"  {facts}", style="bright_black")]
        case RunStatus.FAILED:
            error = run.error
            first = Text("✗ failed", style="bold red").append(f"  {facts}", style="bright_black")
            told = [] if error is None else [Text(f"  {error.code}: {safe(error.message)}", style="red")]
            return [first, *told, *_next(here.command(f"runs retry {tail(run.id)}"))]
        case RunStatus.CANCELLED:
            return [
                Text("× cancelled", style="magenta").append(f"  {facts}", style="bright_black"),
                *_next(here.command(f"runs retry {tail(run.id)}")),
            ]
        case RunStatus.WAITING:
            return [
                Text("◆ waiting", style="yellow").append(f"  {facts}", style="bright_black"),
                *_next(here.go_on(run.id) if takes else None, "nothing is held meanwhile; "),
            ]
        case _:
            return [
                Text(f"◇ {run.status}", style="magenta").append(f"  {facts}", style="bright_black"),
                *_next(here.go_on(run.id) if takes else None, "nothing is lost; "),
            ]


def _next(command: str | None, before: str = "") -> list[Text]:
    return [] if command is None else [Text(f"  {before}next: ", style="bright_black").append(command, style="cyan")]


def waits_for(titles: list[str]) -> str:
    """What a list shows of a waiting run."""
    return titles[0] + (f" (+{len(titles) - 1})" if len(titles) > 1 else "") if titles else ""
