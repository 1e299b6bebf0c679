"""Looking at runs, answering requests, settling effects: by whole ids, by their ends, by keys; as tables and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shop_cli import APP, Cli

STORE = ("--store", "sqlite:///shop.db")
START = ("run", APP, "complaints", '{"order": "7"}', "--key", "k1")


def loaded(here: Cli, *command: str) -> Any:
    """What a command says as JSON."""
    return json.loads(here(*command, *STORE, "--json", code=0).out)


def test_a_run_has_several_names(here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id, the end of it, AGENT/KEY, and `last`."""
    here(*START, code=4)
    run_id = loaded(here, "runs", "list")[0]["id"]
    for name in (run_id, run_id[-6:], "complaints/k1", "last"):
        assert loaded(here, "runs", "show", name)["id"] == run_id
    here("run", APP, "hello", '"a"', code=0)
    monkeypatch.setattr("perdure.cli._find.NAME_LEAST", 0)  # two ids hardly ever end alike
    both = here("runs", "show", "", *STORE, code=2).complaint
    assert "stands for 2 things" in both


def test_what_a_program_prints_while_it_is_loaded_is_no_answer(tmp_path: Path, here: Cli) -> None:
    """It goes to stderr; stdout is JSON alone."""
    here("migrate", *STORE, code=0)
    (tmp_path / "loud.py").write_text("print('loaded')\nfrom perdure import Engine\nengine = Engine('sqlite:///shop.db')\n")
    said = here("runs", "list", "--app", "loud.py", "--json", code=0)
    assert (json.loads(said.out), said.err) == ([], "loaded\n")


def test_the_list_is_narrowed(here: Cli) -> None:
    """By status and agent; an empty list says so on stderr and is an empty list in JSON."""
    here(*START, code=4)
    here("run", APP, "hello", '"a"', code=0)
    assert [run["agent"] for run in loaded(here, "runs", "list")] == ["hello", "complaints"]
    assert [run["agent"] for run in loaded(here, "runs", "list", "--status", "waiting")] == ["complaints"]
    assert [run["agent"] for run in loaded(here, "runs", "list", "--agent", "hello", "-n", "5")] == ["hello"]
    assert loaded(here, "runs", "list", "--status", "failed") == []
    nothing = here("runs", "list", "--status", "failed", *STORE, code=0)
    assert (nothing.out, nothing.complaint) == ("", "No runs here yet.")


def test_into_a_pipe_a_table_is_not_cut(here: Cli) -> None:
    """Whole ids, one line a run, columns of spaces."""
    here(*START, code=4)
    head, line = here("runs", "list", *STORE, code=0).out.splitlines()
    assert head.split() == ["run", "agent", "status", "since", "took", "calls", "tokens", "cost", "about"]
    assert len(line.split()[0]) == 36 and line.endswith("approval of refund")


def test_a_run_is_shown_with_its_steps(here: Cli) -> None:
    """What the model said, what the tools got and gave, what it waits for and what to type."""
    here(*START, code=4)
    shown = here("runs", "show", "last", *STORE, code=0).out
    for text in (
        "step 1  scripted · 15 tokens", "I look the order up.", '✓ lookup_order(order="7") → {"order": "7", "items": ["kettle"]}',
        "waits for approval of refund", "payload", "complaints  version 1", "◆ waiting",
    ):  # fmt: skip
        assert text in shown, text
    steps = loaded(here, "runs", "show", "last")["steps"]
    kinds = [("llm", "scripted"), ("tool", "lookup_order"), ("llm", "scripted"), ("wait", "approval")]
    assert [(step["kind"], step["name"]) for step in steps] == kinds, "the last one is what the policy said of the refund"
    assert steps[0]["text"] == "I look the order up." and steps[1]["output"] == {"order": "7", "items": ["kettle"]}


def test_following_a_run_replays_it_and_ends_with_it(here: Cli) -> None:
    """From any event on; the exit code is the run's."""
    here(*START, code=4)
    events = [json.loads(line) for line in here("runs", "follow", "last", "--until-waiting", "--json", *STORE, code=4).out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    here("runs", "cancel", "last", "--by", "eva", "--reason", "enough", *STORE, code=0)
    rest = here("runs", "follow", "last", "--after", str(len(events)), "--json", *STORE, code=3).out.splitlines()
    last = json.loads(rest[-1])
    assert (last["type"], last["result"]["status"]) == ("run.settled", "cancelled")
    assert "× cancelled" in here("runs", "follow", "last", *STORE, code=3).err


def test_a_cancelled_run_is_brought_back(here: Cli) -> None:
    """From its last step: nothing that was paid for is paid again. A completed one is not."""
    here(*START, code=4)
    here("runs", "cancel", "last", *STORE, code=0)
    assert here("runs", "cancel", "last", *STORE, code=0).out.strip().endswith("was cancelled already; nothing was changed")
    assert loaded(here, "runs", "retry", "last")["status"] in ("pending", "waiting")
    assert here("continue", APP, "last").code == 4
    here("run", APP, "hello", '"a"', code=0)
    assert "completed" in here("runs", "retry", "last", *STORE, code=2).complaint
    assert here("runs", "cancel", "last", *STORE).code == 2


def test_a_full_retry_starts_from_the_trigger(here: Cli) -> None:
    """In a new generation, with the old one kept."""
    here("run", APP, "broken", code=1)
    assert loaded(here, "runs", "retry", "last", "--full")["generation"] == 2
    assert here("continue", APP, "last").code == 1
    assert "── generation 2" in here("runs", "show", "last", *STORE, code=0).out


# ── requests ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_request_is_listed_shown_and_extended(here: Cli) -> None:
    """By its id, its end, or the end of its run's id."""
    here(*START, code=4)
    [request] = loaded(here, "approvals", "list")
    assert (request["kind"], request["tool"], request["input"]) == ("approval", "refund", {"order": "7", "cents": 9_000})
    for name in (request["id"], request["id"][-8:], request["run"][-8:]):
        assert loaded(here, "approvals", "show", name)["id"] == request["id"]
    assert "until" in here("approvals", "show", request["id"], *STORE, code=0).out
    extended = loaded(here, "approvals", "extend", request["id"], "--within", "10d")
    assert extended["outcome"] == "resolved" and extended["request"]["expires_at"] > request["expires_at"]
    assert loaded(here, "approvals", "extend", request["id"], "--within", "never")["request"]["expires_at"] is None


def test_one_answer_wins_and_the_rest_learn_who(here: Cli) -> None:
    """The same again is a no-op that says so; another one is refused with the winner's name."""
    here(*START, code=4)
    [request] = loaded(here, "approvals", "list")
    name = request["id"]
    assert "takes: approve, deny" in here("approvals", "answer", name, "maybe", *STORE, code=2).complaint
    here("approvals", "deny", name, "--by", "eva", "--reason", "no receipt", *STORE, code=0)
    assert "that answer stands already" in here("approvals", "deny", name, "--by", "eva", "--reason", "no receipt", *STORE, code=0).out
    lost = here("approvals", "approve", name, "--by", "kim", *STORE, code=2).complaint
    assert "eva" in lost and "deny" in lost
    assert loaded(here, "approvals", "list") == []
    [closed] = loaded(here, "approvals", "list", "--closed")
    assert (closed["resolution"]["by"], closed["resolution"]["via"]) == ("eva", "cli")
    here("continue", APP, "last", code=0)


def test_a_bad_edit_is_refused_and_the_request_stays_open(here: Cli) -> None:
    """The tool's schema is asked before anything is decided."""
    # case B11
    here(*START, code=4)
    [request] = loaded(here, "approvals", "list")
    said = here("approvals", "approve", request["id"], "--input", '{"order": "7", "cents": "lots"}', *STORE, code=2).complaint
    assert "cents" in said
    assert len(loaded(here, "approvals", "list")) == 1


@pytest.mark.parametrize(("limit", "larger"), [("steps", '{"max_steps": 2}'), ("tokens", '{"max_tokens": 200}'), ("cost", '{"max_cost": "0.04"}')])
def test_a_run_that_reached_its_budget_is_topped_up(here: Cli, limit: str, larger: str) -> None:
    """It waits, its card says what to type, and with that it goes on at the same step."""
    waiting = here("run", APP, f"thrifty-{limit}", "{}", code=4)
    assert f"more budget: max_{limit} is reached" in waiting.err
    [request] = loaded(here, "approvals", "list")
    assert (request["kind"], f"top_up '{larger}'" in waiting.err) == ("budget", True), waiting.err
    for nonsense in ("[]", f'{{"max_{limit}": -1}}'):
        assert here("approvals", "answer", "last", "top_up", nonsense, *STORE, code=2).complaint
    here("approvals", "answer", request["id"], "top_up", larger, "--by", "eva", *STORE, code=0)
    assert here("continue", APP, "last", code=0).out == "Found.\n"
    run = loaded(here, "runs", "show", "last")
    assert [step["kind"] for step in run["steps"]] == ["llm", "tool", "wait", "llm"]


# ── effects ────────────────────────────────────────────────────────────────────────────────────────────────
def test_an_effect_of_unknown_outcome_is_shown_and_settled(tmp_path: Path, here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool, input, key, worker, when it was last heard; a person's word lets the run go on, and nothing is done twice."""
    monkeypatch.setenv("SHOP_BREAKS", "1")
    here(*START, code=4)
    [request] = loaded(here, "approvals", "list")
    here("approvals", "approve", request["id"], *STORE, code=0)
    waiting = here("continue", APP, "last", code=4)
    assert "outcome unknown: refund" in waiting.err and "effects settle" in waiting.err
    [effect] = loaded(here, "effects", "list")
    shown = loaded(here, "effects", "show", effect["key"][-6:])
    assert (shown["tool"], shown["input"], shown["state"], shown["unknown"]) == ("refund", {"order": "7", "cents": 9_000}, "unknown", "ask")
    assert shown["worker"] and shown["last_heard"] and shown["started_at"]
    for name in ("last", effect["run"], effect["run"][-8:]):
        assert loaded(here, "effects", "show", name)["key"] == effect["key"]
    told = here("effects", "show", effect["key"], *STORE, code=0).out
    assert "Nobody knows whether it happened" in told and "the bank hung up" in told
    assert "settle" in here("approvals", "answer", loaded(here, "approvals", "list")[0]["id"], "done", *STORE, code=2).complaint
    here("effects", "settle", effect["key"], "done", "--result", '"paid 9000"', "--by", "eva", *STORE, code=0)
    assert "done" in here("effects", "settle", effect["key"], "fail", *STORE, code=2).complaint
    assert here("continue", APP, "last", code=0).out == "Paid back.\n"
    assert len((tmp_path / "bank.txt").read_text().splitlines()) == 1
    assert [each["settled_by"] for each in loaded(here, "effects", "list", "--all", "--run", "last")] == ["eva"]
    assert loaded(here, "effects", "list") == []


def test_a_full_retry_asks_before_it_does_again_what_was_done(tmp_path: Path, here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first life paid, and a person said so after it was cancelled: the second one waits for a word, and reuses the receipt."""
    monkeypatch.setenv("SHOP_BREAKS", "1")
    here(*START, code=4)
    here("approvals", "approve", "last", *STORE, code=0)
    here("continue", APP, "last", code=4)
    here("runs", "cancel", "last", *STORE, code=0)
    here("effects", "settle", "last", "done", "--result", '"receipt 991"', "--by", "eva", *STORE, code=0)
    here("runs", "retry", "last", "--full", *STORE, code=0)
    here("continue", APP, "last", code=4)
    here("approvals", "approve", "last", *STORE, code=0)
    held = here("continue", APP, "last", code=4)
    assert "refund may have run before: run it again?" in held.err
    [request] = loaded(here, "approvals", "list")
    here("approvals", "answer", request["id"], "reuse", "--by", "eva", *STORE, code=0)
    done = here("continue", APP, "last", code=0)
    assert done.out == "Paid back.\n" and "receipt 991" in done.err
    assert len((tmp_path / "bank.txt").read_text().splitlines()) == 1


def test_a_business_key_holds_a_second_run_until_the_first_is_settled(tmp_path: Path, here: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait for one question about one deed; one answer lets both go on."""
    monkeypatch.setenv("SHOP_BREAKS", "1")
    for key in ("first", "second"):
        here("run", APP, "once", "{}", "--key", key, code=4)
    [unknown] = loaded(here, "effects", "list")
    assert unknown["run"] == loaded(here, "runs", "show", "once/first")["id"]
    here("effects", "settle", unknown["key"], "done", "--result", '"receipt 991"', *STORE, code=0)
    for key in ("first", "second"):
        assert here("continue", APP, f"once/{key}", code=0).out == "Paid once.\n"
    assert len((tmp_path / "bank.txt").read_text().splitlines()) == 1


# ── the rest ───────────────────────────────────────────────────────────────────────────────────────────────
def test_a_signal_is_received_once(here: Cli) -> None:
    """The same id again changes nothing."""
    here(*START, code=4)
    assert loaded(here, "signal", "last", "paid", '{"cents": 1}', "--id", "s1")["received"] is True
    assert loaded(here, "signal", "last", "paid", '{"cents": 1}', "--id", "s1")["received"] is False


def test_a_tick_says_what_was_due(here: Cli) -> None:
    """Nothing, most of the time."""
    here(*START, code=4)
    assert here("tick", APP, code=0).out == "nothing was due\n"
    assert set(json.loads(here("tick", APP, "--json", code=0).out)) == {"recovered", "poisoned", "expired", "woken", "deadlines", "next_due"}


def test_a_store_is_made_once(here: Cli) -> None:
    """And again changes nothing."""
    assert loaded(here, "migrate") == loaded(here, "migrate")
    assert loaded(here, "runs", "list") == []


@pytest.mark.parametrize(
    "command",
    ["", "run", "continue", "worker", "tick", "migrate", "signal", "demo", "runs list", "runs show", "runs follow", "runs cancel", "runs retry", "runs fork",
     "approvals list", "approvals show", "approvals approve", "approvals deny", "approvals answer", "approvals extend", "effects list", "effects show", "effects settle"],
)  # fmt: skip
def test_every_command_has_help_with_an_example(here: Cli, command: str) -> None:
    """And the first page lists the exit codes."""
    said = here(*command.split(), "--help", code=0).out
    assert f"$ perdure {command}" in said if command else "Exit codes" in said


def test_the_version_is_told(here: Cli) -> None:
    """As `perdure --version` of any tool."""
    assert here("--version", code=0).out.startswith("perdure ")
