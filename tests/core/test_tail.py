"""Table T as data: the first row that fits decides."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from perdure.core.tail import TABLE, Act, Tail, next_act


@pytest.mark.parametrize(
    ("tail", "act"),
    [
        (Tail(), Act.MODEL),
        (Tail(room=False), Act.LIMIT),
        (Tail(response=True), Act.OUTPUT),
        (Tail(response=True, open_calls=2), Act.TOOLS),
        (Tail(response=True, open_calls=2, tool_gone=True), Act.ATTENTION),
        (Tail(response=True, open_calls=2, cut=True), Act.REISSUE),
        (Tail(response=True, open_calls=2, cut=True, tool_gone=True), Act.REISSUE),
        (Tail(response=True, cut=True), Act.OUTPUT),
        (Tail(readable=False), Act.ATTENTION),
    ],
)
def test_each_row_has_its_case(tail: Tail, act: Act) -> None:
    """What an execution does with the checkpoint that it loads."""
    assert next_act(tail) is act


def all_tails() -> list[Tail]:
    flags = product((False, True), repeat=6)
    return [Tail(a, b, c, calls, d, e, f) for (a, b, c, d, e, f) in flags for calls in (0, 2)]


def test_an_open_row_parks_whatever_the_tail() -> None:
    """A guard before everything else."""
    assert {next_act(replace(tail, waiting=True)) for tail in all_tails()} == {Act.PARK}


def test_what_can_not_be_read_is_touched_by_nobody() -> None:
    """Format newer or corrupt: no model call, no tool."""
    assert {next_act(replace(tail, waiting=False, readable=False)) for tail in all_tails()} == {Act.ATTENTION}


def test_a_used_up_budget_stops_model_calls_and_nothing_else() -> None:
    """Open calls of the last step are still finished."""
    for tail in all_tails():
        with_room, without = next_act(replace(tail, room=True)), next_act(replace(tail, room=False))
        assert without is (Act.LIMIT if with_room is Act.MODEL else with_room)


def test_a_cut_response_never_runs_a_call() -> None:
    """However well its calls parse."""  # case C4
    assert Act.TOOLS not in {next_act(replace(tail, cut=True)) for tail in all_tails()}


def test_every_act_is_reached() -> None:
    """No row of the table is dead."""
    assert {next_act(tail) for tail in all_tails()} == {row.then for row in TABLE} == set(Act)
