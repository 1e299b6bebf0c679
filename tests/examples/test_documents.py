"""The documents example on its real files: reading them, and the demo that is killed at every write."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.pipeline import JobConflictError, MemoryScheduler, MemoryStorage, advance_phase, explain, resume_job, run_pipeline

HERE = Path(__file__).parents[2] / "examples" / "documents"
INBOX = HERE / "inbox"
MODULES = ("papers", "office", "clerk_model", "app")
EVERY = "7"
"""The demo dies at every moment; the test, at every seventh."""


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's modules, imported as they are when it is run, and forgotten again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.delenv("PERDURE_MODEL", raising=False)
        for name in MODULES:
            sys.modules.pop(name, None)  # another example's `app` may have been here
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)


def test_every_kind_of_file_is_read(example: Any) -> None:
    """Compressed and plain PDF over two pages, CSV, UTF-8 and Latin-1."""
    texts = {path.name: example.papers.read(path) for path in sorted(INBOX.iterdir()) if "cut-off" not in path.name}
    assert len(texts["01-invoice-hansen.pdf"]) == 2 and "Total                                       € 730.07" in texts["01-invoice-hansen.pdf"][1]
    assert "model (N)ova 7" in texts["02-invoice-large.pdf"][0]
    assert "customer: Café Ärmelkanal; article: Assam, broken; boxes: 6; price: 7.90" in texts["03-orders-cafe.csv"][0]
    assert "€ 24.50" in texts["04-complaint.txt"][0]
    assert "Teehaus Grünwald, München" in texts["05-bestellung.txt"][0]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("x.pdf", b"hello", "not a PDF"),
        ("x.pdf", b"%PDF-1.4\nstream", "cut off"),
        ("x.pdf", b"%PDF-1.4\n<< /Filter /FlateDecode >>\nstream\nxx\nendstream\n%%EOF", "damaged"),
        ("x.pdf", b"%PDF-1.4\n%%EOF", "no text"),
        ("x.docx", b"PK", "no reader for .docx"),
        ("x.txt", b" \n ", "no text"),
    ],
)
def test_a_bad_file_is_refused_with_a_reason(example: Any, tmp_path: Path, name: str, data: bytes, says: str) -> None:
    """What is wrong, and what to do."""
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(example.papers.PaperError, match=says):
        example.papers.read(path)


async def test_the_inbox_goes_through_the_pipeline(example: Any, tmp_path: Path) -> None:
    """Small ones by themselves, a large amount and a complaint after a person's word, a broken one not at all."""
    storage, scheduler, office = MemoryStorage(), MemoryScheduler(), example.office.Office(tmp_path)
    phases = example.app.build(office)
    scheduler.bind(lambda job_id: advance_phase(job_id, phases, storage, scheduler))
    for path in sorted(INBOX.iterdir()):
        await run_pipeline(path.name, phases, storage, scheduler, example.app.Case(str(path)))
    assert await scheduler.drain() == []
    found = {name: each.job for name, each in storage.inspect().items()}
    assert {name for name, job in found.items() if job.status == "paused"} == {"02-invoice-large.pdf", "04-complaint.txt"}
    assert explain(found["06-cut-off.pdf"]).text == "06-cut-off.pdf: the PDF is cut off after 300 bytes. Ask for it again."
    assert found["05-bestellung.txt"].output["cents"] == 20 * 980 + 5 * 640
    with pytest.raises(JobConflictError):
        await resume_job("01-invoice-hansen.pdf", storage, scheduler, approved=True)
    await resume_job("02-invoice-large.pdf", storage, scheduler, approved=False, reason="ask for an offer first", by="eva")
    await resume_job("04-complaint.txt", storage, scheduler, approved=True, by="eva")
    await scheduler.drain()
    found = {name: each.job for name, each in storage.inspect().items()}
    assert found["02-invoice-large.pdf"].error == "Not approved: ask for an offer first"
    assert found["04-complaint.txt"].output["decided_by"] == "eva"
    assert "we are sorry. € 24.50 go back" in (tmp_path / "archive" / "04-complaint.txt").read_text("utf-8")
    assert set(office.bookings().values()) == {1} and len(office.bookings()) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_demo_keeps_its_word() -> None:
    """Killed with SIGKILL, retried, counted: it says what held, and its exit code too."""
    environment = {name: value for name, value in os.environ.items() if name != "PERDURE_MODEL"} | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "demo.py", "--points", EVERY], cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Model: a script")
    assert sum(line.startswith("held  ") for line in lines) == 3 and "BROKEN" not in done.stdout
