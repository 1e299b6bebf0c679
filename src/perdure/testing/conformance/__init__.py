"""The tests that every store passes unchanged; run them on yours.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def kit(self, tmp_path):
            return MyKit(tmp_path)  # open() answers a store, advance(timedelta) moves its clock

Needs pytest; `StoreMachine` needs hypothesis too.
"""

import pytest

for _module in ("admit", "checkpoints", "claims", "commits", "effects", "values", "waits"):
    pytest.register_assert_rewrite(f"{__name__}._{_module}")

from perdure.testing.conformance._admit import AdmitConformance  # noqa: E402
from perdure.testing.conformance._checkpoints import CheckpointConformance  # noqa: E402
from perdure.testing.conformance._claims import ClaimConformance, HoldConformance, LeaseConformance  # noqa: E402
from perdure.testing.conformance._commits import CommitConformance  # noqa: E402
from perdure.testing.conformance._effects import EffectConformance  # noqa: E402
from perdure.testing.conformance._kit import Conformance, Kit  # noqa: E402
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
):
    """All of it."""


__all__ = [
    "AdmitConformance",
    "CheckpointConformance",
    "ClaimConformance",
    "CommitConformance",
    "Conformance",
    "EffectConformance",
    "HoldConformance",
    "Kit",
    "LeaseConformance",
    "StoreConformance",
    "ValueConformance",
    "WaitConformance",
]
