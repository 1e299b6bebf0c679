"""Arguments and options that several commands share, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

App = Annotated[str, typer.Argument(metavar="APP", help="The program: path/to/app.py:engine or module:engine.", show_default=False)]
AppOption = Annotated[
    Optional[str],  # noqa: UP045 - Typer reads these at run time
    typer.Option("--app", metavar="APP", help="Work with the store of this program.", show_default=False),
]
StoreOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--store", metavar="URL", help="Another store than the program's.", show_default=False),
]
StoreOrDefault = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--store", metavar="URL", help="The store; else PERDURE_STORE, else sqlite:///perdure.db.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run: its id, the end of its id, AGENT/KEY, or “last”.", show_default=False)]
RequestName = Annotated[
    str, typer.Argument(metavar="REQUEST", help="A request: its id, the end of its id, or the end of its run's id.", show_default=False)
]
By = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--by", metavar="NAME", help="Who decides; else the name of this machine's user.", show_default=False),
]
Reason = Annotated[Optional[str], typer.Option("--reason", metavar="TEXT", help="Why.", show_default=False)]  # noqa: UP045
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")]
Attach = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option("--attach", "-a", metavar="FILE", help="A file for the model; may be given several times.", show_default=False),
]
