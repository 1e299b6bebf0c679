"""Values as people read them, tables that fit, a screen that streams."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from perdure.cli._output import Column, fit
from perdure.cli._screen import Gauge, LineScreen, LiveScreen, spread
from perdure.cli._words import ago, arguments, brief, money, parse_span, rough, safe, span, spent, tokens
from perdure.core.budget import Usage
from perdure.core.errors import InvalidTrigger

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.34, "0.3 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (61, "1 min 1 s"), (3_600, "1 h"), (11_999, "3 h 19 min"), (187_200, "2 d 4 h")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    """Two units, the second one only where it says something."""
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99, "99 s"), (100, "2 min"), (5_000, "83 min"), (6_100, "2 h"), (172_700, "48 h"), (172_900, "2 d")]
)
def test_rough_spans(seconds: float, text: str) -> None:
    """One unit, fine enough."""
    assert rough(seconds) == text


def test_moments_are_told_from_now() -> None:
    """Before and after; nothing for nothing."""
    assert ago(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert ago(NOW + timedelta(days=3), NOW) == "in 3 d"
    assert (ago(NOW, NOW), ago(None, NOW)) == ("just now", "")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5_400), ("2d", 172_800), ("1.5 h", 5_400), ("2D", 172_800)])
def test_spans_are_read(text: str, seconds: int) -> None:
    """With and without spaces."""
    assert parse_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5", "-1h", "0s", "1h bad", "1y", "99999999d"])
def test_what_is_no_span_is_refused(text: str) -> None:
    """The message shows how to write one."""
    with pytest.raises(InvalidTrigger, match=r"90s|century"):
        parse_span(text)


def test_money_and_tokens() -> None:
    """An unknown price is never 0."""
    assert [money(each) for each in (None, Decimal(0), Decimal("0.00001"), Decimal("0.0042"), Decimal("12.3"))] == [
        "$?",
        "$0",
        "<$0.0001",
        "$0.0042",
        "$12.30",
    ]
    assert [tokens(each) for each in (0, 9_999, 12_345, 4_100_000)] == ["0", "9,999", "12.3k", "4.1M"]
    assert spent(Usage(input_tokens=5, requests=1)) == "1 model call · 5 tokens"
    assert spent(Usage(requests=2, cost=None)) == "2 model calls · 0 tokens · cost unknown"


@given(st.text())
def test_safe_text_says_nothing_to_a_terminal(text: str) -> None:
    """No control but the line break and the tab, and nothing that can't be encoded."""
    shown = safe(text)
    assert not [each for each in shown if (ord(each) < 32 and each not in "\n\t") or 127 <= ord(each) < 160]
    shown.encode()


def test_values_are_cut() -> None:
    """On one line, with a sign that something is missing."""
    assert brief("a\n b", 10) == "a b"
    assert brief({"text": "x" * 99}, 12) == '{"text": "x…'
    assert arguments({"order": "7", "cents": 9}) == 'order="7", cents=9'


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(20, 200))
def test_a_table_fits_wherever_it_can(natural: list[int], room: int) -> None:
    """Columns shrink to their least, then go; what is left over goes back to those that shrank."""
    columns = [Column("x", least=8 if at % 2 else None, drop=at % 3) for at in range(len(natural))]
    widths = fit(columns, natural, room)
    shown = [width for width in widths if width]
    fixed = [min(width, 8) if column.least else width for width, column in zip(natural, columns, strict=True) if not column.drop]
    if sum(fixed) + 2 * (len(fixed) - 1) <= room:
        assert sum(shown) + 2 * (len(shown) - 1) <= room
    assert all(width <= most for width, most in zip(widths, natural, strict=True))
    assert fit(columns, natural, None) == natural


def test_a_line_spreads_to_the_edge() -> None:
    """The right part ends there, whatever the left one needs."""
    for left in ("short", "long " * 40, "温かい " * 30):
        assert cell_len(spread(Text(left), "0.2 s", 60).plain) == 60
    assert spread(Text("plain"), "0.2 s", None).plain == "plain  0.2 s"


# ── screens ────────────────────────────────────────────────────────────────────────────────────────────────
def terminal(columns: int = 60) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=columns, height=20, color_system=None, highlight=False, markup=False)


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


GAUGE = Gauge("lookup_order", 2, 20, Usage(input_tokens=1_204, cost=Decimal("0.0031")), 12.4)


def test_the_gauge_tells_step_tool_tokens_cost_and_time() -> None:
    """In one line."""
    assert GAUGE.line(0).plain == "⠋ step 2/20 · lookup_order · 1,204 tokens · $0.0031 · 12 s"


def test_text_streams_and_stays() -> None:
    """Whole lines are printed once; the paragraph in the making is redrawn; at the end all of it stands there."""
    console = terminal()
    with LiveScreen(console) as screen:
        screen.gauge(GAUGE)
        for piece in ("First li", "ne.\nSec", "ond line."):
            screen.text(piece)
        screen.end_text()
        screen.line(Text("  ✓ done"))
    shown = written(console)
    assert shown.count("First line.\n") == 0 or "First line." in shown
    assert shown.index("First line.") < shown.rindex("Second line.") < shown.index("✓ done")
    assert "step 2/20" in shown


def test_a_step_that_starts_anew_drops_what_is_not_final() -> None:
    """What scrolled away can't be taken back, and the caller hears so."""
    screen = LiveScreen(terminal())
    with screen:
        screen.text("half a sen")
        assert screen.void_text() is False
        screen.text("a whole line\nand more")
        assert screen.void_text() is True


def test_lines_for_a_file_have_no_gauge_and_no_control() -> None:
    """A build log reads like a text."""
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
    with LineScreen(console) as screen:
        screen.gauge(GAUGE)
        screen.text("Some ")
        screen.text("text\x1b[2J.\nMore.")
        screen.text("not shown", "reasoning")
        screen.end_text()
        screen.line(Text("  ✓ done"))
    assert written(console) == "  Some text\ufffd[2J.\n  More.\n  ✓ done\n"
