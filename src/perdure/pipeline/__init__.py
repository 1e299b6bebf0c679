"""Typed phases with explicit checkpoints: the smallest durable core, with two small adapters and no engine."""

from __future__ import annotations

from perdure.pipeline._adapters import (
    Advance,
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
from perdure.pipeline._records import Answer, Checkpoint, JobRecord, JobStatus, LogEntry, PendingToolCall, Progress, RetryMode, WaitRecord
from perdure.pipeline._runner import advance_phase
from perdure.pipeline._sqlite import SqliteStorage
from perdure.pipeline._start import resolve_start_phase, retry_job, run_pipeline
from perdure.pipeline._worker import PipelineWorker, StorageScheduler

__all__ = [
    "Advance",
    "Answer",
    "Approval",
    "Checkpoint",
    "Claim",
    "CommitsOutcomes",
    "ComparesAndSets",
    "Done",
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
    "PipelineError",
    "PipelineWorker",
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
    "explain",
    "get_output",
    "pause_job",
    "phase",
    "recover",
    "resolve_start_phase",
    "resume_job",
    "retry_job",
    "run_pipeline",
]
