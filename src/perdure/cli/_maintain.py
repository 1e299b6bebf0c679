"""`perdure tick` and `perdure migrate`: what cron and a deploy call."""

from __future__ import annotations

import os

from perdure.cli import _exit
from perdure.cli._load import load_engine
from perdure.cli._open import STORE_DEFAULT, STORE_VARIABLE
from perdure.cli._options import App, AppOption, Json, StoreOption, StoreOrDefault
from perdure.cli._output import Output
from perdure.cli._words import tail
from perdure.core.runtime import run_main
from perdure.engine import Engine


def tick(app: App, store: StoreOption = None, json: Json = False) -> int:
    """One pass of maintenance, for cron.

    Recovers the runs of dead workers, expires waits, fires timers. Every worker does it by itself.

    [bold]Example[/bold]

    $ perdure tick app.py:engine
    """
    output = Output(json=json)
    output.keep_stdout()
    engine = load_engine(app)
    engine.adjust(store=store, workers=0)

    async def main() -> int:
        async with engine:
            swept = await engine.tick()
        kinds = {
            "recovered": swept.recovered,
            "poisoned": swept.poisoned,
            "expired": swept.expired,
            "woken": swept.woken,
            "deadlines": swept.deadlines,
        }
        if json:
            output.document({**{name: list(ids) for name, ids in kinds.items()}, "next_due": swept.next_due and swept.next_due.isoformat()})
        else:
            told = [f"{name}: {', '.join(tail(each) for each in ids)}" for name, ids in kinds.items() if ids]
            output.print("\n".join(told) or "nothing was due")
        return _exit.DONE

    return run_main(main)


def migrate(app: AppOption = None, store: StoreOrDefault = None, json: Json = False) -> int:
    """Make a store, or bring its schema up to date.

    Many may do it at once. An engine does it by itself unless it was told not to.

    [bold]Examples[/bold]

    $ perdure migrate --store sqlite:///perdure.db

    $ perdure migrate --app app.py:engine
    """
    output = Output(json=json)
    output.keep_stdout()
    engine = load_engine(app) if app else Engine(store or os.environ.get(STORE_VARIABLE) or STORE_DEFAULT)
    engine.adjust(store=store if app else None)

    async def main() -> int:
        async with engine.store:
            version = await engine.store.migrate()
        address = str(engine.store.info().get("address", ""))
        if json:
            output.document({"address": address, "schema": version})
        else:
            output.print(f"{address} is up to date: schema {version}")
        return _exit.DONE

    return run_main(main)
