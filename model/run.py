"""Tables R, C, T, E and W together: one run, its workers, people, time and faults. What may happen next, from any world."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model import claims
from model.checker import ENV, FAIR, FAULT, Step
from model.execution import Execution
from model.store import ENDINGS
from model.world import (
    CANCELLED,
    DONE,
    FAILED,
    FAILED_EFFECT,
    IDLE,
    INTERRUPTED,
    PENDING,
    PLANNED,
    RUNNING,
    UNKNOWN,
    WAITING,
    Call,
    Life,
    Row,
    Worker,
    World,
)

Moves = Iterator[tuple[Step, World]]


class RunModel(Execution):
    """One scenario of the run model."""

    always = claims.ALWAYS

    @property
    def steps(self) -> tuple[Callable[[World, Step, World], bool], ...]:
        """Every claim; those about the outside world only where everybody tells the truth about it."""
        return claims.STEPS if self.scenario.truthful else claims.STEPS_WITHOUT_TRUTH

    @property
    def name(self) -> str:
        return self.scenario.name

    def may(self, what: str) -> bool:
        return what in self.scenario.may

    def start(self) -> World:
        life = Life(calls=tuple(Call() for _ in self.scenario.tools))
        return World(Row(), (life,) * self.scenario.lives, (IDLE,) * self.scenario.workers, lists=("",) * self.scenario.sweepers)

    def rests(self, w: World) -> bool:
        """Final, or waiting for somebody."""
        return w.row.status.final or (w.row.status is WAITING and w.life.open())

    def moves(self, w: World) -> Moves:
        """Everything that may happen, each world in its shortest form."""
        for k, worker in enumerate(w.workers):
            if k and worker == w.workers[k - 1]:
                continue  # the same worker twice: the same moves twice
            yield from ((step, self.tidy(after)) for step, after in self._worker(w, k))
        for source in (self._time, self._people, self._bodies):
            yield from ((step, self.tidy(after)) for step, after in source(w))

    def tidy(self, w: World) -> World:
        """Forget what can't matter any more: a worker whose claim is gone can only be told *lost* (its body may go on); workers are alike."""
        if self.rule("fence"):
            workers = list(w.workers)
            for k, worker in enumerate(workers):
                if self._over(w, worker):
                    if worker.at == "body" and not worker.performed and self.scenario.tracks(worker.call):
                        w = self._orphan(w, worker.call)
                    workers[k] = IDLE
            w = w._replace(workers=tuple(workers))
        workers = tuple(sorted(w.workers))
        return w if workers == w.workers else w._replace(workers=workers)

    def _over(self, w: World, worker: Worker) -> bool:
        if worker.current and (w.row.status is RUNNING or (worker.sent and worker.commit[-1][0] in ENDINGS)):
            return False
        return worker.at != "idle"

    def _orphan(self, w: World, i: int) -> World:
        """The body of call i goes on by itself, though nobody listens."""
        if (w.row.life, i) in w.orphans or (not self.scenario.truthful and w.life.calls[i].deed):
            return w
        return w._replace(orphans=tuple(sorted((*w.orphans, (w.row.life, i)))))

    # ── workers ────────────────────────────────────────────────────────────────────────────────────────────
    def _worker(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        if worker.at == "idle":
            yield from self._claim(w, k)
            return
        if self.may("crash"):
            yield Step(FAULT, "crashes", f"({doing(worker)})"), w.with_worker(k, IDLE)
        if self.may("drain") and not worker.drains:
            yield Step(ENV, "is told to drain"), w.with_worker(k, worker._replace(drains=True))
        if worker.current and w.row.status is RUNNING and (w.row.lease_out or (w.row.cancel and not worker.knows)):
            yield Step(FAIR, "renews"), w.with_row(lease_out=False).with_worker(k, worker._replace(knows=w.row.cancel))
        yield from getattr(self, f"_at_{worker.at}")(w, k)

    def _claim(self, w: World, k: int) -> Moves:
        if not w.row.status.claimable or w.row.later:
            return
        others = tuple(other._replace(current=False) for other in w.workers)
        lists = tuple("stale" if read else "" for read in w.lists)
        w = w.with_row(status=RUNNING, lease_out=False)._replace(workers=others, lists=lists)
        if self.may("lost-claim"):
            yield Step(FAULT, "claims", "(its reply is lost: the worker never knows)", "claim", w.row.life), w
        loaded = w.row.life
        if not self.rule("checkpoint") and w.lives[0].responses > w.life.responses:
            loaded = 0
        w = w.with_worker(k, Worker(current=True, seen_topups=w.life.topups))
        for thought in self.think(w, k, loading=True):
            yield Step(FAIR, "claims", f"and loads: {doing(thought)}", "claim", loaded), w.with_worker(k, thought)

    def _stops(self, w: World, k: int) -> Moves:
        if stop := self.stop(w, w.workers[k]):
            yield Step(FAIR, "stops"), w.with_worker(k, self.sends(w.workers[k], stop))

    def _at_model(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        if self.stop(w, worker):
            yield from self._stops(w, k)
            return
        if self.may("error"):
            yield Step(FAULT, "the model call fails"), w.with_worker(k, self.sends(worker, (("error", -1),)))
        if self.may("later"):
            yield Step(FAULT, "the provider says Retry-After"), w.with_worker(k, self.sends(worker, (("later", -1),)))
        for detail, thought in self.after_model(w, k):
            yield Step(FAIR, "the model", detail), w.with_worker(k, thought)

    def _at_plain(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        if self.stop(w, worker):
            yield from self._stops(w, k)
        elif self.scenario.kills:
            yield Step(FAIR, "the tool kills its process"), w.with_worker(k, IDLE)
        else:
            ran = w.with_worker(k, worker._replace(local=tuple(sorted((*worker.local, worker.call)))))
            for thought in self.tools(ran, k):
                yield Step(FAIR, "plain call runs", f"({worker.call})", call=worker.call), ran.with_worker(k, thought)

    def _at_verify(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        i = worker.call
        if self.stop(w, worker):
            yield from self._stops(w, k)
        elif self.rule("verify-later") and self._alive(w, i):
            return  # the try before may still be running: its time limit is not over
        elif w.life.calls[i].deed:
            yield Step(FAIR, "verify says", "it happened", call=i), w.with_worker(k, self.sends(worker, (("done", i),)))
        else:
            said = w.with_call(i, spent=False)
            yield Step(FAIR, "verify says", "it did not happen", call=i), said.with_worker(k, self.begin(worker, i))

    def _alive(self, w: World, i: int) -> bool:
        """Whether a body of call i may still be running somewhere."""
        return (w.row.life, i) in w.orphans

    def _at_body(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        i, tool = worker.call, self.scenario.tools[worker.call]
        call = w.life.calls[i]
        if self.scenario.kills:
            yield Step(FAIR, "the body kills its process"), w.with_worker(k, IDLE)
            return
        if tool.gate_in_body and call.approval != "yes":
            yield Step(FAIR, "the body asks for approval", call=i), w.with_worker(k, self.sends(worker, (("gate", i),)))
            return
        if self.scenario.tracks(i) and not worker.performed:
            yield self._deed(w.with_worker(k, worker._replace(performed=True)), w.row.life, i)
        else:
            for thought in self.returned(w, k):
                yield Step(FAIR, "the body returns", call=i), w.with_worker(k, thought)
        if self.may("raise"):
            if not worker.performed:
                again = tool.retries and call.tries == 0
                part = ("again" if again else "failed effect", i)
                yield Step(FAULT, "the body fails for certain", call=i), w.with_worker(k, self.sends(worker, (part,)))
            yield Step(FAULT, "the body raises", "what proves nothing", call=i), w.with_worker(k, self.sends(worker, (("unknown", i),)))
        if self.may("abandon"):
            left = self._orphan(w, i) if self.scenario.tracks(i) and not worker.performed else w
            detail = "and gives up on the body, which goes on"
            yield Step(FAULT, "the grace is over", detail, call=i), left.with_worker(k, self.sends(worker, (("unknown", i),)))

    def _deed(self, w: World, life: int, i: int) -> tuple[Step, World]:
        return Step(FAIR, "the deed happens", f"({i})", call=i), w.in_call(life, i, deed=True)

    def _at_output(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        yield Step(FAIR, "validators accept"), w.with_worker(k, self.sends(worker, (("completed", -1),)))
        yield Step(FAIR, "validators refuse"), w.with_worker(k, self.sends(worker, (("feedback", -1),)))

    def _at_commit(self, w: World, k: int) -> Moves:
        worker = w.workers[k]
        what = " + ".join(name if i < 0 else f"{name} {i}" for name, i in worker.commit)
        if not worker.sent:
            if w.row.status is RUNNING and (worker.current or not self.rule("fence")):
                applied = self._apply(w, k)
                verb = {"drained": "release", "later": "release", "park": "park"}.get(worker.commit[-1][0], "commit")
                verb = "settle" if worker.commit[-1][0] in ("completed", "failed", "cancelled") else verb
                if self.may("lost"):
                    yield Step(FAIR, "commits", what, verb), applied
                else:
                    yield from self._replies(applied, k, Step(FAIR, "commits", what, verb))
            else:
                yield Step(FAIR, "is told: lost", what), w.with_worker(k, IDLE)
        elif not worker.reply_lost:
            yield from self._replies(w, k, Step(FAIR, "hears: applied", what))
            yield Step(FAULT, "its reply is lost", what), w.with_worker(k, worker._replace(reply_lost=True))
        else:
            yield from self._repeats(w, k, what)

    def _apply(self, w: World, k: int) -> World:
        before, parts = w, w.workers[k].commit
        for name, i in parts:
            w = self.part(w, k, name, i)
        if self.progressed(before, w, parts) and w.row.deaths:
            w = w.with_row(deaths=0)
        return w.with_worker(k, w.workers[k]._replace(sent=True, hears=before.row.cancel))

    def _replies(self, w: World, k: int, step: Step) -> Moves:
        for thought in self.replied(w, k):
            yield step, w.with_worker(k, thought)

    def _repeats(self, w: World, k: int, what: str) -> Moves:
        """The same commit again, with the same number."""
        worker = w.workers[k]
        ended = worker.commit[-1][0] in ENDINGS
        if not self.rule("commit-no") and worker.current and w.row.status is RUNNING:
            again = self._apply(w, k)
            yield from self._replies(again, k, Step(FAIR, "repeats, and it is written again:", what, "commit"))
        elif worker.current and (w.row.status is RUNNING or (ended and self.rule("token"))):
            fresh = w.with_worker(k, worker._replace(hears=worker.hears or (w.row.cancel and w.row.status is RUNNING)))
            yield from self._replies(fresh, k, Step(FAIR, "repeats and hears: already applied", what))
        else:
            yield Step(FAIR, "repeats and hears: lost", what), w.with_worker(k, IDLE)

    # ── bodies that nobody listens to ──────────────────────────────────────────────────────────────────────
    def _bodies(self, w: World) -> Moves:
        for life, i in w.orphans:
            left = w._replace(orphans=tuple(each for each in w.orphans if each != (life, i)))
            yield self._deed(left, life, i)
            yield Step(FAIR, "the abandoned body ends", "without the deed", call=i), left

    # ── time and sweeps ────────────────────────────────────────────────────────────────────────────────────
    def _time(self, w: World) -> Moves:
        status = w.row.status
        if status is RUNNING:
            yield from self._leases(w)
        for s, read in enumerate(w.lists):
            if read:
                yield from self._acts_on_list(w, s, read)
        if w.row.later:
            yield Step(FAIR, "time:", "available"), w.with_row(later=False)
        if self.may("deadline") and not w.row.overdue and not status.final:
            yield Step(ENV, "time:", "the run's deadline"), w.with_row(overdue=True)
        if w.row.overdue and status in (PENDING, INTERRUPTED, WAITING):
            yield Step(FAIR, "sweep:", "the deadline", "sweep"), self.become_final(w, FAILED)
        for life, i, call in rows(w):
            if "open" not in (call.approval, call.event):
                continue
            if self.may("due") and not call.due:
                yield Step(ENV, "time:", f"the row of call {i} is due", call=i), w.in_call(life, i, due=True)
            if call.due or not self.rule("late"):
                yield from self._expires(w, life, i, call)

    def _leases(self, w: World) -> Moves:
        """The lease of a dead owner runs out; with a stall, that of a live one too."""
        lives = any(worker.current and worker.at != "idle" for worker in w.workers)
        kind, detail = (FAULT, "its owner lives") if lives else (FAIR, "its owner is dead")
        if lives and not self.may("stall"):
            return
        if not self.may("leases"):
            yield Step(kind, "sweep: the lease has run out,", detail, "sweep"), self.sweep(w)
            return
        if not w.row.lease_out:
            yield Step(kind, "time: the lease runs out,", detail), w.with_row(lease_out=True)
        for s, read in enumerate(w.lists):
            if not read and w.row.lease_out:
                yield Step(FAIR, "a sweeper reads", "the expired lease"), w._replace(lists=(*w.lists[:s], "fresh", *w.lists[s + 1 :]))

    def _acts_on_list(self, w: World, s: int, read: str) -> Moves:
        done = w._replace(lists=tuple(sorted((*w.lists[:s], "", *w.lists[s + 1 :]))))
        if w.row.status is RUNNING and ((w.row.lease_out and read == "fresh") or not self.rule("sweep-again")):
            yield Step(FAIR, "sweep: the listed lease", f"({read})", "sweep"), self.sweep(done)
        else:
            yield Step(FAIR, "a sweeper finds", "that its list is old"), done

    def _expires(self, w: World, life: int, i: int, call: Call) -> Moves:
        step = Step(FAIR, "sweep: expires", f"the row of call {i}", "sweep" if self.scenario.on_expiry == "fail" else "resolve", i)
        if call.event == "open":
            yield step._replace(verb="resolve"), self.row_closed(w.in_call(life, i, event="expired", due=False))
        elif self.scenario.on_expiry == "deny":
            yield step, self.row_closed(w.in_call(life, i, approval="expired", due=False))
        elif w.row.status is WAITING or not self.rule("expiry-fail"):
            expired = w.in_call(life, i, approval="failed", due=False)
            yield step, self.become_final(expired, FAILED) if w.row.status is WAITING else expired

    # ── people and the world ───────────────────────────────────────────────────────────────────────────────
    def _people(self, w: World) -> Moves:
        for life, i, call in rows(w):
            if call.approval == "open":
                yield from self._approval(w, life, i, call)
            if call.asked or (call.effect is UNKNOWN and w.row.status.final and self.rule("started")):
                yield from self._effect_asked(w, life, i, call)
            if call.held == "open":
                for word in ("run", "reuse", "block"):
                    yield Step(ENV, "a person about the held call:", word, "resolve", i), self.row_closed(w.in_call(life, i, held=word))
        yield from self._topup(w)
        if self.may("signal") and not w.row.inbox and not w.row.signal_taken:
            yield self._signal(w)
        yield from self._cancel(w)
        yield from self._retry(w)

    def _approval(self, w: World, life: int, i: int, call: Call) -> Moves:
        if not call.due or not self.rule("late"):
            for word in ("yes", "no"):
                answered = self.row_closed(w.in_call(life, i, approval=word, due=False))
                yield Step(ENV, "a person says", f"{word} to call {i}", "resolve", i), answered
        if call.due and self.may("extend"):
            if not call.told_expired:
                yield Step(ENV, "a person answers too late", "and is told: expired", call=i), w.in_call(life, i, told_expired=True)
            if not self.rule("extend"):
                yield Step(ENV, "a person extends", f"the row of call {i}", call=i), w.in_call(life, i, due=False)

    def _effect_asked(self, w: World, life: int, i: int, call: Call) -> Moves:
        for word, effect in (("it happened", DONE), ("run it", PLANNED), ("fail", FAILED_EFFECT)):
            lie = (word == "it happened") != call.deed
            if lie and self.scenario.truthful:
                continue
            if word == "run it" and self.scenario.truthful and self.rule("verify-later") and (life, i) in w.orphans:
                continue  # accepted only when the try before can't be running any more
            keeps = word == "run it" and not self.rule("permit-once")
            said = w.in_call(life, i, asked=False, effect=effect, spent=effect is DONE, permitted=keeps, tries=2 if call.tries else 0)
            yield Step(ENV, "a person says", f"{word} (effect {i})", "resolve", i), self.row_closed(said)

    def _topup(self, w: World) -> Moves:
        for number, life in enumerate(w.lives):
            more = w.in_life(number, topups=min(life.topups + 1, 2))
            if life.budget_rows:
                topped = more.in_life(number, budget_rows=life.budget_rows - 1)
                yield Step(ENV, "a top-up", "closes the row", "resolve"), self.row_closed(topped)
            elif self.scenario.on_limit == "pause" and number == w.row.life and life.topups < 2 and not w.row.status.final:
                yield Step(ENV, "a top-up"), more

    def _signal(self, w: World) -> tuple[Step, World]:
        for life, i, call in rows(w):
            if call.event == "open" and not call.due:
                got = w.in_call(life, i, event="got").with_row(signal_taken=True)
                return Step(ENV, "a signal", "closes the open row", "resolve", i), self.row_closed(got)
        return Step(ENV, "a signal", "goes into the inbox"), w.with_row(inbox=True)

    def _cancel(self, w: World) -> Moves:
        if not self.may("cancel") or w.row.status.final or w.row.cancel:
            return
        asked = w.with_row(cancel=True) if w.row.status is RUNNING else self.become_final(w, CANCELLED)
        yield Step(ENV, "cancel:", "asked for" if w.row.status is RUNNING else "settled", "cancel"), asked
        if self.may("repeat") and w.repeat is None:
            meant = w.row.status is RUNNING  # otherwise this very cancel has settled the life that it meant
            yield Step(FAULT, "cancel:", "accepted, its reply is lost", "cancel"), asked._replace(repeat=("cancel", meant))

    def _retry(self, w: World) -> Moves:
        if w.row.status in (FAILED, CANCELLED):
            for mode in ("resume", "full"):
                if not self.may(mode) or (mode == "full" and (w.row.life == 1 or self.scenario.lives == 1)):
                    continue
                back = self.retry(w, full=mode == "full")
                yield Step(ENV, f"retry {mode}", "", "retry"), back
                if self.may("repeat") and w.repeat is None:
                    yield Step(FAULT, f"retry {mode}", "(its reply is lost)", "retry"), back._replace(repeat=(mode, True))
        if w.repeat is not None:
            yield from self._repeated_request(w, *w.repeat)

    def _repeated_request(self, w: World, what: str, same: bool) -> Moves:
        """A client repeats its request: the store compares the settlement that it names."""
        sent = w._replace(repeat=None)
        if what == "cancel":
            applies = not w.row.status.final and not w.row.cancel and (same or not self.rule("retry-names"))
            if applies:
                after = sent.with_row(cancel=True) if w.row.status is RUNNING else self.become_final(sent, CANCELLED)
                yield Step(ENV, "the client repeats its cancel", "", "cancel", int(same)), after
                return
        elif w.row.status in (FAILED, CANCELLED) and (same or not self.rule("retry-names")):
            full = what == "full" and w.row.life == 0 and self.scenario.lives > 1
            yield Step(ENV, f"the client repeats its retry {what}", "", "retry", int(same)), self.retry(sent, full=full)
            return
        yield Step(ENV, "the client repeats its request", "and is told: already"), sent

    # ── words ──────────────────────────────────────────────────────────────────────────────────────────────
    def show(self, w: World) -> str:
        """A world in one line."""
        row = w.row
        flags = [name for name in ("cancel", "later", "overdue", "lease_out", "inbox") if getattr(row, name)]
        text = f"{row.status}{' ' + ' '.join(flags) if flags else ''}, life {row.life}, deaths {row.deaths}"
        for number, life in enumerate(w.lives):
            calls = "; ".join(describe(call, self.scenario.tools[i].is_effect) for i, call in enumerate(life.calls))
            budget = f", {life.budget_rows} budget rows" if life.budget_rows else ""
            text += f" | {number}: {life.tail} {life.responses}{budget} [{calls}]"
        busy = [doing(worker) for worker in w.workers if worker.at != "idle"]
        return text + (f" | {', '.join(busy)}" if busy else "")


def rows(w: World) -> Iterator[tuple[int, int, Call]]:
    """Every call of every life."""
    for number, life in enumerate(w.lives):
        for i, call in enumerate(life.calls):
            yield number, i, call


def doing(worker: Worker) -> str:
    """What a worker does, in words."""
    if worker.at != "commit":
        return f"{worker.at} {worker.call}" if worker.call >= 0 else worker.at
    what = " + ".join(name if i < 0 else f"{name} {i}" for name, i in worker.commit)
    return ("sent: " if worker.sent else "to send: ") + what


def describe(call: Call, effect: bool) -> str:
    """A call in words."""
    words = [str(call.effect)] if effect else []
    words += [f"{name} {getattr(call, name)}" for name in ("approval", "held", "event") if getattr(call, name)]
    words += [word for word, flag in (("asked", call.asked), ("answered", call.answered), ("due", call.due), ("deed", call.deed)) if flag]
    return " ".join(words)
