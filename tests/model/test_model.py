"""The protocol's small worlds are clean with every rule in force, and go wrong with any rule taken away."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model.catalogue import MODELS, build, names
from model.checker import FAIR, Step, explore
from model.commits import CommitModel
from model.joined import JoinedModel
from model.keys import KeyModel
from model.rules import RULES
from model.store import Store
from model.votes import VoteModel
from model.world import COMPLETED, PENDING, RUNNING

from model import claims

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "protocol.md").read_text()
LARGEST = 100_000
"""No everyday world may have more states: together they must stay a matter of minutes."""


@pytest.mark.parametrize("name", names())
def test_a_world_with_all_rules_is_clean(name: str) -> None:
    """Every order of events was explored, nothing was violated, and every fair path comes to rest."""
    report = explore(build(name), limit=LARGEST)
    print(f"{name}: {report.states:,} states, {report.edges:,} edges, depth {report.depth}, {report.seconds:.1f} s")
    assert report.complete
    assert [(each.name, each.story) for each in report.violations] == []


@pytest.mark.parametrize("name", RULES)
def test_a_world_without_a_rule_goes_wrong(name: str) -> None:
    """Each rule closes a story: without it the checker finds that story."""
    rule = RULES[name]
    report = explore(build(rule.scenario, frozenset({name, *rule.together})), stop_first=True, limit=LARGEST)
    assert report.violations[0].name == rule.breaks


def test_the_protocol_page_names_every_rule_and_no_other() -> None:
    """What the page promises in square brackets is what the model checks."""
    named = set(re.findall(r"\[([a-z]+(?:-[a-z]+)*)\](?!\()", PAGE))
    assert named == set(RULES)


# ── no sentence is empty ───────────────────────────────────────────────────────────────────────────────────
def resolves_into_running(self: Store, w: Any) -> Any:
    return w.with_row(status=RUNNING) if w.row.status == "waiting" and not self.rows_open(w) else w


def forgets_answers(self: Store, w: Any, k: int, i: int) -> Any:
    for j, call in enumerate(w.life.calls):
        w = w.with_call(j, approval="" if call.approval == "no" else call.approval)
    return self.come_to_rest(w, PENDING)


def runs_what_was_denied(self: Store, w: Any, k: int, i: int, tool: Any) -> str:
    return "plain" if w.life.calls[i].approval == "no" and i not in w.workers[k].local else NEED(self, w, k, i, tool)


def closes_over_questions(self: Store, w: Any, k: int, i: int, tool: Any) -> str:
    need = NEED(self, w, k, i, tool)
    return "answered" if need == "wait" else need


def answers_after_the_end(self: VoteModel, w: Any, vote: Any) -> Any:
    return JUDGE_VOTE(self, w._replace(state="open"), vote)


def answers_when_due(self: VoteModel, w: Any, vote: Any) -> Any:
    return JUDGE_VOTE(self, w._replace(due=False), vote)


def outvotes_a_no(self: VoteModel, w: Any, vote: Any) -> Any:
    return (w._replace(first_no=True), "noted") if vote.word == "no" and w.state == "open" else JUDGE_VOTE(self, w, vote)


def commits_without_the_ledger(self: JoinedModel, w: Any, i: int, worker: Any, tx: Any) -> Any:
    return ((step, after._replace(done=False)) for step, after in SERVER(self, w, i, worker, tx))


def answers_lost_to_the_owner(self: CommitModel, w: Any, i: int) -> Any:
    after, answer = JUDGE_COMMIT(self, w, i)
    return after, "lost" if answer == "already applied" else answer


def drains_into_completed(self: KeyModel, w: Any, i: int, status: Any) -> Any:
    return BACK(self, w, i, COMPLETED)


NEED, JUDGE_VOTE, SERVER, JUDGE_COMMIT, BACK = Store.need, VoteModel._judge, JoinedModel._server, CommitModel._judge, KeyModel._back  # pyright: ignore[reportPrivateUsage]

PLANTED: list[tuple[str, type, str, Callable[..., Any], str]] = [
    ("approvals", Store, "row_closed", resolves_into_running, "every_move_is_in_table_r"),
    ("approvals", Store, "_park", forgets_answers, "nothing_acknowledged_is_lost"),
    ("approvals", Store, "need", runs_what_was_denied, "only_what_was_approved_runs"),
    ("approvals", Store, "need", closes_over_questions, "no_step_is_closed_over_an_open_question"),
    ("quorum", VoteModel, "_judge", answers_after_the_end, "decided_once"),
    ("quorum", VoteModel, "_judge", answers_when_due, "nothing_is_decided_late"),
    ("quorum", VoteModel, "_judge", outvotes_a_no, "a_no_settles_it"),
    ("joined", JoinedModel, "_server", commits_without_the_ledger, "record_and_deed_agree"),
    ("commits", CommitModel, "_judge", answers_lost_to_the_owner, "the_owner_is_not_told_lost"),
    ("keys", KeyModel, "_back", drains_into_completed, "moves_are_in_table_r"),
]


@pytest.mark.parametrize(("world", "owner", "method", "bug", "sentence"), PLANTED, ids=[each[3].__name__ for each in PLANTED])
def test_a_planted_bug_is_found(
    world: str, owner: type, method: str, bug: Callable[..., Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug breaks the sentence that speaks of it."""
    if owner is Store and method.startswith("_"):
        monkeypatch.setitem(Store._PARTS, method[1:], bug)  # pyright: ignore[reportPrivateUsage]
    else:
        monkeypatch.setattr(owner, method, bug)
    assert sentence in {each.name for each in explore(build(world), limit=30_000).violations}


@pytest.mark.parametrize(
    ("world", "rule", "sentence"),
    [("commits", "fence", "no_stale_write"), ("commits", "commit-no", "stored_once"), ("joined", "joined-fence", "the_deed_happens_once")],
)
def test_a_rule_counts_in_every_world(world: str, rule: str, sentence: str) -> None:
    """A rule that two worlds know is needed in both."""
    assert sentence in {each.name for each in explore(build(world, frozenset({rule})), limit=30_000).violations}


def test_every_sentence_is_broken_by_something() -> None:
    """A sentence that nothing can break checks nothing."""
    broken = {rule.breaks for rule in RULES.values()} | {each[4] for each in PLANTED} | {"no_stale_write", "stored_once", "the_deed_happens_once"}
    # These stand behind others, which catch the same bugs a step earlier.
    behind = {
        "no_run_is_claimed_while_it_asks",
        "a_declared_try_is_not_eaten",
        "no_model_call_starts_after_the_owner_heard",
        "nobody_is_asked_about_a_living_body",
    }
    said = {check.__name__ for name in MODELS for model in [build(name)] for check in (*model.always, *model.steps)}
    assert said - broken == behind
    assert all(check.__doc__ for check in (*claims.ALWAYS, *claims.STEPS))


# ── the checker itself ─────────────────────────────────────────────────────────────────────────────────────
class Counter:
    """A world that is a number."""

    name = "counter"

    def __init__(self, edges: dict[int, list[int]], *, resting: set[int], forbidden: int | None = None) -> None:
        self.edges, self.resting = edges, resting
        self.always = (lambda world: world != forbidden,)
        self.steps = ()

    def start(self) -> int:
        return 0

    def moves(self, world: int) -> Any:
        return [(Step(FAIR, "goes", f"to {after}"), after) for after in self.edges.get(world, [])]

    def rests(self, world: int) -> bool:
        return world in self.resting

    def show(self, world: int) -> str:
        return str(world)


def test_the_checker_tells_the_shortest_story() -> None:
    """Of two ways to a violation the shorter one is told."""
    report = explore(Counter({0: [1, 2], 1: [3], 3: [4], 2: [4]}, resting={4}, forbidden=4))
    assert [world for _, world in report.violations[0].story] == ["0", "2", "4"]


def test_the_checker_finds_a_world_that_is_stuck() -> None:
    """No rest and no move is a violation."""
    assert [each.name for each in explore(Counter({0: [1]}, resting=set())).violations] == ["stuck"]


def test_the_checker_finds_a_livelock() -> None:
    """A circle of the system's own steps is a violation, though a way out exists."""
    assert [each.name for each in explore(Counter({0: [1], 1: [2, 3], 2: [0]}, resting={3})).violations] == ["livelock"]


def test_the_checker_accepts_what_comes_to_rest() -> None:
    """A circle through rest is none."""
    report = explore(Counter({0: [1], 1: [2], 2: [0]}, resting={2}))
    assert report.clean
    assert (report.states, report.edges) == (3, 3)


def test_an_exploration_that_gave_up_is_not_clean() -> None:
    """Too many worlds is not a proof."""
    report = explore(Counter({n: [n + 1] for n in range(50)}, resting={50}), limit=10)
    assert not report.complete
    assert not report.clean


def test_unknown_rules_are_refused() -> None:
    """A misspelt rule would prove nothing."""
    with pytest.raises(ValueError, match="no such rule"):
        build("fail", frozenset({"nonsense"}))
