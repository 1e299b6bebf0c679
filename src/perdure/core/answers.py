"""What an answer does to a wait row, and to the effect that it is about (tables W and E). Values and `now` in, a verdict out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from perdure.core.budget import Budget
from perdure.core.commit import Resolve, ResolveOutcome, Signal
from perdure.core.effect import Effect, EffectState, EffectWrite
from perdure.core.endings import own_effect
from perdure.core.errors import ConfigurationError
from perdure.core.family import waits_for_room
from perdure.core.limits import EFFECT_GRACE
from perdure.core.run import Run
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite

ANSWERED: Final = frozenset({ResolutionKind.ANSWER, ResolutionKind.EVENT})
"""What a caller may say. A timer, an expiry and a cancel are the store's own words."""

EFFECT_DECISIONS: Final = frozenset({"done", "run", "fail"})
PEOPLE: Final = frozenset({"approval", "effect", "budget", "attention"})
"""Kinds of rows that somebody is told about; events and timers wait for nobody."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may decide an approval, and how many of them: `WaitWrite.data["policy"]`."""

    approvers: tuple[str, ...] = ()
    quorum: int = 1
    not_requester: bool = False
    requester: str | None = None

    @classmethod
    def of(cls, row: WaitWrite) -> Policy:
        data = cast(dict[str, Any], row.data.get("policy") or {})
        return cls(tuple(data.get("approvers") or ()), data.get("quorum") or 1, bool(data.get("not_requester")), data.get("requester"))

    def refusal(self, by: str | None) -> str | None:
        """Why this person may not decide; None if they may."""
        if by is None and (self.approvers or self.quorum > 1 or self.not_requester):
            return "This request takes named answers only: say who decides."
        if self.approvers and by not in self.approvers:
            return f"{by} is not among those who may decide this request."
        if self.not_requester and by == self.requester:
            return f"{by} asked for this, so somebody else must decide it."
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of an answer. `resolution` is written where the outcome is `resolved`, `votes` where it is `voted`."""

    outcome: ResolveOutcome
    resolution: Resolution | None = None
    votes: tuple[dict[str, Any], ...] = ()
    message: str | None = None


def due(row: WaitWrite, now: datetime) -> bool:
    """Whether only *expired* (for a timer: its end) is possible. An effect of unknown outcome never expires."""
    return row.kind != "effect" and row.expires_at is not None and row.expires_at <= now


def fails_run(row: WaitWrite) -> bool:
    """Whether the expiry of this row fails its run: only the sweep of the waiting run may then close it."""
    return row.on_expiry == "fail" and row.kind not in ("timer", "effect")


def expiry(row: WaitWrite, now: datetime) -> Resolution:
    """How time closes a row: by nobody."""
    return Resolution(ResolutionKind.TIMER if row.kind == "timer" else ResolutionKind.EXPIRED, at=now)


def judge(wait: WaitPoint, request: Resolve, *, now: datetime, effect: Effect | None = None, tokens: Collection[str] = ()) -> Verdict:
    """Whether an answer closes a row: a compare-and-set, whatever the run's status.

    Args:
        wait: The row as it stands, taken under its run's lock.
        request: The answer.
        now: The store's clock.
        effect: The effect that `wait.row.effect_key` names, if there is one.
        tokens: Hashes of the secret tokens that were sent for this row.
    """
    said = replace(request.resolution, at=now)
    # First of all: who has no right to answer learns nothing, not even that somebody did.
    if request.token_hash is not None and request.token_hash not in tokens:
        return Verdict(ResolveOutcome.REFUSED, message="This token is not one of this request's.")
    if wait.resolution is not None:
        return _stands(wait.resolution, said)
    if request.input_hash is not None and request.input_hash != wait.row.input_hash:
        return Verdict(ResolveOutcome.CONFLICT, message="The input that was shown is not the input of this request.")
    if due(wait.row, now):
        return Verdict(ResolveOutcome.EXPIRED, message="The request ran out before this answer came.")
    refusal = _refusal(wait, said, effect, now)
    if refusal is not None:
        return Verdict(ResolveOutcome.REFUSED, message=refusal)
    return _count(wait, said, Policy.of(wait.row), request.token_hash)


def _stands(winner: Resolution, said: Resolution) -> Verdict:
    if winner.same_as(said) or (said.decision is not None and _agrees(winner, said)):
        return Verdict(ResolveOutcome.ALREADY)
    if winner.kind is ResolutionKind.EXPIRED:
        return Verdict(ResolveOutcome.EXPIRED, message="The request ran out before this answer came.")
    who = f" by {winner.by}" if winner.by else ""
    return Verdict(ResolveOutcome.CONFLICT, message=f"It was closed{who} already: {winner.decision or winner.kind}.")


def _agrees(winner: Resolution, said: Resolution) -> bool:
    """Whether `said` is what one of several voters said before: the record joins them, so their reasons may differ."""
    return winner.kind is said.kind and (winner.decision, winner.value) == (said.decision, said.value) and said.by in (winner.by or "").split(", ")


def _refusal(wait: WaitPoint, said: Resolution, effect: Effect | None, now: datetime) -> str | None:
    if said.kind not in ANSWERED:
        return f"Nobody can say {said.kind}: that is for the store to find."
    if wait.kind == "timer":
        return "A timer waits for nobody's answer."
    if wait.kind == "effect":
        return _effect_refusal(wait, said, effect, now)
    words = cast("list[str]", wait.row.data.get("decisions") or [])
    if words and said.decision not in words:
        # A slip is no answer: whoever reads the row may take any word that it does not know for the other one.
        return f"Of this request one may say {', '.join(words)}, not {said.decision!r}."
    if wait.kind == "event" and said.decision is not None:
        return f"This waits for an event: its answer is a payload, and no decision such as {said.decision!r}."
    if wait.kind == "budget" and said.decision == "top_up" and not _is_budget(said.value):
        return "A top-up names the limits of a budget, as JSON."
    return Policy.of(wait.row).refusal(said.by)


def _effect_refusal(wait: WaitPoint, said: Resolution, effect: Effect | None, now: datetime) -> str | None:
    if effect is None or not own_effect(wait):
        return f"This call waits for effect {wait.row.effect_key}: settle that one."
    if effect.state is not EffectState.UNKNOWN:
        return f"The effect is {effect.state}: only one of unknown outcome can be settled."
    if said.decision not in EFFECT_DECISIONS:
        return f"Of an effect one may say done, run or fail, not {said.decision!r}."
    if said.decision == "run" and not may_run_again(effect, now):
        return f"The try before may still be running until {quiet_at(effect).isoformat()}: say 'run' after that."
    return None


def _count(wait: WaitPoint, said: Resolution, policy: Policy, token: str | None) -> Verdict:
    """One answer decides, unless several approvals are asked for; one denial always does. A token is one person's: it votes once, under one name."""
    if policy.quorum <= 1 or said.decision != "approve":
        return Verdict(ResolveOutcome.RESOLVED, said)
    if token is not None and any(vote.get("token") == token and vote["by"] != said.by for vote in wait.votes):
        return Verdict(ResolveOutcome.REFUSED, message="This token was used already, under another name.")
    # Votes count per input: an edit is a vote for the edited one, and the first input with enough votes is the one that runs.
    agreeing = [vote for vote in wait.votes if _voted_for(wait, vote["value"]) == _voted_for(wait, said.value)]
    if any(vote["by"] == said.by for vote in agreeing):
        return Verdict(ResolveOutcome.ALREADY, message=f"{said.by} has said so already.")
    votes = (*wait.votes, said.to_json() if token is None else {**said.to_json(), "token": token})
    if len(agreeing) + 1 < policy.quorum:
        return Verdict(ResolveOutcome.VOTED, votes=votes)
    names = [*(vote["by"] for vote in agreeing), said.by or ""]  # an answer without a name was refused above
    return Verdict(ResolveOutcome.RESOLVED, replace(said, by=", ".join(names)), votes=votes)


def _voted_for(wait: WaitPoint, value: Any) -> Any:
    """The input that an approval is for: the edited one, else the one that was shown."""
    return wait.row.input if value is None else value


def quiet_at(effect: Effect) -> datetime:
    """When the last try of `effect` can't be running any more, by the store's clock. Only for an effect that was started."""
    assert effect.started_at is not None
    return effect.started_at + timedelta(seconds=effect.row.time_limit or 0) + EFFECT_GRACE


def may_run_again(effect: Effect, now: datetime) -> bool:
    """Whether "run it" may be accepted, and a verify callback be asked."""
    return effect.started_at is None or quiet_at(effect) <= now


def effect_answered(effect: Effect, resolution: Resolution, now: datetime) -> Effect:
    """An unknown effect after a person's word: `done` with the result, `fail`, or `run` (planned again, with a permission to use once)."""
    by = resolution.by
    if resolution.decision == "done":
        changed = effect.became(EffectState.DONE, result=resolution.value, error=None, permit=False)
    elif resolution.decision == "run":
        changed = effect.became(EffectState.PLANNED, permit=True)
    else:
        message = resolution.reason or "A person said that it did not happen and is not to be tried again."
        changed = effect.became(EffectState.FAILED, error={"code": "effect_unknown", "message": message}, permit=False)
    return replace(changed, settled_at=now, settled_by=by)


def settling_refusal(effect: Effect, word: Resolution, *, asked: bool, final: bool, now: datetime) -> str | None:
    """Why a person may not settle this effect; None if they may.

    Args:
        effect: The effect as it stands.
        word: What the person says.
        asked: Whether a row about it is open.
        final: Whether its run has settled.
        now: The store's clock.
    """
    if effect.state is not EffectState.UNKNOWN:
        return f"The effect is {effect.state}: only one of unknown outcome can be settled."
    if not asked and not final:
        return "Nobody is asked about this effect: the run finds out by itself what became of it."
    if word.decision == "run" and not may_run_again(effect, now):
        return f"The try before may still be running until {quiet_at(effect).isoformat()}: say 'run' after that."
    return None


def answered_before(effect: Effect, resolution: Resolution) -> bool:
    """Whether `effect` already stands as this answer would leave it, so that a repeated one is told the truth."""
    if effect.settled_at is None:
        return False
    after = effect_answered(effect, resolution, effect.settled_at)
    return (effect.state, effect.row.result, effect.row.permit) == (after.state, after.row.result, after.row.permit)


def settled_for_ever(before: Effect, write: EffectWrite) -> bool:
    """Whether the stored state refuses this write: `done` and `failed` are for ever."""
    return before.state in (EffectState.DONE, EffectState.FAILED) and write.state is not before.state


def blocks_key(effect: Effect) -> bool:
    """Whether an effect of this state refuses another start under its business key (E6)."""
    return effect.state in (EffectState.STARTED, EffectState.UNKNOWN, EffectState.DONE)


def effect_news(effect: Effect, now: datetime) -> Resolution | None:
    """What a row that waits for this effect is told; None while its outcome is open."""
    if effect.state in (EffectState.STARTED, EffectState.UNKNOWN):
        return None
    value = {"effect": effect.key, "state": str(effect.state), "result": effect.row.result, "error": effect.row.error}
    return Resolution(ResolutionKind.EVENT, value=value, at=now)


def child_news(child: Run, now: datetime) -> Resolution | None:
    """What a row that waits for this run is told; None until it has settled."""
    if not child.status.final:
        return None
    error = None if child.error is None else child.error.to_json()
    return Resolution(ResolutionKind.EVENT, value={"run": child.id, "status": str(child.status), "output": child.output, "error": error}, at=now)


def signal_news(signal: Signal, now: datetime) -> Resolution:
    return Resolution(ResolutionKind.EVENT, value=signal.payload, via=f"signal:{signal.id}", at=now)


def budget_news(row: WaitWrite, run: Run, now: datetime) -> Resolution | None:
    """The top-up that came before the row: the run's budget is no longer the one that the row's author saw."""
    seen, stands = row.data.get("budget"), run.budget.to_json()
    if seen is None or seen == stands:
        return None
    return Resolution(ResolutionKind.ANSWER, decision="top_up", value=stands, at=now)


def answer_at_birth(
    row: WaitWrite,
    run: Run,
    *,
    now: datetime,
    signal: Signal | None = None,
    child: Run | None = None,
    effect: Effect | None = None,
    cap: Run | None = None,
    room: Resolution | None = None,
) -> Resolution | None:
    """The answer that a row would open with: then it is written resolved instead. None: it opens.

    Args:
        row: The row to open.
        run: Its run, as this commit leaves it.
        now: The store's clock. What is due already can only expire; where that fails the run, the row opens for the sweep.
        signal: The oldest one of the row's name that this generation has not taken. It is taken if the answer is an `event`.
        child: The run that the row names.
        effect: The effect that the row names.
        cap: The run whose shared budget a `budget` row is about (`data["of"]`); absent: its own.
        room: The news of a row that waits for room, where nobody is in flight any more.
    """
    if due(row, now):
        return None if fails_run(row) else expiry(row, now)
    if signal is not None:
        return signal_news(signal, now)
    if child is not None:
        return child_news(child, now)
    if row.kind == "effect" and effect is not None:
        return effect_news(effect, now)
    return room or budget_news(row, cap or run, now) if row.kind == "budget" else None


def cap_of(row: WaitWrite) -> str | None:
    """The run whose budget a top-up of this row changes, where it is not the row's own."""
    return row.data.get("of") if row.kind == "budget" else None


def topped_up(run: Run, resolution: Resolution) -> Run:
    """The run with the limits that a `top_up` names; others leave it as it is."""
    return replace(run, budget=_merged(run.budget, resolution.value)) if resolution.decision == "top_up" else run


def _merged(budget: Budget, limits: dict[str, Any]) -> Budget:
    return Budget.from_json({**budget.to_json(), **{name: limit for name, limit in limits.items() if limit is not None}})


def _is_budget(value: Any) -> bool:
    try:
        _merged(Budget(), value)
    except (ConfigurationError, ArithmeticError, AttributeError, TypeError):
        return False
    return True


def extension(wait: WaitPoint, expires_at: datetime | None, now: datetime) -> tuple[ResolveOutcome, str | None]:
    """Whether an open row's deadline may move (`RESOLVED`), and if not, why."""
    if wait.resolution is not None:
        gone = wait.resolution.kind is ResolutionKind.EXPIRED
        return ResolveOutcome.EXPIRED if gone else ResolveOutcome.CONFLICT, "It is closed already."
    if due(wait.row, now):
        return ResolveOutcome.EXPIRED, "The deadline has passed; only before that it could be moved."
    if wait.row.expires_at == expires_at:
        return ResolveOutcome.ALREADY, None
    if expires_at is not None and expires_at <= now:
        return ResolveOutcome.REFUSED, "The new deadline has passed already."
    return ResolveOutcome.RESOLVED, None


def moved_deadline(row: WaitWrite, expires_at: datetime | None) -> WaitWrite:
    """The row with another end; its warning keeps its distance from it."""
    if row.warn_at is None or row.expires_at is None or expires_at is None:
        return replace(row, expires_at=expires_at, warn_at=None if expires_at is None else row.warn_at)
    return replace(row, expires_at=expires_at, warn_at=expires_at - (row.expires_at - row.warn_at))


def asks_people(wait: WaitPoint) -> bool:
    """Whether somebody is to be told about this row at all: not where it waits for another run's effect, or for room under a shared budget."""
    return wait.kind in PEOPLE and (wait.kind != "effect" or own_effect(wait)) and not waits_for_room(wait.row)


def notice_due(wait: WaitPoint, now: datetime) -> bool:
    """Whether somebody should be told about this row: that it waits, or once that it soon runs out."""
    told = wait.notified_at is not None
    if not wait.open or not asks_people(wait) or due(wait.row, now):
        return False
    if wait.notify_after is not None and wait.notify_after > now:
        return False
    return not told or (wait.warned_at is None and wait.row.warn_at is not None and wait.row.warn_at <= now)


def noticed(wait: WaitPoint, *, now: datetime, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None) -> WaitPoint:
    """The row after one notice was sent, or was not."""
    if not accepted:
        return replace(wait, notify_tries=tries, notify_after=wait.notify_after if retry_in is None else now + retry_in)
    rested = replace(wait, notify_tries=0, notify_after=None)
    return replace(rested, warned_at=wait.warned_at or now) if warning else replace(rested, notified_at=wait.notified_at or now)
