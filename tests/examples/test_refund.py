"""The refund example as its documentation shows it: two real processes, the real command line, one payment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorder() -> Iterator[ModuleType]:
    path = ROOT / "examples" / "refund" / "record.py"
    spec = importlib.util.spec_from_file_location("refund_record", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "refund_record", module)
        spec.loader.exec_module(module)
        yield module


def test_a_second_terminal_changes_the_amount_and_the_docs_show_what_happens(recorder: ModuleType) -> None:
    """The tool gets the edited cents once, a late answer learns who won, and the recording in the docs has the shape of a fresh one. # case B11"""
    fresh = recorder.record()
    assert fresh.paid.startswith("KL-1042: 19.00 EUR, reference ") and fresh.paid.count("\n") == 1
    assert "19.00 EUR were paid back" in fresh.first and "closed by eva already" in fresh.second
    page = recorder.PAGE.read_text()
    shown = page.split(recorder.BEGIN)[1].split(recorder.END)[0].strip()
    assert recorder.shape(shown) == recorder.shape(fresh.markdown).strip(), "record it again: python examples/refund/record.py --write"


def test_the_shape_forgets_only_what_differs_between_recordings(recorder: ModuleType) -> None:
    """Ids, moments and durations; never words or amounts."""
    text = "214719d5 at 2026-12-02 23:00:39, 21 s, cents 6400, desk/7153996e935e"
    assert recorder.shape(text) == "ID at MOMENT, SPAN, cents 6400, WORKER"
    assert recorder.shape("order 1900") != recorder.shape("order 6400")
