"""What the result of a phase means. Pure: values in, one `Outcome` out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias, cast

from perdure.core.codec import clean, clean_text
from perdure.core.errors import UnserializableError
from perdure.pipeline import _failures as failures
from perdure.pipeline._adapters import Outcome
from perdure.pipeline._errors import InvalidStateError
from perdure.pipeline._phase import Done, Error, Next, Phase, Retry, Same, Wait, phase_name
from perdure.pipeline._records import Answer, Checkpoint, Level, LogEntry, WaitRecord, seconds

NOW = timedelta(0)
Phases: TypeAlias = Mapping[str, Phase[Any]]


@dataclass(frozen=True, slots=True)
class Stay:
    """One stay in a phase: the job, the version it is held under, where it stands as stored, and the moment."""

    job_id: str
    version: int
    checkpoint: Checkpoint[Any]
    now: datetime
    chance: float = 0.0
    wait_id: str = ""

    @property
    def phase(self) -> str:
        return self.checkpoint.next_phase

    def entry(self, message: str, level: Level) -> LogEntry:
        return LogEntry(self.now, clean_text(message), self.phase, level)

    def outcome(self, **what: Any) -> Outcome:
        return Outcome(self.job_id, self.version, **what)

    def failed(self, message: str, *, logged: str | None = None) -> Outcome:
        """The checkpoint stays as it is: a retry enters this phase again."""
        return self.outcome(status="error", error=clean_text(message), log=(self.entry(logged or message, "error"),))


class Refused(Exception):
    """The result can't be taken: a mistake in the phase, named by `code` and message."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


def settle(stay: Stay, phase: Phase[Any], phases: Phases, result: Any) -> Outcome:
    """What is written after `phase` returned `result`.

    Raises:
        Refused: It returned something that is no result, names a phase that does not exist, or a state that does not fit.
    """
    if isinstance(result, Next):
        step = cast(Next[Any], result)
        return stay.outcome(checkpoint=_reach(stay, phases, step.phase, step.state), entered=True, advance=NOW)
    if isinstance(result, Done):
        return stay.outcome(status="complete", checkpoint=None, output=_output(phase, result.output))
    if isinstance(result, Error):
        return stay.failed(result.message)
    if isinstance(result, Wait):
        return _pause(stay, phases, cast(Wait[Any], result))
    if isinstance(result, Retry):
        return _again(stay, phase, result)
    raise Refused(failures.returned(phase.name, result), "invalid_result")


def settle_exception(stay: Stay, phase: Phase[Any], error: Exception, *, timed_out: bool) -> Outcome:
    """What is written after `phase` raised: another try where its policy has one left, else the job's error."""
    said = failures.timed_out(phase.name, phase.timeout or 0) if timed_out else failures.threw(phase.name, error)
    failed = stay.checkpoint.attempt + 1
    policy = phase.retry
    if policy is None or not isinstance(error, policy.on) or failed >= policy.attempts:
        tried = f"{said} (try {failed} of {policy.attempts})" if policy and failed > 1 else said
        return stay.failed(tried)
    delay = policy.delay(failed, stay.chance)
    again = replace(stay.checkpoint, attempt=failed, not_before=stay.now + delay)
    note = stay.entry(f'Phase "{phase.name}": try {failed + 1} of {policy.attempts} in {delay.total_seconds():.3g} s', "warn")
    return stay.outcome(checkpoint=again, log=(stay.entry(said, "error"), note), advance=delay)


def repause(stay: Stay, wait: WaitRecord) -> Outcome:
    """The job waits and nobody answered yet: back to `paused`, the question as it was."""
    return stay.outcome(status="paused", advance=None if wait.until is None else max(NOW, wait.until - stay.now))


def time_is_up(stay: Stay, wait: WaitRecord) -> Outcome:
    """The wait's own end has come. Silence approves nothing."""
    lapsed = wait.kind == "approval"
    answer = Answer("expired", approved=False, at=stay.now) if lapsed else Answer("timer", at=stay.now)
    log = (stay.entry(f"Nobody decided in time: {wait.question}", "warn"),) if lapsed else ()
    return stay.outcome(status="running", checkpoint=replace(stay.checkpoint, wait=replace(wait, answer=answer)), log=log, advance=NOW)


def _reach(stay: Stay, phases: Phases, named: str | Phase[Any], state: Any) -> Checkpoint[Any]:
    name = phase_name(named)
    if name not in phases:
        raise Refused(failures.unknown_next(stay.phase, name, list(phases)), "unknown_phase")
    return Checkpoint(name, _pack(phases[name], state), stay.now, life=stay.checkpoint.life, step=stay.checkpoint.step + 1)


def _pack(phase: Phase[Any], state: Any) -> Any:
    try:
        return phase.state.pack(state, phase.name)
    except InvalidStateError as error:
        raise Refused(error.message, "invalid_state") from error


def _output(phase: Phase[Any], output: Any) -> Any:
    try:
        return clean(output)
    except UnserializableError as error:
        raise Refused(failures.bad_output(phase.name, error.message), "unserializable") from error


def _pause(stay: Stay, phases: Phases, asked: Wait[Any]) -> Outcome:
    wait = _wait_record(stay, asked)
    if asked.phase is None and isinstance(asked.state, Same):
        checkpoint = replace(stay.checkpoint, attempt=0, not_before=None, wait=wait)
    else:
        state = stay.checkpoint.state if isinstance(asked.state, Same) else asked.state
        checkpoint = replace(_reach(stay, phases, asked.phase or stay.phase, state), wait=wait)
    log = (stay.entry(f"Paused: {wait.question}", "info"),) if wait.question else ()
    # A wait that stays in its phase keeps `step`, and with it the phase's key.
    stays = asked.phase is None
    if stays:
        checkpoint = replace(checkpoint, step=stay.checkpoint.step)
    until = None if wait.until is None else max(NOW, wait.until - stay.now)
    return stay.outcome(status="paused", checkpoint=checkpoint, entered=not stays, log=log, advance=until)


def _wait_record(stay: Stay, asked: Wait[Any]) -> WaitRecord:
    until = asked.until
    if isinstance(until, timedelta):
        until = stay.now + until
    if asked.approval is None:
        return WaitRecord(stay.wait_id, "resume" if until is None else "until", clean_text(asked.reason), until)
    if until is None and asked.approval.within is not None:
        until = stay.now + asked.approval.within
    try:
        data = clean(asked.approval.data)
    except UnserializableError as error:
        raise Refused(failures.bad_output(stay.phase, error.message), "unserializable") from error
    return WaitRecord(stay.wait_id, "approval", clean_text(asked.approval.question), until, data)


def _again(stay: Stay, phase: Phase[Any], asked: Retry) -> Outcome:
    delay = max(NOW, seconds(asked.after))
    tried = stay.checkpoint.attempt + 1
    why = f": {asked.reason}" if asked.reason else ""
    if phase.retry is not None and tried >= phase.retry.attempts:
        return stay.failed(failures.gave_up(phase.name, tried) + why)
    attempt = stay.checkpoint.attempt + 1 if phase.retry is not None else stay.checkpoint.attempt
    again = replace(stay.checkpoint, attempt=attempt, not_before=stay.now + delay)
    log = (stay.entry(f"Not yet{why}; again in {delay.total_seconds():.3g} s", "info"),) if why else ()
    return stay.outcome(checkpoint=again, log=log, advance=delay)
