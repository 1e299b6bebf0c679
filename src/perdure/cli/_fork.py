"""`perdure runs fork`: a new run from a step of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Optional

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._cards import Here
from perdure.cli._find import find_run
from perdure.cli._input import read_json, read_text
from perdure.cli._json import run_json
from perdure.cli._open import engine_for
from perdure.cli._options import AppOption, Json, RunName, StoreOrDefault
from perdure.cli._output import Output
from perdure.cli._words import safe, tail
from perdure.core.errors import Conflict, InvalidTrigger
from perdure.core.run import Run
from perdure.core.runtime import run_main
from perdure.core.step import Step
from perdure.engine import Engine


def fork(
    run: RunName,
    step: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--step", min=0, metavar="N", help="Start after this step of the run's history; else after its newest.", show_default=False),
    ] = None,
    message: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--message", metavar="TEXT|@FILE|-", help="What the user says there instead, or in addition.", show_default=False),
    ] = None,
    result: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--result", metavar="CALL=JSON", help="Another result of a tool call, by the tool's name or the call's id.", show_default=False),
    ] = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Start a new run from a step of another, with something changed.

    The other one stays as it is. What it may have done to the world is not done again unasked.

    [bold]Examples[/bold]

    $ perdure runs fork last --message "In French, please."

    $ perdure runs fork 7f3a9c21 --step 1 --result look_up='{"cents": 1200}'
    """
    output = Output(json=json)
    said = None if message is None else read_text(message, "message")[0]
    changed = dict(_named(each) for each in result or ())
    if len(changed) < len(result or ()):
        raise InvalidTrigger("--result: the same call is named twice. Give each call one result.", field="results")
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            results = await _by_id(engine, found, step, changed)
            handle = await engine.fork(found.id, step, message=said, results=results)
            new, here = await handle.run(), Here.of(engine, app)
        if json:
            output.document(run_json(new))
        else:
            where = "after its newest step" if step is None else f"after step {step}"
            goes_on = f"A worker takes it, or: {here.go_on(new.id)}"
            output.print(Text(f"{new.id} is {new.status}, forked from {tail(found.id)} {where}. {goes_on}"), soft_wrap=True)
        return _exit.DONE

    return run_main(main)


def _named(given: str) -> tuple[str, Any]:
    name, mark, value = given.partition("=")
    if not mark or not name:
        raise InvalidTrigger(f"--result: {safe(given)!r} is no CALL=JSON. Write for example look_up='{{\"cents\": 1200}}'.", field="results")
    return name, read_json(value, f"result of {name}")


async def _by_id(engine: Engine, run: Run, step: int | None, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The results by call id, where a tool's name may stand for its only call.

    Raises:
        Conflict: The tool was called more than once up to there.
    """
    steps = [each for each in await engine.store.steps(run.id) if each.kind == "tool" and (step is None or each.row.index <= step)] if changed else []
    return {_id_of(steps, name): value for name, value in changed.items()}


def _id_of(steps: Sequence[Step], name: str) -> str:
    ids = {each.row.tool_call_id for each in steps}
    called = [each for each in steps if each.row.name == name and each.row.tool_call_id is not None]
    if name in ids or not called:
        return name
    if len(called) > 1:
        listed = ", ".join(f"{each.row.tool_call_id} (step {each.row.index})" for each in called[:4])
        raise Conflict(
            f"--result: {safe(name)!r} was called {len(called)} times: {listed}{', …' if len(called) > 4 else ''}. Name the call by its id."
        )
    return str(called[0].row.tool_call_id)
