"""What an answer does, and what the end of a claim leaves: the decisions that every store shares."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from perdure.core import answers, endings
from perdure.core.commit import Resolve, ResolveOutcome
from perdure.core.effect import EFFECT_MOVES, Effect, EffectState, EffectWrite
from perdure.core.limits import EFFECT_GRACE
from perdure.core.run import Activity, Run, RunStatus
from perdure.core.trigger import TriggerEnvelope
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RUN = Run("r1", "a", RunStatus.WAITING, TriggerEnvelope("t", "python", "a", None))


def row(kind: Any = "approval", **fields: Any) -> WaitWrite:
    return WaitWrite("w1", kind, "q", 1, **fields)


def wait(kind: Any = "approval", resolution: Resolution | None = None, **fields: Any) -> WaitPoint:
    return WaitPoint("r1", 1, row(kind, **fields), NOW, resolution)


def effect(state: EffectState = EffectState.UNKNOWN, **fields: Any) -> Effect:
    return Effect("r1", 1, EffectWrite("r1:1:1:0", state, 1, 0, "pay", "c", **fields), "worker", 1, NOW)


def judged(point: WaitPoint, decision: str | None = "approve", *, now: datetime = NOW, about: Effect | None = None, **fields: Any) -> ResolveOutcome:
    return answers.judge(point, Resolve(point.id, Resolution(ResolutionKind.ANSWER, decision, **fields)), now=now, effect=about).outcome


@pytest.mark.parametrize(
    ("late", "outcome"), [(-SECOND, ResolveOutcome.RESOLVED), (0 * SECOND, ResolveOutcome.EXPIRED), (SECOND, ResolveOutcome.EXPIRED)]
)
def test_at_its_end_a_row_can_only_expire(late: timedelta, outcome: ResolveOutcome) -> None:
    """Not one moment later, not one earlier."""  # case B2
    assert judged(wait(expires_at=NOW), now=NOW + late) is outcome
    assert answers.due(row(expires_at=NOW), NOW + late) is (outcome is ResolveOutcome.EXPIRED)


@pytest.mark.parametrize("limit", [None, 0.0, 60.0])
def test_run_it_is_accepted_from_the_moment_on_when_the_try_before_is_over(limit: float | None) -> None:
    """Started + time limit + grace."""
    quiet = NOW + timedelta(seconds=limit or 0) + EFFECT_GRACE
    asked = wait("effect", effect_key="r1:1:1:0")
    assert judged(asked, "run", now=quiet - SECOND, about=effect(time_limit=limit)) is ResolveOutcome.REFUSED
    assert judged(asked, "run", now=quiet, about=effect(time_limit=limit)) is ResolveOutcome.RESOLVED


@pytest.mark.parametrize("word", ["done", "run", "fail"])
def test_a_persons_word_is_a_move_of_table_e(word: str) -> None:
    """Unknown leaves to done, planned or failed."""
    after = answers.effect_answered(effect(), Resolution(ResolutionKind.ANSWER, word, 7), NOW)
    assert (EffectState.UNKNOWN, after.state) in EFFECT_MOVES
    assert after.row.permit is (word == "run")
    assert answers.answered_before(after, Resolution(ResolutionKind.ANSWER, word, 7))
    others = {"done", "run", "fail"} - {word}
    assert not any(answers.answered_before(after, Resolution(ResolutionKind.ANSWER, other, 7)) for other in others)


def test_a_result_that_differs_is_another_answer() -> None:
    """It happened, but otherwise."""
    done = answers.effect_answered(effect(), Resolution(ResolutionKind.ANSWER, "done", 7), NOW)
    assert not answers.answered_before(done, Resolution(ResolutionKind.ANSWER, "done", 8))
    assert not answers.answered_before(effect(EffectState.DONE, result=7), Resolution(ResolutionKind.ANSWER, "done", 7)), "no person said so"


def test_the_end_of_a_claim_turns_started_into_unknown_and_nothing_else() -> None:
    """A move of table E."""
    ended = endings.ended_effects([effect(state) for state in EffectState])
    assert [each.state for each in ended] == [EffectState.UNKNOWN]
    assert (EffectState.STARTED, EffectState.UNKNOWN) in EFFECT_MOVES


def test_a_question_is_made_once_for_each_unknown_effect_that_asks() -> None:
    """Same effect and epoch, same row; another epoch, another one."""
    unknown, verified = effect(), replace(effect(unknown="verify"), row=replace(effect(unknown="verify").row, key="r1:1:1:1"))
    (first,) = endings.questions_due([unknown, verified], [], 1)
    assert first == endings.questions_due([unknown], [], 1)[0]
    assert first.id != endings.questions_due([unknown], [], 2)[0].id
    assert (first.kind, first.effect_key, first.expires_at) == ("effect", unknown.key, None)
    open_row = WaitPoint("r1", 1, first, NOW)
    assert endings.questions_due([unknown], [open_row], 2) == []
    assert endings.questions_due([unknown], [replace(open_row, resolution=Resolution(ResolutionKind.ANSWER, "run"))], 2) != []


def test_derived_ids_are_uuids_of_version_8() -> None:
    """Told apart, and always the same."""
    one = UUID(endings.derived_id("wait", "a", "b"))
    assert (one.version, one.variant) == (8, "specified in RFC 4122")
    assert endings.derived_id("a", "b") != endings.derived_id("ab") != endings.derived_id("b", "a")


def test_settling_closes_all_rows_but_the_runs_own_unknown_effects() -> None:
    """Also one that waits for another run's effect."""
    kinds = ("approval", "event", "timer", "budget", "attention")
    own, foreign = wait("effect", effect_key="r1:1:1:0"), wait("effect", effect_key="r10:1:1:0")
    closed = [wait("approval", Resolution(ResolutionKind.ANSWER, "deny"))]
    assert endings.closed_by_settling([own, foreign, *closed, *(wait(kind) for kind in kinds)]) == [foreign, *(wait(kind) for kind in kinds)]


def test_a_poisoned_run_tells_what_its_last_owner_did() -> None:
    """Step, deed and worker."""  # case H11
    error = endings.poisoned(replace(RUN, deaths=5, lease_owner="w", activity=Activity(3, "tool boom", NOW)))
    assert error.code == "poisoned" and "step 3" in error.message and "tool boom" in error.message
    assert error.details["worker"] == "w"


@pytest.mark.parametrize(("kind", "code"), [("approval", "approval_expired"), ("event", "wait_expired"), ("budget", "wait_expired")])
def test_an_expiry_that_fails_the_run_has_its_own_code(kind: Any, code: str) -> None:
    """An approval's, or another's."""
    assert endings.wait_expired(wait(kind)).code == code


def test_nothing_that_comes_before_a_row_is_lost() -> None:
    """Clock, then signal, child, effect, budget."""
    ended = replace(RUN, id="r2", status=RunStatus.FAILED)
    born = answers.answer_at_birth
    assert born(row("event", name="n"), RUN, now=NOW) is None
    assert born(row("event", child="r2"), RUN, now=NOW, child=RUN) is None
    child = born(row("event", child="r2"), RUN, now=NOW, child=ended)
    assert child is not None and child.value["status"] == "failed"
    assert born(row("effect", effect_key="x"), RUN, now=NOW, effect=effect()) is None
    known = born(row("effect", effect_key="x"), RUN, now=NOW, effect=effect(EffectState.FAILED))
    assert known is not None and known.value["state"] == "failed"
    late = born(row("event", name="n", expires_at=NOW), RUN, now=NOW, child=ended)
    assert late is not None and late.kind is ResolutionKind.EXPIRED
    assert born(row("event", name="n", expires_at=NOW, on_expiry="fail"), RUN, now=NOW) is None, "for the sweep"
    timer = born(row("timer", expires_at=NOW, on_expiry="fail"), RUN, now=NOW)
    assert timer is not None and timer.kind is ResolutionKind.TIMER
    assert born(row("budget", data={"budget": RUN.budget.to_json()}), RUN, now=NOW) is None
    topped = born(row("budget", data={"budget": RUN.budget.merged(max_steps=1).to_json()}), RUN, now=NOW)
    assert topped is not None and topped.decision == "top_up"


def test_a_policy_names_who_may_decide() -> None:
    """Nobody unnamed where names count."""  # case B21
    anybody, named = answers.Policy(), answers.Policy(("ana",), 1, True, "bo")
    assert anybody.refusal(None) is None
    assert [named.refusal(by) is None for by in (None, "ana", "bo", "cy")] == [False, True, False, False]
    assert answers.Policy(not_requester=True, requester="bo").refusal("bo") is not None


@pytest.mark.parametrize("kind", ["event", "timer"])
def test_nobody_is_told_of_what_waits_for_nobody(kind: Any) -> None:
    """Only people's rows are notified."""
    assert not answers.notice_due(wait(kind), NOW)
    assert answers.notice_due(wait("approval"), NOW)


def test_a_warning_goes_out_once_between_its_time_and_the_end() -> None:
    """After the request was accepted."""  # case B4
    point = replace(wait(expires_at=NOW + 10 * SECOND, warn_at=NOW + 8 * SECOND), notified_at=NOW)
    assert [answers.notice_due(point, NOW + at * SECOND) for at in (7, 8, 9, 10)] == [False, True, True, False]
    warned = answers.noticed(point, now=NOW, tries=1, accepted=True, warning=True, retry_in=None)
    assert not answers.notice_due(warned, NOW + 9 * SECOND)
