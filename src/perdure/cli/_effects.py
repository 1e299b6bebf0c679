"""`perdure effects`: what was done to the outside world, and the word of a person where nobody knows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, Optional

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._cards import Here
from perdure.cli._find import find_effect, find_run
from perdure.cli._input import read_json, whoever
from perdure.cli._json import effect_json
from perdure.cli._open import engine_for
from perdure.cli._options import AppOption, By, Json, Limit, Reason, StoreOrDefault
from perdure.cli._output import Cell, Column, Output, fields, pretty, print_table
from perdure.cli._words import ago, arguments, brief, clock, tail
from perdure.core.commit import EffectFilter
from perdure.core.effect import Effect, EffectState
from perdure.core.errors import InvalidTrigger
from perdure.core.runtime import run_main

STATE_COLOURS: Final = {"done": "green", "failed": "red", "unknown": "yellow", "started": "cyan", "planned": "blue"}
COLUMNS: Final = (
    Column("key"),
    Column("tool", least=8),
    Column("state"),
    Column("input", least=12),
    Column("started", drop=1),
    Column("worker", least=8, drop=2),
)
EffectName = Annotated[
    str, typer.Argument(metavar="KEY", help="An effect: its key, the end of its key, or the end of its run's id.", show_default=False)
]
Word = Literal["done", "run", "fail"]
WORDS: Final[tuple[Word, ...]] = ("done", "run", "fail")


def list_(
    all_: Annotated[bool, typer.Option("--all", help="Whatever became of them; else those of unknown outcome.")] = False,
    run: Annotated[Optional[str], typer.Option("--run", metavar="RUN", help="Only of this run.", show_default=False)] = None,  # noqa: UP045
    limit: Limit = 50,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """List effects of unknown outcome.

    They may or may not have happened, and a person has to say.

    [bold]Examples[/bold]

    $ perdure effects list

    $ perdure effects list --all --run last
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            of = None if run is None else (await find_run(engine, run)).id
            state = () if all_ else (str(EffectState.UNKNOWN),)
            rows = await engine.store.effects(EffectFilter(run_id=of, state=state, limit=limit))
            now = await engine.store.now()
        if json:
            output.document([effect_json(effect) for effect in rows])
            return _exit.DONE

        def row(effect: Effect) -> list[Cell]:
            return [
                Text(_short(effect.key) if output.rich else effect.key, style="bold" if output.rich else ""),
                effect.row.tool,
                Text(str(effect.state), style=STATE_COLOURS.get(str(effect.state), "")),
                arguments(effect.row.input, 200),
                Text(ago(effect.started_at, now), style="bright_black"),
                Text(effect.worker or "", style="bright_black"),
            ]

        print_table(output, COLUMNS, [row(effect) for effect in rows], empty="No effect here." if all_ else "No effect of unknown outcome.")
        return _exit.DONE

    return run_main(main)


def show(effect: EffectName, app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Show one effect.

    The tool, its input, its key, who started it and when that worker was last heard.

    [bold]Example[/bold]

    $ perdure effects show 7f3a9c21:1:2:0
    """
    output = Output(json=json)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_effect(engine, effect)
            heard = await engine.last_heard(found)
            now = await engine.store.now()
            here = Here.of(engine, app)
        if json:
            output.document({**effect_json(found), "last_heard": None if heard is None else heard.isoformat()})
        else:
            _show(output, found, heard, now, here)
        return _exit.DONE

    return run_main(main)


def _show(output: Output, effect: Effect, heard: datetime | None, now: datetime, here: Here) -> None:
    row = effect.row
    fields(
        output,
        [
            ("effect", Text(row.key, style="bold" if output.rich else "")),
            ("tool", row.tool),
            ("state", Text(str(row.state), style=STATE_COLOURS.get(str(row.state), ""))),
            ("run", effect.run_id),
            ("step", str(row.index)),
            ("if unknown", row.unknown),
            ("business key", row.claim),
            ("try", str(row.try_no) if row.try_no > 1 else None),
            ("started", f"{clock(effect.started_at)} ({ago(effect.started_at, now)})" if effect.started_at else None),
            ("worker", effect.worker),
            ("last heard", f"{clock(heard)} ({ago(heard, now)})" if heard else None),
            ("error", brief(row.error.get("message", row.error), 400) if row.error else None),
            ("settled", f"{clock(effect.settled_at)} by {effect.settled_by or 'the tool'}" if effect.settled_at else None),
        ],
    )
    output.print(Text("input", style="bright_black"))
    output.print(pretty(row.input))
    if row.result is not None:
        output.print(Text("result", style="bright_black"))
        output.print(pretty(row.result))
    if row.state is EffectState.UNKNOWN:
        output.print()
        output.print(Text("Nobody knows whether it happened. Look there (the key may tell), then say:", style="yellow"), soft_wrap=True)
        for word, meaning in (
            ("done --result '…'", "it happened, this is the result"),
            ("run", "it did not: run it"),
            ("fail", "it did not: go on without"),
        ):
            output.print(
                Text("  " + here.command(f"effects settle {_short(row.key) if output.rich else row.key} {word}"), style="cyan").append(
                    f"   {meaning}", style="bright_black"
                ),
                soft_wrap=True,
            )


def settle(
    effect: EffectName,
    word: Annotated[str, typer.Argument(metavar="done|run|fail", help="It happened; run it again; give up on it.", show_default=False)],
    result: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--result", metavar="JSON|@FILE", help="With done: what the tool would have answered.", show_default=False),
    ] = None,
    by: By = None,
    reason: Reason = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Say what became of an effect of unknown outcome.

    The run goes on with your word.

    [bold]Examples[/bold]

    $ perdure effects settle 7f3a9c21 done --result '"receipt 991"' --by eva

    $ perdure effects settle 7f3a9c21 run --reason "the bank shows nothing"
    """
    output = Output(json=json)
    if word not in WORDS:
        raise InvalidTrigger(f"{word!r}: say done (it happened), run (run it again) or fail (give up on it).", field="word")
    if result is not None and word != "done":
        raise InvalidTrigger(f"--result goes with done: {word!r} has none.", field="result")
    value: Any = None if result is None else read_json(result, "result")
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_effect(engine, effect)
            settled = await engine.settle(found.key, word, value, by=whoever(by), reason=reason, via="cli")
        if json:
            output.document(effect_json(settled))
        else:
            output.print(Text(f"{_short(settled.key)} ({settled.row.tool}) is {settled.state}"))
        return _exit.DONE

    return run_main(main)


def _short(key: str) -> str:
    run_id, _, rest = key.partition(":")
    return f"{tail(run_id)}:{rest}"
