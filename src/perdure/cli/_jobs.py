"""`perdure jobs`: jobs of pipelines that stand alone. (Those of a pipeline registered with an engine are runs: `perdure runs`.)"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final, Optional, TypeVar

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._input import read_json, whoever
from perdure.cli._load import load_pipeline
from perdure.cli._options import By, Json, Limit, Reason
from perdure.cli._output import Cell, Column, Output, fields, pretty, print_table
from perdure.cli._words import ago, brief, clock
from perdure.core.errors import ConfigurationError, InvalidTrigger
from perdure.core.given import shown
from perdure.core.runtime import RealRuntime, run_main
from perdure.pipeline import (
    STATUSES,
    Explanation,
    JobNotFoundError,
    JobRecord,
    LogEntry,
    Pipeline,
    SqliteStorage,
    StorageScheduler,
    explain,
    pause_job,
    resume_job,
)
from perdure.pipeline._given import check_job_id
from perdure.pipeline._sql_storage import SqlStorage

T = TypeVar("T")
COLOURS: Final = {
    "complete": "green", "error": "red", "paused": "yellow", "working": "cyan", "queued": "blue", "recovering": "magenta", "idle": "bright_black",
}  # fmt: skip
COLUMNS: Final = (Column("job", least=8), Column("state"), Column("phase", least=6), Column("what", least=12), Column("changed", drop=1))
LOG_SHOWN: Final = 10

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
AppOption = Annotated[
    Optional[str],  # noqa: UP045 - Typer reads these at run time
    typer.Option("--app", metavar="APP", help="The program with the Pipeline: path/to/app.py:pipeline or module:pipeline.", show_default=False),
]
StoreOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--store", metavar="URL", help="Without a program: the database, sqlite:///jobs.db or postgresql://…", show_default=False),
]
PrefixOption = Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="With --store: the prefix of the pipeline's tables.")]


class Place:
    """Where the jobs are: a program's own storage, or a database alone."""

    def __init__(self, app: str | None, store: str | None, prefix: str) -> None:
        if (app is None) == (store is None):
            raise ConfigurationError("Say where the jobs are: --app path/to/app.py:pipeline, or --store sqlite:///jobs.db.")
        self.pipeline: Pipeline[Any] | None = None if app is None else load_pipeline(app)
        self.storage: Any = self.pipeline.storage if self.pipeline is not None else _database(store or "", prefix)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def main() -> T:
            try:
                return await work()
            finally:
                close = getattr(self.storage, "close", None)
                if close is not None:
                    await close()

        return run_main(main)

    async def job(self, job_id: str) -> JobRecord:
        check_job_id(job_id)
        job = await self.storage.get_job(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job


def _database(url: str, prefix: str) -> SqlStorage:
    """The storage at an address, as a program makes it that names nothing else."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and rest != "/":
        if not Path(rest[1:]).is_file():
            # Opened, it would be made: a mistyped name must not answer "no job here", and leave a file behind.
            raise ConfigurationError(
                f"There is no file {shown(rest[1:])}. The program that keeps jobs in it makes it; run that first, or name another."
            )
        return SqliteStorage(rest[1:], prefix=prefix)
    if scheme in ("postgresql", "postgres"):
        try:
            from perdure.pipeline import PostgresStorage
        except ImportError as error:
            raise ConfigurationError("Jobs in Postgres need its driver: pip install 'perdure[postgres]'.") from error
        return PostgresStorage(url, prefix=prefix)
    raise ConfigurationError(
        f"--store {url!r}: jobs are read from sqlite:///jobs.db or postgresql://user:password@host/database here. For another storage name its program with --app."
    )


def list_(
    status: Annotated[Optional[str], typer.Option("--status", help=f"Only those: {', '.join(STATUSES)}.", show_default=False)] = None,  # noqa: UP045
    limit: Limit = 50,
    app: AppOption = None,
    store: StoreOption = None,
    prefix: PrefixOption = "pipeline_",
    json: Json = False,
) -> int:
    """List jobs, in the order of their ids.

    [bold]Examples[/bold]

    $ perdure jobs list --store sqlite:///jobs.db

    $ perdure jobs list --app app.py:pipeline --status error
    """
    output, place = Output(json=json), Place(app, store, prefix)
    wanted = next((each for each in STATUSES if each == status), None)
    if status is not None and wanted is None:
        raise InvalidTrigger(f"--status {shown(status)}: it is one of {', '.join(STATUSES)}.", field="status")
    found: list[tuple[str, JobRecord]] = place.run(lambda: place.storage.list_jobs(status=wanted, limit=limit))
    if json:
        output.document([_document(job_id, job) for job_id, job in found])
        return _exit.DONE
    print_table(output, COLUMNS, [_row(output, job_id, job) for job_id, job in found], empty="No job here.")
    return _exit.DONE


def show(
    job: JobName, app: AppOption = None, store: StoreOption = None, prefix: PrefixOption = "pipeline_", json: Json = False
) -> int:  # fmt: skip
    """Show one job: where it stands, why it stopped, what to do next, and the end of its log.

    [bold]Example[/bold]

    $ perdure jobs show march --store sqlite:///jobs.db
    """
    output, place = Output(json=json), Place(app, store, prefix)

    async def read() -> tuple[JobRecord, list[LogEntry]]:
        return await place.job(job), list(await place.storage.get_log(job))

    found, log = place.run(read)
    if json:
        output.document({**_document(job, found), "log": [entry.to_json() for entry in log]})
    else:
        _show(output, job, found, log)
    return _exit.DONE


def retry(
    job: JobName,
    full: Annotated[bool, typer.Option("--full", help="From the first phase; else from the one that failed.")] = False,
    from_phase: Annotated[Optional[str], typer.Option("--from", metavar="PHASE", help="From this phase.", show_default=False)] = None,  # noqa: UP045
    app: AppOption = None,
    json: Json = False,
) -> int:
    """Retry a job: the failed phase and those after it, unless told otherwise.

    A worker does the work. What the phases before made is not made again; with --full everything is, under new keys.

    [bold]Examples[/bold]

    $ perdure jobs retry march --app app.py:pipeline

    $ perdure jobs retry march --app app.py:pipeline --from draft
    """
    if full and from_phase is not None:
        raise InvalidTrigger("--full starts at the first phase, --from at another one: say one of them.", field="from")
    if app is None:
        raise ConfigurationError("A retry needs the phases: --app path/to/app.py:pipeline.")
    place = Place(app, None, "")
    pipeline = place.pipeline
    assert pipeline is not None
    return _acted(place, job, json, lambda: pipeline.retry(job, "full" if full else "resume", from_phase=from_phase))


def pause(job: JobName, app: AppOption = None, store: StoreOption = None, prefix: PrefixOption = "pipeline_", json: Json = False) -> int:
    """Pause a running job. The phase at work finishes; the next one waits.

    [bold]Example[/bold]

    $ perdure jobs pause march --store sqlite:///jobs.db
    """
    place = Place(app, store, prefix)
    return _acted(place, job, json, lambda: pause_job(job, place.storage, StorageScheduler(place.storage)))


def resume(
    job: JobName,
    approve: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--approve/--deny", help="The decision, where the job waits for one.", show_default=False),
    ] = None,
    value: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--value", metavar="JSON|@FILE", help="What the phase gets along with the answer.", show_default=False),
    ] = None,
    by: By = None,
    reason: Reason = None,
    app: AppOption = None,
    store: StoreOption = None,
    prefix: PrefixOption = "pipeline_",
    json: Json = False,
) -> int:
    """Let a paused job go on, with your decision where it waits for one.

    [bold]Examples[/bold]

    $ perdure jobs resume march --store sqlite:///jobs.db

    $ perdure jobs resume letter-7 --approve --by eva --app app.py:pipeline
    """
    place = Place(app, store, prefix)
    given = None if value is None else read_json(value, "value")
    who = whoever(by)
    scheduler = StorageScheduler(place.storage)
    return _acted(place, job, json, lambda: resume_job(job, place.storage, scheduler, approved=approve, value=given, reason=reason, by=who))


# ── what is printed ────────────────────────────────────────────────────────────────────────────────────────
def _acted(place: Place, job_id: str, json: bool, act: Callable[[], Awaitable[None]]) -> int:
    output = Output(json=json)

    async def work() -> JobRecord:
        await act()
        return await place.job(job_id)

    found = place.run(work)
    if json:
        output.document(_document(job_id, found))
    else:
        said = explain(found)
        output.print(Text(f"{job_id} is {said.state}" + (f" at {said.phase}" if said.phase else "")))
    return _exit.DONE


def _row(output: Output, job_id: str, job: JobRecord) -> list[Cell]:
    said = explain(job)
    return [
        Text(job_id, style="bold" if output.rich else ""),
        Text(said.state, style=COLOURS.get(said.state, "")),
        said.phase or "",
        brief(said.text or _progress(job) or "", 200),
        Text(ago(job.updated_at, RealRuntime().now()), style="bright_black"),
    ]


def _show(output: Output, job_id: str, job: JobRecord, log: list[LogEntry]) -> None:
    said = explain(job)
    fields(
        output,
        [
            ("job", Text(job_id, style="bold" if output.rich else "")),
            ("state", Text(said.state, style=COLOURS.get(said.state, ""))),
            ("phase", said.phase),
            ("try", str(said.attempt) if said.attempt and said.attempt > 1 else None),
            ("progress", _progress(job)),
            ("error" if job.status == "error" else "question", said.text),
            ("what now", said.next_step),
            ("changed", clock(job.updated_at)),
        ],
    )
    if job.output is not None:
        output.print(Text("output", style="bright_black"))
        output.print(pretty(job.output))
    if log:
        output.print(Text("log", style="bright_black"))
    for entry in log[-LOG_SHOWN:]:
        style = {"error": "red", "warn": "yellow"}.get(entry.level, "")
        output.print(
            Text(f"  {clock(entry.timestamp)}  {entry.phase or '':<12} ", style="bright_black").append(brief(entry.message, 400), style=style),
            soft_wrap=True,
        )


def _progress(job: JobRecord) -> str | None:
    if job.progress is None:
        return None
    total = "" if job.progress.total is None else f" of {job.progress.total:g}"
    return f"{job.progress.done:g}{total}"


def _document(job_id: str, job: JobRecord) -> dict[str, Any]:
    said: Explanation = explain(job)
    at = job.checkpoint
    return {
        "id": job_id, "status": job.status, "state": said.state, "phase": said.phase, "attempt": said.attempt, "error": job.error, "code": said.code,
        "next_step": said.next_step, "output": job.output, "checkpoint": None if at is None else at.to_json(), "progress": _progress(job),
        "updated_at": None if job.updated_at is None else job.updated_at.isoformat(),
    }  # fmt: skip
