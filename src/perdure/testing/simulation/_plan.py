"""What goes wrong in one simulation: a list of faults, drawn from a seed, and shrunk by leaving some out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from perdure.testing.simulation._port import CallFault, CallFaultKind

Where = Literal["wire", "replica", "clock", "hint", "model", "tool", "people"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. `unit` is what `Fault.at` counts; `seconds` the range of its length; `weight` how often it is drawn."""

    where: Where
    unit: str
    most: int
    says: str
    seconds: tuple[float, float] = (0.0, 0.0)
    weight: int = 2


KINDS: Final[dict[str, Kind]] = {
    # On the way to the store and back: at a commit, or at any call (claims and sweeps are most of those).
    "crash_before": Kind("wire", "store call", 120, "dies before its call is applied"),
    "reply_lost": Kind("wire", "store call", 120, "dies after its call is applied, before it hears so"),
    "crash_after": Kind("wire", "store call", 120, "dies right after it heard the answer"),
    "error_before": Kind("wire", "store call", 120, "can't reach the store"),
    "error_after": Kind("wire", "store call", 120, "loses the reply and has to ask again"),
    "slow_request": Kind("wire", "store call", 120, "its call is slow to arrive", (0.5, 15.0)),
    "slow_reply": Kind("wire", "store call", 120, "the reply is slow to arrive", (0.5, 15.0), weight=4),
    "commit_crash_before": Kind("wire", "commit", 25, "dies before its commit is applied"),
    "commit_reply_lost": Kind("wire", "commit", 25, "dies after its commit is applied, before it hears so", weight=3),
    "commit_crash_after": Kind("wire", "commit", 25, "dies right after its commit was acknowledged"),
    "commit_error_before": Kind("wire", "commit", 25, "can't reach the store for its commit"),
    "commit_error_after": Kind("wire", "commit", 25, "loses the reply of its commit and has to ask again", weight=4),
    "commit_slow_request": Kind("wire", "commit", 25, "its commit is slow to arrive", (0.5, 15.0)),
    "commit_slow_reply": Kind("wire", "commit", 25, "the reply of its commit is slow to arrive", (0.5, 15.0)),
    "claim_reply_lost": Kind("wire", "claim that took", 5, "dies after its claim is applied, before it hears so"),
    "claim_error_after": Kind("wire", "claim that took", 5, "loses the reply of its claim"),
    "claim_slow_reply": Kind("wire", "claim that took", 5, "the reply of its claim is slow to arrive", (9.5, 16.0), weight=8),
    "renew_error_before": Kind("wire", "renew", 8, "can't renew its leases"),
    "renew_slow_request": Kind("wire", "renew", 8, "its renewal is slow to arrive", (5.0, 16.0)),
    # To a process, while it works on something.
    "crash": Kind("replica", "busy callback", 2_000, "dies before a callback", weight=4),
    "pause": Kind("replica", "busy callback", 2_000, "is stopped", (5.0, 22.0), weight=8),
    "clock_jump": Kind("clock", "ms", 40_000, "its wall clock jumps", (-3_600.0, 3_600.0)),
    "drain": Kind("clock", "ms", 40_000, "is told to drain, and started again"),
    "deploy": Kind("clock", "ms", 40_000, "is drained, and started with a changed agent"),
    # To what is only a hint.
    "hint_lost": Kind("hint", "hint", 60, "a hint is lost"),
    "hint_doubled": Kind("hint", "hint", 60, "a hint comes twice"),
    "hint_late": Kind("hint", "hint", 60, "a hint is late", (1.0, 20.0)),
    # To the model.
    "model_error": Kind("model", "model call", 25, "the provider answers 500"),
    "model_busy": Kind("model", "model call", 25, "the provider answers 429", (0.5, 60.0)),
    "model_cut": Kind("model", "model call", 25, "the stream ends without a finish part"),
    "model_slow": Kind("model", "model call", 25, "the model is slow", (5.0, 40.0)),
    # To a tool.
    "tool_raises": Kind("tool", "tool call", 15, "the tool raises"),
    "tool_slow": Kind("tool", "tool call", 15, "the tool is slow", (5.0, 40.0)),
    "tool_blocks": Kind("tool", "tool call", 15, "the tool blocks the event loop", (5.0, 40.0)),
    "tool_swallows": Kind("tool", "tool call", 15, "the tool is slow and swallows cancellation", (5.0, 40.0)),
    "tool_dies": Kind("tool", "tool call", 15, "the tool ends the process in mid-deed"),
    "tool_dies_after": Kind("tool", "tool call", 15, "the process ends right after the deed"),
    # From people.
    "cancel": Kind("people", "ms", 30_000, "somebody cancels a run"),
    "cancel_twice": Kind("people", "ms", 30_000, "somebody cancels a run, twice at once"),
    "retry": Kind("people", "ms", 60_000, "somebody retries a run, if it has failed or was cancelled"),
    "retry_full": Kind("people", "ms", 60_000, "somebody retries a run from its trigger"),
    "start_again": Kind("people", "ms", 30_000, "somebody starts a run again under its key"),
}  # fmt: skip
"""Every kind of fault."""

OWN_COUNT: Final = frozenset({"commit", "renew"})
"""Verbs that are counted by themselves as well, so that a fault can be aimed at them."""

CRASHES: Final = frozenset(
    {
        "crash_before", "reply_lost", "crash_after", "commit_crash_before", "commit_reply_lost", "commit_crash_after", "claim_reply_lost", "crash",
        "tool_dies", "tool_dies_after",
    }
)  # fmt: skip
CRASHES_MAX: Final = 4
"""Crashes in one plan: fewer than the deaths that make a run poisoned, so that a poisoned run is always a finding."""

FAULTS_MAX: Final = 14
"""Faults in one plan. More than this only bury each other."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: `kind` at the `at`th event of its unit, on replica `slot` (where it is about a replica) or run `slot` (people)."""

    kind: str
    slot: int
    at: int
    seconds: float = 0.0

    @property
    def where(self) -> Where:
        return KINDS[self.kind].where

    def __str__(self) -> str:
        kind = KINDS[self.kind]
        who = f"replica {self.slot}" if kind.where in ("wire", "replica", "clock", "hint") else f"run {self.slot}" if kind.where == "people" else ""
        length = f", {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind} ({kind.says}): {' '.join(filter(None, [who, kind.unit, str(self.at)]))}{length}"


Plan = tuple[Fault, ...]


def plan_for(seed: int, *, replicas: int, runs: int, kinds: Sequence[str] | None = None) -> Plan:
    """The faults of a seed. One seed in sixteen has none: a simulation without faults is a case too."""
    chance = random.Random(f"plan/{seed}")
    if chance.random() < 1 / 16:
        return ()
    names = list(kinds or KINDS)
    weights = [KINDS[name].weight for name in names]
    faults: list[Fault] = []
    crashes = 0
    for _ in range(1 + int(chance.random() ** 1.5 * FAULTS_MAX)):
        name = chance.choices(names, weights)[0]
        kind = KINDS[name]
        crashes += name in CRASHES
        if name in CRASHES and crashes > CRASHES_MAX:
            continue
        slots = runs if kind.where == "people" else replicas
        # Early events are where most of the work is, so small numbers are drawn more often.
        at = 1 + int(chance.random() ** 2 * kind.most)
        low, high = kind.seconds
        faults.append(Fault(name, int(chance.random() * slots), at, round(low + chance.random() * (high - low), 3)))
    return tuple(sorted(set(faults), key=lambda fault: (fault.kind, fault.slot, fault.at)))


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, tries_max: int = 200) -> Plan:
    """The smallest plan that still fails, found by leaving out halves, quarters and so on down to single faults."""
    tries = 0
    size = max(1, len(plan) // 2)
    while True:
        for smaller in _without(plan, size):
            if tries >= tries_max:
                return plan
            tries += 1
            if fails(smaller):
                plan = smaller
                size = min(size, max(1, len(plan) // 2))
                break
        else:
            if size == 1:
                return plan
            size = max(1, size // 2)
        if not plan:
            return plan


def _without(plan: Plan, size: int) -> Iterator[Plan]:
    for start in range(0, len(plan), size):
        yield plan[:start] + plan[start + size :]


class WireFaults:
    """The plan as one replica's wire sees it. Counts over all lives of the replica."""

    def __init__(self, plan: Plan, slot: int, struck: Callable[[Fault], None]) -> None:
        self._struck = struck
        self._due = {(KINDS[fault.kind].unit, fault.at): fault for fault in plan if fault.where in ("wire", "hint") and fault.slot == slot}
        self._counts: Counter[str] = Counter()

    def on_call(self, verb: str, number: int) -> CallFault | None:
        fault = (self._next(verb) if verb in OWN_COUNT else None) or self._next("store call")
        if fault is None:
            return None
        return CallFault(cast(CallFaultKind, fault.kind.removeprefix(f"{verb}_")), fault.seconds)

    def on_claimed(self) -> CallFault | None:
        fault = self._next("claim that took")
        return None if fault is None else CallFault(cast(CallFaultKind, fault.kind.removeprefix("claim_")), fault.seconds)

    def on_hint(self) -> Sequence[float]:
        fault = self._next("hint")
        if fault is None:
            return (0.0,)
        return {"hint_lost": (), "hint_doubled": (0.0, 0.01), "hint_late": (fault.seconds,)}[fault.kind]

    def _next(self, unit: str) -> Fault | None:
        self._counts[unit] += 1
        fault = self._due.pop((unit, self._counts[unit]), None)
        if fault is not None:
            self._struck(fault)
        return fault
