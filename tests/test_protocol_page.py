"""The protocol page says what the code says."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import get_args

from perdure.core import limits, tail
from perdure.core.commit import Outcome
from perdure.core.effect import EFFECT_MOVES, EffectState
from perdure.core.event import EVENT_TYPES
from perdure.core.run import FINAL, MOVES, RunStatus
from perdure.core.wait import ResolutionKind, WaitKind

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "concepts" / "protocol.md").read_text()

Cells = list[tuple[str, ...]]


def section(title: str) -> str:
    """The text under a second-level heading that starts with `title`."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}", 1)[1], maxsplit=1, flags=re.M)[0]


def tables(text: str) -> list[Cells]:
    """Every Markdown table in `text`, without its head."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.M)
    rows = [[tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in block.splitlines()] for block in blocks]
    return [block[2:] for block in rows]


def names(cell: str) -> list[str]:
    """The names in one cell: `a, b` in backticks or plain."""
    return [name.strip().strip("`") for name in cell.split(",")]


def written_moves() -> set[tuple[str | None, str, str, bool]]:
    """Table R of the page as (before, verb, after, whether it rests)."""
    moves: set[tuple[str | None, str, str, bool]] = set()
    for before, verb, after, _ in tables(section("R."))[0]:
        for one in names(before):
            for other in names(after):
                rests = re.fullmatch(r"rest\((\w+)\)", other)
                moves.add((None if one == "–" else one, verb, rests[1] if rests else other, bool(rests)))
    return moves


def diagram() -> str:
    """Table R as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    state rest <<choice>>"]
    edges: dict[tuple[str, str], list[str]] = {}
    resting: dict[str, None] = {}
    for move in MOVES:
        before = "[*]" if move.before is None else str(move.before)
        after = "rest" if move.rests else str(move.after)
        if move.rests:
            resting[str(move.after)] = None
        labels = edges.setdefault((before, after), [])
        if move.verb not in labels:
            labels.append(move.verb)
    lines += [f"    {before} --> {after}: {', '.join(verbs)}" for (before, after), verbs in edges.items()]
    lines += ["    rest --> cancelled: a cancel was asked for", "    rest --> waiting: a wait row is open"]
    lines += [f"    rest --> {after}" for after in resting]
    lines += [f"    {status} --> [*]" for status in sorted(FINAL)]
    return "\n".join(lines)


def test_table_r_is_the_moves_of_the_code() -> None:
    """No move is in one and not in the other."""
    assert written_moves() == {(move.before and str(move.before), move.verb, str(move.after), move.rests) for move in MOVES}


def test_the_diagram_is_drawn_from_the_moves() -> None:
    """The picture is the table."""
    drawn = re.search(r"```mermaid\n(.*?)\n```", PAGE, flags=re.S)
    assert drawn
    assert drawn[1] == diagram(), f"replace it with:\n{diagram()}"


def test_every_status_is_named() -> None:
    """The sentence above table R lists every status."""
    intro = section("R.").split("|", 1)[0]
    assert set(re.findall(r"`(\w+)`", intro)) == set(RunStatus)


def test_table_t_is_the_table_of_the_code() -> None:
    """Same rows in the same order."""
    assert tables(section("T."))[0] == [(row.when, f"`{row.then}`") for row in tail.TABLE]


def test_every_act_is_explained() -> None:
    """Each act that needs a word has one."""
    explained = set(re.findall(r"^- `(\w+)`", section("T."), flags=re.M))
    assert explained == set(tail.Act) - {"model"}


def test_the_answers_to_a_commit_are_those_of_the_code() -> None:
    """Table C lists every outcome."""
    assert [row[0] for row in tables(section("C."))[0]] == list(Outcome)


def test_the_states_of_an_effect_are_those_of_the_code() -> None:
    """Table E lists every state and every move."""
    states, moves = tables(section("E."))
    assert [row[0].strip("`") for row in states] == list(EffectState)
    assert {(before, after) for row in moves for before in names(row[0]) for after in names(row[1])} == EFFECT_MOVES


def test_the_kinds_of_waits_and_of_their_ends_are_those_of_the_code() -> None:
    """Table W lists every kind, and the sentence below it every way to close."""
    assert [row[0].strip("`") for row in tables(section("W."))[0]] == list(get_args(WaitKind))
    ends = re.search(r"^It closes as one of: (.*)$", section("W."), flags=re.M)
    assert ends and set(re.findall(r"`(\w+)`", ends[1])) == set(ResolutionKind)


def test_every_event_type_is_listed() -> None:
    """The list of events is the one of the code, in its order."""
    assert tuple(re.findall(r"`([\w.]+)`", section("Events").split("Text as it streams")[0])) == EVENT_TYPES


UNITS = {
    "ms": 0.001,
    "s": 1,
    "min": 60,
    "minutes": 60,
    "h": 3_600,
    "hour": 3_600,
    "hours": 3_600,
    "days": 86_400,
    "KiB": 1_024,
    "MiB": 1_048_576,
    "%": 0.01,
    "": 1,
}


def quoted_limits() -> list[tuple[str, str, float]]:
    """Every `LIMIT` (value) in the docs, as a page, a name and a number in base units."""
    found: list[tuple[str, str, float]] = []
    for page in sorted(DOCS.rglob("*.md")):
        for name, number, unit in re.findall(r"`([A-Z][A-Z_]+)` \(([\d_,.]+) ?([A-Za-z%]*)\)", page.read_text()):
            found.append((page.name, name, float(number.replace(",", "").replace("_", "")) * UNITS[unit]))
    return found


def test_quoted_limits_are_those_of_the_code() -> None:
    """A number in the docs is the number in core/limits.py."""
    found = quoted_limits()
    assert {("protocol.md", "DEATHS_MAX", 5.0), ("protocol.md", "EFFECT_GRACE", 30.0)} <= set(found)
    for page, name, number in found:
        value = getattr(limits, name)
        assert number == (value.total_seconds() if isinstance(value, timedelta) else value), f"{page}: {name} is {value}"
