"""What a run waits for, as a card that says what to type."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, cast

from rich.text import Text

from perdure.cli._open import STORE_DEFAULT, STORE_VARIABLE
from perdure.cli._words import ago, brief, clock, safe, tail
from perdure.core.family import waits_for_room
from perdure.core.wait import WaitPoint
from perdure.engine import Engine

FIELDS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Here:
    """How the next command finds the same store and the same program."""

    app: str | None
    address: str

    @classmethod
    def of(cls, engine: Engine, app: str | None) -> Here:
        return cls(app, str(engine.store.info().get("address", "")))

    @property
    def shared(self) -> bool:
        """Whether another process can see this store at all."""
        return not self.address.startswith("memory")

    def command(self, text: str) -> str:
        """A command line for this store."""
        if self.address in (STORE_DEFAULT, os.environ.get(STORE_VARIABLE)):
            return f"perdure {text}"
        if self.address.startswith("sqlite:"):
            return f"perdure {text} --store {shlex.quote(self.address)}"
        # Another address may hold a password, which is not for showing.
        return f"perdure {text} --app {shlex.quote(self.app)}" if self.app else f"perdure {text}"

    def go_on(self, run_id: str) -> str:
        """What executes the run further, here."""
        return f"perdure continue {shlex.quote(self.app or 'APP')} {tail(run_id)}"


def title(wait: WaitPoint) -> str:
    """What is waited for, in a few words."""
    row = wait.row
    match wait.kind:
        case "approval" if row.data.get("held"):
            return f"{row.tool} may have run before: run it again?"
        case "approval":
            return f"approval of {row.tool}"
        case "effect":
            return f"outcome unknown: {row.tool}"
        case "event" if row.child is not None:
            return f"the end of run {tail(row.child)}"
        case "event":
            return f"event {row.name!r}"
        case "timer":
            return "a timer"
        case "budget" if row.data.get("quota"):
            return "the provider's quota"
        case "budget" if waits_for_room(row):
            return f"room under the budget of run {tail(row.data.get('cap') or wait.run_id)}: another call is in flight"
        case "budget" if row.data.get("of"):
            return f"more budget for run {tail(row.data['of'])}, whose budget it shares: {row.data.get('limit', 'a limit')} is reached"
        case "budget":
            return f"more budget: {row.data.get('limit', 'a limit')} is reached"
        case _:
            return "an operator"


def card(wait: WaitPoint, here: Here, now: datetime) -> list[Text]:
    """A wait point: what is asked, about what, until when, and what to type."""
    lines = [Text("  ◆ waits for ", style="yellow").append(safe(title(wait)), style="bold yellow").append(f"  {tail(wait.id)}", style="bright_black")]
    lines += _input(wait.row.input)
    lines += [Text(f"    {line}", style="bright_black") for line in _facts(wait, now)]
    if not here.shared:
        return [*lines, Text("    Its store is memory: no other process can answer.", style="bright_black")]
    return [*lines, *(Text(f"    {here.command(each)}", style="cyan") for each in _commands(wait))]


def _input(value: Any) -> list[Text]:
    if not isinstance(value, Mapping):
        return [] if value is None else [Text(f"    {brief(value, 200)}")]
    pairs = list(cast("Mapping[str, Any]", value).items())
    width = max((len(name) for name, _ in pairs), default=0)
    shown = [
        Text(f"    {safe(name).ljust(width)}  ", style="bright_black").append(
            brief(json.dumps(each, ensure_ascii=False, default=str), 200), style="default"
        )
        for name, each in pairs[:FIELDS_MAX]
    ]
    return shown if len(pairs) <= FIELDS_MAX else [*shown, Text(f"    … and {len(pairs) - FIELDS_MAX} more", style="bright_black")]


def _facts(wait: WaitPoint, now: datetime) -> list[str]:
    row, facts = wait.row, list[str]()
    data: Mapping[str, Any] = row.data
    if wait.kind == "effect":
        worker = data.get("worker") or "an unknown worker"
        since = f", started {clock(datetime.fromisoformat(data['started_at']))}" if data.get("started_at") else ""
        heard = f", last heard {clock(datetime.fromisoformat(data['last_heard']))}" if data.get("last_heard") else ""
        facts.append(f"by {safe(str(worker))}{since}{heard}")
        if data.get("error"):
            facts.append(brief(_message(data["error"]), 200))
    elif data.get("error") or data.get("message"):
        facts.append(brief(data.get("error") or data.get("message"), 200))
    policy: Mapping[str, Any] = data.get("policy") or {}
    if policy.get("quorum", 1) > 1:
        facts.append(f"{len(wait.votes)} of {policy['quorum']} approvals so far")
    if policy.get("approvers"):
        facts.append("for " + ", ".join(safe(str(each)) for each in policy["approvers"]))
    if row.expires_at is not None:
        lapsed = "then it tries again" if wait.kind == "budget" else "then the model is told that it lapsed"
        then = {"deny": lapsed, "fail": "then the run fails"}[row.on_expiry]
        what = "fires" if wait.kind == "timer" else "until"
        facts.append(f"{what} {clock(row.expires_at)} ({ago(row.expires_at, now)}{'' if wait.kind == 'timer' else '; ' + then})")
    return facts


def _message(error: Any) -> Any:
    return cast("Mapping[str, Any]", error).get("message", error) if isinstance(error, Mapping) else error


def _commands(wait: WaitPoint) -> list[str]:
    row, name = wait.row, tail(wait.id)
    decisions = list(row.data.get("decisions") or ())
    if wait.kind == "event" and row.child is None:
        return [f"signal {tail(wait.run_id)} {shlex.quote(row.name or 'NAME')} '{{}}'"]
    if wait.kind == "effect":
        key = shlex.quote(row.effect_key or "KEY")
        return [f"effects settle {key} done --result '\"…\"'", f"effects settle {key} run", f"effects settle {key} fail"]
    if decisions == ["approve", "deny"]:
        return [f"approvals approve {name}", f"approvals deny {name} --reason '…'"]
    return [f"approvals answer {name} {each}{' ' + _more(row.data) if each == 'top_up' else ''}" for each in decisions]


def _more(data: Mapping[str, Any]) -> str:
    """A top-up that goes on: twice the limit that was reached. What waits for the provider's quota needs none."""
    limit: str | None = data.get("limit")
    if limit is None:
        return "'{}'"
    budget: Mapping[str, Any] = data.get("budget") or {}
    now: str | int = budget.get(limit) or 1
    more = str(2 * Decimal(now)) if isinstance(now, str) else 2 * now
    return shlex.quote(json.dumps({limit: more}))
