"""What a verb of a SQL store is made of: queries by name, batches of them, and the transaction that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic_core import to_json

from perdure.core import codec as rule
from perdure.core.codec import Codec
from perdure.stores._protocol import Hint

if TYPE_CHECKING:
    from perdure.stores._moves._draft import Draft

T = TypeVar("T")

Row = Mapping[str, Any]
Rows = Sequence[Row]


class Query(NamedTuple):
    """One statement by name, with its named parameters."""

    name: str
    params: Mapping[str, Any]


Batch = Sequence[Query]
"""Statements that are sent together: one round trip."""

Program = Generator[Batch, Sequence[Rows], T]
"""A verb: yields batches, receives the rows of each statement, returns its answer. An exception out of it undoes the transaction."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(at: datetime | None) -> int | None:
    """A moment as it is stored: microseconds since 1970, UTC."""
    return None if at is None else (at - EPOCH) // MICROSECOND


def moment(at: int | None) -> datetime | None:
    """What `micros` stored."""
    return None if at is None else EPOCH + timedelta(microseconds=at)


def span(length: timedelta) -> int:
    """A duration in microseconds."""
    return length // MICROSECOND


@dataclass(slots=True)
class Work:
    """One transaction, as a program sees it.

    Writes are collected and ride with the next read, or with the COMMIT where none follows: so the common commit is one read and one batch of writes.
    Hints are given to listeners once the transaction is durable.
    """

    codec: Codec
    writes: list[Query] = field(default_factory=list[Query])
    hints: set[Hint] = field(default_factory=set[Hint])
    drafts: dict[str, Draft] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    """The runs that this transaction has locked, by id."""

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────
    def write(self, name: str, /, **params: Any) -> None:
        """A statement whose rows nobody looks at."""
        self.writes.append(Query(name, params))

    def send(self, name: str, params: Mapping[str, Any]) -> None:
        """As `write`, for parameters that are a mapping already."""
        self.writes.append(Query(name, params))

    def read(self, *queries: Query) -> Program[Sequence[Rows]]:
        """Send these after what was written so far; answers the rows of each."""
        before, self.writes = self.writes, []
        rows = yield (*before, *queries)
        return rows[len(before) :]

    def rows(self, name: str, /, **params: Any) -> Program[Rows]:
        """The rows of one query."""
        [rows] = yield from self.read(Query(name, params))
        return rows

    def row(self, name: str, /, **params: Any) -> Program[Row | None]:
        """The first row of one query, if any."""
        [rows] = yield from self.read(Query(name, params))
        return rows[0] if rows else None

    def clock(self) -> Program[int]:
        """The store's clock, in microseconds."""
        [rows] = yield from self.read(CLOCK)
        return rows[0]["now"]

    def finish(self) -> list[Query]:
        """What is left to write before the COMMIT, once the program has returned."""
        for draft in self.drafts.values():
            draft.save()
        return self.writes

    # ── values ─────────────────────────────────────────────────────────────────────────────────────────────
    def seal(self, value: Any) -> bytes | None:
        """JSON of a clean value through the codec; None stays None, so that the column says "nothing"."""
        return None if value is None else self.codec.encode(to_json(value))

    def unseal(self, stored: bytes | None) -> Any:
        """What `seal` stored."""
        return None if stored is None else rule.load(self.codec.decode(bytes(stored)))

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def news(self, run_id: str) -> None:
        """This run has events that were not there before."""
        self.hints.add(Hint("news", run_id))

    def moved(self, run_id: str) -> None:
        """This run may have another status, and events."""
        self.hints.add(Hint("run", run_id))

    def claimable(self) -> None:
        """Some run may be claimed now."""
        self.hints.add(Hint("work"))


Verb = Callable[[Work], Program[T]]
"""Makes a fresh program: what is repeated is driven from its beginning."""

CLOCK = Query("clock", {})
NOTHING = Query("nothing", {})
"""Answers no rows and costs no round trip: it keeps the place of a query that is not needed."""
