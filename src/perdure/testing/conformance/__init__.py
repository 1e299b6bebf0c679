"""The tests that every store passes unchanged; run them on yours.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def kit(self, tmp_path):
            return MyKit(tmp_path)  # open() answers a store, advance(timedelta) moves its clock

Needs pytest; `StoreMachine` needs hypothesis too.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.testing.conformance._machine import StoreMachine

for _module in ("admit", "bench", "checkpoints", "claims", "commits", "effects", "families", "prune", "reads", "runs", "values", "waits"):
    pytest.register_assert_rewrite(f"{__name__}._{_module}")

from perdure.testing.conformance._admit import AdmitConformance  # noqa: E402
from perdure.testing.conformance._checkpoints import CheckpointConformance  # noqa: E402
from perdure.testing.conformance._claims import ClaimConformance, HoldConformance, LeaseConformance  # noqa: E402
from perdure.testing.conformance._commits import CommitConformance  # noqa: E402
from perdure.testing.conformance._effects import EffectConformance  # noqa: E402
from perdure.testing.conformance._families import FamilyConformance  # noqa: E402
from perdure.testing.conformance._kit import Conformance, Kit, SizedKit  # noqa: E402
from perdure.testing.conformance._prune import PruneConformance  # noqa: E402
from perdure.testing.conformance._reads import ArtifactConformance, HintConformance, NoticeConformance, ReadConformance  # noqa: E402
from perdure.testing.conformance._runs import (  # noqa: E402
    CancelConformance,
    MoveConformance,
    RetryConformance,
    SignalConformance,
    SweepConformance,
)
from perdure.testing.conformance._values import ValueConformance  # noqa: E402
from perdure.testing.conformance._waits import WaitConformance  # noqa: E402


class StoreConformance(
    AdmitConformance,
    ClaimConformance,
    HoldConformance,
    LeaseConformance,
    CommitConformance,
    CheckpointConformance,
    ValueConformance,
    WaitConformance,
    EffectConformance,
    FamilyConformance,
    CancelConformance,
    RetryConformance,
    SweepConformance,
    SignalConformance,
    MoveConformance,
    ReadConformance,
    ArtifactConformance,
    NoticeConformance,
    HintConformance,
    PruneConformance,
):
    """All of it."""


__all__ = [
    "AdmitConformance",
    "ArtifactConformance",
    "CancelConformance",
    "CheckpointConformance",
    "ClaimConformance",
    "CommitConformance",
    "Conformance",
    "EffectConformance",
    "FamilyConformance",
    "HintConformance",
    "HoldConformance",
    "Kit",
    "LeaseConformance",
    "MoveConformance",
    "NoticeConformance",
    "PruneConformance",
    "ReadConformance",
    "RetryConformance",
    "SignalConformance",
    "SizedKit",
    "StoreConformance",
    "StoreMachine",
    "SweepConformance",
    "ValueConformance",
    "WaitConformance",
]


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for, because only it needs hypothesis.
    if name != "StoreMachine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.testing.conformance._machine import StoreMachine

    return StoreMachine
