"""What can go wrong with a pipeline, sorted by what the caller should do.

PerdureError
└── PipelineError
    ├── InvalidPipelineError (Configuration)  the phases or an argument are wrong: fix the code
    ├── InvalidStateError             a state does not fit its phase or can't be stored; `details` name phase and field
    ├── JobConflictError (Conflict)   somebody else was first; nothing was written
    ├── JobNotFoundError (NotFound)   no such job here
    ├── JobNotDoneError               the job has no output (yet)
    └── PhaseError                    a phase failed its job; `recoverable`: a retry may finish it
"""

from __future__ import annotations

from typing import Any, ClassVar

from perdure.core.errors import ConfigurationError, Conflict, NotFound, PerdureError, Suspend


class PipelineError(PerdureError):
    """Base of every error of the phase pipeline."""


class InvalidPipelineError(PipelineError, ConfigurationError):
    """No phases, two of one name, a phase that does not exist, or an argument that can't be. Nothing was written."""

    code = "configuration"


class InvalidStateError(PipelineError):
    """A state does not fit the phase that takes it, or can't be stored as JSON. Nothing was written.

    `details["phase"]` names the phase, `details["field"]` the place in the state.
    """

    code = "invalid_state"

    def __init__(self, phase: str, field: str, problem: str) -> None:
        super().__init__(f'State for phase "{phase}" is not valid at {field}: {problem}', phase=phase, field=field)
        self.phase, self.field = phase, field


class JobConflictError(PipelineError, Conflict):
    """The job is not in a state for this, or somebody else was first. Nothing was written."""

    code = "conflict"


class JobNotFoundError(PipelineError, NotFound):
    """This storage knows no job of this id."""

    code: ClassVar[str] = "job_not_found"  # pyright: ignore[reportIncompatibleVariableOverride]
    noun: ClassVar[str] = "job"


class JobNotDoneError(PipelineError):
    """The job is not complete, so it has no output. `details["status"]` says what it is."""

    code = "still_waiting"


class PhaseError(PipelineError):
    """A phase failed its job. The job's status is `error`, its checkpoint is untouched.

    `recoverable` says that a retry enters this phase again; the phase's own exception, if there was one, is `__cause__`.
    """

    code = "phase_error"

    def __init__(self, message: str, *, job_id: str, phase: str, recoverable: bool = True, code: str | None = None, **details: Any) -> None:
        super().__init__(message, code=code, job_id=job_id, phase=phase, recoverable=recoverable, **details)
        self.job_id, self.phase, self.recoverable = job_id, phase, recoverable


class JobLost(Suspend):
    """Another advance took the job over: what this one does can't be written any more. Never catch it."""
