"""Where a command writes: answers on stdout, everything else on stderr, tables that fit the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.json import JSON
from rich.text import Text

from perdure.cli._words import safe

STATUS_LOOK: Final = {
    "pending": ("○", "blue"),
    "running": ("●", "cyan"),
    "waiting": ("◆", "yellow"),
    "interrupted": ("◇", "magenta"),
    "cancelling": ("●", "magenta"),
    "recovering": ("●", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("×", "bright_black"),
}
"""One sign and one colour per status; the word is always there too, for those who see neither."""

GAP: Final = "  "


def console_on(file: Any) -> Console:
    """A console that prints what it is given: no markup, no guesses at what to colour."""
    return Console(file=file, highlight=False, markup=False, emoji=False)


class Output:
    """The two streams of one command. With `json`, stdout carries JSON alone."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that can't show a sign shows another one; it is no reason to fail.
                stream.reconfigure(errors="replace")
        self.out = console_on(sys.stdout)
        self.err = console_on(sys.stderr)

    @property
    def rich(self) -> bool:
        """Whether stdout is a terminal for people."""
        return self.out.is_terminal and not self.json

    def keep_stdout(self) -> None:
        """Keep stdout for our answer where a program reads it: what tools and their child processes print goes to stderr.

        On the level of file descriptors, because a tool may start programs of its own.
        """
        if self.rich or sys.stdout is not sys.__stdout__:
            return
        sys.stdout.flush()
        ours = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace", buffering=1)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        self.out = console_on(ours)

    # ── answers ────────────────────────────────────────────────────────────────────────────────────────────
    def print(self, *what: Any, **options: Any) -> None:
        """For people, on stdout."""
        self.out.print(*what, **options)

    def document(self, value: Any) -> None:
        """One JSON document."""
        self._raw(json.dumps(value, ensure_ascii=False, indent=2, default=str))

    def line(self, value: Any) -> None:
        """One line of JSON lines."""
        self._raw(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))

    def value(self, value: Any) -> None:
        """A run's output: for people on a terminal, else as it is, text as text and the rest as JSON."""
        if self.rich:
            self.out.print(Text(safe(value)) if isinstance(value, str) else pretty(value), soft_wrap=isinstance(value, str))
        elif isinstance(value, str):
            self._raw(value)
        else:
            self.document(value)

    def _raw(self, text: str) -> None:
        file = self.out.file
        file.write(text + "\n")
        file.flush()

    # ── the rest ───────────────────────────────────────────────────────────────────────────────────────────
    def note(self, text: str | Text) -> None:
        """A remark for people, on stderr."""
        self.err.print(Text(safe(text)) if isinstance(text, str) else text, soft_wrap=True)


def pretty(value: Any) -> JSON:
    """JSON in colours."""
    return JSON(safe(json.dumps(value, ensure_ascii=False, indent=2, default=str)))


def status_text(status: str, *, sign: bool = True) -> Text:
    """A status with its sign and colour."""
    look, colour = STATUS_LOOK.get(status, ("·", ""))
    return Text(f"{look} {status}" if sign else status, style=colour)


# ── tables ─────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    On a terminal that is too narrow, columns with `least` shrink to that many cells, then those with the highest `drop` go. Nothing is cut
    where no terminal is.
    """

    title: str
    right: bool = False
    least: int | None = None
    drop: int = 0


Cell = str | Text


def print_table(output: Output, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, empty: str) -> None:
    """A table, or `empty` as a remark where there are no rows."""
    if not rows:
        output.note(empty)
        return
    cells = [[_one_line(cell) for cell in row] for row in rows]
    natural = [max(cell_len(column.title), *(cell_len(row[at].plain) for row in cells)) for at, column in enumerate(columns)]
    widths = fit(columns, natural, output.out.width if output.rich else None)
    output.print(_row([Text(each.title, style="bold" if output.rich else "") for each in columns], columns, widths), soft_wrap=True)
    for row in cells:
        output.print(_row(row, columns, widths), soft_wrap=True)


def fit(columns: Sequence[Column], natural: Sequence[int], room: int | None) -> list[int]:
    """The width of each column, 0 for one that goes."""
    widths = list(natural)
    if room is None:
        return widths

    def over() -> int:
        shown = [width for width in widths if width]
        return sum(shown) + len(GAP) * (len(shown) - 1) - room

    for at in sorted(range(len(columns)), key=lambda at: -natural[at]):
        least = columns[at].least
        if least is not None and over() > 0:
            widths[at] = max(min(least, natural[at]), widths[at] - over())
    for at in sorted(range(len(columns)), key=lambda at: -columns[at].drop):
        if over() > 0 and columns[at].drop:
            widths[at] = 0
    # What a dropped column leaves goes back to those that shrank.
    for at, column in enumerate(columns):
        if column.least is not None and widths[at]:
            widths[at] = min(natural[at], widths[at] + max(0, -over()))
    return widths


def _row(cells: Sequence[Text], columns: Sequence[Column], widths: Sequence[int]) -> Text:
    line = Text()
    shown = [at for at, width in enumerate(widths) if width]
    for at in shown:
        cell = cells[at].copy()
        cell.truncate(widths[at], overflow="ellipsis")
        missing = widths[at] - cell_len(cell.plain)
        if columns[at].right:
            line.append(" " * missing)
        line.append_text(cell)
        if at != shown[-1]:
            line.append(("" if columns[at].right else " " * missing) + GAP)
    line.rstrip()
    return line


def _one_line(cell: Cell) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(" ".join(safe(cell).split()))


def fields(output: Output, pairs: Sequence[tuple[str, Cell | None]], *, indent: int = 0) -> None:
    """Names and values, one a line; those without a value are left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((cell_len(name) for name, _ in shown), default=0)
    for name, value in shown:
        text = Text(safe(value)) if isinstance(value, str) else value
        label = Text(" " * indent + name.ljust(width) + GAP, style="bright_black")
        output.print(label + text, soft_wrap=not output.rich)
