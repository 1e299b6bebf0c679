"""What the store does: table R's moves, the parts of a commit (tables C, E, W), answers. Pure functions from world to world."""

from __future__ import annotations

from collections.abc import Callable

from model.rules import Ruled
from model.world import (
    CANCELLED,
    COMPLETED,
    DEATHS_MAX,
    DONE,
    FAILED,
    FAILED_EFFECT,
    INTERRUPTED,
    PENDING,
    PLANNED,
    STARTED,
    UNKNOWN,
    WAITING,
    Call,
    Scenario,
    Tool,
    World,
)
from perdure.core.run import RunStatus, rest, settled_as

ENDINGS = ("park", "drained", "later", "completed", "failed", "cancelled")
PROGRESS = {"response", "cut", "text", "done", "failed effect", "gate", "answers", "feedback"}
"""Parts that always store a response or an answer. Those that may open a wait row are judged by whether they did."""


class Store(Ruled):
    """The store of one run."""

    def __init__(self, scenario: Scenario, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.scenario = scenario

    # ── moves of the run ───────────────────────────────────────────────────────────────────────────────────
    def rows_open(self, w: World) -> bool:
        """Whether a wait row is open that counts."""
        return w.life.open() if self.rule("generation") else any(life.open() for life in w.lives)

    def come_to_rest(self, w: World, target: RunStatus, *, parks: bool = False) -> World:
        """The one rule of rest. Without it each verb goes its own way, and only a park looks at the rows."""
        if not self.rule("rest"):
            w = self.end_claim(w)
            return w.with_row(status=WAITING if parks and self.rows_open(w) else target, lease_out=False)
        ended = self.end_claim(w)
        status = rest(target, cancel_requested=w.row.cancel, open_waits=int(self.rows_open(ended)))
        return self.become_final(w, CANCELLED) if status is CANCELLED else ended.with_row(status=status, lease_out=False)

    def become_final(self, w: World, status: RunStatus) -> World:
        """Everything that an entry into a final status does in its commit."""
        if self.rule("cancel-wins"):
            status = settled_as(status, cancel_requested=w.row.cancel)
        if self.rule("close"):
            for number, life in enumerate(w.lives):
                for i, call in enumerate(life.calls):
                    w = w.in_call(number, i, **closed(call))
                w = w.in_life(number, budget_rows=0)
        w = self.end_claim(w)
        if w.repeat is not None:
            w = w._replace(repeat=(w.repeat[0], False))
        return w.with_row(status=status, later=False, lease_out=False, cancel=False)

    def end_claim(self, w: World) -> World:
        """No `started` outlives its claim."""
        if self.rule("started"):
            for i, call in enumerate(w.life.calls):
                if call.effect is STARTED:
                    w = self.make_unknown(w, i)
        return w

    def make_unknown(self, w: World, i: int) -> World:
        """Unknown, and the question with it where a person is to say."""
        return w.with_call(i, effect=UNKNOWN, asked=self.scenario.tools[i].kind == "ask" and not w.life.calls[i].permitted)

    def row_closed(self, w: World) -> World:
        """A wait row was closed: the last one wakes the run."""
        if w.row.status is WAITING and not self.rows_open(w) and self.rule("wake"):
            return w.with_row(status=PENDING)
        return w

    def sweep(self, w: World) -> World:
        """The claim's lease has run out."""
        deaths = w.row.deaths + 1
        w = w.with_row(deaths=min(deaths, DEATHS_MAX))
        if deaths >= DEATHS_MAX and self.rule("deaths"):
            return self.become_final(w, FAILED)
        return self.come_to_rest(w, PENDING)

    def retry(self, w: World, *, full: bool) -> World:
        """A failed or cancelled run comes back."""
        w = w.with_row(cancel=False, deaths=0, later=False, overdue=False)
        if full:
            w = w.with_row(life=1)
            if self.rule("signals-back") and w.row.signal_taken:
                w = w.with_row(inbox=True, signal_taken=False)
        return w.with_row(status=WAITING if self.rows_open(w) else PENDING)

    # ── parts of a commit ──────────────────────────────────────────────────────────────────────────────────
    def part(self, w: World, k: int, name: str, i: int) -> World:
        """Apply one part of worker k's commit."""
        return self._PARTS[name](self, w, k, i)

    def progressed(self, before: World, after: World, commit: tuple[tuple[str, int], ...]) -> bool:
        """Whether the commit stored a response, an answer or a new wait row."""
        if any(name in PROGRESS for name, _ in commit) or not self.rule("progress"):
            return True
        if not any(name in ("questions", "budget", "unknown", "park") for name, _ in commit):
            return False
        calls = zip(before.life.calls, after.life.calls, strict=True)
        return after.life.budget_rows > before.life.budget_rows or any((b.open() and not a.open()) or b.answered > a.answered for a, b in calls)

    def _response(self, w: World, k: int, i: int) -> World:
        return w.with_life(tail="calls", responses=w.life.responses + 1)

    def _cut(self, w: World, k: int, i: int) -> World:
        return w.with_life(tail="cut", responses=w.life.responses + 1)

    def _text(self, w: World, k: int, i: int) -> World:
        return w.with_life(tail="text", responses=w.life.responses + 1)

    def _feedback(self, w: World, k: int, i: int) -> World:
        return w.with_life(tail="request")

    def _error(self, w: World, k: int, i: int) -> World:
        return w

    def _start(self, w: World, k: int, i: int) -> World:
        call = w.life.calls[i]
        worker = w.workers[k]._replace(uncalled=i, started_under_cancel=w.row.cancel)
        return w.with_call(i, effect=STARTED, spent=True, tries=2 if call.tries == 1 else call.tries).with_worker(k, worker)

    def _done(self, w: World, k: int, i: int) -> World:
        return w.with_call(i, effect=DONE)

    def _failed_effect(self, w: World, k: int, i: int) -> World:
        return w.with_call(i, effect=FAILED_EFFECT, spent=False)

    def _again(self, w: World, k: int, i: int) -> World:
        return w.with_call(i, effect=PLANNED if self.rule("tries") else FAILED_EFFECT, spent=False, tries=1)

    def _gate(self, w: World, k: int, i: int) -> World:
        if self.rule("gate"):
            return w.with_call(i, effect=PLANNED, spent=False, approval="open", due=False)
        return w.with_call(i, effect=FAILED_EFFECT, spent=False, approval="open", due=False, gate_failed=True)

    def _unknown(self, w: World, k: int, i: int) -> World:
        return self.make_unknown(w, i)

    def _questions(self, w: World, k: int, i: int) -> World:
        """Open a row for each call that waits for a word, and keep what plain calls have answered."""
        w = self._keep_local(w, k)
        for j, need in self.needs(w, k):
            if need == "approve":
                w = w.with_call(j, approval="open", due=False, told_expired=False)
            elif need == "hold":
                w = w.with_call(j, held="open")
            elif need == "event" and w.row.inbox:
                w = w.with_row(inbox=False, signal_taken=True).with_call(j, event="got")
            elif need == "event":
                w = w.with_call(j, event="open", due=False)
        return w

    def _budget(self, w: World, k: int, i: int) -> World:
        """Open a budget row, unless the top-up came between the look and the write."""
        if self.rule("look-first") and w.life.topups > w.workers[k].seen_topups:
            return w
        return w.with_life(budget_rows=w.life.budget_rows + 1)

    def _answers(self, w: World, k: int, i: int) -> World:
        return self._keep_local(w, k).with_life(tail="request")

    def _keep_local(self, w: World, k: int) -> World:
        for j in w.workers[k].local:
            w = w.with_call(j, answered=True)
        return w.with_worker(k, w.workers[k]._replace(local=()))

    def _withdraw(self, w: World, k: int) -> World:
        """The owner knows which body it never called, and says so in the commit that ends its claim."""
        i = w.workers[k].uncalled
        if i >= 0 and w.life.calls[i].effect is STARTED and self.rule("withdraw"):
            w = w.with_call(i, effect=PLANNED, spent=False)
        return w

    def _park(self, w: World, k: int, i: int) -> World:
        return self.come_to_rest(self._keep_local(w, k), PENDING, parks=True)

    def _drained(self, w: World, k: int, i: int) -> World:
        return self.come_to_rest(self._keep_local(self._withdraw(w, k), k), INTERRUPTED)

    def _later(self, w: World, k: int, i: int) -> World:
        return self.come_to_rest(w.with_row(later=True), PENDING)

    def _completed(self, w: World, k: int, i: int) -> World:
        return self.become_final(w, COMPLETED)

    def _failed(self, w: World, k: int, i: int) -> World:
        return self.become_final(self._withdraw(w, k), FAILED)

    def _cancelled(self, w: World, k: int, i: int) -> World:
        return self.become_final(self._withdraw(w, k), CANCELLED)

    _PARTS: dict[str, Callable[[Store, World, int, int], World]] = {  # noqa: RUF012  # a table, never changed
        "response": _response, "cut": _cut, "text": _text, "feedback": _feedback, "error": _error, "start": _start, "done": _done,
        "failed effect": _failed_effect, "again": _again, "gate": _gate, "unknown": _unknown, "questions": _questions, "budget": _budget,
        "answers": _answers, "park": _park, "drained": _drained, "later": _later, "completed": _completed, "failed": _failed, "cancelled": _cancelled,
    }  # fmt: skip

    # ── what the rows say about each call ──────────────────────────────────────────────────────────────────
    def needs(self, w: World, k: int) -> list[tuple[int, str]]:
        """Each call of the response with what it needs next; calls behind an unanswered effect can't be held or started yet."""
        found: list[tuple[int, str]] = []
        first = True
        for i, tool in enumerate(self.scenario.tools):
            need = self.need(w, k, i, tool)
            if tool.is_effect and not first and need in ("start", "verify", "hold"):
                need = "turn"
            if tool.is_effect and need != "answered":
                first = False
            found.append((i, need))
        return found

    def need(self, w: World, k: int, i: int, tool: Tool) -> str:
        """What one call needs: `answered`, `wait`, `approve`, `hold`, `event`, `plain`, `start`, `ask`, `verify`."""
        call = w.life.calls[i]
        if call.open():
            return "wait"
        if tool.is_effect and call.effect in (DONE, FAILED_EFFECT):
            return "answered"
        if call.effect in (UNKNOWN, STARTED):
            if call.permitted:
                return "start"
            return {"ask": "ask", "retry": "start", "verify": "verify"}[tool.kind]
        if call.answered or i in w.workers[k].local:
            return "answered"
        if tool.gated or (tool.gate_in_body and call.approval):
            if call.approval in ("no", "expired"):
                return "answered"
            if call.approval != "yes":
                return "approve"
        if tool.is_effect and self.is_held(w, i) and call.held != "run":
            return "answered" if call.held in ("reuse", "block") else "hold"
        if tool.kind == "event":
            return "answered" if call.event in ("got", "expired") else "event"
        return "start" if tool.is_effect else "plain"

    def is_held(self, w: World, i: int) -> bool:
        """Whether an earlier life may have performed the same effect."""
        return self.rule("hold") and w.row.life == 1 and w.lives[0].calls[i].effect in (STARTED, DONE, UNKNOWN)


def closed(call: Call) -> dict[str, object]:
    """The open rows of a call, closed by an entry into a final status; those of kind `effect` stay."""
    changes: dict[str, object] = {"due": False}
    for name in ("approval", "held", "event"):
        if getattr(call, name) == "open":
            changes[name] = "cancelled"
    return changes
