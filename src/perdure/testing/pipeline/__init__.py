"""The tests that every pipeline storage and scheduler passes; run them on yours.

    class TestMyStorage(StorageConformance):
        storage_type = MyStorage

        @pytest.fixture
        def open_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "jobs.db")

    class TestMyScheduler(SchedulerConformance):
        @pytest.fixture
        def open_scheduler(self):
            return lambda advance: MyScheduler(advance)

The tests of capabilities that a storage does without are left out (and skipped by name where `storage_type` is not told). Needs pytest, and no plugin.
"""

import pytest

for _module in ("storage", "scheduler"):
    pytest.register_assert_rewrite(f"{__name__}._{_module}")

from perdure.testing.pipeline._crash import Crash, Dying, Fuse, dying  # noqa: E402
from perdure.testing.pipeline._scheduler import SchedulerConformance  # noqa: E402
from perdure.testing.pipeline._storage import StorageConformance  # noqa: E402

__all__ = ["Crash", "Dying", "Fuse", "SchedulerConformance", "StorageConformance", "dying"]
