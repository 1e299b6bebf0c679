"""What must hold in the run model: one sentence and one function each."""

from __future__ import annotations

from collections.abc import Callable

from model.checker import Step
from model.store import ENDINGS
from model.world import FAILED, FAILED_EFFECT, RUNNING, STARTED, UNKNOWN, WAITING, World
from perdure.core.effect import EFFECT_MOVES
from perdure.core.run import moves_from


# ── of every world ─────────────────────────────────────────────────────────────────────────────────────────
def a_final_run_has_no_open_question(w: World) -> bool:
    """A final run has no open wait row but those of effects of unknown outcome."""
    if not w.row.status.final:
        return True
    return not any(life.budget_rows or any("open" in (c.approval, c.held, c.event) for c in life.calls) for life in w.lives)


def nothing_started_outlives_its_claim(w: World) -> bool:
    """While nobody holds the run, no effect is `started`."""
    return w.row.status is RUNNING or all(call.effect is not STARTED for life in w.lives for call in life.calls)


def a_waiting_run_waits_for_something(w: World) -> bool:
    """A waiting run has an open wait row of its own generation."""
    return w.row.status is not WAITING or w.life.open()


def a_resting_run_carries_no_cancel(w: World) -> bool:
    """A run that is not running has no cancel noted on it."""
    return w.row.status is RUNNING or not w.row.cancel


def a_body_runs_only_under_started(w: World) -> bool:
    """While the owner runs a body, the ledger says that it is started."""
    return all(w.life.calls[k.call].effect is STARTED for k in w.workers if k.at == "body" and k.current and w.row.status is RUNNING)


def effects_go_one_by_one(w: World) -> bool:
    """No effect of a response is started while another one is."""
    return all(sum(call.effect is STARTED for call in life.calls) <= 1 for life in w.lives)


def no_body_starts_after_the_cancel(w: World) -> bool:
    """No body runs whose `started` came after the cancel was accepted."""
    return not any(k.at == "body" and k.started_under_cancel for k in w.workers)


def a_signal_that_was_given_is_not_waited_for(w: World) -> bool:
    """No generation waits for a signal that was given to the run and used up by an earlier one."""
    return not (w.row.status is WAITING and w.row.life == 1 and w.row.signal_taken and any(call.event == "open" for call in w.life.calls))


# ── of every step ──────────────────────────────────────────────────────────────────────────────────────────
def every_move_is_in_table_r(before: World, step: Step, after: World) -> bool:
    """The run's status changes by a verb of table R that leads there."""
    a, b = before.row.status, after.row.status
    return a is b or (step.verb != "" and b in moves_from(a, step.verb))  # type: ignore[arg-type]


def every_move_is_in_table_e(before: World, step: Step, after: World) -> bool:
    """An effect changes by a move of table E."""
    return all(
        a.effect is b.effect or (a.effect, b.effect) in EFFECT_MOVES
        for old, new in zip(before.lives, after.lives, strict=True)
        if old is not new
        for a, b in zip(old.calls, new.calls, strict=True)
    )


def nothing_acknowledged_is_lost(before: World, step: Step, after: World) -> bool:
    """A stored answer, result, decision or response never disappears."""
    for old, new in zip(before.lives, after.lives, strict=True):
        if old is new:
            continue
        if new.responses < old.responses:
            return False
        for a, b in zip(old.calls, new.calls, strict=True):
            if (
                (a.answered and not b.answered)
                or (a.approval in ("yes", "no") and b.approval != a.approval)
                or (a.event == "got" and b.event != "got")
            ):
                return False
    return True


def a_body_is_permitted_once(before: World, step: Step, after: World) -> bool:
    """A body is permitted again only after somebody said that it did not happen, or its declaration allows it."""
    if step.what not in ("commits", "repeats, and it is written again:"):
        return True
    life = after.row.life
    for i, (a, b) in enumerate(zip(before.lives[life].calls, after.lives[life].calls, strict=True)):
        if b.effect is not STARTED or (a.effect is STARTED and step.what == "commits"):
            continue
        if a.spent and a.effect is not UNKNOWN:
            return False
        if a.spent and a.asked:
            return False
        if a.spent and a.permitted:
            return False
        if life == 1 and before.lives[0].calls[i].spent and a.held != "run":
            return False
    return True


def no_run_is_claimed_while_it_asks(before: World, step: Step, after: World) -> bool:
    """No run is claimed while a row of its generation is open."""
    return step.what != "claims" or not before.life.open()


def a_claim_loads_its_own_generation(before: World, step: Step, after: World) -> bool:
    """An execution loads the checkpoint of the run's generation, and none where there is none yet."""
    return step.what != "claims" or step.call == after.row.life


def what_was_never_called_is_not_asked_about(before: World, step: Step, after: World) -> bool:
    """Nobody is asked about a body of which the engine itself knows that it was never called."""
    if step.what != "commits":
        return True
    for worker in before.workers:
        i = worker.uncalled
        if i >= 0 and worker.current and worker.commit and worker.commit[-1][0] in ENDINGS:
            return not (before.life.calls[i].effect is STARTED and after.life.calls[i].effect is UNKNOWN)
    return True


def an_approved_call_is_not_answered_unrun(before: World, step: Step, after: World) -> bool:
    """No approved call is answered without having run."""
    return step.what != "commits" or not (
        before.life.tail == "calls" and after.life.tail == "request" and any(c.gate_failed and c.approval == "yes" for c in after.life.calls)
    )


def a_declared_try_is_not_eaten(before: World, step: Step, after: World) -> bool:
    """A crash is no try: a call with a try left is not answered as failed."""
    if step.what != "commits" or not (before.life.tail == "calls" and after.life.tail == "request"):
        return True
    return not any(c.effect is FAILED_EFFECT and c.tries == 1 for c in after.life.calls)


def a_cut_call_never_runs(before: World, step: Step, after: World) -> bool:
    """No call of a response that was cut at the token limit runs."""
    if step.what == "plain call runs":
        return before.life.tail != "cut"
    return not any(k.at == "body" and k.current for k in after.workers) or after.life.tail != "cut"


def an_expiry_that_fails_fails_the_run(before: World, step: Step, after: World) -> bool:
    """A row whose option is `fail` expires in the commit that fails its run, and in no other."""
    return step.what != "sweep: expires" or step.verb != "sweep" or after.row.status is FAILED


def answers_come_in_time(before: World, step: Step, after: World) -> bool:
    """At or after `expires_at` the only answer is *expired*, and before it that one is not possible."""
    if step.what in ("a person says", "sweep: expires") and step.call >= 0:
        for old, new in zip(before.lives, after.lives, strict=True):
            a, b = old.calls[step.call], new.calls[step.call]
            if a.approval == "open" and b.approval in ("yes", "no") and a.due:
                return False
            if (a.approval == "open" and b.approval in ("expired", "failed") and not a.due) or (
                a.event == "open" and b.event == "expired" and not a.due
            ):
                return False
    return True


def expired_stays_expired(before: World, step: Step, after: World) -> bool:
    """A row about which somebody was told *expired* is not approved later."""
    if step.what != "a person says":
        return True
    return not any(
        a.told_expired and a.approval == "open" and b.approval in ("yes", "no")
        for old, new in zip(before.lives, after.lives, strict=True)
        for a, b in zip(old.calls, new.calls, strict=True)
    )


def lost_is_not_said_of_what_was_applied(before: World, step: Step, after: World) -> bool:
    """While nobody else took the run, its last owner is not told *lost* about a commit that was applied."""
    return step.what != "repeats and hears: lost" or not any(k.sent and k.current and k.reply_lost for k in before.workers)


def a_response_is_stored_once(before: World, step: Step, after: World) -> bool:
    """A response is stored only where a model call was due, and answers only where calls were open."""
    a, b = before.life, after.lives[before.row.life]
    if b.responses > a.responses and a.tail not in ("none", "request"):
        return False
    return not (step.what.startswith("repeats, and it is written again") and a.tail == b.tail == "request")


def a_repeated_request_means_the_same_settlement(before: World, step: Step, after: World) -> bool:
    """A request that is repeated acts only on the settlement that it meant."""
    return not step.what.startswith(("the client repeats its cancel", "the client repeats its retry")) or step.call == 1


def a_cancelled_run_does_not_fail(before: World, step: Step, after: World) -> bool:
    """A run whose cancel was accepted does not end as failed."""
    return not (before.row.cancel and after.row.status is FAILED)


def no_model_call_starts_after_the_owner_heard(before: World, step: Step, after: World) -> bool:
    """Once its owner has heard of a cancel, no model call starts."""

    def calling(w: World) -> int:
        return sum(k.at == "model" and k.knows for k in w.workers)

    return step.what == "renews" or calling(after) <= calling(before)


def a_stale_claim_changes_nothing(before: World, step: Step, after: World) -> bool:
    """What is written under a claim that is not the latest changes nothing."""
    if step.what != "commits":
        return True
    return (before.row, before.lives) == (after.row, after.lives) or any(k.current and k.at == "commit" and not k.sent for k in before.workers)


def a_sweep_takes_only_what_it_read(before: World, step: Step, after: World) -> bool:
    """A sweep takes a claim only while its lease is out, and only the claim that it read."""
    return step.what != "sweep: the listed lease" or (before.row.lease_out and step.detail == "(fresh)")


def true_answers_never_lead_to_a_second_deed(before: World, step: Step, after: World) -> bool:
    """Where every answer was true, a deed without a key happens once."""
    return step.what != "the deed happens" or not any(
        a.deed and b.deed and i == step.call
        for old, new in zip(before.lives, after.lives, strict=True)
        for i, (a, b) in enumerate(zip(old.calls, new.calls, strict=True))
    )


def a_topup_that_was_given_is_not_waited_for(before: World, step: Step, after: World) -> bool:
    """No budget row is opened for a top-up that came before it."""
    if step.what != "commits" or after.life.budget_rows <= before.life.budget_rows:
        return True
    return all(k.seen_topups >= before.life.topups for k in before.workers if k.current and any(name == "budget" for name, _ in k.commit))


def no_step_is_closed_over_an_open_question(before: World, step: Step, after: World) -> bool:
    """A response is answered only when no effect of it is started or unknown, and no row of it is open."""
    if not (before.life.tail == "calls" and after.lives[before.row.life].tail == "request"):
        return True
    return all(not call.open() and call.effect not in (STARTED, UNKNOWN) for call in after.lives[before.row.life].calls)


def only_what_was_approved_runs(before: World, step: Step, after: World) -> bool:
    """A call that needs approval runs only after a yes."""
    return step.what != "plain call runs" or before.life.calls[step.call].approval in ("", "yes")


ALWAYS: tuple[Callable[[World], bool], ...] = (
    a_final_run_has_no_open_question,
    nothing_started_outlives_its_claim,
    a_waiting_run_waits_for_something,
    a_resting_run_carries_no_cancel,
    a_body_runs_only_under_started,
    effects_go_one_by_one,
    no_body_starts_after_the_cancel,
    a_signal_that_was_given_is_not_waited_for,
)
STEPS: tuple[Callable[[World, Step, World], bool], ...] = (
    every_move_is_in_table_r,
    every_move_is_in_table_e,
    nothing_acknowledged_is_lost,
    a_body_is_permitted_once,
    no_run_is_claimed_while_it_asks,
    a_claim_loads_its_own_generation,
    what_was_never_called_is_not_asked_about,
    an_approved_call_is_not_answered_unrun,
    a_declared_try_is_not_eaten,
    a_cut_call_never_runs,
    an_expiry_that_fails_fails_the_run,
    answers_come_in_time,
    expired_stays_expired,
    lost_is_not_said_of_what_was_applied,
    a_response_is_stored_once,
    a_repeated_request_means_the_same_settlement,
    a_cancelled_run_does_not_fail,
    no_model_call_starts_after_the_owner_heard,
    a_stale_claim_changes_nothing,
    a_sweep_takes_only_what_it_read,
    true_answers_never_lead_to_a_second_deed,
    a_topup_that_was_given_is_not_waited_for,
    no_step_is_closed_over_an_open_question,
    only_what_was_approved_runs,
)
STEPS_WITHOUT_TRUTH = tuple(check for check in STEPS if check is not true_answers_never_lead_to_a_second_deed)
