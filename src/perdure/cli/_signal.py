"""`perdure signal`: what the world has to say to a run."""

from __future__ import annotations

from typing import Annotated, Optional

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._find import find_run
from perdure.cli._input import read_json
from perdure.cli._open import engine_for
from perdure.cli._options import AppOption, Json, RunName, StoreOrDefault
from perdure.cli._output import Output
from perdure.cli._words import safe, tail
from perdure.core.runtime import run_main


def signal(
    run: RunName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What a tool of the run waits for.", show_default=False)],
    payload: Annotated[Optional[str], typer.Argument(metavar="[JSON|@FILE|-]", help="What comes with it.", show_default=False)] = None,  # noqa: UP045
    id: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--id", metavar="ID", help="The same id again is received once.", show_default=False),
    ] = None,
    app: AppOption = None,
    store: StoreOrDefault = None,
    json: Json = False,
) -> int:
    """Say something to a run.

    A tool that waits for NAME gets the payload, now or when it comes to wait.

    [bold]Example[/bold]

    $ perdure signal 7f3a9c21 payment '{"paid": true}' --id charge-991
    """
    output = Output(json=json)
    value = None if payload is None else read_json(payload)
    engine = engine_for(app, store)

    async def main() -> int:
        async with engine:
            found = await find_run(engine, run)
            received = await engine.signal(found.id, name, value, id=id)
        if json:
            output.document({"run": found.id, "name": name, "received": received})
        else:
            output.print(
                Text(f"{tail(found.id)} has {safe(name)!r}" if received else f"A signal with the id {id!r} was received before; nothing was changed")
            )
        return _exit.DONE

    return run_main(main)
