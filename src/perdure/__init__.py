"""Perdure runs LLM agents so that they survive anything: a crash, a deploy, a dead machine, an approval that comes three days later.

Start with `Engine`. Everything public is here, in `perdure.errors`, `perdure.pipeline` and `perdure.testing`.
"""

from perdure.approvals import ApprovalCall, approve
from perdure.context import CurrentRun, Wait, current_run
from perdure.core.artifact import Artifact
from perdure.core.budget import Budget, Usage
from perdure.core.effect import Effect
from perdure.core.errors import Conflict, InvalidTrigger, LeaseLostError, PerdureError, RunCancelled, RunFailed, StillWaiting
from perdure.core.event import Delta, Event, Reset
from perdure.core.run import Run, RunStatus
from perdure.core.trigger import TriggerEnvelope
from perdure.effects import EffectCall, Happened, NotDone, Retry, effect, plain
from perdure.engine import DurableAgent, Engine, Request, RunHandle, Settled, Waiting

__all__ = [
    "ApprovalCall",
    "Artifact",
    "Budget",
    "Conflict",
    "CurrentRun",
    "Delta",
    "DurableAgent",
    "Effect",
    "EffectCall",
    "Engine",
    "Event",
    "Happened",
    "InvalidTrigger",
    "LeaseLostError",
    "NotDone",
    "PerdureError",
    "Request",
    "Reset",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunStatus",
    "Settled",
    "StillWaiting",
    "TriggerEnvelope",
    "Usage",
    "Wait",
    "Waiting",
    "approve",
    "current_run",
    "effect",
    "plain",
]
