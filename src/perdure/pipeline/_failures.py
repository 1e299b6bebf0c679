"""Every way a job can fail: one text each, and what it tells the person who reads it later.

A job's error is one string, because that is all a storage has to keep. The texts are ours, so what they say can be read back (`explain`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from perdure.pipeline._records import JobRecord


def threw(phase: str, error: BaseException) -> str:
    text = str(error) or "no message"
    return f'Phase "{phase}" threw: {type(error).__name__}: {text}'


def timed_out(phase: str, seconds: float) -> str:
    return f'Phase "{phase}" threw: TimeoutError: it took longer than its {seconds:g} s'


def returned(phase: str, result: Any) -> str:
    what = "nothing" if result is None else f"a {type(result).__qualname__}"
    return f'Phase "{phase}" returned {what}; it must return Next, Done, Error, Wait or Retry'


def unknown_next(phase: str, named: str, known: Sequence[str]) -> str:
    return f'Phase "{phase}" names an unknown next phase "{named}"; known: {", ".join(known)}'


def unknown(named: str, known: Sequence[str]) -> str:
    return f'Unknown phase "{named}"; known: {", ".join(known)}'


def bad_output(phase: str, problem: str) -> str:
    return f'Phase "{phase}" gave something that can\'t be stored: {problem}'


def gave_up(phase: str, tried: int) -> str:
    return f'Phase "{phase}" was not ready after {tried} tries'


def poisoned(phase: str, deaths: int) -> str:
    return f'Phase "{phase}" took its process down {deaths} times in a row'


_SIGNS: Final[tuple[tuple[str, str, str], ...]] = (
    (r'Phase ".*" threw: TimeoutError: it took', "timeout", "Give the phase more time or less to do, then retry: it is entered again."),
    (r'Phase ".*" threw: ', "phase_error", "Fix what it says, then retry: the phase is entered again, those before it are not."),
    (r'Phase ".*" returned ', "invalid_result", "Fix the phase's code, deploy, then retry."),
    (r'Phase ".*" names an unknown next phase ', "unknown_phase", "Fix the name in the phase's code, deploy, then retry."),
    (r'Unknown phase "', "unknown_phase", "Deploy code that has this phase and retry, or retry from a phase that exists."),
    (r'State for phase "', "invalid_state", "Make the phase read the state it finds, or retry from an earlier phase."),
    (r'Phase ".*" gave something that can\'t be stored', "unserializable", "Hand over plain data, then retry."),
    (r'Phase ".*" was not ready after ', "not_ready", "See whether what it waits for has come, then retry."),
    (r'Phase ".*" took its process down ', "poisoned", "Find what kills the process (memory, a native crash) before you retry."),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A job for people. `state` is finer than the status: `queued`, `working`, `recovering` (running, its worker gone, picked up by itself), or the status.

    For a failed job `code` is stable, `text` the message, `phase` where it stands, `attempt` which try it was, `next_step` what to do.
    """

    state: str
    phase: str | None = None
    attempt: int | None = None
    code: str | None = None
    text: str | None = None
    next_step: str | None = None


def explain(job: JobRecord) -> Explanation:
    """What a job is doing or why it stopped, and what can be done about it."""
    at = job.checkpoint
    phase = at.next_phase if at else None
    attempt = at.attempt + 1 if at else None
    if job.status == "error":
        text = job.error or "No error was recorded."
        code, what = next(
            ((code, what) for sign, code, what in _SIGNS if re.match(sign, text, re.DOTALL)), ("phase_error", "Retry when it is put right.")
        )
        return Explanation("error", phase, attempt, code, text, what)
    if job.status == "paused":
        wait = at.wait if at and at.wait and at.wait.answer is None else None
        until = f" It goes on by itself at {wait.until:%Y-%m-%d %H:%M} UTC." if wait and wait.until else ""
        what = "Approve or deny it." if wait and wait.kind == "approval" else "Resume it."
        return Explanation("paused", phase, attempt, text=(wait.question if wait else "") or "Paused.", next_step=what + until)
    if job.status == "running":
        if at is None:
            return Explanation("recovering", text="Its start was cut short.", next_step="Retry it.")
        if job.lease_left is None:
            return Explanation("queued", phase, attempt)
        return Explanation("working" if job.lease_left > timedelta(0) else "recovering", phase, attempt)
    return Explanation(job.status)
