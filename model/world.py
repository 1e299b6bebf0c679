"""The values of the run model: one run as its store keeps it, its workers, and what cannot be seen from inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from perdure.core.effect import EffectState
from perdure.core.run import RunStatus

PLANNED, STARTED, DONE, FAILED_EFFECT, UNKNOWN = EffectState
PENDING, RUNNING, WAITING, INTERRUPTED, COMPLETED, FAILED, CANCELLED = RunStatus

DEATHS_MAX = 2
"""Deaths in a row that the model allows: the smallest number that is not one."""

Question = Literal["", "open", "yes", "no", "got", "expired", "failed", "cancelled", "run", "reuse", "block"]
"""A wait row: none, open, or how it was closed. `failed`: an expiry whose option is `fail`."""


class Call(NamedTuple):
    """One call of the response of one generation, as store rows. The last three fields are not stored: they are what really happened."""

    effect: EffectState = PLANNED
    approval: Question = ""
    held: Question = ""
    event: Question = ""
    asked: bool = False
    """An open wait row of kind `effect`."""
    answered: bool = False
    """A tool step with the result of a plain call."""
    due: bool = False
    """The open row's `expires_at` has passed."""
    tries: int = 0
    """1: failed for certain and to be tried again; 2: the second try."""
    told_expired: bool = False
    """Somebody answered too late and was told so."""
    spent: bool = False
    """A permission to run the body was given, and nobody has said since that it did not happen."""
    deed: bool = False
    """It happened, outside."""
    permitted: bool = False
    """A person's "run it" that is still good (only where the rule that uses it up is taken away)."""
    gate_failed: bool = False
    """The ledger says failed although the body only asked for an approval."""

    def open(self) -> bool:
        return self.asked or "open" in (self.approval, self.held, self.event)


class Life(NamedTuple):
    """One generation: its tail (`none`, `request`, `calls`, `text`, `cut`), how many responses it has stored, its calls, its budget rows."""

    calls: tuple[Call, ...]
    tail: str = "none"
    responses: int = 0
    budget_rows: int = 0
    topups: int = 0

    def open(self) -> bool:
        return self.budget_rows > 0 or any(call.open() for call in self.calls)


class Row(NamedTuple):
    """The run's row."""

    status: RunStatus = PENDING
    life: int = 0
    cancel: bool = False
    deaths: int = 0
    later: bool = False
    overdue: bool = False
    lease_out: bool = False
    inbox: bool = False
    """A signal lies there."""
    signal_taken: bool = False


Part = tuple[str, int]
"""One part of a commit: what it writes, and about which call (-1: none)."""


class Worker(NamedTuple):
    """One process. `at` is what it is doing: `idle`, `model`, `plain`, `verify`, `body`, `output`, `choose`, `commit`."""

    at: str = "idle"
    call: int = -1
    commit: tuple[Part, ...] = ()
    sent: bool = False
    """The commit is applied; its reply is on the way."""
    reply_lost: bool = False
    hears: bool = False
    """The answer under way says that a cancel was asked for."""
    current: bool = False
    """Its claim is the row's latest."""
    knows: bool = False
    """It has heard of the cancel."""
    drains: bool = False
    uncalled: int = -1
    """The call whose `started` it wrote and whose body it has not called."""
    local: tuple[int, ...] = ()
    """Results of plain calls that are in memory only."""
    seen_topups: int = 0
    performed: bool = False
    started_under_cancel: bool = False
    """Its `started` was applied after the cancel was accepted."""


IDLE = Worker()


class World(NamedTuple):
    """Everything there is."""

    row: Row
    lives: tuple[Life, ...]
    workers: tuple[Worker, ...]
    orphans: tuple[tuple[int, int], ...] = ()
    """Bodies (life, call) that go on although their worker gave up or lost the run."""
    lists: tuple[str, ...] = ()
    """What each sweeper has read: nothing, `fresh` (that claim is still the latest) or `stale`."""
    repeat: tuple[str, bool] | None = None
    """A request whose reply was lost and that its client will send again, and whether the settlement it meant is still the latest."""
    lied: bool = False
    """Somebody has given an untrue answer."""

    @property
    def life(self) -> Life:
        """The current generation."""
        return self.lives[self.row.life]

    def with_row(self, **changes: object) -> World:
        return self._replace(row=self.row._replace(**changes))  # type: ignore[arg-type]

    def with_life(self, **changes: object) -> World:
        return self.in_life(self.row.life, **changes)

    def in_life(self, number: int, **changes: object) -> World:
        lives = list(self.lives)
        lives[number] = lives[number]._replace(**changes)  # type: ignore[arg-type]
        return self._replace(lives=tuple(lives))

    def with_call(self, call: int, **changes: object) -> World:
        return self.in_call(self.row.life, call, **changes)

    def in_call(self, number: int, call: int, **changes: object) -> World:
        calls = list(self.lives[number].calls)
        calls[call] = calls[call]._replace(**changes)  # type: ignore[arg-type]
        return self.in_life(number, calls=tuple(calls))

    def with_worker(self, which: int, worker: Worker) -> World:
        workers = list(self.workers)
        workers[which] = worker
        return self._replace(workers=tuple(workers))


Unknown = Literal["plain", "ask", "verify", "retry", "event"]


@dataclass(frozen=True, slots=True)
class Tool:
    """One call of the response: `plain`, an effect by what it does when unknown, or an `event` (the tool ends with a wait)."""

    kind: Unknown = "plain"
    gated: bool = False
    gate_in_body: bool = False
    retries: bool = False

    @property
    def is_effect(self) -> bool:
        return self.kind in ("ask", "verify", "retry")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A small world: which tools, how many workers and lives, and what may happen to them."""

    name: str
    about: str
    tools: tuple[Tool, ...]
    may: frozenset[str]
    """`crash stall lost lost-claim cancel drain resume full repeat error later deadline due extend raise abandon signal refuse leases early merge`."""
    workers: int = 2
    lives: int = 1
    sweepers: int = 0
    on_expiry: Literal["deny", "fail"] = "deny"
    on_limit: Literal["stop", "fail", "pause"] = "stop"
    max_steps: int = 5
    cut: bool = False
    kills: bool = False
    """The tool kills its process."""
    truthful: bool = False
    """People always tell the truth, and 'run it' is pressed only when the engine allows it."""
    deep: bool = False
    """Too large for every day: explored with `--deep`."""

    def tracks(self, call: int) -> bool:
        """Whether anybody ever looks at the outside world: only then is it part of the state."""
        return self.truthful or self.tools[call].kind == "verify"
