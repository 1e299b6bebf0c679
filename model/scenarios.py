"""The small worlds of the run model, and which rule each of them shows the need of."""

from __future__ import annotations

from model.rules import rule
from model.world import Scenario, Tool


def may(words: str) -> frozenset[str]:
    return frozenset(words.split())


PLAIN, ASK, VERIFY, RETRY, EVENT = (Tool(kind) for kind in ("plain", "ask", "verify", "retry", "event"))  # type: ignore[arg-type]
GATED = Tool("plain", gated=True)
ALWAYS = "crash stall cancel drain resume"

SCENARIOS = (
    Scenario("claims", "a plain call, leases and two sweepers with old lists, lost replies", (PLAIN,), may(f"{ALWAYS} lost lost-claim leases"), workers=3, sweepers=2),
    Scenario("outcomes", "errors, Retry-After, refused texts", (PLAIN,), may(f"{ALWAYS} error later refuse deadline")),
    Scenario("lives", "full retries, requests whose replies are lost", (PLAIN,), may(f"{ALWAYS} full repeat deadline"), lives=2),
    Scenario("approvals", "two gated calls, answers, expiry, extension", (GATED, GATED), may(f"{ALWAYS} due extend early")),
    Scenario("approvals that fail", "two gated calls whose expiry fails the run", (GATED, GATED), may(f"{ALWAYS} due early deadline"), on_expiry="fail"),
    Scenario("approvals again", "a gated call over two lives", (GATED,), may(f"{ALWAYS} full due early deadline"), lives=2),
    Scenario("effect", "one effect, every way to lose it", (ASK,), may(f"{ALWAYS} lost lost-claim raise abandon merge"), workers=3),
    Scenario("effect again", "one effect over two lives", (ASK,), may(f"{ALWAYS} full raise repeat"), lives=2),
    Scenario("batch", "two effects in one response", (ASK, ASK), may(f"{ALWAYS} raise merge"), workers=3),
    Scenario("batch again", "two effects over two lives", (ASK, ASK), may("crash stall resume full cancel merge"), lives=2),
    Scenario("verify", "an effect that is verified, beside one that is not", (VERIFY, ASK), may(f"{ALWAYS} raise merge")),
    Scenario("truth", "everybody tells the truth, and bodies go on after their workers gave up", (VERIFY,), may(f"{ALWAYS} raise abandon"), truthful=True),
    Scenario("truth asked", "the same, with a person", (ASK,), may(f"{ALWAYS} raise abandon"), truthful=True),
    Scenario("declared retry", "an effect that may run again under its key", (RETRY,), may(f"{ALWAYS} raise abandon")),
    Scenario("tries", "failures that are certain, with a try left", (Tool("ask", retries=True),), may(f"{ALWAYS} raise")),
    Scenario("effect before a gated one", "the batch stops where a person is asked", (ASK, Tool("ask", gated=True)), may(f"{ALWAYS} due early raise")),
    Scenario("effect behind a gated one", "nothing overtakes the question", (Tool("ask", gated=True), ASK), may(f"{ALWAYS} due raise")),
    Scenario("body asks", "a body that raises ApprovalRequired", (Tool("ask", gate_in_body=True),), may(f"{ALWAYS} full due raise"), lives=2),
    Scenario("signals", "an event beside a gated call, over two lives", (EVENT, GATED), may("crash stall cancel resume full signal due"), lives=2),
    Scenario("pause", "a budget that pauses, top-ups at any moment", (PLAIN,), may(f"{ALWAYS} full early"), lives=2, max_steps=1, on_limit="pause"),
    Scenario("stop", "a budget that stops", (ASK,), may(f"{ALWAYS} raise"), max_steps=1),
    Scenario("fail", "a budget that fails", (PLAIN,), may(ALWAYS), max_steps=1, on_limit="fail"),
    Scenario("cut", "a response cut at the token limit", (PLAIN, ASK), may(ALWAYS), cut=True),
    Scenario("poison", "a plain tool that kills its process", (PLAIN,), may("stall cancel drain"), kills=True),
    Scenario("poison effect", "an effect that kills its process and may run again", (RETRY,), may("stall cancel drain"), kills=True),
    Scenario(
        "everything", "two effects, one gated, two lives", (ASK, Tool("ask", gated=True)), may(f"{ALWAYS} full due early raise merge"), lives=2, on_expiry="fail", deep=True,
    ),
    Scenario(
        "everything verified", "verify beside a gated effect, all outcomes", (VERIFY, Tool("ask", gated=True)),
        may(f"{ALWAYS} due early raise abandon deadline refuse error later lost"), workers=3, on_expiry="fail", deep=True,
    ),
    Scenario("approvals, three workers", "two gated calls with leases and lists", (GATED, GATED), may(f"{ALWAYS} due extend early leases lost"), workers=3, sweepers=2, deep=True),
)  # fmt: skip

rule("rest", "a run rests with a cancel on it, or is claimed while it asks", "approvals", "a_resting_run_carries_no_cancel")
rule("fence", "a worker that lost its claim writes into the next one", "claims", "a_stale_claim_changes_nothing")
rule("sweep-again", "a sweeper takes a living claim because of an old list", "claims", "a_sweep_takes_only_what_it_read")
rule("deaths", "a run that kills its process is claimed for ever", "poison", "livelock")
rule("progress", "each *started* forgives the deaths before it", "poison effect", "livelock")
rule("started", "a final run keeps an effect *started* that nobody is told about", "effect", "nothing_started_outlives_its_claim")
rule("close", "a final run has an open question", "approvals", "a_final_run_has_no_open_question")
rule("cancel-wins", "an accepted cancel ends as *failed*", "claims", "a_cancelled_run_does_not_fail")
rule("retry-names", "one cancel, its reply lost and repeated, cancels the next life too", "lives", "a_repeated_request_means_the_same_settlement")
rule("checkpoint", "a full retry loads the old life's checkpoint", "lives", "a_claim_loads_its_own_generation")
rule("generation", "a new life waits for a row of the old one", "effect again", "a_waiting_run_waits_for_something")
rule("signals-back", "a new life waits for a signal that the old one used up", "signals", "a_signal_that_was_given_is_not_waited_for")
rule("commit-no", "a commit whose reply was lost is written twice", "claims", "a_response_is_stored_once")
rule("token", "*lost* is said of a commit that was applied", "claims", "lost_is_not_said_of_what_was_applied")
rule("cut", "a call that was cut off half way runs", "cut", "a_cut_call_never_runs")
rule("heard", "a body starts after its run was cancelled", "effect", "no_body_starts_after_the_cancel")
rule("started-first", "a body runs and no ledger knows", "effect", "a_body_runs_only_under_started")
rule("done-first", "the next effect starts while the last one's result is only in memory", "batch", "effects_go_one_by_one")
rule("withdraw", "a person is asked about a body that was never called", "effect", "what_was_never_called_is_not_asked_about")
rule("gate", "an approved call is answered without having run", "body asks", "an_approved_call_is_not_answered_unrun")
rule("tries", "a crash eats a declared try, or an effect that failed starts again", "tries", "every_move_is_in_table_e")
rule("permit-once", "one 'run it' lets the body run again and again", "effect", "a_body_is_permitted_once")
rule("hold", "a full retry does again what an earlier life may have done", "effect again", "a_body_is_permitted_once")
rule("verify-later", "verify says 'not done' while the body is still running", "truth", "true_answers_never_lead_to_a_second_deed")
rule("wake", "the last answer wakes nobody", "approvals", "a_waiting_run_waits_for_something")
rule("late", "an answer is taken after the deadline, or the deadline comes early", "approvals", "answers_come_in_time")
rule("extend", "somebody was told 'expired', then the same row was approved", "approvals", "expired_stays_expired")
rule("expiry-fail", "an expiry that should fail the run does not", "approvals that fail", "an_expiry_that_fails_fails_the_run")
rule("look-first", "a run waits for a top-up that it has", "pause", "a_topup_that_was_given_is_not_waited_for")
