"""Table R as data: `moves_from`, `rest` and `settled_as` say what it says."""

from __future__ import annotations

import pytest

from perdure.core.run import CLAIMABLE, FINAL, MOVES, RunStatus, moves_from, rest, settled_as

S = RunStatus


def test_final_statuses_are_left_by_retry_alone() -> None:
    """Nothing else moves a run that has settled."""
    assert {(move.before, move.verb) for move in MOVES if move.before in FINAL} == {(S.FAILED, "retry"), (S.CANCELLED, "retry")}


def test_a_completed_run_is_never_left() -> None:
    """There is nothing to retry about it."""
    assert not any(move.before is S.COMPLETED for move in MOVES)


def test_only_a_claim_makes_a_run_running() -> None:
    """And what runs is claimed from a claimable status."""
    assert {move.before for move in MOVES if move.after is S.RUNNING and move.before is not S.RUNNING} == CLAIMABLE


def test_every_status_can_be_reached_and_every_other_left() -> None:
    """The table has no orphan and no dead end but `completed`."""
    after = {move.after for move in MOVES} | {status for move in MOVES if move.rests for status in moves_from(move.before, move.verb)}
    assert after == set(RunStatus)
    assert {move.before for move in MOVES} == {None, *RunStatus} - {S.COMPLETED}


def test_from_every_live_status_a_cancel_is_possible() -> None:
    """A run can always be told to stop."""
    for status in set(RunStatus) - FINAL:
        assert moves_from(status, "cancel")


def test_a_verb_from_elsewhere_is_refused() -> None:
    """An empty answer means refused."""
    assert moves_from(S.WAITING, "claim") == frozenset()
    assert moves_from(S.COMPLETED, "retry") == frozenset()
    assert moves_from(None, "claim") == frozenset()


def test_a_move_that_rests_may_end_elsewhere() -> None:
    """Park names `pending`, and rest adds what a cancel or an open row makes of it."""
    assert moves_from(S.RUNNING, "park") == {S.PENDING, S.WAITING, S.CANCELLED}
    assert moves_from(S.RUNNING, "settle") == FINAL


@pytest.mark.parametrize("target", [S.PENDING, S.INTERRUPTED])
def test_rest_is_one_rule(target: RunStatus) -> None:
    """A cancel goes before an open row, an open row before the target."""
    assert rest(target, cancel_requested=True, open_waits=3) is S.CANCELLED
    assert rest(target, cancel_requested=True, open_waits=0) is S.CANCELLED
    assert rest(target, cancel_requested=False, open_waits=3) is S.WAITING
    assert rest(target, cancel_requested=False, open_waits=0) is target


@pytest.mark.parametrize(
    ("asked", "cancel", "becomes"),
    [
        (S.FAILED, True, S.CANCELLED), (S.FAILED, False, S.FAILED), (S.COMPLETED, True, S.COMPLETED), (S.COMPLETED, False, S.COMPLETED),
        (S.CANCELLED, False, S.CANCELLED),
    ],
)  # fmt: skip
def test_a_failure_under_a_cancel_is_the_cancels(asked: RunStatus, cancel: bool, becomes: RunStatus) -> None:
    """A completion stands."""
    assert settled_as(asked, cancel_requested=cancel) is becomes
