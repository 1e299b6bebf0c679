"""All promises together."""

from __future__ import annotations

from typing import Final

from perdure.testing.simulation._checkers import (
    AnswersAreReal,
    CancelsAreHonoured,
    Checker,
    EffectsHappenOnce,
    EffectsOneAtATime,
    EpochsOnlyRise,
    EventsAreGapFree,
    EverythingComesToRest,
    ExpiryHolds,
    HistoriesStayValid,
    KeysAreHeldOnce,
    KeysStartOneRun,
    LeasesRunOut,
    NoEffectOutlivesItsClaim,
    NothingAcknowledgedIsLost,
    OneOwner,
    OneSettlement,
    OnlyLegalMoves,
    RestIsOneRule,
    ShownAfterCommit,
    SpendAddsUp,
    StaleWritesChangeNothing,
    StartedBeforeBody,
    StepsAreDoneOnce,
    StepsAreGapFree,
    ThreadsGoOn,
    WaitsResolveOnce,
    WorkStopsInTime,
)
from perdure.testing.simulation._spend import FamiliesStayInBudget

ROW_CHECKERS: Final[tuple[type[Checker], ...]] = (
    EpochsOnlyRise, OneOwner, StaleWritesChangeNothing, LeasesRunOut, WorkStopsInTime, KeysAreHeldOnce, ThreadsGoOn, NothingAcknowledgedIsLost,
    EventsAreGapFree, StepsAreGapFree, ShownAfterCommit, KeysStartOneRun, OnlyLegalMoves, RestIsOneRule, OneSettlement, CancelsAreHonoured, WaitsResolveOnce, ExpiryHolds,
    SpendAddsUp, HistoriesStayValid, StepsAreDoneOnce, AnswersAreReal, EffectsHappenOnce, StartedBeforeBody, EffectsOneAtATime, NoEffectOutlivesItsClaim,
    FamiliesStayInBudget, EverythingComesToRest,
)  # fmt: skip
"""Every promise that the simulator watches."""
