"""`perdure run` and `perdure continue`: one run, executed in this process, shown as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer

from perdure.cli import _exit
from perdure.cli._cards import Here
from perdure.cli._find import find_run
from perdure.cli._input import check_files, read_json, read_text
from perdure.cli._json import run_json
from perdure.cli._leave import run_and_leave
from perdure.cli._load import load_engine
from perdure.cli._open import as_it_is
from perdure.cli._options import App, Attach, Json, RunName, StoreOption
from perdure.cli._output import Output
from perdure.cli._signals import stop_on_signals
from perdure.cli._watch import Watcher, headline
from perdure.core.errors import InvalidTrigger, StoreError, StoreUnavailable
from perdure.core.run import Run
from perdure.engine import DurableAgent, Engine, RunHandle

GRACE: Final = timedelta(seconds=5)
"""How long the first Ctrl-C lets a step finish. A person waits for it."""
TRY_AGAIN: Final = 0.2
"""Seconds between two attempts to take the run."""

Wait = Annotated[bool, typer.Option("--wait", help="Stay while it waits for somebody, and go on after the answer.")]


def run(
    app: App,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name it is registered under.", show_default=False)],
    payload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="PAYLOAD", help="JSON, @FILE with JSON, or - for stdin.", show_default=False),
    ] = None,
    text: Annotated[bool, typer.Option("--text", "-t", help="PAYLOAD is plain text, not JSON.")] = False,
    attach: Attach = None,
    key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--key", metavar="KEY", help="Idempotency key: the same again goes on with the run that it started.", show_default=False),
    ] = None,
    thread: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--thread", metavar="NAME", help="The conversation that the run belongs to.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Execute it here and show it, or only start it and leave it to a worker.")
    ] = True,
    wait: Wait = False,
    store: StoreOption = None,
    json: Json = False,
) -> int:
    """Start a run, execute it here, show it live.

    The output goes to stdout. Safe to kill at any moment: with the same --key, the same command goes on where the run was.

    [bold]Examples[/bold]

    $ perdure run app.py:engine triage @mail.json --key mail-4411

    $ perdure run app.py:engine chat "Where is my parcel?" --text

    $ perdure run app.py:engine invoices '{"month": "2026-10"}' --attach scan.pdf --json | jq .

    Exit codes: 0 completed, 1 failed, 2 bad input and nothing stored, 3 cancelled, 4 still waiting.
    """
    output = Output(json=json)
    output.keep_stdout()
    engine = load_engine(app)
    engine.adjust(store=store, workers=1 if follow else 0, claims=False)
    durable = engine.durable(agent)
    given = _payload(payload, text=text)
    files = attach or []
    check_files(files)
    _check_payload(durable, given, absent=payload is None)
    if follow:
        durable.check_model()

    async def main() -> int:
        async with engine:
            handle = await _start(engine, durable, given, key=key, thread=thread, files=files)
            here = Here.of(engine, app)
            started = await handle.run()
            if not follow:
                return _only_started(output, started, here, created=handle.created)
            if not handle.created and not json:
                output.note(f"The key {key!r} was seen: this is the run that it started.")
            return await carry(engine, started, output, here, wait=wait)

    return run_and_leave(main)


def continue_(app: App, run: RunName, wait: Wait = False, store: StoreOption = None, json: Json = False) -> int:
    """Go on with a run here.

    One that was answered, handed back or retried, or whose process died.

    [bold]Examples[/bold]

    $ perdure continue app.py:engine 7f3a9c21

    $ perdure continue app.py:engine last --wait
    """
    output = Output(json=json)
    output.keep_stdout()
    engine = load_engine(app)
    engine.adjust(store=as_it_is(store) if store else None, workers=1, claims=False)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            engine.durable(found.agent).check_model()
            return await carry(engine, found, output, Here.of(engine, app), wait=wait)

    return run_and_leave(main)


# ── starting ───────────────────────────────────────────────────────────────────────────────────────────────
def _payload(given: str | None, *, text: bool) -> Any:
    if given is None:
        return None
    return read_text(given, "payload")[0] if text else read_json(given, or_text=True)


def _check_payload(durable: DurableAgent[Any, Any], payload: Any, *, absent: bool) -> None:
    """Refuse what does not fit before a store is opened."""
    try:
        durable.kind.check(payload)
    except InvalidTrigger as error:
        if not absent:
            raise
        raise InvalidTrigger(f"{error.message.rstrip('.')}. No PAYLOAD was given: write it as JSON, @FILE or -.", **error.details) from error


async def _start(
    engine: Engine, durable: DurableAgent[Any, Any], payload: Any, *, key: str | None, thread: str | None, files: Sequence[Path]
) -> RunHandle[Any]:
    return await engine.admit(durable.kind, payload, key=key, thread=thread, attachments=files, source="cli")


def _only_started(output: Output, run: Run, here: Here, *, created: bool) -> int:
    if output.json:
        output.document(run_json(run))
    elif not output.rich:
        output.value(run.id)
    else:
        output.print(headline(run))
        output.note(f"  {'started' if created else 'the key was seen: this is its run'}; a worker takes it from here: perdure worker {here.app}")
        output.note(f"  see it: {here.command(f'runs follow {run.id}')}")
    return _exit.DONE


# ── carrying ───────────────────────────────────────────────────────────────────────────────────────────────
async def carry(engine: Engine, run: Run, output: Output, here: Here, *, wait: bool) -> int:
    """Execute one run here and show it, until it settles, waits for somebody, or is stopped."""
    watcher = Watcher(engine, run, output, here, until_waiting=not wait, takes=True, after=await _before_recovery(engine, run))
    runtime = engine.runtime
    stopped = asyncio.Event()
    with stop_on_signals(stopped.set), _hopeless(engine) as hopeless:
        tasks: list[asyncio.Future[Any]] = [
            runtime.spawn(watcher.watch(), name="perdure-watch"),
            runtime.spawn(_take(engine, run.id), name="perdure-take"),
            runtime.spawn(stopped.wait(), name="perdure-stop"),
            hopeless,
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set() and tasks[0] not in done:
                watcher.remark(f"stopping: the step may finish for {GRACE.total_seconds():.0f} s; once more stops hard")
                await engine.drain(GRACE)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            # Each is asked for its end, so that none complains of not having been asked.
            for task in (await asyncio.wait(tasks))[0]:
                _ = None if task.cancelled() else task.exception()
    return await watcher.close()


@contextmanager
def _hopeless(engine: Engine) -> Generator[asyncio.Future[None]]:
    """Fails with an error of the store that trying again does not mend: a full disk, a file that became read-only."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(error: BaseException) -> None:
        if isinstance(error, StoreError) and not isinstance(error, StoreUnavailable) and not failed.done():
            failed.set_exception(error)

    off = engine.on("error", hear)
    try:
        yield failed
    finally:
        off()


async def _before_recovery(engine: Engine, run: Run) -> int | None:
    """Where to begin telling, if the newest event is that the run was recovered.

    This command's own tick may have done that, before the run was read and the telling began; it is the first thing to be told either way.
    """
    newest = await engine.store.events(run.id, after=run.next_event - 2)
    return run.next_event - 2 if newest and newest[0].type == "run.recovered" else None


async def _take(engine: Engine, run_id: str) -> None:
    """Claim the run whenever it can be claimed: now, after an answer, after a pause that the provider asked for, after a lease that ran out."""
    while True:
        if run_id not in engine.worker.executions:
            try:
                await engine.execute(run_id)
            except StoreUnavailable:
                pass  # away for a moment; the watcher says so if it lasts
        await engine.runtime.sleep(TRY_AGAIN)
