"""Typed phases with explicit checkpoints: the smallest durable core, with two small adapters and no engine.

Where to look, in the order in which it reads best: `_phase` (what a user writes and gets), `_adapters` (the two seams and the capabilities), `_start` (how a
life of a job begins), `_runner.advance_phase` (the whole story of one advance), `_settle` (what a result means), `_writer` (in which order it is written),
`_worker` (who advances), `_operate` (what people do), `_failures` (what a failure says). Storages: `_memory` is the model; `_sql_storage` with `_sqlite` and
`_postgres`. An agent as a phase: `_agent_phase`, `_agent_host`. A pipeline as an engine's job type: `_job`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.pipeline._adapters import (
    Advance,
    Chains,
    Claim,
    CommitsOutcomes,
    ComparesAndSets,
    KeepsAdvances,
    KeepsEntries,
    KeepsOutput,
    KnowsPending,
    Leases,
    ListsJobs,
    ListsRunning,
    ListsStranded,
    Outcome,
    ReadsLog,
    SchedulerAdapter,
    StorageAdapter,
)
from perdure.pipeline._errors import (
    InvalidPipelineError,
    InvalidStateError,
    JobConflictError,
    JobNotDoneError,
    JobNotFoundError,
    PhaseError,
    PipelineError,
)
from perdure.pipeline._failures import Explanation, explain
from perdure.pipeline._memory import MemoryScheduler, MemoryStorage
from perdure.pipeline._operate import get_output, pause_job, recover, resume_job
from perdure.pipeline._phase import Approval, Done, Error, Next, Phase, PhaseContext, PhaseResult, Retry, RetryPolicy, Wait, phase
from perdure.pipeline._pipeline import Pipeline
from perdure.pipeline._records import STATUSES, Answer, Checkpoint, JobRecord, JobStatus, LogEntry, PendingToolCall, Progress, RetryMode, WaitRecord
from perdure.pipeline._runner import advance_phase
from perdure.pipeline._sqlite import SqliteStorage
from perdure.pipeline._start import resolve_start_phase, retry_job, run_pipeline
from perdure.pipeline._worker import PipelineWorker, StorageScheduler

if TYPE_CHECKING:
    from perdure.pipeline._agent_phase import build_agent_phase, run_agent
    from perdure.pipeline._agent_state import AgentCheckpoint, AgentOutcome, AgentTurn
    from perdure.pipeline._job import EnginePipeline, register
    from perdure.pipeline._postgres import PostgresStorage

__all__ = [
    "STATUSES",
    "Advance",
    "AgentCheckpoint",
    "AgentOutcome",
    "AgentTurn",
    "Answer",
    "Approval",
    "Chains",
    "Checkpoint",
    "Claim",
    "CommitsOutcomes",
    "ComparesAndSets",
    "Done",
    "EnginePipeline",
    "Error",
    "Explanation",
    "InvalidPipelineError",
    "InvalidStateError",
    "JobConflictError",
    "JobNotDoneError",
    "JobNotFoundError",
    "JobRecord",
    "JobStatus",
    "KeepsAdvances",
    "KeepsEntries",
    "KeepsOutput",
    "KnowsPending",
    "Leases",
    "ListsJobs",
    "ListsRunning",
    "ListsStranded",
    "LogEntry",
    "MemoryScheduler",
    "MemoryStorage",
    "Next",
    "Outcome",
    "PendingToolCall",
    "Phase",
    "PhaseContext",
    "PhaseError",
    "PhaseResult",
    "Pipeline",
    "PipelineError",
    "PipelineWorker",
    "PostgresStorage",
    "Progress",
    "ReadsLog",
    "Retry",
    "RetryMode",
    "RetryPolicy",
    "SchedulerAdapter",
    "SqliteStorage",
    "StorageAdapter",
    "StorageScheduler",
    "Wait",
    "WaitRecord",
    "advance_phase",
    "build_agent_phase",
    "explain",
    "get_output",
    "pause_job",
    "phase",
    "recover",
    "register",
    "resolve_start_phase",
    "resume_job",
    "retry_job",
    "run_agent",
    "run_pipeline",
]

_LATE = {
    "AgentCheckpoint": "_agent_state",
    "AgentOutcome": "_agent_state",
    "AgentTurn": "_agent_state",
    "EnginePipeline": "_job",
    "PostgresStorage": "_postgres",
    "build_agent_phase": "_agent_phase",
    "register": "_job",
    "run_agent": "_agent_phase",
}


def __getattr__(name: str) -> Any:
    # Phases need no agent library, no engine and no driver; they are loaded for whoever asks for one.
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
