"""`perdure run` and `perdure continue`: what is printed where, how it ends, and that it goes on after whatever happened."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from shop_cli import APP, Cli, environment, start, until_in_a_tool, until_recovered

GOOD = '{"order": "7"}'
START = ("run", APP, "complaints", GOOD, "--key", "k1")
SMALL = ("run", APP, "complaints", '{"order": "7", "cents": 1}', "--key", "k2")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# ── streams and codes ──────────────────────────────────────────────────────────────────────────────────────
def test_into_a_pipe_goes_the_output_alone(cli: Cli) -> None:
    """Progress, and what tools print, is on stderr: the output is fit for the next program."""
    said = cli("run", APP, "hello", '"a"', code=0)
    assert said.out == "Hello, Ünï 👋\n"
    assert "✓ completed" in said.err


def test_with_json_stdout_is_json_lines_and_nothing_else(cli: Cli) -> None:
    """Even where a tool prints; the last line is the settled run."""
    said = cli(*START, "--json", code=4)
    events = lines(said.out)
    assert "looking 7" in said.err
    assert next(event["type"] for event in events if event["type"] != "run.delta") == "run.created"
    assert [event["seq"] for event in events if "seq" in event] == list(range(1, 1 + sum("seq" in event for event in events)))
    [wait] = events[-1]["waits"]
    assert (events[-1]["type"], wait["tool"], wait["input"]) == ("run.waiting", "refund", {"order": "7", "cents": 9_000})


def test_the_exit_code_is_the_runs_end(here: Cli) -> None:
    """0 completed, 1 failed, 3 cancelled, 4 waiting."""
    assert here("run", APP, "hello", '"a"').code == 0
    failed = here("run", APP, "broken")
    assert failed.code == 1 and "model_error" in failed.err and "next: perdure runs retry" in failed.err
    assert here(*START).code == 4
    here("runs", "cancel", "complaints/k1", "--app", APP, "--reason", "changed my mind", code=0)
    cancelled = here(*START)
    assert cancelled.code == 3 and "× cancelled" in cancelled.err


def test_plain_text_needs_no_quotes(here: Cli) -> None:
    """With --text the payload is what stands there."""
    here("run", APP, "hello", 'He said "hi"', "--text", "--key", "k", code=0)
    assert json.loads(here("runs", "show", "hello/k", "--app", APP, "--json", code=0).out)["trigger"]["payload"] == 'He said "hi"'


def test_a_payload_comes_from_a_file_or_from_stdin(tmp_path: Path, cli: Cli, here: Cli) -> None:
    """`@FILE` and `-`, with and without a byte order mark."""
    (tmp_path / "mail.json").write_text('\ufeff{"order": "é"}')
    cli("run", APP, "complaints", "@mail.json", "--key", "file", "--no-follow", code=0)
    cli("run", APP, "complaints", "-", "--key", "stdin", "--no-follow", stdin='{"order": "é"}', code=0)
    for key in ("file", "stdin"):
        shown = json.loads(here("runs", "show", f"complaints/{key}", "--app", APP, "--json").out)
        assert shown["trigger"]["payload"] == {"order": "é", "cents": 9_000}
        assert (shown["trigger"]["source"], shown["status"]) == ("cli", "pending")


def test_a_run_that_is_only_started_prints_its_id(here: Cli) -> None:
    """So that a script can keep it; a worker does the rest."""
    run_id = here(*START, "--no-follow", code=0).out.strip()
    assert len(run_id) == 36
    assert here(*START, "--no-follow", code=0).out.strip() == run_id


def test_attachments_are_stored_with_their_names(tmp_path: Path, here: Cli) -> None:
    """They are listed with the run."""
    (tmp_path / "scan.pdf").write_bytes(b"%PDF-1.7")
    here("run", APP, "hello", '"a"', "--attach", "scan.pdf", code=0)
    assert "scan.pdf (8 bytes)" in here("runs", "show", "last", "--app", APP, code=0).out


def test_only_the_named_run_is_executed_here(here: Cli) -> None:
    """A one-shot command does not start on other people's work."""
    here("run", APP, "hello", '"other"', "--key", "other", "--no-follow", code=0)
    here("run", APP, "hello", '"mine"', code=0)
    assert json.loads(here("runs", "show", "hello/other", "--app", APP, "--json").out)["status"] == "pending"
    here("continue", APP, "hello/other", code=0)


# ── going on ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_run_goes_on_after_its_answer(tmp_path: Path, here: Cli) -> None:
    """Case by case over the command line: it waits, is answered with other money, and goes on with that, once."""
    # case B13
    waiting = here(*START, code=4)
    assert "waits for approval of refund" in waiting.err and "approvals approve" in waiting.err
    assert here(*START).code == 4, "asked again, it still waits"
    here("approvals", "approve", "0", "--app", APP, code=2)
    [request] = json.loads(here("approvals", "list", "--app", APP, "--json").out)
    here("approvals", "approve", request["id"], "--app", APP, "--input", '{"order": "7", "cents": 4000}', "--by", "eva", code=0)
    done = here("continue", APP, "last", code=0)
    assert "cents=4000" in done.err
    assert done.out == "Paid back.\n"
    assert [line.split()[1] for line in (tmp_path / "bank.txt").read_text().splitlines()] == ["4000"]
    assert here(*START, code=0).out == "Paid back.\n", "the key answers with the run that it started"


def test_what_a_model_says_cant_speak_to_the_terminal(here: Cli) -> None:
    """An escape sequence in a response is shown, not obeyed."""
    said = here(*START)
    assert "\x1b" not in said.err and "It arrived broken.\ufffd[2J" in said.err


@pytest.mark.parametrize("lease", ["runs-out-meanwhile", "has-run-out"])
def test_killed_in_a_tool_the_same_command_goes_on(tmp_path: Path, cli: Cli, lease: str) -> None:
    """After SIGKILL the response is not paid for again: the tool is entered again, and that is all. The recovery is told, whoever made it and when."""
    # case H9
    process = start(tmp_path, *SMALL)
    until_in_a_tool(tmp_path)
    process.kill()
    process.communicate()
    (tmp_path / "hold").unlink()
    if lease == "has-run-out":
        until_recovered(tmp_path)
    said = cli(*SMALL, "--json", code=4)
    kinds = [event["type"] for event in lines(said.out)]
    assert "run.recovered" in kinds
    assert "I look the order up." not in "".join(event.get("text", "") for event in lines(said.out))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_hands_the_run_back(tmp_path: Path, here: Cli, number: signal.Signals) -> None:
    """It is interrupted, not failed; the command says how to go on."""
    process = start(tmp_path, *SMALL)
    until_in_a_tool(tmp_path)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 4, err
    assert "interrupted" in err and "next: perdure continue" in err
    (tmp_path / "hold").unlink()
    assert here("continue", APP, "last").code == 4


# ── the terminal ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_nothing_is_wider_than_it(tmp_path: Path, columns: int) -> None:
    """The live view, its gauge and the card fit, and a terminal gets colours."""
    os.mkfifo(tmp_path / "gate")
    shown = on_terminal(tmp_path, columns, *START, env={"SHOP_GATE": "gate"}, gate=("step 1/50", tmp_path / "gate"))
    assert "\x1b[" in shown
    assert all(word in shown for word in ("step 1/50", "lookup_order", "waits for", "cents", "approvals approve"))
    pieces = re.split(r"\r\n|\r|\n", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))
    # The commands are to be copied, so they are never cut.
    assert max(cell_len(piece) for piece in pieces if "perdure " not in piece) <= columns


def test_without_colour_there_is_none(tmp_path: Path) -> None:
    """NO_COLOR is obeyed; bold and the movements of the live view are no colours."""
    shown = on_terminal(tmp_path, 80, "runs", "list", "--app", APP, env={"NO_COLOR": "1"}, first=START)
    assert "\x1b[3" not in shown and "waiting" in shown


def on_terminal(
    folder: Path,
    columns: int,
    *command: str,
    env: dict[str, str] | None = None,
    first: tuple[str, ...] = (),
    gate: tuple[str, Path] | None = None,
) -> str:
    """What a command writes to a terminal. `gate`: once these words have been shown, this pipe is opened."""
    if first:
        subprocess.run([sys.executable, "-m", "perdure.cli", *first], cwd=folder, env=environment(), capture_output=True, check=False)
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color", **(env or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *command], cwd=folder, env=environment(size), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break  # the other end is closed
        if not piece:
            break
        shown += piece
        if gate is not None and gate[0].encode() in shown:
            gate[1].write_bytes(b"")
            gate = None
    process.wait()
    os.close(ours)
    return shown.decode()
