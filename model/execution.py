"""What a worker does with the run that it holds: the loop of the engine, as choices of values."""

from __future__ import annotations

from model.store import Store
from model.world import IDLE, Part, Worker, World
from perdure.core.tail import Act, Tail, next_act


def commit(*parts: Part | str) -> tuple[Part, ...]:
    """A commit from its parts."""
    return tuple((part, -1) if isinstance(part, str) else part for part in parts)


class Execution(Store):
    """The owner's side."""

    def stop(self, w: World, worker: Worker) -> tuple[Part, ...] | None:
        """Cancel, drain and deadline come before any new act."""
        if worker.knows and self.rule("heard"):
            return commit("cancelled")
        if worker.drains:
            return commit("drained")
        return commit("failed") if w.row.overdue else None

    def sends(self, worker: Worker, parts: tuple[Part, ...]) -> Worker:
        return worker._replace(at="commit", commit=parts, call=-1, performed=False)

    def think(self, w: World, k: int, *, loading: bool = False) -> list[Worker]:
        """What the worker does next; several where the engine is free to choose."""
        worker = w.workers[k]
        if stop := self.stop(w, worker):
            return [self.sends(worker, stop)]
        life = w.life
        tail = Tail(
            waiting=loading and self.rows_open(w),
            response=life.tail in ("calls", "cut", "text"),
            open_calls=len(self.scenario.tools) if life.tail in ("calls", "cut") else 0,
            cut=life.tail == "cut" and self.rule("cut"),
            room=life.responses < self.scenario.max_steps + worker.seen_topups,
        )
        act = next_act(tail)
        if act is Act.TOOLS:
            return self.tools(w, k)
        if act is Act.LIMIT:
            return self.limit(worker)
        if act is Act.MODEL:
            return [worker._replace(at="model", commit=(), call=-1)]
        if act is Act.OUTPUT:
            return [worker._replace(at="output", commit=(), call=-1)]
        return [self.sends(worker, commit("park" if act is Act.PARK else "answers"))]

    def limit(self, worker: Worker) -> list[Worker]:
        """The budget is used up."""
        if self.scenario.on_limit == "pause":
            return [self.sends(worker, commit("budget")), self.sends(worker, commit("budget", "park"))]
        return [self.sends(worker, commit("completed" if self.scenario.on_limit == "stop" else "failed"))]

    def tools(self, w: World, k: int) -> list[Worker]:
        """Answer the calls of the response: what is unknown first, then plain calls, then effects one by one, then people."""
        worker = w.workers[k]
        if stop := self.stop(w, worker):
            return [self.sends(worker, stop)]
        needs = self.needs(w, k)

        def first(*wanted: str) -> int:
            return next((i for i, need in needs if need in wanted), -1)

        if (i := first("ask")) >= 0:
            return [self.sends(worker, commit(("unknown", i)))]
        if (i := first("plain")) >= 0:
            return [worker._replace(at="plain", call=i, commit=())]
        if (i := first("verify")) >= 0:
            return [worker._replace(at="verify", call=i, commit=())]
        asks = first("approve", "hold", "event") >= 0
        if (i := first("start")) >= 0:
            chosen = [self.begin(worker, i)]
            return [*chosen, self.sends(worker, commit("questions"))] if asks and "early" in self.scenario.may else chosen
        if all(need == "answered" for _, need in needs):
            return [self.sends(worker, commit("answers"))]
        if not asks:
            return [self.sends(worker, commit("park"))]
        together = self.sends(worker, commit("questions", "park"))
        return [together, self.sends(worker, commit("questions"))] if "early" in self.scenario.may else [together]

    def begin(self, worker: Worker, i: int) -> Worker:
        """Start an effect: the ledger first, then the body."""
        if not self.rule("started-first"):
            return worker._replace(at="body", call=i, commit=(), uncalled=-1)
        return self.sends(worker, commit(("start", i)))

    def returned(self, w: World, k: int) -> list[Worker]:
        """The body is back: record it, merged with what may ride along."""
        worker, i = w.workers[k], w.workers[k].call
        chosen = [self.sends(worker, commit(("done", i)))]
        after = self.part(w, k, "done", i)
        needs = self.needs(after, k)
        following = next((j for j, need in needs if need == "start"), -1)
        only_start = following >= 0 and not any(need in ("ask", "plain", "verify") for _, need in needs)
        if not self.rule("done-first") and following >= 0:
            return [self.sends(worker, commit(("start", following)))]
        if "merge" in self.scenario.may:
            if only_start:
                chosen.append(self.sends(worker, commit(("done", i), ("start", following))))
            if all(need == "answered" for _, need in needs):
                chosen.append(self.sends(worker, commit(("done", i), "answers")))
        return chosen

    def replied(self, w: World, k: int) -> list[Worker]:
        """The commit is acknowledged: what comes after its last part."""
        worker = w.workers[k]
        worker = worker._replace(sent=False, reply_lost=False, hears=False, knows=worker.knows or worker.hears)
        w = w.with_worker(k, worker)
        name, i = worker.commit[-1]
        if name in ("park", "drained", "later", "completed", "failed", "cancelled"):
            return [IDLE]
        if name == "start":
            if stop := self.stop(w, worker):
                return [self.sends(worker, stop)]
            return [worker._replace(at="body", call=i, commit=(), uncalled=-1)]
        worker = worker._replace(commit=(), started_under_cancel=False)
        w = w.with_worker(k, worker)
        if name == "again":
            return [self.sends(worker, self.stop(w, worker) or commit(("start", i)))]
        if name == "budget":
            return [self.sends(worker, commit("park"))]
        if name == "text":
            stop = self.stop(w, worker)
            return [self.sends(worker, stop) if stop else worker._replace(at="output")]
        if name == "error":
            return [*self.think(w, k), self.sends(worker, self.stop(w, worker) or commit("failed"))]
        if name in ("answers", "feedback", "cut"):
            return self.think(w, k)
        # "Questions" opened rows that may be answered by now: the tools look again, and park where something is open.
        return self.tools(w, k)

    def after_model(self, w: World, k: int) -> list[tuple[str, Worker]]:
        """What a model call may come to."""
        worker, life, may = w.workers[k], w.life, self.scenario.may
        if life.responses == 0:
            if self.scenario.cut:
                return [("answers with a cut response", self.sends(worker, commit("cut")))]
            chosen = [("answers with calls", self.sends(worker, commit("response")))]
            if "merge" in may:
                needs = self.needs(w.with_life(tail="calls"), k)
                if needs[0][1] == "start" and not any(need in ("plain", "ask", "verify") for _, need in needs):
                    chosen.append(("answers with calls", self.sends(worker, commit("response", ("start", 0)))))
            return chosen
        chosen = [("answers with the final text", self.sends(worker, commit("completed")))]
        if "refuse" in may and life.responses <= 1:
            chosen.append(("answers with a text that is refused", self.sends(worker, commit("text"))))
        return chosen
