"""People at the keyboard, in a hurry or with bad intentions: one clear line, an exit code that says so, and nothing is decided or stored."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from shop_cli import APP, Cli

STORE = ("--store", "sqlite:///shop.db")
ORDER = ("run", APP, "complaints", '{"order": "7", "cents": 9000}')
TABLES = ("run", "event", "step", "wait", "signal", "effect")
LONG = "x" * 70_000
EDIT = '{"order": "7", "cents": 1}'


def stored(folder: Path) -> list[int]:
    """How many rows there are, and of the open requests."""
    raw = sqlite3.connect(folder / "shop.db")
    counts = [raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES]
    counts.append(raw.execute("SELECT count(*) FROM wait WHERE resolved_at IS NULL").fetchone()[0])
    raw.close()
    return counts


@pytest.fixture
def asked(here: Cli) -> str:
    """The id of an open request."""
    here(*ORDER, code=4)
    [request] = json.loads(here("approvals", "list", *STORE, "--json", code=0).out)
    return request["id"]


BAD_ANSWERS = [
    (("approve", "ID", "--input", "{bad"), "input: not JSON"),
    (("approve", "ID", "--input", ""), "it is empty"),
    (("approve", "ID", "--input", "[1]"), "as a JSON object, not list"),
    (("approve", "ID", "--input", '"text"'), "as a JSON object, not str"),
    (("approve", "ID", "--input", '{"order": "7", "cents": NaN}'), "NaN is no JSON number"),
    (("approve", "ID", "--input", '{"order": "7", "cents": "many"}'), "'many' is not of type 'integer'"),
    (("approve", "ID", "--input", '{"order": "7", "cents": 1e999}'), "is not of type 'integer'"),
    (("approve", "ID", "--input", '{"order": "7"}'), "'cents' is a required property"),
    (("approve", "ID", "--input", '{"order": "7", "cents": 1, "tool_name": "other"}'), "'tool_name' was unexpected"),
    (("approve", "ID", "--input", "@nowhere.json"), "'nowhere.json' can't be read"),
    (("approve", "ID", "--input", "@."), "Is a directory"),
    (("approve", "ID", "--input", "[" * 100_000), "not JSON"),
    (("approve", "ID", "--by", ""), "by: must have 1 to"),
    (("approve", "ID", "--by", LONG), "by: must have 1 to"),
    (("deny", "ID", "--input", "{}"), "No such option: --input"),
    (("answer", "ID", "maybe"), "It takes: approve, deny"),
    (("answer", "ID", "expired"), "It takes: approve, deny"),
    (("answer", "ID", "approve", "7"), "the tool's arguments by name, not 7"),
    (("answer", "ID"), "Missing argument 'DECISION'"),
    (("extend", "ID"), "Missing option '--within'"),
    (("extend", "ID", "--within", ""), "no span of time"),
    (("extend", "ID", "--within", "-3d"), "no span of time"),
    (("extend", "ID", "--within", "0s"), "longer than 0"),
    (("extend", "ID", "--within", "999999999999999d"), "shorter than a century"),
    (("approve",), "Missing argument 'REQUEST'"),
    (("list", "--limit", "0"), "greater than or equal to 1"),
    (("grant", "ID"), "No such command 'grant'"),
]


@pytest.mark.parametrize(("words", "told"), BAD_ANSWERS, ids=[f"{' '.join(words)}"[:40] for words, _ in BAD_ANSWERS])
def test_an_answer_that_is_none_decides_nothing(tmp_path: Path, here: Cli, asked: str, words: tuple[str, ...], told: str) -> None:
    """The request stays open, and the line says what is wrong with which word."""
    before = stored(tmp_path)
    said = here("approvals", *(asked if word == "ID" else word for word in words), *STORE, code=2)
    assert told in said.complaint and said.out == ""
    assert stored(tmp_path) == before


def test_a_request_that_was_never_made_cant_be_approved(tmp_path: Path, here: Cli, asked: str) -> None:
    """A guess, a call's id, an effect's key, the request's id with one letter changed, another row's id: with and without an edit. # case B13"""
    run = json.loads(here("runs", "show", "last", *STORE, "--json").out)
    [call_id] = [call["id"] for step in run["steps"] for call in step.get("calls", [])] or ["call-0-0"]
    changed = asked[:-1] + ("0" if asked[-1] != "0" else "1")
    before = stored(tmp_path)
    for forged in (changed, "0" * 36, call_id, f"{run['id']}:1:1:0", "wait-made-up", "größer 😀", "a\x1b[2Jb", LONG):
        for more in ((), ("--input", EDIT)):
            said = here("approvals", "approve", forged, *more, "--by", "mallory", *STORE, code=2).complaint
            assert ("no wait point" in said or "wait_id" in said) and "\x1b" not in said and len(said) < 2_000
    assert stored(tmp_path) == before


@pytest.mark.parametrize("name", ["", "0", "a", "abc"])
def test_a_few_letters_are_no_name(tmp_path: Path, here: Cli, asked: str, name: str) -> None:
    """They would decide about whatever happens to end on them. Nothing ends on the empty one, and everything does."""
    before = stored(tmp_path)
    for end in {name, asked[-len(name) :] if name else ""}:
        for command in (("approvals", "approve", end), ("approvals", "show", end), ("runs", "cancel", end), ("effects", "settle", end, "done")):
            assert "too short to name anything" in here(*command, *STORE, code=2).complaint
    assert stored(tmp_path) == before


def test_who_comes_too_late_is_told_who_won_whatever_they_say(here: Cli, asked: str) -> None:
    """Even where the edit would not have been taken."""
    here("approvals", "deny", asked, "--by", "eva", *STORE, code=0)
    for edit in (EDIT, '{"nonsense": 1}'):
        said = here("approvals", "approve", asked, "--input", edit, "--by", "kim", *STORE, code=2).complaint
        assert "closed by eva already: deny" in said and "fit" not in said


BAD_SIGNALS = [
    (("signal",), "Missing argument 'RUN'"),
    (("signal", "last"), "Missing argument 'NAME'"),
    (("signal", "last", ""), "name: must have 1 to"),
    (("signal", "last", LONG), "name: must have 1 to"),
    (("signal", "last", "paid", "{"), "payload: not JSON"),
    (("signal", "last", "paid", "NaN"), "no JSON number"),
    (("signal", "last", "paid", "@nowhere"), "'nowhere' can't be read"),
    (("signal", "last", "paid", "--id", ""), "id: must have 1 to"),
    (("signal", "ffffffff", "paid"), "no run 'ffffffff'"),
    (("signal", "complaints/nobody", "paid"), "no run 'complaints/nobody'"),
    (("runs", "follow", "ffffffff"), "no run 'ffffffff'"),
    (("runs", "follow", "last", "--after", "-1"), "greater than or equal to 0"),
    (("runs", "follow"), "Missing argument 'RUN'"),
    (("runs", "retry", "last"), "only failed and cancelled runs are retried"),
    (("runs", "retry", "last", "--max-steps", "-1"), "greater than or equal to 0"),
    (("runs", "retry", "last", "--max-cost", "NaN"), "no amount of US dollars"),
    (("runs", "fork", "ffffffff"), "no run 'ffffffff'"),
    (("runs", "fork", "last", "--step", "99"), "has no checkpoint 99"),
    (("runs", "fork", "last", "--step", "-1"), "greater than or equal to 0"),
    (("runs", "fork", "last", "--step", "one"), "valid integer"),
    (("runs", "fork", "last", "--message", "and now?"), "calls are not answered yet"),
    (("runs", "fork", "last", "--message", "@nowhere"), "'nowhere' can't be read"),
    (("runs", "fork", "last", "--result", "refund"), "is no CALL=JSON"),
    (("runs", "fork", "last", "--result", "=1"), "is no CALL=JSON"),
    (("runs", "fork", "last", "--result", "refund={"), "not JSON"),
    (("runs", "fork", "last", "--result", "refund=1"), "no tool call 'refund' is answered"),
    (("runs", "fork", "last", "--result", "a=1", "--result", "a=2"), "named twice"),
    (("tick", "nowhere.py"), "no file 'nowhere.py'"),
]


@pytest.mark.parametrize(("words", "told"), BAD_SIGNALS, ids=[f"{' '.join(words)}"[:40] for words, _ in BAD_SIGNALS])
def test_what_a_run_cant_be_told_changes_nothing(tmp_path: Path, here: Cli, asked: str, words: tuple[str, ...], told: str) -> None:
    """Signals, forks, retries and looks with a slip in them."""
    before = stored(tmp_path)
    said = here(*words, *(STORE if words[0] != "tick" else ()), code=2)
    assert told in said.complaint and said.out == ""
    assert stored(tmp_path) == before


@pytest.mark.parametrize(
    "command", [("approvals", "list"), ("approvals", "approve", "7f3a9c21"), ("signal", "7f3a9c21", "paid"), ("runs", "fork", "7f3a9c21")]
)
def test_no_database_is_made_or_changed_by_an_answer(tmp_path: Path, here: Cli, command: tuple[str, ...]) -> None:
    """A path with a slip in it, a file of another kind, a folder."""
    (tmp_path / "letter.db").write_text("Dear Eva, " * 500)
    (tmp_path / "box").mkdir()
    kept = (tmp_path / "letter.db").read_bytes()
    for url in ("sqlite:///sohp.db", "sqlite:///letter.db", "sqlite:///box", "sqlite:///no/where/shop.db", "shop.db", "redis://x"):
        assert here(*command, "--store", url, code=2).complaint
    assert (tmp_path / "letter.db").read_bytes() == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["box", "letter.db"]


def test_a_fork_goes_on_with_another_result(here: Cli) -> None:
    """By the tool's name where it was called once; the first run stays as it is; the message of a user is added."""
    here(*ORDER, code=4)
    here("approvals", "deny", "last", "--by", "eva", *STORE, code=0)
    here("continue", APP, "last", code=0)
    first = json.loads(here("runs", "show", "last", *STORE, "--json").out)
    forked = json.loads(here("runs", "fork", "last", "--step", "2", "--result", 'refund="They paid it already."', *STORE, "--json", code=0).out)
    assert forked["id"] != first["id"] and forked["status"] == "pending"
    here("continue", APP, forked["id"], code=0)
    shown = json.loads(here("runs", "show", forked["id"], *STORE, "--json").out)
    assert shown["output"] == first["output"] and shown["status"] == "completed"
    assert json.loads(here("runs", "show", first["id"], *STORE, "--json").out) == first
    told = here("runs", "fork", first["id"], "--message", "Thank you.", "--app", APP, code=0).out
    assert "is pending, forked from" in told and "after its newest step" in told and "perdure continue" in told
