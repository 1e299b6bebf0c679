"""`perdure runs`: look at runs, follow them, stop them, bring them back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Optional, cast

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._cards import Here, card, title
from perdure.cli._find import find_run
from perdure.cli._input import whoever
from perdure.cli._json import effect_json, run_json, step_json, wait_json
from perdure.cli._open import engine_for
from perdure.cli._options import AppOption, By, Json, Limit, Reason, RunName, StoreOrDefault
from perdure.cli._output import Cell, Column, Output, fields, pretty, print_table, status_text
from perdure.cli._story import Told, whole_story
from perdure.cli._watch import Watcher, call_line, closing
from perdure.cli._words import ago, brief, clock, money, plural, safe, shown_status, span, spent, tail, tokens, took
from perdure.core.commit import EffectFilter, RunFilter, WaitFilter
from perdure.core.effect import Effect, EffectState
from perdure.core.errors import InvalidTrigger
from perdure.core.run import Run, RunStatus
from perdure.core.runtime import run_main
from perdure.core.wait import WaitPoint

COLUMNS = (
    Column("run"),
    Column("agent", least=8),
    Column("status"),
    Column("since", drop=1),
    Column("took", right=True, drop=3),
    Column("calls", right=True, drop=4),
    Column("tokens", right=True, drop=2),
    Column("cost", right=True, drop=5),
    Column("about", least=28),
)
WAITS_MAX = 1_000
OUTPUT_LINES_MAX = 40


def list_(
    status: Annotated[
        Optional[list[RunStatus]],  # noqa: UP045
        typer.Option("--status", "-s", help="Only these; may be given several times.", show_default=False),
    ] = None,
    agent: Annotated[Optional[str], typer.Option("--agent", help="Only of this agent.", show_default=False)] = None,  # noqa: UP045
    thread: Annotated[Optional[str], typer.Option("--thread", help="Only of this conversation.", show_default=False)] = None,  # noqa: UP045
    limit: Limit = 20,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """List runs, newest first.

    [bold]Examples[/bold]

    $ perdure runs list

    $ perdure runs list --status failed --status waiting --store sqlite:///shop.db

    $ perdure runs list --json | jq -r '.[].id'
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            runs = await engine.runs(RunFilter(agent=agent, status=tuple(status or ()), thread=thread, limit=limit))
            waits = await engine.store.waits(WaitFilter(open=True, limit=WAITS_MAX)) if any(run.status is RunStatus.WAITING for run in runs) else ()
            now = await engine.store.now()
        if json:
            output.document([run_json(run) for run in runs])
        else:
            print_table(output, COLUMNS, [_row(output, run, waits, now) for run in runs], empty="No runs here yet.")
        return _exit.DONE

    return run_main(main)


def _row(output: Output, run: Run, waits: Sequence[WaitPoint], now: datetime) -> list[Cell]:
    seconds = took(run, now)
    return [
        Text(tail(run.id) if output.rich else run.id, style="bold" if output.rich else ""),
        run.agent,
        status_text(shown_status(run, now), sign=output.rich),
        Text(ago(run.created_at, now), style="bright_black"),
        "" if seconds is None else span(seconds),
        str(run.usage.requests),
        tokens(run.usage.total_tokens),
        "" if run.usage.cost == 0 else money(run.usage.cost),
        Text(_about(run, waits, now), style="bright_black"),
    ]


def _about(run: Run, waits: Sequence[WaitPoint], now: datetime) -> str:
    """What most helps to tell this run from the others: what it waits for, why it failed, what it does, its key."""
    asked = [title(wait) for wait in waits if wait.run_id == run.id]
    if asked:
        return safe(asked[0]) + (f" (+{len(asked) - 1})" if len(asked) > 1 else "")
    if run.status is RunStatus.FAILED and run.error is not None:
        return f"{run.error.code}: {brief(run.error.message, 200)}"
    if run.status is RunStatus.RUNNING and run.activity is not None:
        return f"step {run.activity.step}: {safe(run.activity.what)}, begun {ago(run.activity.since, now)}"
    return safe(run.trigger.key or "") or brief(run.trigger.payload, 80)


def show(run: RunName, app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Show one run.

    What started it, each step, what it waits for, how it ended and what to do next.

    [bold]Examples[/bold]

    $ perdure runs show last

    $ perdure runs show triage/mail-4411 --json | jq .output
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            story = await whole_story(engine, found.id)
            waits = await engine.store.waits(WaitFilter(run_id=found.id, open=None, limit=WAITS_MAX))
            effects = await engine.store.effects(EffectFilter(run_id=found.id, limit=WAITS_MAX))
            now = await engine.store.now()
            here = Here.of(engine, app)
        if json:
            output.document(
                {
                    **run_json(found),
                    "steps": [step_json(told.step, told.to_json()) for told in story],
                    "waits": [wait_json(wait) for wait in waits],
                    "effects": [effect_json(effect) for effect in effects],
                }
            )
        else:
            _show(output, found, story, waits, effects, now, here)
        return _exit.DONE

    return run_main(main)


def _show(output: Output, run: Run, story: Sequence[Told], waits: Sequence[WaitPoint], effects: Sequence[Effect], now: datetime, here: Here) -> None:
    _facts(output, run, now)
    if story:
        output.print()
        _steps(output, story)
    unknown = [effect for effect in effects if effect.state is EffectState.UNKNOWN]
    opened = [wait for wait in waits if wait.open and (not run.status.final or wait.kind == "effect")]
    for wait in opened:
        output.print()
        for line in card(wait, here, now):
            output.print(line, soft_wrap=True)
    for effect in unknown:
        if not any(wait.row.effect_key == effect.key for wait in opened):
            output.print()
            output.print(Text(f"? {safe(effect.row.tool)}: outcome unknown", style="yellow"))
            output.print(Text(f"    {here.command(f'effects show {effect.key}')}", style="cyan"), soft_wrap=True)
    told = [each.text for each in story if each.text]
    # A text output is the last response, which stands in the log already.
    if run.status is RunStatus.COMPLETED and not (told and run.output == told[-1]):
        output.print()
        _output(output, run)
    output.print()
    for line in closing(run, now, here, takes=here.app is not None):
        output.print(line, soft_wrap=True)


def _facts(output: Output, run: Run, now: datetime) -> None:
    trigger = run.trigger
    owner = (
        None if run.status is not RunStatus.RUNNING or run.lease_owner is None else f"{run.lease_owner}, lease until {clock(run.lease_expires_at)}"
    )
    lives = "" if run.generation == 1 else f", generation {run.generation}"
    fields(
        output,
        [
            ("run", Text(run.id, style="bold" if output.rich else "")),
            ("agent", run.agent + (f"  version {run.version}" if run.version else "")),
            ("status", status_text(shown_status(run, now), sign=output.rich)),
            ("owner", owner),
            ("doing", doing(run, now)),
            ("key", trigger.key),
            ("thread", trigger.thread),
            ("labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())),
            ("parent", run.parent_run),
            ("started", f"{clock(run.created_at)} ({ago(run.created_at, now)}) by {trigger.source}"),
            ("executions", f"{run.executions}{lives}" if run.executions else None),
            ("spent", spent(run.usage) if run.usage.requests else None),
            ("budget", _budget(run)),
            ("files", ", ".join(f"{each.filename} ({each.size:,} bytes)" for each in trigger.attachments)),
            ("payload", brief(trigger.payload, 400) if trigger.payload is not None else None),
        ],
    )


def doing(run: Run, now: datetime) -> str | None:
    """What its worker is at, and since when nothing new has happened: renewals tell that it lives, not that it moves."""
    act = run.activity
    if run.status is not RunStatus.RUNNING or act is None:
        return None
    return f"step {act.step}: {safe(act.what)}, nothing new since {clock(act.since)} ({ago(act.since, now)})"


def _budget(run: Run) -> str:
    budget = run.budget
    parts = [f"{budget.max_steps} steps"]
    if budget.max_tokens is not None:
        parts.append(f"{tokens(budget.max_tokens)} tokens")
    if budget.max_cost is not None:
        parts.append(money(budget.max_cost))
    if budget.timeout is not None:
        parts.append(f"{span(budget.timeout.total_seconds())} an execution")
    if run.deadline is not None:
        parts.append(f"until {clock(run.deadline)}")
    return ", ".join(parts)


def _steps(output: Output, story: Sequence[Told]) -> None:
    """The log: each model call with what it said, and its tools below it."""
    width = output.out.width if output.rich else None
    generation = story[0].step.generation
    for told in story:
        row = told.step.row
        if told.step.generation != generation:
            generation = told.step.generation
            output.print(Text(f"── generation {generation} " + "─" * 8, style="bright_black"))
        if told.step.kind == "llm":
            output.print(_llm_line(told), soft_wrap=True)
            if told.text:
                for line in _wrapped(output, told.text, width):
                    output.print(line, soft_wrap=True)
            if row.error:
                output.print(Text(f"  {row.error.get('code')}: {safe(str(row.error.get('message')))}", style="red"), soft_wrap=True)
        elif told.step.kind == "tool":
            output.print(call_line(told, width), soft_wrap=True)
        else:
            output.print(_wait_line(told), soft_wrap=True)


def _llm_line(told: Told) -> Text:
    row = told.step.row
    usage: Mapping[str, int] = row.usage or {}
    count = int(usage.get("input_tokens", 0)) + int(usage.get("output_tokens", 0))
    facts = [safe(row.name), f"{tokens(count)} tokens"]
    if told.seconds is not None:
        facts.append(span(told.seconds))
    if row.finish_reason not in (None, "stop", "tool_call"):
        facts.append(str(row.finish_reason))
    return Text(f"step {row.index}", style="bold").append("  " + " · ".join(facts), style="bright_black")


def _wait_line(told: Told) -> Text:
    answer = cast("Mapping[str, Any]", told.answer or {})
    said = answer.get("decision") or answer.get("kind") or "closed"
    line = Text(f"  ◆ {safe(told.step.row.name)}: {safe(str(said))}", style="yellow")
    if answer.get("by"):
        line.append(f" by {safe(str(answer['by']))}")
    if answer.get("reason"):
        line.append(f"  “{brief(answer['reason'], 120)}”", style="bright_black")
    return line.append(f"  {clock(told.step.row.finished_at)}", style="bright_black")


def _wrapped(output: Output, text: str, width: int | None) -> list[Text]:
    whole = Text(safe(text.strip()))
    parts = whole.split("\n", allow_blank=True) if width is None else whole.wrap(output.out, max(20, width - 2))
    lines = [Text("  ").append_text(line) for line in parts]
    if len(lines) <= OUTPUT_LINES_MAX:
        return lines
    return [*lines[:OUTPUT_LINES_MAX], Text(f"  … {plural(len(lines) - OUTPUT_LINES_MAX, 'more line')}", style="bright_black")]


def _output(output: Output, run: Run) -> None:
    output.print(Text("output", style="bold"))
    output.print(Text(safe(run.output)) if isinstance(run.output, str) else pretty(run.output), soft_wrap=not output.rich)


def follow(
    run: RunName,
    after: Annotated[int, typer.Option("--after", min=0, metavar="N", help="Only events with a number above N.")] = 0,
    until_waiting: Annotated[bool, typer.Option("--until-waiting", help="Leave when it waits for somebody (exit code 4).")] = False,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Follow a run that executes somewhere else, until it ends.

    The exit code is that of its end.

    [bold]Examples[/bold]

    $ perdure runs follow last

    $ perdure runs follow 7f3a9c21 --json | jq -r 'select(.type == "log").data.message'
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            watcher = Watcher(engine, found, output, Here.of(engine, app), until_waiting=until_waiting, takes=False, after=after)
            await watcher.watch()
            return await watcher.close()

    return run_main(main)


def cancel(run: RunName, by: By = None, reason: Reason = None, app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Ask a run to stop.

    One that rests is cancelled now; one that runs hears of it soon, and stops at its next safe point.

    [bold]Example[/bold]

    $ perdure runs cancel 7f3a9c21 --reason "wrong order"
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            answer = await engine.cancel(found.id, reason=reason, by=whoever(by))
        if json:
            output.document({"run": found.id, "outcome": answer.outcome, "status": str(answer.status)})
        else:
            told = {"settled": "is cancelled", "cancelling": "is told to stop", "already": f"was {answer.status} already; nothing was changed"}
            output.print(Text(f"{tail(found.id)} {told[answer.outcome]}"))
        return _exit.DONE if answer.outcome != "already" or answer.status is RunStatus.CANCELLED else _exit.REFUSED

    return run_main(main)


def retry(
    run: RunName,
    full: Annotated[bool, typer.Option("--full", help="From its trigger, with an empty history; else from its last step.")] = False,
    max_steps: Annotated[Optional[int], typer.Option("--max-steps", min=0, help="A new limit.", show_default=False)] = None,  # noqa: UP045
    max_tokens: Annotated[Optional[int], typer.Option("--max-tokens", min=0, help="A new limit.", show_default=False)] = None,  # noqa: UP045
    max_cost: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--max-cost", metavar="USD", help="A new limit.", show_default=False),
    ] = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Bring a failed or cancelled run back.

    A worker goes on with it, or `perdure continue`.

    [bold]Examples[/bold]

    $ perdure runs retry last

    $ perdure runs retry 7f3a9c21 --full

    $ perdure runs retry 7f3a9c21 --max-steps 100
    """
    output = Output(json=json)
    cost = None if max_cost is None else _decimal(max_cost)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            again = await engine.retry(found.id, "full" if full else "resume", max_steps=max_steps, max_tokens=max_tokens, max_cost=cost)
            here = Here.of(engine, app)
        if json:
            output.document(run_json(again))
        else:
            where = "from its trigger" if full else "from its last step"
            output.print(
                Text(f"{tail(again.id)} is {again.status} again, {where}. A worker goes on with it, or: {here.go_on(again.id)}"), soft_wrap=True
            )
        return _exit.DONE

    return run_main(main)


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0:
        raise InvalidTrigger(f"--max-cost: {text!r} is no amount of US dollars. Write 0.50.", field="max_cost")
    return value
