"""Record and deed in one transaction of the store: commits in doubt, owners that are not owners any more, results that nobody kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from model.checker import FAIR, FAULT, Step
from model.rules import Ruled, rule

CLAIMS = 3
"""Enough for a zombie, its successor and one more; the last one does not crash."""


class Tx(NamedTuple):
    """A transaction at the server: `open` (the body writes), `fenced` (the fence has passed; it holds the run row), `committing` (COMMIT is there)."""

    at: str = ""
    claim: int = 0
    number: int = 0

    @property
    def locks(self) -> bool:
        return self.at in ("fenced", "committing")


class Worker(NamedTuple):
    """`at`: `idle`, `tools`, `body`, `fence`, `commits`, `doubts` (the reply to COMMIT is lost), `fails` (sends a commit that says *failed*), `told`."""

    at: str = "idle"
    claim: int = 0
    number: int = 0
    told: str = ""
    """What the model is told: `done` or `failed`."""


class World(NamedTuple):
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    txs: tuple[Tx, Tx] = (Tx(), Tx())
    claim: int = 0
    held: bool = False
    number: int = 0
    done: bool = False
    result: bool = False
    deeds: int = 0
    answer: str = ""
    """What was stored as the call's answer."""


class JoinedModel(Ruled):
    """`async with current_run().transaction()`, and everything that can happen to it."""

    name = "joined"

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.always = (self.record_and_deed_agree, self.the_deed_happens_once, self.the_model_is_told_the_truth)
        self.steps = ()

    def record_and_deed_agree(self, w: World) -> bool:
        """The ledger says done exactly when the deed is there."""
        return w.done == (w.deeds > 0)

    def the_deed_happens_once(self, w: World) -> bool:
        """The deed is there at most once."""
        return w.deeds <= 1

    def the_model_is_told_the_truth(self, w: World) -> bool:
        """What the model is told about the deed is what became of it."""
        return w.answer == "" or (w.answer == "done") == (w.deeds > 0)

    def start(self) -> World:
        return World()

    def rests(self, w: World) -> bool:
        return w.answer != "" and not any(tx.at for tx in w.txs)

    def locked(self, w: World, but: int = -1) -> bool:
        """Whether a transaction holds the run row."""
        return any(tx.locks for j, tx in enumerate(w.txs) if j != but)

    def moves(self, w: World) -> Iterator[tuple[Step, World]]:
        for i, (worker, tx) in enumerate(zip(w.workers, w.txs, strict=True)):
            yield from self._worker(w, i, worker, tx)
            yield from self._server(w, i, worker, tx)
        if w.held and not self.locked(w) and w.claim < CLAIMS:
            alive = any(worker.at != "idle" and worker.claim == w.claim for worker in w.workers)
            yield Step(FAULT if alive else FAIR, "sweep:", "the owner is slow" if alive else "the owner is dead"), w._replace(held=False)

    def _worker(self, w: World, i: int, worker: Worker, tx: Tx) -> Iterator[tuple[Step, World]]:
        if worker.at == "idle":
            if not w.held and not tx.at and not self.locked(w) and not w.answer and w.claim < CLAIMS:
                claimed = w._replace(claim=w.claim + 1, held=True)
                yield Step(FAIR, "claims"), put(claimed, i, Worker("tools", w.claim + 1, w.number))
            return
        if w.claim < CLAIMS or worker.claim < w.claim:
            yield Step(FAULT, "crashes", f"({worker.at})"), put(w, i, Worker(), self._aborted(tx))
        if worker.at == "tools" and not tx.at:
            if w.done and (w.result or self.rule("joined-result")):
                yield Step(FAIR, "takes the recorded result"), self._answers(w, i, worker, "done")
            elif not self.locked(w):
                yield Step(FAIR, "enters the body"), put(w, i, worker._replace(at="body"), Tx("open", worker.claim, worker.number + 1))
        elif worker.at == "body":
            yield Step(FAIR, "the body has written"), put(w, i, worker._replace(at="fence"))
            yield Step(FAULT, "the body raises", "all is rolled back: nothing happened"), put(w, i, worker._replace(at="fails"), Tx())
        elif worker.at == "fence" and not self.locked(w, i):
            yield self._fence(w, i, worker, tx)
        elif worker.at == "commits":
            yield Step(FAULT, "the connection breaks", "and nobody knows whether COMMIT arrived"), put(w, i, worker._replace(at="doubts"))
        elif worker.at == "doubts" and (not self.locked(w) or not self.rule("joined-lock")):
            yield from self._asks_ledger(w, i, worker)
        elif worker.at == "fails" and not self.locked(w):
            yield self._fails(w, i, worker)

    def _fence(self, w: World, i: int, worker: Worker, tx: Tx) -> tuple[Step, World]:
        """The last statements of the transaction: status, epoch, token, number."""
        if not (w.held and tx.claim == w.claim) and self.rule("joined-fence"):
            return Step(FAIR, "the fence says", "lost: all is rolled back"), put(w, i, Worker(), Tx())
        if tx.number <= w.number and tx.claim == w.claim and self.rule("joined-already"):
            return Step(FAIR, "the fence says", "already applied: all is rolled back"), put(w, i, worker._replace(at="tools", number=w.number), Tx())
        return Step(FAIR, "the fence passes"), put(w, i, worker._replace(at="commits"), tx._replace(at="committing"))

    def _server(self, w: World, i: int, worker: Worker, tx: Tx) -> Iterator[tuple[Step, World]]:
        if tx.at == "committing":
            deed = w._replace(done=True, deeds=w.deeds + 1, number=max(w.number, tx.number), result=self.rule("joined-result"))
            then = worker._replace(at="tools", number=tx.number) if worker.at == "commits" and worker.claim == tx.claim else worker
            if worker.at == "commits" and not self.rule("joined-result"):
                # The result is in the body's hands; the owner answers with it in a commit of its own.
                then = worker._replace(at="told", number=tx.number)
            yield Step(FAIR, "COMMIT is done"), put(deed, i, then, Tx())
            if worker.at != "commits":
                yield Step(FAULT, "the server gives the broken transaction up"), put(w, i, worker, Tx())
        if worker.at == "told":
            yield Step(FAIR, "stores the answer"), self._answers(w, i, worker, "done")

    def _asks_ledger(self, w: World, i: int, worker: Worker) -> Iterator[tuple[Step, World]]:
        if w.claim != worker.claim or not w.held:
            yield Step(FAIR, "asks the ledger", "and hears: lost"), put(w, i, Worker())
        elif w.done:
            yield Step(FAIR, "asks the ledger", "done"), put(w, i, worker._replace(at="tools", number=w.number))
        else:
            yield Step(FAIR, "asks the ledger", "not done: it is free to try again"), put(w, i, worker._replace(at="tools"))
            yield Step(FAULT, "asks the ledger", "not done, and no try is left"), put(w, i, worker._replace(at="fails"))

    def _fails(self, w: World, i: int, worker: Worker) -> tuple[Step, World]:
        """A plain commit that says *failed*, under the next number."""
        if not (w.held and worker.claim == w.claim):
            return Step(FAIR, "is told: lost"), put(w, i, Worker())
        if worker.number + 1 <= w.number:
            return Step(FAIR, "is told: already applied", "about another commit than its own"), self._tell(w, i, "failed")
        return Step(FAIR, "stores: failed"), self._tell(w._replace(number=worker.number + 1), i, "failed")

    def _answers(self, w: World, i: int, worker: Worker, word: str) -> World:
        if not (w.held and worker.claim == w.claim):
            return put(w, i, Worker())
        return self._tell(w, i, word)

    def _tell(self, w: World, i: int, word: str) -> World:
        return put(w._replace(answer=word, held=False), i, Worker(), w.txs[i])

    def _aborted(self, tx: Tx) -> Tx:
        """A dead client's transaction is rolled back, unless its COMMIT is there already."""
        return tx if tx.at == "committing" else Tx()

    def show(self, w: World) -> str:
        workers = "; ".join(f"{worker.at}{f' (tx {tx.at})' if tx.at else ''}" for worker, tx in zip(w.workers, w.txs, strict=True))
        return f"claim {w.claim}, number {w.number}, {'done' if w.done else 'planned'}, deeds {w.deeds}, told {w.answer or '-'} | {workers}"


def put(w: World, i: int, worker: Worker, tx: Tx | None = None) -> World:
    """The world with one worker, and its transaction, replaced."""
    workers, txs = list(w.workers), list(w.txs)
    workers[i] = worker
    if tx is not None:
        txs[i] = tx
    return w._replace(workers=(workers[0], workers[1]), txs=(txs[0], txs[1]))


rule("joined-fence", "a worker that lost the run does the deed beside its new owner", "joined", "the_model_is_told_the_truth")
rule("joined-already", "a commit that was in doubt is done again", "joined", "the_model_is_told_the_truth", "joined-lock")
rule("joined-lock", "the model is told *failed* about a deed whose COMMIT was still on its way", "joined", "the_model_is_told_the_truth")
rule("joined-result", "a body runs again to find out what it returned", "joined", "the_model_is_told_the_truth")
