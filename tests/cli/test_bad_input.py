"""Bad input, over the real command line: one clear line, an exit code that says so, nothing stored half, nothing lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from shop_cli import APP, Cli

from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite._connection import SCHEMA

RUN = ("run", APP, "complaints")
GOOD = '{"order": "7"}'
BOUND_BY_RIGHTS = """
import ctypes
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: without them rights bind root as well
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
import os, sys
if not os.environ.get("AGAIN"):
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, "-c", "import sys; from perdure.cli import main; sys.argv[0] = 'perdure'; main()", *sys.argv[1:]])
"""
"""What is dropped from the bounding set is gone after the next exec."""
SMALL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))"
"""No file may grow beyond 600 kB: what a full disk is to a write, without one."""


def stored(folder: Path, name: str = "shop.db") -> dict[str, int]:
    """How many rows of what a user gave are in the database; nothing at all where there is none."""
    if not (folder / name).exists():
        return {"run": 0, "artifact": 0, "event": 0}
    with sqlite3.connect(folder / name) as raw:
        counts = {table: raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("run", "artifact", "event")}
    raw.close()
    return counts


NOTHING = {"run": 0, "artifact": 0, "event": 0}


# ── the program ────────────────────────────────────────────────────────────────────────────────────────────
def test_an_unknown_agent_is_refused_and_the_known_ones_are_named(tmp_path: Path, cli: Cli) -> None:
    """A slip in the name costs one look at the message."""
    said = cli("run", APP, "complains", GOOD, code=2).complaint
    assert "'complains'" in said and "'complaints'" in said
    assert stored(tmp_path) == NOTHING


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("nowhere.py:engine", "There is no file 'nowhere.py'"),
        ("nowhere.module:engine", "no module 'nowhere'"),
        (f"{APP}:machine", "has no 'machine'. Write"),
        (f"{APP}:agent", "has a Agent as 'agent', not an Engine"),
    ],
)
def test_a_program_that_is_not_there_is_named(tmp_path: Path, here: Cli, app: str, told: str) -> None:
    """What was looked for, and how an APP is written."""
    assert told in here("run", app, "complaints", GOOD, code=2).complaint
    assert stored(tmp_path) == NOTHING


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import shopp\n", "app.py, line 1: ModuleNotFoundError: No module named 'shopp'"),
        ("x = 1\ndef f(:\n", "app.py, line 2: SyntaxError"),
        ("x = 1\n", "No Engine stands at its top level"),
        ("import sys\nsys.exit(3)\n", "app.py, line 2: the program ended itself (exit 3)"),
        ("from perdure import Engine\nengine = Engine('mysql://x')\n", "app.py, line 2: mysql:// is no kind of store"),
    ],
)
def test_a_program_that_cant_be_loaded_says_where(tmp_path: Path, here: Cli, text: str, told: str) -> None:
    """File, line and reason in one line; the traceback is for those who ask for it."""
    (tmp_path / "app.py").write_text(text)
    said = here("run", "app.py", "complaints", code=2).complaint
    assert told in said
    assert "PERDURE_DEBUG=1" in said or "No Engine" in said
    if "No Engine" not in said:
        assert str(getattr(sys.modules.get("app"), "__file__", "")) != str(tmp_path / "app.py"), "half a program is left behind"


@pytest.mark.parametrize("deferred", ["", ", defer_model_check=True"])
def test_a_model_without_its_key_is_refused_before_anything_is_stored(tmp_path: Path, cli: Cli, deferred: str) -> None:
    """The variable that is missing is named, whether Pydantic AI looks for it at once or at the first call."""
    (tmp_path / "app.py").write_text(
        "from pydantic_ai import Agent\nfrom perdure import Engine\n"
        f"engine = Engine('sqlite:///shop.db')\nengine.agent(Agent('openai:gpt-5'{deferred}), name='chat', input=str)\n"
    )
    for command in (("run", "app.py", "chat", '"hi"'), ("worker", "app.py")):
        assert "OPENAI_API_KEY" in cli(*command, code=2).complaint
    assert not (tmp_path / "shop.db").exists()


# ── the payload ────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("payload", "told"),
    [
        ('{"order": ', "payload: not JSON: Expecting value at line 1, column 11"),
        ("Where is my parcel?", "say --text"),
        ("", "it is empty"),
        ('{"order": NaN}', "NaN is no JSON number"),
        ('{"cents": 5}', "payload.order: Field required"),
        ('{"order": "7", "cents": "many"}', "payload.cents: Input should be a valid integer"),
        ("@nowhere.json", "'nowhere.json' can't be read: No such file or directory"),
        ("@bytes.json", "payload (bytes.json): not UTF-8 text (byte 9)"),
        ("@cut.json", "payload (cut.json): not JSON: Expecting value at line 3, column 1"),
        (None, ". No PAYLOAD was given"),
    ],
)
def test_a_payload_that_is_wrong_names_the_place(tmp_path: Path, here: Cli, payload: str | None, told: str) -> None:
    """The field, or the line and column, or the file."""
    (tmp_path / "bytes.json").write_bytes(b'{"order":\xff\xfe}')
    (tmp_path / "cut.json").write_text('{\n"order":\n')
    assert told in here(*RUN, *(() if payload is None else (payload,)), code=2).complaint
    assert stored(tmp_path) == NOTHING


def test_a_payload_that_is_wrong_is_refused_by_the_real_command(tmp_path: Path, cli: Cli) -> None:
    """The two that everybody meets."""
    assert "payload: not JSON: Expecting value at line 1, column 11" in cli(*RUN, '{"order": ', code=2).complaint
    assert "payload.order: Field required" in cli(*RUN, "{}", code=2).complaint
    assert stored(tmp_path) == NOTHING


def test_stdin_that_is_no_json_is_refused(tmp_path: Path, cli: Cli) -> None:
    """It is named as what it is."""
    assert "payload (stdin): not JSON" in cli(*RUN, "-", stdin="[1, 2", code=2).complaint
    assert stored(tmp_path) == NOTHING


def test_of_several_attachments_one_that_is_missing_stops_all(tmp_path: Path, cli: Cli) -> None:
    """The first one is not stored for a run that never comes."""
    (tmp_path / "scan.pdf").write_bytes(b"%PDF-")
    said = cli(*RUN, GOOD, "--attach", "scan.pdf", "--attach", "photo.png", code=2).complaint
    assert "'photo.png' can't be read: No such file or directory" in said
    assert "is a folder" in cli(*RUN, GOOD, "--attach", ".", code=2).complaint
    assert stored(tmp_path) == NOTHING


def test_a_key_that_stands_for_another_payload_is_refused(tmp_path: Path, cli: Cli) -> None:
    """The first run stays the only one."""
    cli("run", APP, "hello", '"a"', "--key", "k", code=0)
    said = cli("run", APP, "hello", '"b"', "--key", "k", code=2).complaint
    assert "'k'" in said and "another payload" in said
    assert stored(tmp_path)["run"] == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [(("run", APP), "AGENT"), (("runs", "list", "--sta", "x"), "No such option"), (("rnu",), "No such command"), (("runs", "lst"), "? Try")],
)
def test_a_wrong_command_line_points_to_its_help(here: Cli, command: tuple[str, ...], told: str) -> None:
    """One line, like everything else."""
    said = here(*command, code=2).complaint
    assert told in said and "--help" in said


def test_with_json_an_error_is_one_line_of_json(here: Cli) -> None:
    """On stderr; stdout stays empty."""
    said = here(*RUN, "{}", "--json", code=2)
    assert said.out == ""
    assert '"code": "invalid_trigger"' in said.complaint and '"field": "order"' in said.complaint


# ── the store ──────────────────────────────────────────────────────────────────────────────────────────────
LOOKS = (("runs", "list"), ("approvals", "list"), ("effects", "list"), ("runs", "show", "last"))


def test_looking_makes_no_database(tmp_path: Path, here: Cli) -> None:
    """A mistyped path is told, not filled."""
    for look in LOOKS[:2]:
        assert "There is no database 'shoop.db'" in here(*look, "--store", "sqlite:///shoop.db", code=2).complaint
    assert "There is no database 'perdure.db'" in here("runs", "list", code=2).complaint
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, cli: Cli) -> None:
    """By whatever command; not a byte of it changes."""
    text = b"shopping list: one kettle, two cups\n" * 40
    (tmp_path / "shop.db").write_bytes(text)
    for command in (("runs", "list", "--store", "sqlite:///shop.db"), (*RUN, GOOD), ("worker", APP), ("migrate", "--store", "sqlite:///shop.db")):
        said = cli(*command, code=2).complaint
        assert "shop.db is not a SQLite database" in said
    assert (tmp_path / "shop.db").read_bytes() == text


async def test_a_database_of_a_newer_version_is_refused_and_kept(tmp_path: Path, cli: Cli) -> None:
    """The message says which version it is and what to do."""
    async with SqliteStore(tmp_path / "shop.db"):
        pass
    with sqlite3.connect(tmp_path / "shop.db") as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    raw.close()
    for command in (("runs", "list", "--store", "sqlite:///shop.db"), (*RUN, GOOD)):
        said = cli(*command, code=2).complaint
        assert f"schema {SCHEMA + 1}" in said and "Upgrade Perdure" in said
    assert stored(tmp_path) == NOTHING


def test_a_database_that_is_read_only_is_refused(tmp_path: Path, cli: Cli) -> None:
    """The file and what it needs are named, and nothing of the run is kept."""
    cli("migrate", "--store", "sqlite:///shop.db", code=0)
    (tmp_path / "shop.db").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        said = cli(*RUN, GOOD, before=BOUND_BY_RIGHTS, code=2)
    finally:
        tmp_path.chmod(0o755)
        (tmp_path / "shop.db").chmod(0o644)
    assert "shop.db can't be written" in said.complaint
    assert stored(tmp_path) == NOTHING


def test_a_disk_that_is_full_when_a_run_starts_keeps_nothing_of_it(tmp_path: Path, cli: Cli) -> None:
    """With room again, the same command works."""
    (tmp_path / "scan.pdf").write_bytes(os.urandom(900_000))
    command = ("run", APP, "hello", '"a"', "--attach", "scan.pdf")
    said = cli(*command, before=SMALL_DISK, code=1).complaint
    assert "shop.db" in said and "free some space" in said
    assert stored(tmp_path) == NOTHING
    assert cli(*command, code=0).out == "Hello, Ünï 👋\n"


def test_a_disk_that_fills_up_during_a_run_loses_no_step_that_was_stored(tmp_path: Path, cli: Cli) -> None:
    """The command ends with the reason; with room again the run goes on from its last step."""
    (tmp_path / "app.py").write_text(
        "from pathlib import Path\nfrom datetime import timedelta\nfrom pydantic_ai import Agent\nfrom perdure import Engine, plain\n"
        "from perdure.testing.models import ScriptedModel, call, say\n"
        "agent = Agent(ScriptedModel([call('small'), call('large'), call('large'), call('large'), call('large'), say('done')]))\n"
        "@agent.tool_plain(metadata=plain())\ndef small() -> str:\n    with Path('small.txt').open('a') as file:\n        print('once', file=file)\n    return 'ok'\n"
        "@agent.tool_plain(metadata=plain())\ndef large() -> str:\n    import random\n    return random.randbytes(100_000).hex()\n"
        "engine = Engine('sqlite:///shop.db', lease=timedelta(seconds=2))\nengine.agent(agent, name='grow')\n"
    )
    command = ("run", "app.py", "grow", "null", "--key", "k")
    full = cli(*command, before=SMALL_DISK, code=1)
    assert "free some space" in full.err and "Traceback" not in full.err
    again = cli(*command) if "goes on" not in full.err else cli("continue", "app.py", "last")
    if again.code == 1:
        # The reason found room where the result did not: then the run is failed with it, and a retry goes on from its last step.
        assert "store_full" in again.err
        cli("runs", "retry", "last", "--app", "app.py", code=0)
        again = cli("continue", "app.py", "last")
    assert (again.code, again.out) == (0, "done\n")
    assert (tmp_path / "small.txt").read_text() == "once\n"


@pytest.mark.parametrize("url", ["perdure.db", "mysql://shop", "sqlite://shop.db", "sqlite:///"])
def test_an_address_that_is_none_is_refused_with_those_there_are(here: Cli, url: str) -> None:
    """The forms are in the message."""
    assert "sqlite:///" in here("runs", "list", "--store", url, code=2).complaint


def test_what_is_not_there_is_named(tmp_path: Path, here: Cli) -> None:
    """Runs, requests, effects, by the name they were asked by."""
    here("migrate", "--store", "sqlite:///perdure.db", code=0)
    for command, told in (
        (("runs", "show", "7f3a"), "no run '7f3a'"),
        (("runs", "cancel", "complaints/k1"), "no run 'complaints/k1'"),
        (("approvals", "approve", "7f3a"), "no wait point '7f3a'"),
        (("effects", "settle", "7f3a", "done"), "no effect '7f3a'"),
        (("effects", "settle", "7f3a", "maybe"), "say done"),
        (("approvals", "extend", "7f3a", "--within", "soon"), "no span of time"),
        (("approvals", "approve", "7f3a", "--input", "[1]"), "as a JSON object"),
        (("runs", "retry", "last", "--max-cost", "much"), "no amount of US dollars"),
        (("signal", "7f3a", "paid", "{"), "Quote a plain text as '\"…\"'."),
    ):
        assert told in here(*command, code=2).complaint


def test_arguments_that_no_system_could_hold_are_refused(tmp_path: Path, here: Cli) -> None:
    """Bytes that are no text, names that are too long: one line each, and no mention of a bug."""
    here("migrate", "--store", "sqlite:///perdure.db", code=0)
    long = "x" * 5_000
    for command, told in (
        (("runs", "list", "--agent", "lone\udcff"), "no UTF-8 text"),
        (("runs", "list", "--thread", "lone\udcff"), "no UTF-8 text"),
        (("runs", "show", long), "no run"),
        ((*RUN, GOOD, "--attach", long), "File name too long"),
        ((*RUN, f"@{long}"), "File name too long"),
        (("runs", "list", "--store", f"sqlite:///{long}"), "File name too long"),
        (("runs", "list", "--store", "sqlite:///:memory:"), "memory"),
    ):
        said = here(*command, code=2).complaint
        assert told in said and "bug report" not in said
    assert stored(tmp_path, "shop.db") == NOTHING


TRIAGE = Path(__file__).parents[2] / "examples" / "triage"


def test_a_broken_mail_never_becomes_a_run(tmp_path: Path, cli: Cli) -> None:
    """The reader says which file and what is wrong with it, and hands nothing on; of nothing, the command makes no run."""
    env = {"TRIAGE_DATA": str(tmp_path)}
    read = subprocess.run([sys.executable, TRIAGE / "mail.py", TRIAGE / "inbox" / "15-cut-off.eml"], capture_output=True, text=True, check=False)
    assert read.returncode != 0 and read.stdout == ""
    assert read.stderr.count("\n") == 1 and "15-cut-off.eml" in read.stderr and "cut off" in read.stderr
    said = cli("run", str(TRIAGE / "app.py"), "triage", "-", stdin=read.stdout, env=env, code=2).complaint
    assert "payload (stdin): it is empty" in said
    assert stored(tmp_path, "triage.db") == NOTHING
