"""`perdure jobs` over a program with a pipeline, and over its database alone."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.cli._app import run_command

APP = str(Path(__file__).with_name("jobs_app.py"))
STORE = "sqlite:///jobs.db"


class Cli:
    """Runs `perdure jobs …` in this process, in an empty folder."""

    def __init__(self, capsys: pytest.CaptureFixture[str], database: tuple[str, ...]) -> None:
        self._capsys, self.database = capsys, database

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = run_command(["jobs", *arguments])
        out, err = self._capsys.readouterr()
        assert found == code, (found, out, err)
        return out if code == 0 else err

    def read(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


_PREFIXES = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def cli(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`database` is how a command names the jobs without their program."""
    prefix, store = f"jobs{next(_PREFIXES)}_", STORE
    monkeypatch.delenv("JOBS_DSN", raising=False)
    if request.param == "postgres":
        store = request.getfixturevalue("postgres").dsn
        monkeypatch.setenv("JOBS_DSN", store)
    monkeypatch.setenv("JOBS_PREFIX", prefix)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")
    sys.modules.pop("jobs_app", None)
    return Cli(capsys, ("--store", store, "--prefix", prefix))


def work(start: str | None = None) -> None:
    """What a worker does elsewhere: start a job if asked to, and do what is due."""
    from jobs_app import Note, pipeline

    async def main() -> None:
        if start is not None:
            await pipeline.start(start, Note())
        await pipeline.worker().run_until_idle()
        await pipeline.storage.close()

    _run(main)


def _run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


# case O1
# case O8
def test_a_failed_job_says_why_and_is_retried_from_where_it_failed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list and the page say state, phase, error, try and what to do; retry resumes unless told otherwise."""
    monkeypatch.setenv("JOBS_BROKEN", "1")
    cli("list", "--app", APP)
    work("j")
    listed = cli("list", "--app", APP, "--status", "error")
    assert "check" in listed and 'Phase "check" threw: ValueError: the ink is dry' in listed
    shown = cli.read("show", "j", *cli.database)
    assert (shown["status"], shown["code"], shown["phase"], shown["attempt"]) == ("error", "phase_error", "check", 1)
    assert shown["next_step"].startswith("Fix what it says, then retry") and shown["log"][0]["message"] == "writing"
    page = cli("show", "j", "--app", APP)
    assert "what now" in page and "writing" in page
    monkeypatch.delenv("JOBS_BROKEN")
    assert cli("retry", "j", "--app", APP).strip() == "j is queued at check"
    work()
    assert cli.read("show", "j", "--app", APP)["state"] == "paused"
    assert cli("retry", "j", "--full", "--app", APP).strip() == "j is queued at write"
    work()
    assert cli("retry", "j", "--from", "check", "--app", APP).strip() == "j is queued at check"


def test_a_decision_is_given_on_the_command_line(cli: Cli) -> None:
    """Approve with a value; the first answer wins."""
    cli("list", "--app", APP)
    work("j")
    assert "Send it?" in cli("show", "j", *cli.database)
    assert "Approve or deny it" in cli("resume", "j", *cli.database, code=2)
    cli("resume", "j", "--approve", "--value", '{"copies": 2}', "--by", "eva", *cli.database)
    assert "resumed already, by eva" in cli("resume", "j", "--deny", *cli.database, code=2)
    work()
    shown = cli.read("show", "j", *cli.database)
    assert (shown["status"], shown["output"]) == ("complete", {"text": "hello", "approved": True, "value": {"copies": 2}, "by": "eva"})


def test_a_job_is_paused_and_resumed_without_its_program(cli: Cli) -> None:
    """Before its first phase: nothing runs until it is resumed."""
    cli("list", "--app", APP)
    from jobs_app import Note, pipeline

    async def start() -> None:
        await pipeline.start("j", Note())
        await pipeline.storage.close()

    _run(start)
    assert cli("pause", "j", *cli.database).strip() == "j is paused at write"
    work()
    assert cli.read("show", "j", *cli.database)["phase"] == "write"
    assert cli("resume", "j", *cli.database).strip() == "j is queued at write"
    work()
    assert cli.read("list", *cli.database, "--status", "paused")[0]["phase"] == "ask"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list"], "Say where the jobs are"),
        (["list", "--app", APP, "--store", STORE], "Say where the jobs are"),
        (["list", "--store", "sqlite:///typo.db"], "There is no file 'typo.db'"),
        (["show", "\udcff", "--store", STORE], "holds characters that no id has"),
        (["pause", "", "--store", STORE], "job_id: must have 1 to"),
        (["resume", "x" * 100_000, "--store", STORE], "job_id: must have 1 to"),
        (["retry", "nobody", "--from", "x" * 100_000, "--app", APP], "There is no phase"),
        (["retry", "nobody", "--from", "", "--app", APP], "There is no phase ''"),
        (["list", "--store", STORE, "--status", "x" * 100_000], "it is one of idle"),
        (["list", "--store", "mysql://x/y"], "jobs are read from sqlite:///jobs.db or postgresql://"),
        (["list", "--store", "postgresql://x@/y?nonsense=1"], "This is no address of a Postgres database"),
        (["list", "--app", "nowhere.py:pipeline"], "There is no file 'nowhere.py'"),
        (["list", "--app", f"{APP}:other"], "there is no pipeline 'other'. Write"),
        (["list", "--store", STORE, "--status", "lost"], "--status 'lost': it is one of idle, running"),
        (["show", "nobody", "--store", STORE], "There is no job 'nobody' here."),
        (["pause", "nobody", "--store", STORE], "There is no job 'nobody' here."),
        (["resume", "nobody", "--store", STORE, "--value", "{"], "value"),
        (["retry", "nobody", "--app", APP], "There is no job 'nobody' here."),
        (["retry", "nobody"], "A retry needs the phases"),
        (["retry", "nobody", "--app", APP, "--full", "--from", "check"], "say one of them"),
    ],
)
def test_a_wrong_command_is_one_line_that_says_what_to_do(cli: Cli, arguments: list[str], says: str) -> None:
    """Exit code 2, nothing changed."""
    Path("jobs.db").touch()
    complaint = cli(*arguments, code=2)
    assert says in complaint and len(complaint.splitlines()) == 1 and len(complaint) < 400 and "Traceback" not in complaint
    assert not Path("typo.db").exists()
