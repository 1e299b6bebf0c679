"""The tools of one step: what may run, what is known already, what has to wait.

This is the engine's side of table E and of the approvals. The session calls `run_tool` around every tool body, in parallel for parallel calls, and
`decide` for calls that need somebody's word. Effects run one at a time, each between two acknowledged writes; other tools run beside them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from perdure.agents import ApprovalRequired, Call, CallDeferred, Decision, ModelRetry, ToolFailed, describe
from perdure.approvals import ApprovalRule
from perdure.context import CurrentRun, Wait
from perdure.core.codec import clean, clean_text, fingerprint
from perdure.core.commit import EffectFilter, Park, Release
from perdure.core.effect import Effect, EffectState, EffectWrite, effect_key
from perdure.core.errors import ConfigurationError, Conflict, StoreUnavailable, Suspend
from perdure.core.event import EventWrite
from perdure.core.limits import EFFECT_GRACE
from perdure.core.step import StepWrite
from perdure.core.wait import ResolutionKind, WaitPoint, WaitWrite
from perdure.effects import EffectRule, Happened, HeldEffects, NotDone
from perdure.engine._bodies import Body, bounded, done, not_sent, really_waiting, reason
from perdure.engine._calls import business_key, shown_to_callbacks
from perdure.engine._execution import Execution
from perdure.engine._facts import Known, StepFacts
from perdure.engine._heard import last_heard
from perdure.engine._held import decision, find_twin, question
from perdure.engine._journal import Write, WriteRefused
from perdure.engine._outside import Places, external_event, outside_row
from perdure.engine._policy import Policy
from perdure.engine._position import POSITION, AtWork, Outside, Position
from perdure.engine._questions import approval_row, read_decision, read_event, unknown_row, wait_row
from perdure.engine._together import AGAIN, RolledBack, Together
from perdure.engine._verdicts import Verdicts

logger = logging.getLogger("perdure")
SaveReply = Callable[[Write], Awaitable[None]]
OF_STEP = -1
"""In the place of a call's position: what waits is the step."""


class Rest(Suspend):
    """The execution ends here with this write: it parks, or hands the run back until later."""

    def __init__(self, write: Write) -> None:
        super().__init__("the run rests")
        self.write = write


class Stopped(Suspend):
    """The execution was told to stop: nothing new starts."""


@dataclass(frozen=True, slots=True)
class Deferral:
    """Why a call has no answer yet: the row that it waits for (None: it stands behind another), and its effect's next state."""

    wait: WaitWrite | None = None
    effect: EffectWrite | None = None


class ToolDesk:
    """Runs the tools of one step under the rules. One per step; thrown away with it."""

    def __init__(
        self,
        execution: Execution,
        facts: StepFacts,
        *,
        current: CurrentRun,
        policy: Callable[[Call], Policy],
        save_reply: SaveReply,
        keep: Callable[[Any], Awaitable[Any]],
        calls: Sequence[Call],
        held_rule: HeldEffects,
        tool_timeout: timedelta | None,
        effect_grace: timedelta = EFFECT_GRACE,
    ) -> None:
        self._execution, self._facts, self._current = execution, facts, current
        self._policy, self._save_reply, self._keep = policy, save_reply, keep
        self._calls = {call.position: call for call in calls}
        self._held_rule: HeldEffects = held_rule
        self._tool_timeout, self._grace = tool_timeout, effect_grace
        self._turn = asyncio.Lock()
        self._answers: dict[int, Known] = dict(facts.answers)
        self._unwritten: dict[int, StepWrite] = {}
        self._effects: dict[str, EffectWrite] = {key: effect.row for key, effect in facts.effects.items()}
        self._deferrals: dict[int, Deferral] = {}
        self.verdicts = Verdicts(execution.run, facts.index, facts.verdicts, execution.runtime.now)
        self._places = Places()
        self._behind: int | None = None
        self._late_effects: list[EffectWrite] = []
        self._late_events: list[EventWrite] = []
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._rest_later: timedelta | None = None

    # ── what the session calls ─────────────────────────────────────────────────────────────────────────────
    async def run_tool(self, call: Call, body: Body, *, approved: bool) -> Any:
        """Run one tool body, or answer for it."""
        known = self._answers.get(call.position)
        if known is not None:
            return known.replay()
        self._go_on()
        policy, body = self._policy(call), really_waiting(self._execution, body)
        if not approved and self._must_ask(call, policy.approval):
            if policy.effect is not None and not self._decided(call):
                self._stop_batch(call.position)
            raise ApprovalRequired
        if approved and policy.approval is not None and self._must_ask(call, policy.approval) and not self._decided(call):
            raise ConfigurationError(
                f"Something of the agent's own approved a call of {call.name!r}, for which approve(…) asks people. Remove that rule, or the tool's own declaration."
            )
        if policy.effect is None:
            return await self._run_plain(call, body)
        return await self._run_effect(call, body, policy.effect)

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        """Decisions for calls that need somebody's word; where one is missing, the execution rests."""
        decisions: dict[str, Decision] = {}
        missing = False
        for call in calls:
            if self._deferrals.get(call.position) is not None:
                missing = True
                continue
            decision = self._decision(call)
            if decision is None:
                missing = True
            else:
                decisions[call.id] = decision
        if missing or self._rest_later is not None:
            raise Rest(self.rest_write())
        return decisions

    def rest_write(self) -> Write:
        """Everything finished and not yet written, the rows to wait for, and the ending."""
        deferrals = [self._deferrals[position] for position in sorted(self._deferrals)]
        rows = [each.wait for each in deferrals if each.wait is not None]
        planned = [each.effect for each in deferrals if each.effect is not None]
        ending = Park() if self._rest_later is None or rows else Release("retry_after", self._rest_later)
        write = self.finished() + Write(effects=tuple(planned), waits=tuple(rows), ending=ending)
        return replace(write, progress=bool(rows or write.steps))

    def finished(self) -> Write:
        """Answers, effect records and events that no commit carries yet. Asking takes them."""
        steps = tuple(self._unwritten[position] for position in sorted(self._unwritten))
        write = Write(steps=steps, effects=tuple(self._late_effects), events=tuple(self._late_events), progress=bool(steps))
        self._unwritten, self._late_effects, self._late_events = {}, [], []
        # A call counts with the row that says what it came to, so that the count is the same whether the step rested in between or not.
        journal = self._execution.journal
        journal.usage = replace(journal.usage, tool_calls=journal.usage.tool_calls + len(steps))
        return write

    def written_answers(self) -> frozenset[int]:
        """Positions whose tool step is stored already."""
        return frozenset(self._facts.answers)

    def timing(self, position: int) -> StepWrite | None:
        """The step row of a call that ran here, not yet written."""
        return self._unwritten.get(position)

    async def wind_down(self, grace: timedelta) -> None:
        """Let effects in flight be recorded; after the grace their outcome is unknown."""
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=grace.total_seconds())
        for task in list(self._in_flight):
            task.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=1.0)

    # ── plain tools ────────────────────────────────────────────────────────────────────────────────────────
    async def _run_plain(self, call: Call, body: Body) -> Any:
        question = f"wait:{call.position}"
        row = self._facts.waits.get(question)
        if row is not None and not row.open:
            return self._take_resolution(call, row)
        await self._save_reply(Write())
        self._go_on()
        started = self._execution.runtime.now()
        with self._at_work(call, None, 1):
            try:
                value = await bounded(self._execution.runtime, body, self._limit(call, None))
            except Wait as wait:
                self._deferrals[call.position] = Deferral(self._wait_row(call, wait))
                raise CallDeferred from None
            except Outside as outside:
                self._deferrals[call.position] = Deferral(outside.row)
                raise CallDeferred from None
            except (ApprovalRequired, CallDeferred):
                raise
            except TimeoutError as error:
                text = str(error) or "the tool took longer than it may"
                self._answer(call, started, Known("failed", f"Timed out: {text}"))
                raise ToolFailed(f"Timed out: {text}") from error
            except ModelRetry as error:
                self._answer(call, started, Known("retry", clean_text(error.message)))
                raise
            except ToolFailed as error:
                self._answer(call, started, Known("failed", clean_text(str(error))))
                raise
            except Exception as error:
                self._answer(call, started, Known("failed", describe(error)))
                raise ToolFailed(describe(error)) from error
        return await self._accept(call, started, value)

    async def _accept(self, call: Call, started: datetime, value: Any) -> Any:
        """The value as it may be stored; one that can't be is a failure that names the path."""
        try:
            kept = await self._keep(value)
        except StoreUnavailable as error:
            raise WriteRefused(error) from error
        except Exception as error:
            text = f"The result can't be stored: {reason(error)}"
            self._answer(call, started, Known("failed", text))
            raise ToolFailed(text) from error
        self._answer(call, started, Known("success", kept))
        return kept

    # ── effects ────────────────────────────────────────────────────────────────────────────────────────────
    async def _run_effect(self, call: Call, body: Body, rule: EffectRule) -> Any:
        async with self._effect_turn(call, rule):
            if self._behind is not None and self._behind != call.position and not rule.independent:
                # A batch stops at the first that is unknown or waits: this one stays planned.
                self._deferrals[call.position] = Deferral()
                raise CallDeferred
            key = effect_key(self._execution.run.id, self._execution.run.generation, self._facts.index, call.position)
            question = f"wait:{call.position}"
            waited = self._facts.waits.get(question)
            if waited is not None and not waited.open:
                return self._take_resolution(call, waited)
            while True:
                row = self._effects.get(key)
                self._go_on()
                if row is not None and row.state is EffectState.DONE:
                    return self._recorded(call, row)
                if row is not None and row.state is EffectState.FAILED:
                    return self._recorded(call, row)
                unclear = row is not None and row.state in (EffectState.UNKNOWN, EffectState.STARTED)
                if row is not None and unclear:
                    row = await self._clear_up(call, row, rule)
                    if row.state is not EffectState.PLANNED:
                        continue
                if row is not None and self._input_changed(call, row):
                    return await self._refuse_other_input(call, row)
                if not unclear and rule.key is None and (row is None or not row.permit) and self._hold(call, key):
                    continue
                outcome = await self._perform(call, body, rule, key, row)
                if outcome is not None:
                    return outcome.replay()

    @asynccontextmanager
    async def _effect_turn(self, call: Call, rule: EffectRule) -> AsyncGenerator[None]:
        if rule.independent:
            yield
            return
        async with self._turn:
            yield

    async def _clear_up(self, call: Call, row: EffectWrite, rule: EffectRule) -> EffectWrite:
        """Bring an effect of unknown outcome back to planned, done or failed, or wait for somebody's word."""
        effect = self._facts.effects.get(row.key)
        how = row.unknown if row.unknown == "ask" else rule.unknown if rule.unknown == "ask" else row.unknown
        attempts = rule.retries.attempts if rule.retries else 3
        # A crash, a drain or a lost lease is not a try: only a body that came to an end of its own has left an error.
        tried = row.error is not None and not row.error.get("stopped")
        if how == "retry":
            if (row.try_no < attempts or not tried) and not self._input_changed(call, row):
                return self._set(replace(row, state=EffectState.PLANNED, try_no=row.try_no + tried, error=None))
            how = "ask"
        if how == "verify" and rule.verify is not None:
            wait = await self._time_left(effect, row)
            if wait > timedelta(0):
                # The earlier try may still be running somewhere: its answer would be about a deed that is not over.
                self._rest_later = max(self._rest_later or wait, wait)
                self._stop_batch(call.position)
                self._deferrals[call.position] = Deferral()
                raise CallDeferred
            try:
                # Asked about what went out, which is in the row.
                sent = call if row.input is None else replace(call, args=row.input)
                said: Any = await rule.verify(shown_to_callbacks(self._execution.run, sent, row.key))
            except (Exception, SystemExit, asyncio.CancelledError):
                self._go_on()
                logger.exception("verify of %s raised; a person is asked", row.key)
                said = None
            if isinstance(said, Happened):
                known = await self._told(said.result)
                happened = done(row, known)
                await self._record(happened, EventWrite("effect.done", {"key": row.key, "tool": row.tool, "by": "verify"}))
                return happened
            if isinstance(said, NotDone) and (row.try_no < attempts or not tried):
                return self._set(replace(row, state=EffectState.PLANNED, try_no=row.try_no + tried, error=None))
            if said is not None and not isinstance(said, NotDone):  # pyright: ignore[reportUnnecessaryIsInstance] - callbacks may not be typed
                # `True`, for example, could mean either: nothing may run again on that.
                logger.error("verify of %s answered %r, which is neither Happened nor NotDone; a person is asked", row.key, said)
        self._stop_batch(call.position)
        heard = None if effect is None else await last_heard(self._execution.store, effect)
        self._deferrals[call.position] = Deferral(self._unknown_row(row, effect, heard))
        raise CallDeferred

    async def _time_left(self, effect: Effect | None, row: EffectWrite) -> timedelta:
        """How long the earlier try may still be running, by the store's clock."""
        if effect is None or effect.started_at is None:
            return timedelta(0)
        over = effect.started_at + timedelta(seconds=row.time_limit or 0) + self._grace
        return over - await self._execution.store.now()

    def _hold(self, call: Call, key: str) -> bool:
        """Hold an effect that an earlier life may have performed, until somebody decides (E3). True: the record of that life stands for it."""
        if self._held_rule == "run":
            return False
        facts, mine = self._facts, self._input_hash(call)
        twin = find_twin(self._execution.run, call, mine, index=facts.index, held=facts.held, inherited=facts.inherited)
        if twin is None:
            return False
        decided = decision(self._held_rule, twin, facts.waits.get(f"held:{call.position}"), mine)
        if decided == "run":
            return False
        if decided is not None:
            self._late_events.append(EventWrite("effect.held", {"key": key, "tool": call.name, "decision": decided, "of": twin.key}))
        if decided == "reuse":
            self._effects[key] = self._row(call, key, EffectState.DONE, EffectRule(), result=twin.result)
            self._late_effects.append(self._effects[key])
            return True
        if decided == "block":
            text = "Not run: an earlier life of this run may have done it already, and it was decided not to do it again."
            self._answer(call, self._execution.runtime.now(), Known("failed", text))
            raise ToolFailed(text)
        self._stop_batch(call.position)
        id = self._new_id()
        self._deferrals[call.position] = Deferral(
            question(twin, call, id=id, key=key, index=facts.index, input=clean(call.args or {}), input_hash=mine)
        )
        raise CallDeferred

    async def _perform(self, call: Call, body: Body, rule: EffectRule, key: str, row: EffectWrite | None) -> Known | None:
        """Started, the body, and its record. None: the next try is due."""
        limit = self._limit(call, rule)
        try_no = row.try_no if row is not None else 1
        claim = business_key(self._execution.run, call, rule, key)
        started = self._row(call, key, EffectState.STARTED, rule, try_no=try_no, time_limit=limit, claim=claim)
        started = replace(started, unknown=row.unknown if row is not None and row.unknown == "ask" else started.unknown)
        self._check_time()
        event = EventWrite("effect.started", {"key": key, "tool": call.name, "try": try_no})
        # What can only be done together with its record needs no mark before: whoever finds none knows that nothing happened.
        mark = Write() if rule.transaction and claim is None else Write(effects=(started,), events=(event,))
        try:
            await self._save_reply(mark)
        except Conflict as taken:
            return await self._same_business(call, taken)
        self._effects[key] = started
        if self._execution.stop.reason is not None or not self._enough_time():
            # The body was never called, and only this process knows it.
            self._late_effects.append(not_sent(started))
            self._execution.abort(self._execution.stop.reason or "lease_lost")
            raise Stopped
        task = self._execution.runtime.spawn(self._do(call, body, rule, started, limit), name=f"effect {key}")
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        # Its error goes to whoever waits for it; where nobody does any more, it is not reported as forgotten.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: whoever stops the execution does not stop a deed halfway.
        return await asyncio.shield(task)

    async def _same_business(self, call: Call, taken: Conflict) -> Known:
        """Another call holds the business key (E6): its result stands for this one, or this one waits for it."""
        holders = await self._execution.store.effects(EffectFilter(claim=taken.details.get("claim")))
        holder = next((each for each in holders if each.key == taken.details.get("key")), None)
        if holder is None:
            raise taken
        if holder.state is EffectState.DONE:
            known = Known("success", holder.row.result) if holder.row.error is None else Known("failed", holder.row.error.get("message"))
            self._answer(call, self._execution.runtime.now(), known)
            return known
        self._stop_batch(call.position)
        heard = await last_heard(self._execution.store, holder)
        row = replace(
            self._unknown_row(holder.row, holder, heard), question=f"business:{call.position}", index=self._facts.index, tool_call_id=call.id
        )
        data = {**row.data, "run_id": holder.run_id, "state": str(holder.state), "business_key": holder.row.claim}
        self._deferrals[call.position] = Deferral(replace(row, position=call.position, data=data))
        raise CallDeferred

    async def _do(self, call: Call, body: Body, rule: EffectRule, row: EffectWrite, limit: float | None) -> Known | None:
        """The body and its record. An error here is never the tool's: what the tool raised is in the record."""
        try:
            return await self._body_and_record(call, body, rule, row, limit)
        except (ApprovalRequired, CallDeferred):
            raise
        except Exception as error:
            raise WriteRefused(error) from error

    async def _body_and_record(self, call: Call, body: Body, rule: EffectRule, row: EffectWrite, limit: float | None) -> Known | None:
        began = self._execution.runtime.now()
        together = Together(self._execution)
        with self._at_work(call, row.key, row.try_no, join=together.open):
            try:
                value = await together.around(bounded(self._execution.runtime, body, limit))
            except Wait as wait:
                self._stop_batch(call.position)
                self._deferrals[call.position] = Deferral(self._wait_row(call, wait), not_sent(row))
                raise CallDeferred from None
            except (ApprovalRequired, CallDeferred):
                self._stop_batch(call.position)
                self._late_effects.append(not_sent(row))
                raise
            except Suspend:
                raise
            except (ModelRetry, ToolFailed, *rule.proof) as error:
                return await self._did_not_happen(call, rule, row, began, error)
            except (Exception, asyncio.CancelledError) as error:
                if rule.transaction:
                    self._late_effects.append(not_sent(row))
                    raise
                await self._nobody_knows(call, rule, row, error)
                return None
        if together.pending:
            return await self._commit_together(call, rule, row, began, value, together)
        return await self._happened(call, row, began, value)

    async def _commit_together(self, call: Call, rule: EffectRule, row: EffectWrite, began: datetime, value: Any, together: Together) -> Known | None:
        """The deed is rows in our own database: its record is in their commit (E7)."""
        known = await together.around(self._told(value))
        record, event = done(row, known), EventWrite("effect.done", {"key": row.key, "tool": row.tool, "together": True})
        try:
            write = Write(effects=(record,), events=(event,), progress=True)
            await together.around(self._execution.journal.write(write, through=together.commit))
        except RolledBack as error:
            if rule.transaction:
                return await self._did_not_happen(call, rule, row, began, error)
            await self._nobody_knows(call, rule, row, error)
            return None
        self._effects[row.key] = record
        self._answer(call, began, known)
        return known

    async def _happened(self, call: Call, row: EffectWrite, began: datetime, value: Any) -> Known:
        known = await self._told(value)
        self._answer(call, began, known)
        await self._record(done(row, known), EventWrite("effect.done", {"key": row.key, "tool": row.tool}))
        return known

    async def _told(self, value: Any) -> Known:
        """What the model is told of a deed that happened. It is done whatever its result looks like."""
        try:
            return Known("success", await self._keep(value))
        except Exception as error:
            return Known("failed", f"The call was made, but its result can't be stored: {reason(error)}")

    async def _did_not_happen(self, call: Call, rule: EffectRule, row: EffectWrite, began: datetime, error: Exception) -> Known | None:
        if isinstance(error, ModelRetry):
            known = Known("retry", clean_text(error.message))
        else:
            known = Known("failed", clean_text(str(error)) if isinstance(error, ToolFailed) and str(error) else describe(error))
        retries = rule.retries or (AGAIN if isinstance(error, RolledBack) else None)
        if retries is not None and row.try_no < retries.attempts and not isinstance(error, ModelRetry):
            again = replace(row, state=EffectState.PLANNED, try_no=row.try_no + 1)
            await self._record(again, EventWrite("effect.planned", {"key": row.key, "tool": row.tool, "try": row.try_no, "error": known.content}))
            await self._pause(retries.delay(row.try_no))
            return None
        self._answer(call, began, known)
        failed = replace(row, state=EffectState.FAILED, error={"outcome": known.outcome, "message": known.content})
        await self._record(failed, EventWrite("effect.failed", {"key": row.key, "tool": row.tool, "error": known.content}))
        return known

    async def _nobody_knows(self, call: Call, rule: EffectRule, row: EffectWrite, error: BaseException) -> None:
        """Record *unknown*. With `ask` the wait row is in the same commit, so that nobody can miss it."""
        told: dict[str, Any] = {"message": describe(error), **({"stopped": True} if isinstance(error, asyncio.CancelledError) else {})}
        unknown = replace(row, state=EffectState.UNKNOWN, error=told)
        event = EventWrite("effect.unknown", {"key": row.key, "tool": row.tool, "error": describe(error)})
        effect = Effect(
            self._execution.run.id,
            self._execution.run.generation,
            unknown,
            self._execution.run.lease_owner,
            self._execution.run.epoch,
            self._execution.runtime.now(),
        )
        waits = (self._unknown_row(unknown, effect, self._execution.store_now()),) if row.unknown == "ask" else ()
        await self._execution.journal.write(Write(effects=(unknown,), events=(event,), waits=waits))
        self._effects[row.key] = unknown
        if isinstance(error, asyncio.CancelledError):
            raise error
        if waits:
            self._stop_batch(call.position)
            self._deferrals[call.position] = Deferral()
            raise CallDeferred
        if row.unknown == "retry" and rule.retries is not None:
            await self._pause(rule.retries.delay(row.try_no))
        if row.unknown == "verify" and isinstance(error, TimeoutError):
            # A thread that was given up on may still be at it: ask the world later.
            self._rest_later = timedelta(seconds=row.time_limit or 0) + self._grace
            self._stop_batch(call.position)
            self._deferrals[call.position] = Deferral()
            raise CallDeferred

    def _input_hash(self, call: Call) -> str:
        return fingerprint(clean(call.args or {}))

    def _input_changed(self, call: Call, row: EffectWrite) -> bool:
        """Whether the call would go out with another input than its key has gone out with: after a deploy, or by a hook that is not the same twice."""
        return row.input_hash is not None and row.input_hash != self._input_hash(call)

    async def _refuse_other_input(self, call: Call, row: EffectWrite) -> Any:
        """One key never goes out with two inputs: the call is answered, and the model may issue it anew, under a key of its own."""
        text = "Not run: its input is no longer the one that this call was started with before. Nothing has happened. Issue the call again."
        known = Known("failed", text)
        self._answer(call, self._execution.runtime.now(), known)
        failed = replace(row, state=EffectState.FAILED, error={"outcome": "failed", "message": text}, permit=False)
        await self._record(failed, EventWrite("effect.failed", {"key": row.key, "tool": row.tool, "error": text}))
        return known.replay()

    async def _record(self, row: EffectWrite, event: EventWrite) -> None:
        """Write an effect's record before anything else of the run happens; the last call's rides on the step's own write."""
        self._effects[row.key] = row
        if row.state in (EffectState.DONE, EffectState.FAILED) and self._is_last(row.position) and self._execution.stop.reason is None:
            self._late_effects.append(row)
            self._late_events.append(event)
            return
        await self._execution.journal.write(Write(effects=(row,), events=(event,), progress=row.state in (EffectState.DONE, EffectState.FAILED)))

    def _is_last(self, position: int) -> bool:
        """Whether every other call of the response has its answer: then nothing of the run lies between this record and the step's write."""
        others = [call for call in self._calls.values() if call.position != position and call.known and not call.output]
        return all(call.position in self._answers for call in others) and not any(call.output for call in self._calls.values())

    # ── waiting ────────────────────────────────────────────────────────────────────────────────────────────
    def _must_ask(self, call: Call, rule: ApprovalRule | None) -> bool:
        row = self._facts.waits.get(f"approval:{call.position}")
        if row is not None and not (row.resolution and row.resolution.kind is ResolutionKind.CANCELLED):
            return True  # asked before: the answer is in `decide`, whatever the predicate would say today
        return self.verdicts.needed(call, rule)

    def _decided(self, call: Call) -> bool:
        row = self._facts.waits.get(f"approval:{call.position}")
        return row is not None and row.resolution is not None and row.resolution.kind is not ResolutionKind.CANCELLED

    def _decision(self, call: Call) -> Decision | None:
        """The stored decision, or a new row in the deferrals."""
        question = f"approval:{call.position}"
        row = self._facts.waits.get(question)
        if row is not None and self._decided(call):
            return read_decision(row)
        if row is not None and row.open:
            return None
        external = self._facts.waits.get(f"wait:{call.position}")
        if external is not None and external.resolution is not None:
            return Decision(approved=True, answered=True, result=external.resolution.value)
        rule, run = self._policy(call).approval or ApprovalRule(), self._execution.run
        row = approval_row(
            call, rule, id=self._new_id(), index=self._facts.index, now=self._execution.store_now(), requester=run.labels.get("requester")
        )
        self._deferrals[call.position] = Deferral(row)
        if self._policy(call).effect is not None:
            self._stop_batch(call.position)
        return None

    def _wait_row(self, call: Call, wait: Wait) -> WaitWrite:
        return wait_row(call, wait, id=self._new_id(), index=self._facts.index, now=self._execution.store_now())

    def _unknown_row(self, row: EffectWrite, effect: Effect | None, heard: datetime | None) -> WaitWrite:
        return unknown_row(row, effect, id=self._new_id(), owner=self._execution.run.lease_owner, heard=heard)

    async def outside(self, name: str, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None) -> Any:
        """A wait for one of Pydantic AI's external events.

        The token is the same whenever the body runs again, and its answer goes to the run's inbox: one that comes before the row is not lost.
        """
        at, place = self._places.next()
        run, index = self._execution.run, self._facts.index
        event = external_event(run, index, place)
        row = self._facts.waits.get(f"outside:{place}")
        if row is not None and row.resolution is not None and row.resolution.kind is not ResolutionKind.CANCELLED:
            return read_event(row.resolution, name)
        token = f"{run.id}/{event}"
        answer = await ask(token)
        if answer is not None:
            return answer
        now = self._execution.store_now()
        written = outside_row(at, place, id=self._new_id(), name=name, event=event, token=token, index=index, now=now, timeout=timeout)
        if at is not None:
            raise Outside(written)
        self._deferrals[OF_STEP] = Deferral(written)
        raise Rest(self.rest_write())

    def child_key(self, current: CurrentRun) -> str:
        """The key of the next child run that the call at work starts."""
        at = POSITION.get()
        if at is None:
            raise ConfigurationError("start() of a child run works inside a tool.")
        at.children += 1
        return f"child/{effect_key(current.id, current.generation, self._facts.index, at.call.position)}/{at.children}"

    def _take_resolution(self, call: Call, row: WaitPoint) -> Any:
        """What a tool's own wait came to, as its result."""
        assert row.resolution is not None
        if row.resolution.kind is ResolutionKind.CANCELLED:
            raise ToolFailed("The wait was cancelled.")
        if row.resolution.kind is ResolutionKind.EXPIRED:
            raise ToolFailed(f"Nothing came: the wait for {row.row.name or 'an event'!r} expired.")
        self._answer(call, row.created_at, Known("success", row.resolution.value))
        return row.resolution.value

    def _stop_batch(self, position: int) -> None:
        if self._behind is None:
            self._behind = position

    # ── small things ───────────────────────────────────────────────────────────────────────────────────────
    def _new_id(self) -> str:
        return self._execution.runtime.new_id()

    def _go_on(self) -> None:
        if self._execution.must_stop():
            raise Stopped

    def _enough_time(self) -> bool:
        return self._execution.runtime.monotonic() < self._execution.ours_until

    def _check_time(self) -> None:
        """A body that could outlive the lease before its record does not start."""
        if not self._enough_time():
            self._execution.abort("lease_lost")
            raise Stopped

    def _limit(self, call: Call, rule: EffectRule | None) -> float | None:
        if rule is not None and rule.timeout is not None:
            return rule.timeout.total_seconds()
        if call.timeout is not None:
            return call.timeout
        return self._tool_timeout.total_seconds() if self._tool_timeout is not None else None

    async def _pause(self, seconds: float) -> None:
        runtime = self._execution.runtime
        stop = runtime.spawn(self._execution.stop.wait(), name="stop")
        pause = runtime.spawn(runtime.sleep(seconds), name="back-off")
        try:
            await asyncio.wait({stop, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            pause.cancel()
        self._go_on()

    def _set(self, row: EffectWrite) -> EffectWrite:
        self._effects[row.key] = row
        return row

    def _row(self, call: Call, key: str, state: EffectState, rule: EffectRule, **more: Any) -> EffectWrite:
        shown = clean(call.args or {})
        return EffectWrite(
            key=key,
            state=state,
            index=self._facts.index,
            position=call.position,
            tool=call.name,
            tool_call_id=call.id,
            unknown=rule.unknown,
            input=shown,
            input_hash=fingerprint(shown),
            **more,
        )

    def _recorded(self, call: Call, row: EffectWrite) -> Any:
        if row.state is EffectState.DONE and row.error is None:
            known = Known("success", row.result)
        else:
            error = row.error or {}
            outcome: Literal["retry", "failed"] = "retry" if error.get("outcome") == "retry" else "failed"
            known = Known(outcome, error.get("message") or "The call failed.")
        self._answer(call, self._execution.runtime.now(), known)
        return known.replay()

    def _answer(self, call: Call, started: datetime, known: Known) -> None:
        self._answers[call.position] = known
        self._unwritten[call.position] = StepWrite(
            kind="tool",
            index=self._facts.index,
            name=call.name,
            tool_call_id=call.id,
            position=call.position,
            output=None if known.outcome != "success" else known.content,
            error=None if known.outcome == "success" else {"outcome": known.outcome, "message": known.content},
            started_at=started,
            finished_at=self._execution.runtime.now(),
        )

    def _at_work(self, call: Call, key: str | None, attempt: int, **more: Any) -> AtWork:
        self._execution.doing(self._facts.index, f"tool {call.name}")
        current = replace(self._current, step=self._facts.index, key=key, tool=call.name, attempt=attempt, **more)
        return AtWork(current, Position(call, effect=key is not None))
