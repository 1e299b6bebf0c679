"""Where the news of one run appear: on a living terminal, or as plain lines."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from perdure.cli._output import Output
from perdure.cli._words import money, safe, span, tokens
from perdure.core.budget import Usage

Kind = Literal["text", "reasoning"]
INDENT: Final = 2
FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
LOOKS: Final[dict[Kind, str]] = {"text": "", "reasoning": "italic bright_black"}
LINES_KEPT: Final = 4
"""Lines of the terminal that an unfinished paragraph leaves free."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """The one line that tells how far a run is: what it does now, what it has spent, for how long it has been watched."""

    what: str
    step: int
    steps_max: int
    usage: Usage
    seconds: float
    busy: bool = True

    def line(self, frame: int) -> Text:
        parts = [self.what, f"{tokens(self.usage.total_tokens)} tokens"]
        if self.usage.cost != 0:
            parts.append(money(self.usage.cost))
        parts.append(span(round(self.seconds)) if self.seconds >= 10 else f"{int(self.seconds)} s")
        text = Text(f"{FRAMES[frame % len(FRAMES)] if self.busy else '◆'} ", style="cyan" if self.busy else "yellow")
        if self.step:
            text.append(f"step {self.step}/{self.steps_max} · ", style="bold not dim")
        return text.append(" · ".join(safe(part) for part in parts), style="default")


class Screen(Protocol):
    """What a follower of a run writes to."""

    @property
    def width(self) -> int | None:
        """Cells of a line; None where lines may be as long as they are."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def text(self, piece: str, kind: Kind = "text") -> None:
        """A piece of a response, as it streams."""
        ...

    def end_text(self) -> None:
        """The response is whole."""
        ...

    def void_text(self) -> bool:
        """The response starts anew: drop what is not final yet. True: some of it can't be taken back."""
        ...

    def line(self, line: Text) -> None:
        """A line that stays."""
        ...

    def gauge(self, gauge: Gauge | None) -> None:
        """The line that does not stay."""
        ...


def screen_for(output: Output) -> Screen:
    """Stdout where it is a terminal, else stderr: then stdout is for the answer alone."""
    console = output.out if output.rich else output.err
    return LiveScreen(console) if console.is_terminal and not console.is_dumb_terminal else LineScreen(console)


class LiveScreen:
    """A terminal: finished lines scroll away above, the unfinished paragraph and the gauge live at the bottom."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Refreshed by the watcher alone, so that nothing draws from another thread.
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._rest = ""
        self._kind: Kind = "text"
        self._printed = False
        self._frame = 0
        self._gauge: Gauge | None = None

    @property
    def width(self) -> int:
        return self._console.width

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end_text()
        self._live.update(Text(), refresh=True)
        self._live.__exit__(kind, error, trace)

    def text(self, piece: str, kind: Kind = "text") -> None:
        if kind != self._kind:
            self.end_text()
            self._kind = kind
        # Whole lines are final as far as the eye goes; the one that is being written stays movable.
        whole, found, rest = (self._rest + safe(piece)).rpartition("\n")
        self._rest = rest
        if found:
            self._print(whole)
        self._draw()

    def end_text(self) -> None:
        rest, self._rest = self._rest, ""
        if rest.strip():
            self._print(rest)
        self._printed, self._kind = False, "text"
        self._draw()

    def void_text(self) -> bool:
        stays, self._printed, self._rest = self._printed, False, ""
        self._draw()
        return stays

    def line(self, line: Text) -> None:
        self._console.print(line, soft_wrap=False)

    def gauge(self, gauge: Gauge | None) -> None:
        self._gauge = gauge
        self._frame += 1
        self._draw()

    def _print(self, text: str) -> None:
        self._printed = True
        self._console.print(self._paragraph(text))

    def _paragraph(self, text: str) -> RenderableType:
        return Padding(Text(text, style=LOOKS[self._kind], overflow="fold"), (0, 0, 0, INDENT))

    def _draw(self) -> None:
        parts: list[RenderableType] = []
        if self._rest.strip():
            style = LOOKS[self._kind]
            lines = Text(self._rest, style=style).wrap(self._console, max(10, self._console.width - INDENT), overflow="fold")
            parts += [self._paragraph(line.plain) for line in lines[-max(1, self._console.height - LINES_KEPT) :]]
        if self._gauge is not None:
            line = self._gauge.line(self._frame)
            line.truncate(self._console.width - INDENT - 1, overflow="ellipsis")
            parts.append(Padding(line, (0, 0, 0, INDENT)))
        self._live.update(Group(*parts) if parts else Text(), refresh=True)


class LineScreen:
    """Lines on a stream that nobody draws on: a file, a pipe, a build log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""

    @property
    def width(self) -> None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end_text()

    def text(self, piece: str, kind: Kind = "text") -> None:
        if kind == "text":
            self._rest += piece

    def end_text(self) -> None:
        rest, self._rest = self._rest.strip(), ""
        for line in safe(rest).splitlines():
            self.line(Text(" " * INDENT + line))

    def void_text(self) -> bool:
        self._rest = ""
        return False

    def line(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)

    def gauge(self, gauge: Gauge | None) -> None:
        """A line that does not stay has no place here."""


def spread(left: Text, right: str, width: int | None) -> Text:
    """`left`, and `right` at the end of the line."""
    line = left.copy()
    if width is None:
        return line.append(f"  {right}", style="bright_black") if right else line
    room = width - cell_len(right) - 2
    line.truncate(room, overflow="ellipsis")
    return line.append(" " * (width - cell_len(line.plain) - cell_len(right))).append(right, style="bright_black")
