"""The command line: its commands, and what becomes of errors."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Optional, cast

import typer

from perdure.cli import _approvals, _demo, _effects, _exit, _fork, _jobs, _maintain, _run, _runs, _signal, _worker
from perdure.cli._leave import EXIT_PATIENCE, end_after
from perdure.cli._load import DEBUG_VARIABLE
from perdure.cli._output import console_on
from perdure.cli._words import safe
from perdure.core.errors import PerdureError
from perdure.core.given import shown

SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode="rich", context_settings=SETTINGS, pretty_exceptions_enable=False)


app = typer.Typer(
    name="perdure",
    help="Run LLM agents that survive anything: a crash, a deploy, a dead machine, an approval that comes three days later.",
    epilog=_exit.TABLE,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings=SETTINGS,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"perdure {version('perdure')}")
        raise typer.Exit


@app.callback()
def perdure(
    _version: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.", show_default=False),
    ] = None,
) -> None:
    """Run LLM agents that survive anything: a crash, a deploy, a dead machine, an approval that comes three days later."""


EXECUTE, LOOK, CARE = "Execute", "Look and answer", "Keep going"
app.command("demo", rich_help_panel=EXECUTE)(_demo.demo)
app.command("run", rich_help_panel=EXECUTE)(_run.run)
app.command("continue", rich_help_panel=EXECUTE)(_run.continue_)
app.command("worker", rich_help_panel=EXECUTE)(_worker.worker)

runs = _group("Look at runs, follow them, stop them, bring them back.")
runs.command("list")(_runs.list_)
runs.command("show")(_runs.show)
runs.command("follow")(_runs.follow)
runs.command("cancel")(_runs.cancel)
runs.command("retry")(_runs.retry)
runs.command("fork")(_fork.fork)
app.add_typer(runs, name="runs", rich_help_panel=LOOK)

approvals = _group("What waits for a person, and the answers.")
approvals.command("list")(_approvals.list_)
approvals.command("show")(_approvals.show)
approvals.command("approve")(_approvals.approve)
approvals.command("deny")(_approvals.deny)
approvals.command("answer")(_approvals.answer)
approvals.command("extend")(_approvals.extend)
app.add_typer(approvals, name="approvals", rich_help_panel=LOOK)

effects = _group("What was done to the outside world, and your word where nobody knows.")
effects.command("list")(_effects.list_)
effects.command("show")(_effects.show)
effects.command("settle")(_effects.settle)
app.add_typer(effects, name="effects", rich_help_panel=LOOK)

jobs = _group("Jobs of pipelines that stand alone: look, retry, pause, resume.")
jobs.command("list")(_jobs.list_)
jobs.command("show")(_jobs.show)
jobs.command("retry")(_jobs.retry)
jobs.command("pause")(_jobs.pause)
jobs.command("resume")(_jobs.resume)
app.add_typer(jobs, name="jobs", rich_help_panel=LOOK)

app.command("signal", rich_help_panel=LOOK)(_signal.signal)
app.command("tick", rich_help_panel=CARE)(_maintain.tick)
app.command("migrate", rich_help_panel=CARE)(_maintain.migrate)


def main() -> None:
    """The entry point of `perdure`."""
    # Pydantic AI greets whoever runs an agent on a terminal, in the middle of our live view.
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    code = run_command(sys.argv[1:])
    end_after(EXIT_PATIENCE, code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and answer its exit code. Whatever goes wrong is one line on stderr."""
    as_json = "--json" in arguments
    _listen_to_warnings()
    try:
        code = app(list(arguments), prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else _exit.DONE
    except PerdureError as error:
        return _complain(error.message, _exit.of_error(error), as_json, code=error.code, details=error.details, cause=error)
    except (KeyboardInterrupt, typer.Abort):
        return _exit.STOPPED
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain once more at exit, when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _exit.FAILED
    except UnicodeEncodeError as error:
        if not any("\udc80" <= each <= "\udcff" for argument in arguments for each in argument):
            raise
        return _complain("An argument holds bytes that are no UTF-8 text.", _exit.REFUSED, as_json, code="invalid_trigger", cause=error)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            return _complain(f"{shown(str(error.filename))}: {error.strerror}.", _exit.REFUSED, as_json, code="invalid_trigger", cause=error)
        if (usage := _usage(error)) is not None:
            return _complain(usage, _exit.REFUSED, as_json, code="invalid_trigger", cause=error) if usage else _exit.REFUSED
        message = f"{type(error).__name__}: {error}. This should not happen: {DEBUG_VARIABLE}=1 shows the traceback, which belongs into a bug report."
        return _complain(message, _exit.FAILED, as_json, code="internal", cause=error)


def _complain(message: str, code_: int, as_json: bool, *, code: str, cause: BaseException, details: dict[str, Any] | None = None) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        raise cause
    line = " ".join(safe(message).split())
    if as_json:
        print(json.dumps({"error": {"code": code, "message": line, "details": details or {}}}, ensure_ascii=False, default=str), file=sys.stderr)
    else:
        console = console_on(sys.stderr)
        console.print("perdure: ", style="bold red" if console.is_terminal else None, end="")
        console.print(line, soft_wrap=True)
    return code_


def _usage(error: Exception) -> str | None:
    """What Typer says of a wrong command line, empty where it has shown the help instead; None for any other error.

    Told by what it can do and not by its class: older versions of Typer raise Click's classes, newer ones their own.
    """
    if not hasattr(error, "format_message"):
        return None
    context: Any = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    message = str(cast(Any, error).format_message())
    return (
        f"{message if message.endswith('?') else message.rstrip('.') + '.'} Try `{context.command_path} --help`." if context is not None else message
    )


TOLD_ELSEWHERE = frozenset({"run %s was recovered: its worker's lease ran out"})
"""Warnings that a live view and a worker's lines tell as well."""


class _Warnings(logging.Handler):
    """Warnings of Perdure, one line each on stderr; silent where the program has set up its own logging."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or record.msg in TOLD_ELSEWHERE:
            return
        # Through sys.stderr as it is now: while a live view is drawn, Rich stands in its place and prints above it.
        print(f"{record.levelname.lower()}: {safe(record.getMessage())}", file=sys.stderr)


def _listen_to_warnings() -> None:
    logger = logging.getLogger("perdure")
    if not any(isinstance(each, _Warnings) for each in logger.handlers):
        logger.addHandler(_Warnings(logging.WARNING))
