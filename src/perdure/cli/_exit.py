"""What a command's exit code says."""

from __future__ import annotations

from typing import Final

from perdure.core.errors import ConfigurationError, Conflict, InvalidTrigger, NotADatabase, NotFound, PerdureError, ReadOnlyStore, SchemaTooNew
from perdure.core.run import RunStatus

DONE: Final = 0
"""The run completed, or the command did what it was asked."""
FAILED: Final = 1
"""The run failed, or the store did."""
REFUSED: Final = 2
"""Bad usage, bad input, or somebody else was first: nothing was changed."""
CANCELLED: Final = 3
"""The run was cancelled."""
UNFINISHED: Final = 4
"""The run waits for somebody, or was left to a worker."""
STOPPED: Final = 130
"""Stopped hard, by a second Ctrl-C or SIGTERM."""

BY_STATUS: Final = {RunStatus.COMPLETED: DONE, RunStatus.FAILED: FAILED, RunStatus.CANCELLED: CANCELLED}

TABLE: Final = (
    "Exit codes: 0 completed (or done), 1 the run failed or the store did, 2 bad usage, bad input or refused (nothing was changed), "
    "3 cancelled, 4 still waiting or left to a worker, 130 stopped hard."
)


def of_status(status: RunStatus) -> int:
    """The code of a command that followed a run until now."""
    return BY_STATUS.get(status, UNFINISHED)


def of_error(error: PerdureError) -> int:
    """The code of a command that ended with this error."""
    refused = (InvalidTrigger, Conflict, NotFound, ConfigurationError, NotADatabase, ReadOnlyStore, SchemaTooNew)
    return REFUSED if isinstance(error, refused) else FAILED
