"""Everything that can go wrong, sorted by what the caller should do about it.

PerdureError                      every error of ours; `code` is stable, `details` is JSON
├── InvalidTrigger                the input is wrong: fix the named field and send it again
├── Conflict                      somebody else was first, or the key stands for another payload
├── NotFound
│   ├── RunNotFoundError · AgentNotFoundError · ArtifactNotFoundError · WaitNotFoundError · EffectNotFoundError
├── RunFailed                     the run ended `failed`: `code`, message and the run itself
├── RunCancelled                  the run ended `cancelled`
├── StillWaiting                  no result within the time given; the run goes on
├── LeaseLostError                another worker holds the run; nothing was written
├── ExecutionError                why an execution fails its run; becomes `Run.error`
│   └── IncompleteResponseError   the stream ended without the provider's finish part
├── ConfigurationError            the program is wired wrongly: fix the code or the settings
└── StoreError                    the database said no; the driver's error is `__cause__`
    ├── StoreUnavailable          worth trying again
    ├── StoreFull                 no room left: nothing of the write was kept
    ├── NotADatabase · ReadOnlyStore
    └── SchemaTooNew              written by a newer Perdure: upgrade this one

Suspend (BaseException)           control flow, never an error, never yours to catch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from perdure.core.run import Run

CODES = frozenset(
    {
        "artifact_not_found", "incomplete_response", "lease_lost", "budget_exceeded", "timeout", "approval_expired",
        "approval_denied", "effect_unknown", "tool_error", "model_error", "invalid_output", "agent_not_found",
        "run_not_found", "wait_not_found", "effect_not_found", "conflict", "invalid_trigger", "store_unavailable",
        "store_error", "store_full", "store_read_only", "not_a_database", "schema_too_new", "checkpoint_incompatible",
        "empty_response", "loop_detected", "length_cut", "setup_failed", "poisoned", "quota", "deadline", "internal",
        "configuration", "cancelled", "still_waiting", "unserializable", "wait_expired",
        "phase_error", "invalid_state", "invalid_result", "unknown_phase", "not_ready", "job_not_found",
    }
)  # fmt: skip
"""Every code that an error, a failed run or a problem document may carry."""


class PerdureError(Exception):
    """Base of every error that Perdure raises.

    `code` is one of `CODES`; `details` is JSON-compatible and names what the message is about.
    """

    code: str = "internal"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.details: dict[str, Any] = details


class InvalidTrigger(PerdureError):
    """The input was refused before anything was stored. `details["field"]` names what is wrong."""

    code = "invalid_trigger"


class Conflict(PerdureError):
    """Somebody else was first; `details` says who or what won. Nothing was changed."""

    code = "conflict"


NAME_SHOWN_MAX = 200
"""Characters of a name that a message shows."""


class NotFound(PerdureError):
    """The thing that was named does not exist in this store."""

    noun: ClassVar[str] = "thing"
    hint: ClassVar[str] = ""

    def __init__(self, name: str, **details: Any) -> None:
        hint = f" {self.hint}" if self.hint else ""
        told = repr(name if len(name) <= NAME_SHOWN_MAX else f"{name[:NAME_SHOWN_MAX]}…")
        super().__init__(f"There is no {self.noun} {told} here.{hint}", name=name, **details)


class RunNotFoundError(NotFound):
    """No run has this id in this store."""

    code, noun, hint = "run_not_found", "run", "`perdure runs list` shows those there are."


class AgentNotFoundError(NotFound):
    """No agent is registered under this name. `details["known"]` lists those that are."""

    code, noun = "agent_not_found", "agent"

    def __init__(self, name: str, *, known: list[str] | None = None) -> None:
        super().__init__(name, known=known or [])
        listed = ", ".join(repr(each) for each in known or []) or "none"
        self.message = f"No agent {name!r} is registered. Registered: {listed}."
        self.args = (self.message,)


class ArtifactNotFoundError(NotFound):
    """No stored bytes have this id."""

    code, noun = "artifact_not_found", "artifact"


class WaitNotFoundError(NotFound):
    """No wait point has this id."""

    code, noun, hint = "wait_not_found", "wait point", "`perdure approvals list` shows what waits for a person."


class EffectNotFoundError(NotFound):
    """No effect has this key."""

    code, noun = "effect_not_found", "effect"


class RunFailed(PerdureError):
    """The run ended `failed`. `code` is the run's error code, `run` the run as it was stored."""

    def __init__(self, run: Run) -> None:
        error = run.error
        code = error.code if error else "internal"
        text = error.message if error else "no error was recorded"
        super().__init__(f"Run {run.id} of {run.agent!r} failed: {text}", code=code, run_id=run.id)
        self.run = run


class RunCancelled(PerdureError):
    """The run ended `cancelled`; `run` is the run as it was stored."""

    code = "cancelled"

    def __init__(self, run: Run) -> None:
        super().__init__(f"Run {run.id} of {run.agent!r} was cancelled.", run_id=run.id)
        self.run = run


class StillWaiting(PerdureError):
    """The run had not settled within the time given. It goes on; ask again, or answer what it waits for."""

    code = "still_waiting"

    def __init__(self, run: Run) -> None:
        super().__init__(f"Run {run.id} is still {run.status}. It goes on by itself; ask for its result again.", run_id=run.id)
        self.run = run


class LeaseLostError(PerdureError):
    """Another worker claimed the run, or it was settled elsewhere. Nothing was written; the run goes on there."""

    code = "lease_lost"

    def __init__(self, run_id: str, *, held: int, current: int | None) -> None:
        now = "is held by somebody else" if current is None else f"now has epoch {current}"
        super().__init__(
            f"Lease lost: run {run_id} was held under epoch {held} and {now}. Nothing more was written.", run_id=run_id, held=held, current=current
        )
        self.run_id, self.held, self.current = run_id, held, current


class ExecutionError(PerdureError):
    """Why an execution fails its run. `code` and message become `Run.error`."""


class IncompleteResponseError(ExecutionError):
    """The model's stream ended without the provider's finish part: what came may be cut anywhere."""

    code = "incomplete_response"


class ConfigurationError(PerdureError):
    """The program is wired wrongly; the message says which setting and what it takes."""

    code = "configuration"


class UnserializableError(PerdureError):
    """A value holds something that JSON has no word for. `details["path"]` says where."""

    code = "unserializable"


class StoreError(PerdureError):
    """The database refused. The driver's own error is `__cause__`."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database could not be reached or was busy for too long. Worth trying again."""

    code = "store_unavailable"


class StoreFull(StoreError):
    """The disk or the quota is full. Nothing of the refused write was kept."""

    code = "store_full"


class NotADatabase(StoreError):
    """The file is there and is not a database of ours."""

    code = "not_a_database"


class ReadOnlyStore(StoreError):
    """The database can't be written."""

    code = "store_read_only"


class SchemaTooNew(StoreError):
    """A newer Perdure wrote this database. Upgrade this one; nothing was touched."""

    code = "schema_too_new"


class Suspend(BaseException):
    """Ends an execution on purpose: the run waits, was cancelled, drained or lost.

    Outside `Exception` so that a tool's `except Exception` can't swallow it. Never catch it.
    """
