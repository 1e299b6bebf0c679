"""`perdure approvals`: what waits for a person, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Optional, cast

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._cards import Here, card, title
from perdure.cli._find import find_wait
from perdure.cli._input import read_json, whoever
from perdure.cli._json import wait_json
from perdure.cli._open import engine_for
from perdure.cli._options import AppOption, By, Json, Limit, Reason, RequestName, StoreOrDefault
from perdure.cli._output import Cell, Column, Output, fields, print_table
from perdure.cli._words import ago, arguments, clock, parse_span, safe, tail
from perdure.core.commit import Resolved, ResolveOutcome, WaitFilter
from perdure.core.errors import Conflict, InvalidTrigger
from perdure.core.family import waits_for_room
from perdure.core.runtime import run_main
from perdure.core.wait import ResolutionKind, WaitPoint
from perdure.engine import Engine

FOR_PEOPLE: Final = ("approval", "effect", "budget", "attention")
"""The kinds that a person answers; events and timers are the world's."""
COLUMNS: Final = (
    Column("request"),
    Column("run", drop=2),
    Column("what", least=16),
    Column("input", least=12, drop=3),
    Column("asked", drop=1),
    Column("until"),
)
SAID: Final = {
    ResolveOutcome.RESOLVED: _exit.DONE,
    ResolveOutcome.VOTED: _exit.DONE,
    ResolveOutcome.ALREADY: _exit.DONE,
    ResolveOutcome.CONFLICT: _exit.REFUSED,
    ResolveOutcome.EXPIRED: _exit.REFUSED,
    ResolveOutcome.REFUSED: _exit.REFUSED,
}


def list_(
    all_: Annotated[bool, typer.Option("--all", help="Events and timers too, which no person answers.")] = False,
    closed: Annotated[bool, typer.Option("--closed", help="Those that were answered, in place of the open ones.")] = False,
    limit: Limit = 50,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """List what waits for a person.

    Approvals, effects of unknown outcome, reached budgets, runs that need an operator.

    [bold]Example[/bold]

    $ perdure approvals list --store sqlite:///shop.db
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await engine.store.waits(WaitFilter(kind=() if all_ else FOR_PEOPLE, open=not closed, limit=limit))
            rows = [wait for wait in found if all_ or not waits_for_room(wait.row)]
            now = await engine.store.now()
        if json:
            output.document([wait_json(wait) for wait in rows])
            return _exit.DONE

        def row(wait: WaitPoint) -> list[Cell]:
            return [
                Text(tail(wait.id) if output.rich else wait.id, style="bold" if output.rich else ""),
                tail(wait.run_id) if output.rich else wait.run_id,
                Text(safe(title(wait)), style="yellow"),
                arguments(wait.row.input, 200) if wait.row.input is not None else "",
                Text(ago(wait.created_at, now), style="bright_black"),
                _ended(wait) or ago(wait.row.expires_at, now) or "no deadline",
            ]

        print_table(output, COLUMNS, [row(wait) for wait in rows], empty="Nothing waits for a person." if not closed else "Nothing was answered yet.")
        return _exit.DONE

    return run_main(main)


def show(request: RequestName, app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Show one request and the answers it takes.

    [bold]Example[/bold]

    $ perdure approvals show 7f3a9c21
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            wait = await find_wait(engine, request)
            now = await engine.store.now()
            here = Here.of(engine, app)
        if json:
            output.document(wait_json(wait))
            return _exit.DONE
        fields(
            output,
            [
                ("request", Text(wait.id, style="bold" if output.rich else "")),
                ("run", wait.run_id),
                ("asked", f"{clock(wait.created_at)} ({ago(wait.created_at, now)})"),
                ("closed", _ended(wait)),
            ],
        )
        output.print()
        for line in card(wait, here, now) if wait.open else card(wait, here, now)[:-2]:
            output.print(line, soft_wrap=True)
        return _exit.DONE

    return run_main(main)


def approve(
    request: RequestName,
    input: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--input", metavar="JSON|@FILE", help="Run the tool with this input in place of the proposed one.", show_default=False),
    ] = None,
    by: By = None,
    reason: Reason = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Say yes, to the call as it stands or with another input.

    The first answer wins.

    [bold]Examples[/bold]

    $ perdure approvals approve 7f3a9c21

    $ perdure approvals approve 7f3a9c21 --input '{"order": "KL-1042", "cents": 4000}' --by eva
    """
    edited = None if input is None else _object(read_json(input, "input"))
    return _decide(request, "approve", edited, by=by, reason=reason, app=app, store=store, json=json)


def deny(request: RequestName, by: By = None, reason: Reason = None, app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Say no.

    The model sees the reason and goes on without the call.

    [bold]Example[/bold]

    $ perdure approvals deny 7f3a9c21 --reason "not under warranty"
    """
    return _decide(request, "deny", None, by=by, reason=reason, app=app, store=store, json=json)


def answer(
    request: RequestName,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="One of those that `approvals show` lists.", show_default=False)],
    value: Annotated[Optional[str], typer.Argument(metavar="[JSON|@FILE]", help="What comes with it.", show_default=False)] = None,  # noqa: UP045
    by: By = None,
    reason: Reason = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Answer what is more than yes or no.

    A reached budget, an effect that may have happened before, a run that needs an operator.

    [bold]Examples[/bold]

    $ perdure approvals answer 7f3a9c21 top_up '{"max_steps": 100}'

    $ perdure approvals answer 7f3a9c21 reuse
    """
    return _decide(request, decision, None if value is None else read_json(value, "value"), by=by, reason=reason, app=app, store=store, json=json)


def extend(
    request: RequestName,
    within: Annotated[str, typer.Option("--within", metavar="TIME", help="From now: 90m, 2d, or “never”.", show_default=False)],
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Move the deadline of an open request.

    [bold]Example[/bold]

    $ perdure approvals extend 7f3a9c21 --within 2d
    """
    output = Output(json=json)
    span = None if within == "never" else parse_span(within)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            wait = await find_wait(engine, request)
            answered = await engine.extend(wait.id, span)
            now = await engine.store.now()
        until = answered.wait.row.expires_at
        moved = f"{tail(wait.id)} may be answered until {clock(until)} ({ago(until, now)})" if until else f"{tail(wait.id)} has no deadline any more"
        return _tell(output, answered, {ResolveOutcome.RESOLVED: moved})

    return run_main(main)


# ── the one way to answer ──────────────────────────────────────────────────────────────────────────────────
def _decide(request: str, decision: str, value: Any, *, by: str | None, reason: str | None, app: str | None, store: str | None, json: bool) -> int:
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            wait = await find_wait(engine, request)
            _check_decision(wait, decision, Here.of(engine, app))
            answered = await _answer(engine, wait, decision, value, by=whoever(by), reason=reason)
        words = {
            ResolveOutcome.RESOLVED: f"{tail(wait.id)}: {decision}. The run is {answered.run_status}{_goes_on(answered)}",
            ResolveOutcome.VOTED: f"{tail(wait.id)}: counted, {len(answered.wait.votes)} of {_quorum(answered.wait)} so far",
            ResolveOutcome.ALREADY: f"{tail(wait.id)}: that answer stands already; nothing was changed",
        }
        return _tell(output, answered, words)

    return run_main(main)


async def _answer(engine: Engine, wait: WaitPoint, decision: str, value: Any, *, by: str | None, reason: str | None) -> Resolved:
    if decision == "approve":
        return await engine.approve(wait.id, by=by, input=value, reason=reason, via="cli")
    return await engine.resolve(wait.id, decision, value, by=by, reason=reason, via="cli")


def _check_decision(wait: WaitPoint, decision: str, here: Here) -> None:
    """A word that the row does not know is a slip of the keyboard, not an answer."""
    if wait.kind == "effect":
        raise InvalidTrigger(
            f"This is an effect of unknown outcome. Settle it: {here.command(f'effects settle {wait.row.effect_key}')} done|run|fail"
        )
    known = [str(each) for each in wait.row.data.get("decisions") or ()]
    if not known and wait.kind in ("event", "timer"):
        raise InvalidTrigger(f"A wait of kind {wait.kind} is not answered by a person. Send the run its signal: perdure signal RUN NAME.")
    if known and decision not in known:
        raise InvalidTrigger(f"{decision!r} is no answer to this request. It takes: {', '.join(known)}.", field="decision", known=known)


def _tell(output: Output, answered: Resolved, words: Mapping[ResolveOutcome, str]) -> int:
    code = SAID[answered.outcome]
    if output.json:
        output.document(
            {
                "outcome": str(answered.outcome),
                "message": answered.message,
                "run_status": str(answered.run_status),
                "request": wait_json(answered.wait),
            }
        )
        return code
    if answered.outcome in words:
        output.print(Text(safe(words[answered.outcome])), soft_wrap=True)
        return code
    who = _ended(answered.wait)
    raise Conflict(f"{answered.message or 'It was answered before.'} {f'It is closed: {who}.' if who else ''}".strip())


def _goes_on(answered: Resolved) -> str:
    return {"pending": ": a worker goes on with it", "waiting": ": it has other open requests"}.get(str(answered.run_status), "")


def _ended(wait: WaitPoint) -> str:
    said = wait.resolution
    if said is None:
        return ""
    what = said.decision or str(said.kind)
    who = f" by {said.by}" if said.by else " by nobody" if said.kind is ResolutionKind.EXPIRED else ""
    return f"{what}{who}, {clock(said.at)}" if said.at else f"{what}{who}"


def _quorum(wait: WaitPoint) -> int:
    policy: Mapping[str, Any] = wait.row.data.get("policy") or {}
    return int(policy.get("quorum", 1))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidTrigger(f"input: the tool's arguments as a JSON object, not {type(value).__name__}.", field="input")
    return cast("dict[str, Any]", value)
