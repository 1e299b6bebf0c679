"""The tests that every store passes unchanged; run them on yours.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def kit(self, tmp_path):
            return MyKit(tmp_path)  # open() answers a store, advance(timedelta) moves its clock

Needs pytest; `StoreMachine` needs hypothesis too.
"""

import pytest

for _module in ("admit", "claims"):
    pytest.register_assert_rewrite(f"{__name__}._{_module}")

from perdure.testing.conformance._admit import AdmitConformance  # noqa: E402
from perdure.testing.conformance._claims import ClaimConformance, HoldConformance, LeaseConformance  # noqa: E402
from perdure.testing.conformance._kit import Conformance, Kit  # noqa: E402


class StoreConformance(AdmitConformance, ClaimConformance, HoldConformance, LeaseConformance):
    """All of it."""


__all__ = ["AdmitConformance", "ClaimConformance", "Conformance", "HoldConformance", "Kit", "LeaseConformance", "StoreConformance"]
