"""One execution of an agent's run, as a column of steps.

Load, look at the tail, act, write; again, until the run rests. What a loaded tail means is table T, what a limit means is `_settle`, when a failed call
is tried again is `_retry`, how a tool runs is `_tools`: this file only holds the order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from perdure.agents import (
    Answered,
    Call,
    Decision,
    Finished,
    ModelFailed,
    Reply,
    Result,
    Session,
    decode,
    encode,
    ends_on_response,
    in_a_row,
    last_text,
    looping,
)
from perdure.artifacts import RunArtifacts
from perdure.context import CurrentRun, enter
from perdure.core.budget import Limit, Usage
from perdure.core.checkpoint import FORMAT
from perdure.core.commit import Loaded, Park, Release
from perdure.core.errors import ConfigurationError, Conflict
from perdure.core.event import Delta, EventWrite, Reset
from perdure.core.family import ROOM, Reserved, Room, capped
from perdure.core.limits import EMPTY_RESPONSES_MAX, LENGTH_CUTS_MAX, ROOM_LOOK
from perdure.core.step import ABORTED, Step, StepWrite
from perdure.core.tail import Act, Tail, next_act
from perdure.core.wait import WaitPoint, WaitWrite
from perdure.engine import _settle
from perdure.engine._deploy import differences, found_changed, imaginary, tool_gone, whole_hash
from perdure.engine._execution import Execution
from perdure.engine._facts import Known, StepFacts
from perdure.engine._history import MessageLog
from perdure.engine._journal import Write, WriteRefused
from perdure.engine._policy import Policy
from perdure.engine._retry import Again, GiveUp, Later, Quota, after_model_failure
from perdure.engine._room import size_of_call
from perdure.engine._tools import Rest, Stopped, ToolDesk
from perdure.engine._verdicts import read_verdict

if TYPE_CHECKING:
    from perdure.engine._agents import AgentType

logger = logging.getLogger("perdure")
REISSUE = "Not run: the response was cut at the token limit, so this call may be incomplete. Issue it again, shorter if need be."


class AgentJob:
    """The execution of one claimed run of an agent."""

    def __init__(self, execution: Execution, agent: AgentType) -> None:
        self._execution, self._agent = execution, agent
        self._run, self._runtime, self._journal = execution.run, execution.runtime, execution.journal
        self._saving = asyncio.Lock()
        self._index = 0
        self._try_no = 1
        self._finish_reason: str | None = None
        self._unsaved: Reply | None = None
        """A response that no commit carries yet."""
        self._desk: ToolDesk | None = None
        self._cut_told = False
        self._looked = False
        """The tools that show themselves only now were compared with those of the checkpoint."""
        self._step_clock: asyncio.Task[None] | None = None
        self._outcome: Write | None = None
        """What came of the run, while its deps are being left."""
        self._error: BaseException | None = None

    # ── the column ─────────────────────────────────────────────────────────────────────────────────────────
    async def run(self) -> Write:
        """Carry the run to its next rest or its end."""
        loaded = self._loaded = await self._execution.store.load(self._run.id)
        self._entered: int | None = loaded.checkpoint.index if loaded.checkpoint else None
        self._recent, self._calls_made, self._shares = list(loaded.recent), loaded.model_calls, loaded.shares
        if any(wait.open for wait in loaded.waits):
            return Write(ending=Park())
        history = self._read_history(loaded)
        if isinstance(history, Write):
            return history
        try:
            async with AsyncExitStack() as stack:
                await self._carry(stack, history)
        except (Rest, WriteRefused):
            pass
        except (Exception, SystemExit, GeneratorExit) as error:
            if error is not self._error:
                # What came of the run is known by now, and it may hold the record of an effect.
                logger.exception("leaving the deps of run %s raised; what the run came to stays", self._run.id)
        finally:
            self._stop_step_clock()
        assert self._outcome is not None
        return self._outcome

    async def _carry(self, stack: AsyncExitStack, history: list[Any]) -> None:
        """The loop, and what came of it, told before the deps are left. They see the error, as they would without us."""
        try:
            await self._open(stack, history)
            self._outcome = await self._loop(self._session)
        except Rest as rest:
            self._outcome = rest.write
            raise
        except WriteRefused as refused:
            self._outcome = self._failed(refused.error)
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            self._outcome, self._error = self._failed(error), error
            raise

    async def wind_down(self, grace: timedelta) -> Write:
        """Let effects in flight be recorded; hand over the answers that no commit carries yet."""
        if self._outcome is not None:
            return self._outcome
        done = Write()
        if self._desk is not None:
            await self._desk.wind_down(grace)
            done = self._desk.finished()
        # A response that has come is stored, whatever stopped the execution: it is paid for, and would have to be asked for again.
        return self._take_unsaved() + self._cut_off() + done

    def _cut_off(self) -> Write:
        """A model call that was cut off in the middle: what its provider has told of its cost counts, and its text is kept in the step's row."""
        session: Session | None = getattr(self, "_session", None)
        cut = session.cut_off if session is not None and self._journal.calling else None
        if cut is None or self._cut_told:
            return Write()
        self._cut_told = True
        self._journal.usage += cut.usage
        return self._errored(cut.text, "cancelled", "The model call was cut off, because its execution was stopped.", cut.usage, ABORTED)

    async def _loop(self, session: Session) -> Write:
        while True:
            act = next_act(await self._tail(session))
            if act is Act.PARK:
                return Write(ending=Park())
            if act is Act.ATTENTION:
                return self._attention("tool_gone", "An open call's tool is gone. Register it again, or settle the run.")
            if act is Act.REISSUE:
                await self._reissue(session)
            elif act in (Act.TOOLS, Act.OUTPUT):
                done = await self._answer(session)
                if done is not None:
                    return done
            elif act is Act.MODEL:
                done = await self._ask(session)
                if done is not None:
                    return done
            else:
                return self._limit_reached(session)

    async def _tail(self, session: Session) -> Tail:
        """Table T's view of where the history ends."""
        if self._unsaved is not None:
            return Tail(response=True, open_calls=len(self._unsaved.calls), cut=self._unsaved.kind == "cut")
        if not ends_on_response(session.messages):
            return Tail(room=self._limit() is None)
        calls = await session.calls()
        checkpoint = self._loaded.checkpoint
        cut = bool(calls) and checkpoint is not None and checkpoint.finish_reason == "length"
        await self._tell_changed_tools(session)
        facts = self._facts()
        asked = {row.position for row in (*(wait.row for wait in facts.waits.values()), *(effect.row for effect in facts.effects.values()))}
        # A call that was possible when it was stored may not be answered with "there is no such tool".
        gone = tool_gone(calls, self._loaded.steps, index=self._index, asked=asked, answered=facts.answers)
        return Tail(response=True, open_calls=len(calls), cut=cut, tool_gone=gone)

    def _facts(self) -> StepFacts:
        """What the store knew of this step, where it is the one that was entered."""
        loaded = self._loaded
        if self._index != self._entered:
            return StepFacts(self._index, {}, {}, loaded.held, {})
        answers = {
            step.row.position: _known(step)
            for step in loaded.steps
            if step.kind == "tool" and step.row.position is not None and step.row.message is None
        }
        effects = {effect.key: effect for effect in loaded.effects if effect.row.index == self._index}
        waits = {wait.row.question: wait for wait in loaded.waits if wait.row.index == self._index}
        asked_here = any(step.row.index == self._index for step in loaded.recent)
        inherited = loaded.run.forked and loaded.run.generation == 1 and not asked_here
        verdicts = {
            step.row.position: needed for step in loaded.steps if step.row.position is not None and (needed := read_verdict(step)) is not None
        }
        return StepFacts(self._index, answers, effects, loaded.held, waits, verdicts, inherited)

    def _open_desk(self, calls: Sequence[Call]) -> ToolDesk:
        agent = self._agent
        return ToolDesk(
            self._execution,
            self._facts(),
            current=self._current,
            policy=self._policy,
            save_reply=self._save_reply,
            keep=lambda value: agent.keep(value, self._execution.store),
            calls=calls,
            held_rule=agent.held_rule,
            tool_timeout=agent.tool_timeout,
            effect_grace=agent.effect_grace,
        )

    def _policy(self, call: Call) -> Policy:
        return self._agent.policy(call.name, call.metadata)

    # ── the model ──────────────────────────────────────────────────────────────────────────────────────────
    async def _ask(self, session: Session) -> Write | None:
        """One model call, with its tries. None: the step goes on; a Write: the run rests."""
        self._go_on()
        if self._shares and (rest := await self._take_room(session)) is not None:
            return rest
        self._index += 1
        self._desk = None
        self._start_step_clock()
        reply = await self._call_model(session)
        if isinstance(reply, Write):
            return reply
        self._journal.usage += reply.usage
        self._calls_made += 1
        if reply.kind == "empty":
            return await self._empty(session, reply)
        if reply.kind == "filtered":
            return self._llm_error(reply.text, "model_error", "The provider's content filter ended the response.", reply.usage, "content_filter")
        self._unsaved = reply
        await self._tell_changed_tools(session)
        if reply.kind == "calls" and (name := looping(session.messages)) is not None:
            return self._reply_write(reply) + Write(
                ending=_settle.failed("loop_detected", f"The model asks for {name!r} with the same input again and again.", tool=name)
            )
        return None

    async def _call_model(self, session: Session) -> Reply | Write:
        tries = 0
        while True:
            tries += 1
            self._execution.doing(self._index, "model")
            try:
                self._journal.calling = True
                reply = await session.ask()
                self._journal.calling = False
                return reply
            except ModelFailed as error:
                self._go_on()
                self._journal.calling = False
                self._journal.usage += error.usage
                decision = after_model_failure(
                    retryable=error.retryable,
                    tries=tries,
                    retry_after=error.retry_after,
                    chance=self._runtime.random(),
                    tries_max=self._agent.model_tries,
                )
                if isinstance(decision, GiveUp):
                    reason = "incomplete" if error.code == "incomplete_response" else "error"
                    return self._llm_error(error.text, error.code, error.message, error.usage, reason)
                # A try has no row of its own: what it cost is told with it, so that spend is always the sum of what is stored.
                told: dict[str, Any] = {"step": self._index, "try_no": tries, "error": error.message, "usage": error.usage.to_json()}
                if isinstance(decision, Again):
                    event = EventWrite("step.retried", {**told, "delay": decision.seconds})
                    await self._journal.write(Write(events=(event,)))
                    await self._pause(decision.seconds)
                    continue
                event = EventWrite("step.retried", {**told, "delay": decision.delay.total_seconds()})
                if isinstance(decision, Later):
                    return Write(events=(event,), ending=Release("retry_after", decision.delay))
                return self._quota(decision, error, event)

    def _quota(self, quota: Quota, error: ModelFailed, event: EventWrite) -> Write:
        row = WaitWrite(
            id=self._runtime.new_id(),
            kind="budget",
            question=f"quota:{self._index}",
            index=self._index,
            expires_at=self._execution.store_now() + quota.delay,
            data={"quota": True, "error": error.message, "resets_in": quota.delay.total_seconds(), "decisions": ["top_up"]},
        )
        return Write(events=(event,), waits=(row,), ending=Park(), progress=True)

    async def _empty(self, session: Session, reply: Reply) -> Write | None:
        """An empty response adds nothing to the history; it is asked again a few times."""
        step = self._llm_step(reply, finish_reason="empty", stored=False)
        self._remember(step)
        write = Write(steps=(step,), progress=False, booked=True)
        if in_a_row(self._recent, "empty") > EMPTY_RESPONSES_MAX:
            return write + Write(
                ending=_settle.failed("empty_response", f"The model answered with nothing {EMPTY_RESPONSES_MAX + 1} times in a row.")
            )
        session.drop()
        await self._journal.write(write)
        return None

    def _llm_error(self, text: str, code: str, message: str, usage: Usage, finish_reason: str) -> Write:
        """The errored step that fails the run."""
        return self._errored(text, code, message, usage, finish_reason) + Write(ending=_settle.failed(code, message), booked=True)

    def _errored(self, text: str, code: str, message: str, usage: Usage, finish_reason: str) -> Write:
        """The errored step (X7a): its text lives in the row, its checkpoint holds what the one before it held."""
        step = StepWrite(
            kind="llm",
            index=self._index,
            name=self._agent.model_name,
            text=text or None,
            error={"code": code, "message": message},
            usage=usage.to_json(),
            finish_reason=finish_reason,
            finished_at=self._runtime.now(),
        )
        log = self._message_log
        checkpoint = log.same(self._index, finish_reason) if log.length else None
        event = EventWrite("step.failed", {"step": self._index, "code": code})
        return Write(checkpoint=checkpoint, steps=(step,), events=(event,))

    # ── the tools and the output ───────────────────────────────────────────────────────────────────────────
    async def _answer(self, session: Session) -> Write | None:
        """Run the calls of the response, or process its output."""
        calls = self._unsaved.calls if self._unsaved is not None else await session.calls()
        self._desk = self._open_desk(calls)
        if self._step_clock is None:
            self._start_step_clock()
        outcome = await session.answer()
        if isinstance(outcome, Finished):
            return self._finish(session, outcome)
        await self._close_step(session, outcome)
        return None

    # ── what the session asks of its host ──────────────────────────────────────────────────────────────────
    def delta(self, kind: Literal["text", "reasoning"], text: str) -> None:
        """A piece of the response, as it streams."""
        self._execution.stream(Delta(self._run.id, self._index, self._run.epoch, self._try_no, kind, text))

    def try_begins(self, try_no: int) -> None:
        """The model call starts. What an earlier try of it has streamed is void."""
        self._try_no = try_no
        if try_no > 1:
            self._execution.stream(Reset(self._run.id, self._index, self._run.epoch, try_no))

    def validated(self, call: Call) -> None:
        """A call's input is valid: what an approval depends on is asked now, so that it is written with the response."""
        assert self._desk is not None
        self._desk.verdicts.judge(call, self._policy(call).approval)

    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        """Run one tool body under the rules of this step."""
        assert self._desk is not None
        return await self._desk.run_tool(call, body, approved=approved)

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        """Stored decisions, or rest."""
        assert self._desk is not None
        try:
            return await self._desk.decide(calls)
        except Rest as rest:
            # The response is what the rows are about: it goes first, in the same commit.
            raise Rest(self._take_unsaved() + rest.write) from None

    async def _reissue(self, session: Session) -> None:
        """The response was cut at the token limit: none of its calls runs, however well it parses."""
        if self._unsaved is not None and in_a_row(self._recent, "length") + 1 >= LENGTH_CUTS_MAX:
            reply = self._unsaved
            ending = _settle.failed(
                "length_cut", f"The response was cut at the token limit {LENGTH_CUTS_MAX} times in a row. Raise the model's max_tokens."
            )
            raise Rest(self._reply_write(reply) + Write(ending=ending))
        self._desk = self._open_desk(())
        await self._close_step(session, session.reissue(REISSUE))

    async def _close_step(self, session: Session, answered: Answered) -> None:
        """Write 2: the tool rows, and the checkpoint of the same index that answers every call."""
        async with self._saving:
            await self._journal.write(self._take_unsaved() + self._closing(session, answered))
        self._entered = None

    def _closing(self, session: Session, answered: Answered) -> Write:
        assert self._desk is not None
        late = self._desk.finished()
        steps = self._tool_rows(session, answered.results, late.steps)
        checkpoint = self._message_log.write(self._index, session.messages, self._finish_reason)
        data: dict[str, Any] = {"step": self._index}
        if answered.results:
            data["tools"] = [result.call.name for result in answered.results]
        if answered.refused:
            data["refused"] = True
        event = EventWrite("step.completed", data)
        return Write(checkpoint=checkpoint, steps=steps, effects=late.effects, events=(*late.events, event), progress=True)

    def _finish(self, session: Session, finished: Finished) -> Write:
        """The response that ends the run is stored in the commit that settles it."""
        assert self._desk is not None
        write = self._take_unsaved()
        late = self._desk.finished()
        # The output is the run's own; the calls beside it that the final result left unrun have their rows like any other.
        steps = self._tool_rows(session, [result for result in finished.results if not result.call.output], late.steps)
        checkpoint = self._message_log.write(self._index, session.messages, self._finish_reason)
        event = EventWrite("step.completed", {"step": self._index})
        ending = _settle.completed(finished.output_json, self._finish_reason or "stop")
        return write + Write(checkpoint=checkpoint, steps=steps, effects=late.effects, events=(*late.events, event), ending=ending, progress=True)

    def _tool_rows(self, session: Session, results: Sequence[Result], late: Sequence[StepWrite]) -> tuple[StepWrite, ...]:
        """One row for each answered call that has none yet: where it ran, its times; where it did not, why."""
        assert self._desk is not None
        position, ran = len(session.messages) - 1, {step.position: step for step in late}
        steps: list[StepWrite] = []
        for result in results:
            call = result.call
            if call.position in self._desk.written_answers():
                continue
            step = ran.get(call.position) or StepWrite(kind="tool", index=self._index, name=call.name, tool_call_id=call.id, position=call.position)
            error = step.error or (None if result.outcome == "success" else {"outcome": result.outcome})
            steps.append(replace(step, base=self._message_log.base, message=position, output=None, error=error))
        return tuple(steps)

    # ── write 1 ────────────────────────────────────────────────────────────────────────────────────────────
    async def _save_reply(self, extra: Write) -> None:
        """Write 1, acknowledged before the first body runs; `extra` (an effect's *started*) rides on it."""
        async with self._saving:
            reply = self._take_unsaved()
            write = reply + extra
            if write == Write():
                return
            try:
                await self._journal.write(write)
            except Conflict:
                # The store refused the effect (its business key is taken); the response was paid for and is kept.
                if reply != Write():
                    await self._journal.write(reply)
                raise
            except Exception as error:
                raise WriteRefused(error) from error

    def _take_unsaved(self) -> Write:
        """The response, and what approval predicates said of its calls: neither is asked for again."""
        reply, self._unsaved = self._unsaved, None
        verdicts = Write() if self._desk is None else Write(steps=self._desk.verdicts.take())
        return verdicts if reply is None else self._reply_write(reply) + verdicts

    def _reply_write(self, reply: Reply) -> Write:
        messages = self._session.messages
        # What follows the response belongs to write 2.
        upto = next(at for at in range(len(messages) - 1, -1, -1) if messages[at] is reply.message) + 1
        self._finish_reason = "length" if reply.kind == "cut" else reply.finish_reason
        checkpoint = self._message_log.write(self._index, messages[:upto], self._finish_reason)
        step = replace(self._llm_step(reply, finish_reason=self._finish_reason, stored=True, message=upto - 1), input=imaginary(reply.calls))
        self._remember(step)
        return Write(checkpoint=checkpoint, steps=(step,), progress=True, version=self._agent.version, booked=True)

    def _llm_step(self, reply: Reply, *, finish_reason: str | None, stored: bool, message: int | None = None) -> StepWrite:
        return StepWrite(
            kind="llm",
            index=self._index,
            name=reply.message.model_name or self._agent.model_name,
            base=self._message_log.base if stored else None,
            message=message,
            usage=reply.usage.to_json(),
            finish_reason=finish_reason,
            started_at=reply.started_at,
            finished_at=reply.finished_at,
        )

    def _remember(self, row: StepWrite) -> None:
        self._recent.append(Step(self._run.id, self._run.generation, 0, row))

    # ── limits and errors ──────────────────────────────────────────────────────────────────────────────────
    def _limit(self) -> Limit | None:
        return self._run.budget.reached(self._journal.usage, self._calls_made)

    async def _take_room(self, session: Session) -> Write | None:
        """Reserve the next model call under a budget that is shared. A Write: there is no room, and the run waits for it or has come to a limit."""
        agent = self._agent.what
        size = size_of_call(
            self._recent,
            [encode(each) for each in session.messages] if not self._recent else (),
            output_limit=agent.output_limit,
            price=agent.price,
        )
        told = await self._journal.reserve(self._index + 1, size.tokens, size.cost)
        self._go_on()
        self._shares = told.room is not Room.FREE
        if told.room is Room.REACHED:
            return self._limit_reached(session, told)
        return self._wait_for_room(told) if told.room is Room.FULL else None

    def _wait_for_room(self, told: Reserved) -> Write:
        """Others have a call in flight: whoever ends first wakes this run, and it looks by itself after a while."""
        row = WaitWrite(
            id=self._runtime.new_id(),
            kind="budget",
            question=f"{ROOM}{self._index}",
            index=self._index,
            name=told.family,
            expires_at=self._execution.store_now() + ROOM_LOOK,
            data={"limit": told.limit, "cap": told.cap, "decisions": ["look"]},
        )
        return Write(waits=(row,), ending=Park())

    def _limit_reached(self, session: Session, shared: Reserved | None = None) -> Write:
        """X9: stop with the text so far, fail, or wait for a top-up: of the run's own budget, or of the one above it that leaves no room."""
        limit = cast(Limit, self._limit() if shared is None else shared.limit)
        budget = shared.budget if shared is not None and shared.budget is not None else self._run.budget
        of = None if shared is None or shared.cap == self._run.id else shared.cap
        how = _settle.on_limit(self._run.budget, text_output=self._agent.text_output)
        event = EventWrite("budget.reached", {"limit": limit, "step": self._index, **({} if of is None else {"of": of})})
        asked = self._wait_for(f"budget:{self._index}")
        if how == "pause" and asked is not None and asked.resolution is not None and asked.resolution.decision == "stop":
            how = "stop" if self._agent.text_output else "fail"
        if how == "pause":
            row = WaitWrite(
                id=self._runtime.new_id(),
                kind="budget",
                question=f"budget:{self._index}",
                index=self._index,
                name=None if of is None or shared is None else shared.family,
                data={
                    "limit": limit,
                    "budget": budget.to_json(),
                    "usage": self._journal.usage.to_json(),
                    "decisions": ["top_up", "stop"],
                    **({} if of is None else {"of": of}),
                },
            )
            return Write(events=(event,), waits=(row,), ending=Park(), progress=True)
        if how == "stop" and self._agent.text_output:
            return Write(events=(event,), ending=_settle.completed(last_text(session.messages), limit))
        message = _settle.limit_message(limit, budget, of, shared=shared is not None)
        failure = _settle.failed("budget_exceeded", message, limit=limit, text=last_text(session.messages), **({} if of is None else {"of": of}))
        return Write(events=(event,), ending=failure)

    def _failed(self, error: BaseException) -> Write:
        """Keep what is finished, and fail the run with this error."""
        late = self._desk.finished() if self._desk is not None else Write()
        return self._take_unsaved() + late + Write(ending=_settle.from_error(error))

    def _attention(self, code: str, text: str) -> Write:
        row = WaitWrite(
            id=self._runtime.new_id(),
            kind="attention",
            question=f"attention:{self._index}:{code}",
            index=self._index,
            data={"code": "checkpoint_incompatible", "why": code, "message": text, "decisions": ["resume", "fail"]},
        )
        return Write(waits=(row,), ending=Park())

    # ── entering ───────────────────────────────────────────────────────────────────────────────────────────
    def _read_history(self, loaded: Loaded) -> list[Any] | Write:
        if any(wait.kind == "attention" and wait.resolution is not None and wait.resolution.decision == "fail" for wait in loaded.waits):
            return Write(ending=_settle.failed("checkpoint_incompatible", "An operator ended the run: its stored history can't be continued."))
        checkpoint = loaded.checkpoint
        # A call that failed before anything was stored used up an index, too.
        self._index = max([checkpoint.index if checkpoint else 0, *(step.row.index for step in loaded.recent)])
        if checkpoint is None:
            return []
        if checkpoint.format > FORMAT:
            return self._attention("format", f"The checkpoint has format {checkpoint.format}; this version reads up to {FORMAT}. Upgrade the worker.")
        try:
            return [decode(each) for each in checkpoint.messages]
        except Exception as error:
            return self._attention("unreadable", f"The checkpoint can't be read: {type(error).__name__}: {error}")

    async def _open(self, stack: AsyncExitStack, history: list[Any]) -> None:
        """The session over this history, with the agent's deps and tools, and the current run."""
        run = self._run
        self._current = CurrentRun(
            id=run.id,
            agent=run.agent,
            generation=run.generation,
            step=self._index,
            trigger=run.trigger,
            input=self._agent.validated(run.trigger.payload),
            cancellation=self._execution.stop,
            artifacts=RunArtifacts(self._execution.store),
            write_log=self._execution.log,
            launch=self._launch,
            epoch=run.epoch,
        )
        loaded = self._loaded.checkpoint
        self._message_log = MessageLog(encode, loaded, history, version=self._agent.version, tools_hash=self._agent.tools_hash)
        enter(self._current)  # this task's own context; it ends with the execution
        since = await self._thread_history(history) if loaded is None else 0
        self._session = await stack.enter_async_context(
            self._agent.session(self, self._execution, self._current, history, start=loaded is None, since=since)
        )
        if (changed := self._changed()) is not None:
            await self._journal.write(Write(events=(EventWrite("version.changed", changed),), version=self._agent.version))

    def _changed(self) -> dict[str, Any] | None:
        """What differs between the agent that wrote the checkpoint and the one that goes on from it (V1): the run goes on, and says so."""
        stored = self._loaded.checkpoint
        return differences(stored, self._agent.version, self._agent.tools_hash, before=self._run.version)

    async def _tell_changed_tools(self, session: Session) -> None:
        """As `_changed`, of the tools that show themselves only when the agent runs."""
        if self._looked or not session.tools:
            return
        self._looked = True
        agent, stored = self._agent, self._loaded.checkpoint
        found = agent.what.found_hash(session.tools)
        self._message_log.tools_hash = whole_hash(agent.tools_hash, found)
        if stored is not None and found_changed(stored.tools_hash, found):
            await self._journal.write(Write(events=(EventWrite("version.changed", {"tools": True}),)))

    async def _thread_history(self, history: list[Any]) -> int:
        """Put the thread's messages before a new run's own (G3), and say how many they are."""
        head = self._run.head
        if self._agent.history == "thread" and head is not None:
            earlier = await self._execution.store.checkpoint(head)
            if earlier is not None:
                history += [decode(each) for each in earlier.messages]
                if (differs := differences(earlier, self._agent.version, self._agent.tools_hash)) is not None:
                    await self._journal.write(Write(events=(EventWrite("version.changed", {**differs, "thread": head}),)))
        return len(history)

    async def _launch(self, current: CurrentRun, agent: str, payload: Any, options: dict[str, Any]) -> str:
        """Start a child run, keyed by the call that asks for it."""
        if self._desk is None:
            raise ConfigurationError("start() of a child run works inside a tool.")
        engine = self._execution.engine
        handle = await engine.admit_child(self._run, agent, payload, key=self._desk.child_key(current), **options)
        self._shares = self._shares or capped(self._run.budget)
        return handle.id

    async def outside(self, name: str, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None) -> Any:
        """A wait inside a tool's body, or of the step."""
        assert self._desk is not None
        try:
            return await self._desk.outside(name, ask, timeout)
        except Rest as rest:
            raise Rest(self._take_unsaved() + rest.write) from None

    def _wait_for(self, question: str) -> WaitPoint | None:
        return next((wait for wait in reversed(self._loaded.waits) if wait.row.question == question), None)

    def _go_on(self) -> None:
        if self._execution.must_stop():
            raise Stopped

    def _start_step_clock(self) -> None:
        """Give the step that begins its time (X12): renewals say that a worker lives, not that its step moves."""
        self._stop_step_clock()
        if self._agent.step_timeout is not None:
            self._step_clock = self._runtime.spawn(self._end_step_after(self._agent.step_timeout), name="step clock")

    def _stop_step_clock(self) -> None:
        if self._step_clock is not None:
            self._step_clock.cancel()
            self._step_clock = None

    async def _end_step_after(self, limit: timedelta) -> None:
        await self._runtime.sleep(limit.total_seconds())
        self._execution.abort("step_timeout")

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless the execution is told to stop."""
        pause = self._runtime.spawn(self._runtime.sleep(seconds), name="model back-off")
        stop = self._runtime.spawn(self._execution.stop.wait(), name="model back-off stop")
        try:
            await asyncio.wait({pause, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            stop.cancel()
        self._go_on()


def _known(step: Step) -> Known:
    """A stored tool row as the answer that it is."""
    error = step.row.error
    if error is None:
        return Known("success", step.row.output)
    return Known("retry" if error.get("outcome") == "retry" else "failed", error.get("message") or "The call failed.")
