"""What an agent phase does around each tool body: answers from what is recorded, asks where a person must say, notes effects before they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NoReturn, cast

from perdure.agents import ApprovalRequired, Call, CallDeferred, Decision, ModelRetry, ToolFailed, keep
from perdure.approvals import ApprovalCall, approval_rule
from perdure.context import CurrentRun, enter, leave
from perdure.context import Wait as ToolWait
from perdure.core.artifact import Artifact
from perdure.core.codec import clean
from perdure.core.errors import ConfigurationError, Suspend, UnserializableError
from perdure.core.limits import APPROVAL_WITHIN
from perdure.core.runtime import Runtime
from perdure.core.trigger import TriggerEnvelope
from perdure.effects import EffectCall, EffectRule, Happened, effect_rule
from perdure.pipeline._agent_rules import check_tool
from perdure.pipeline._agent_state import AgentCheckpoint, CallRecord, pending
from perdure.pipeline._phase import Approval, PhaseContext, Wait


class Parked(Suspend):
    """The response can't be answered now: another call comes first in an advance of its own, or something has to be waited for."""

    def __init__(self, key: str = "", wait: Wait[Any] | None = None, error: str | None = None) -> None:
        super().__init__("The turn stops here.")
        self.key, self.wait, self.error = key, wait, error


@dataclass
class CallHost:
    """The host of one advance's session. `state` grows with what the calls come to; it is stored with whatever the advance comes to."""

    ctx: PhaseContext[AgentCheckpoint]
    state: AgentCheckpoint
    phase: str
    runtime: Runtime
    one_at_a_time: bool
    calls: Sequence[Call] = ()
    _mine: str | None = None

    def see(self, calls: Sequence[Call]) -> None:
        """The calls of the response in hand."""
        self.calls = calls

    def delta(self, kind: Literal["text", "reasoning"], text: str) -> None: ...

    def try_begins(self, try_no: int) -> None: ...

    def validated(self, call: Call) -> None: ...

    # ── one call ───────────────────────────────────────────────────────────────────────────────────────────
    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        record = self.state.records.get(call.id)
        if record is not None and record.status == "waits" and approved:
            record = None
        if record is not None and record.status != "started":
            return _again(record)
        if self.one_at_a_time and self._mine not in (None, call.id):
            raise Parked
        self._mine = call.id
        check_tool(call.name, call.metadata)
        if record is None and not approved and self._must_ask(call):
            # Noted like a tool's own wish, so that the predicate's verdict stands, whatever it would say later.
            self._wait(call, asks := ApprovalRequired())
            raise asks
        rule = effect_rule(call.metadata)
        if rule is None:
            return await self._plain(call, body)
        if record is not None:
            known = await self._find_out(call, rule)
            if known is not None:
                return _again(known)
        return await self._effect(call, rule, body)

    async def _plain(self, call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        try:
            value = await keep(await self._within(call, body, call.timeout))
        except ModelRetry as error:
            self._note(call, "retry", error.message)
            raise
        except ToolFailed as error:
            self._note(call, "failed", str(error))
            raise
        except TimeoutError as error:
            self._note(call, "failed", _said(error))
            raise ToolFailed(_said(error)) from error
        except UnserializableError as error:
            self._note(call, "failed", error.message)
            raise ToolFailed(error.message) from error
        except (ApprovalRequired, CallDeferred) as waits:
            self._wait(call, waits)
            raise
        except Exception as error:
            self._note(call, "failed", _said(error))
            raise
        self._note(call, "done", value)
        return value

    async def _effect(self, call: Call, rule: EffectRule, body: Callable[[], Awaitable[Any]]) -> Any:
        """Stored as begun before the body begins: a crash from here on leaves a question, not a second deed."""
        self._note(call, "started", None)
        await self._save()
        try:
            value = await self._within(call, body, rule.timeout.total_seconds() if rule.timeout else call.timeout)
        except (ApprovalRequired, CallDeferred) as waits:
            self._wait(call, waits)
            await self._save()
            raise
        except (ModelRetry, ToolFailed) as error:
            text = error.message if isinstance(error, ModelRetry) else str(error)
            self._note(call, "retry" if isinstance(error, ModelRetry) else "failed", text)
            await self._save()
            raise
        except Exception as error:
            if isinstance(error, rule.certain) or rule.unknown == "retry":
                self._note(call, "failed", _said(error))
                await self._save()
                raise ToolFailed(_said(error)) from error
            # An exception is no proof that nothing happened.
            known = await self._find_out(call, rule, _said(error))
            return _again(known) if known is not None else await self._effect(call, rule, body)
        try:
            kept = await keep(value)
        except UnserializableError as error:
            self._note(call, "failed", f"It was done, and what it returned can't be kept: {error.message}")
            await self._save()
            raise ToolFailed(self.state.records[call.id].value) from error
        self._note(call, "done", kept)
        await self._save()
        return kept

    async def _find_out(self, call: Call, rule: EffectRule, why: str = "its process ended") -> CallRecord | None:
        """What became of an effect that began: its record; None means that it may run (again)."""
        if rule.verify is not None:
            found = await rule.verify(EffectCall(self.ctx.job_id, self.phase, call.name, call.args or {}, self._key(call)))
            return self._note(call, "done", await keep(found.result)) if isinstance(found, Happened) else None
        if rule.unknown == "retry":
            return None
        key = f"effect:{call.id}"
        ruling = self.state.rulings.get(key)
        if ruling is None:
            data = {"tool": call.name, "input": call.args, "tool_call_id": call.id, "key": self._key(call), "why": why}
            asks = f"Nobody knows whether {call.name} happened ({why}). Run it? Deny it with a value that is its result."
            raise Parked(key, Wait(approval=Approval(asks, data, None)))
        if ruling.approved:
            self.state = replace(self.state, rulings={each: said for each, said in self.state.rulings.items() if each != key})
            return None
        if ruling.value is not None:
            return self._note(call, "done", ruling.value)
        return self._note(call, "failed", ruling.reason or "It is not known whether it happened; it was not run again.")

    # ── decisions ──────────────────────────────────────────────────────────────────────────────────────────
    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        decided: dict[str, Decision] = {}
        for call in calls:
            deferred: dict[str, Any] = call.metadata.get("deferred") or {}
            kind = deferred.get("kind", "approval")
            ruling, rule = self.state.rulings.get(call.id), approval_rule(call.metadata) if kind == "approval" else None
            if ruling is None:
                check_tool(call.name, call.metadata)
                raise Parked(call.id, _question(call, kind, deferred, APPROVAL_WITHIN if rule is None else rule.within))
            if ruling.lapsed and rule is not None and rule.on_expiry == "fail":
                raise Parked(error=f"agent: nobody decided about {call.name} in time")
            if kind == "approval":
                args = cast(dict[str, Any], ruling.value) if isinstance(cast(object, ruling.value), dict) else None
                decided[call.id] = Decision(ruling.approved, args, ruling.reason)
            else:
                decided[call.id] = Decision(ruling.approved, message=ruling.reason, answered=ruling.approved, result=ruling.value)
        return decided

    # ── small parts ────────────────────────────────────────────────────────────────────────────────────────
    def _must_ask(self, call: Call) -> bool:
        rule = approval_rule(call.metadata)
        return rule is not None and rule.needed(ApprovalCall(call.name, call.args or {}, self.ctx.job_id, self.phase, self._trigger()))

    def _trigger(self) -> TriggerEnvelope:
        return TriggerEnvelope(self.state.conversation, "python", self.phase, self.state.prompt)

    async def _within(self, call: Call, body: Callable[[], Awaitable[Any]], limit: float | None) -> Any:
        token = enter(self._current(call))
        try:
            async with asyncio.timeout(limit):
                return await body()
        except ToolWait as wait:
            raise self._deferred(wait) from None
        finally:
            leave(token)

    def _deferred(self, wait: ToolWait) -> Exception:
        """A tool that ends with a wait is one whose result comes from elsewhere: from a person, or from time."""
        if wait.kind == "child":
            return ToolFailed("Child runs need an engine; a pipeline by itself has none.")
        until = wait.until_ if not isinstance(wait.until_, timedelta) else self.runtime.now() + wait.until_
        return CallDeferred({"timer": wait.kind == "timer", "event": wait.name, "until": None if until is None else until.isoformat()})

    def _note(self, call: Call, status: Literal["started", "done", "failed", "retry", "waits"], value: Any) -> CallRecord:
        record = CallRecord(status, value)
        records = {**self.state.records, call.id: record}
        self.state = replace(self.state, records=records, pending_tool_calls=pending(self.calls, records))
        return record

    def _wait(self, call: Call, waits: ApprovalRequired | CallDeferred) -> None:
        """The tool itself said that it waits: that is asked about without running its first lines again."""
        kind = "approval" if isinstance(waits, ApprovalRequired) else waits.kind
        self._note(call, "waits", {"kind": kind, "metadata": clean(waits.metadata)})

    async def _save(self) -> None:
        await self.ctx.save_state(self.state)

    def _key(self, call: Call) -> str:
        """The same over crashes, resumes and tries; another for each call."""
        return f"{self.ctx.job_id}:{self.state.conversation}:{self.state.turn}:{call.position}"

    def _current(self, call: Call) -> CurrentRun:
        return CurrentRun(
            id=self.ctx.job_id, agent=self.phase, generation=1, step=self.state.turn, trigger=self._trigger(), input=None, cancellation=self.ctx.cancelled,
            artifacts=_NoArtifacts(), write_log=self._log, launch=_no_children, key=self._key(call), tool=call.name, attempt=self.ctx.attempt,
        )  # fmt: skip

    def _log(self, level: str, message: str, data: dict[str, Any]) -> None:
        kept: Literal["info", "warn", "error"] = "warn" if level == "warn" else "error" if level == "error" else "info"
        self.runtime.spawn(self.ctx.log(f"{message} {data}" if data else message, kept), name="perdure-pipeline-tool-log")


class _NoArtifacts:
    """A pipeline alone has no shelf for files."""

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream", filename: str | None = None) -> Artifact:
        _no_artifacts()

    async def get(self, artifact_id: str) -> bytes:
        _no_artifacts()


async def _no_children(run: CurrentRun, agent: str, payload: Any, options: dict[str, Any]) -> str:
    raise ConfigurationError("A pipeline by itself starts no child runs. Register it with an engine, or make the child a phase.")


def _no_artifacts() -> NoReturn:
    raise ConfigurationError("A pipeline by itself stores no artifacts. Register it with an engine, or keep files in your own place.")


def _again(record: CallRecord) -> Any:
    """What the recorded call came to, once more."""
    if record.status == "retry":
        raise ModelRetry(str(record.value))
    if record.status == "failed":
        raise ToolFailed(str(record.value))
    if record.status == "waits":
        metadata = record.value["metadata"]
        if record.value["kind"] == "approval":
            raise ApprovalRequired(metadata)
        raise CallDeferred(metadata, kind=record.value["kind"])
    return record.value


def _question(call: Call, kind: str, deferred: dict[str, Any], within: timedelta | None) -> Wait[Any]:
    if deferred.get("timer"):
        return Wait(until=datetime.fromisoformat(deferred["until"]), reason=f"{call.name} goes on later")
    said = {name: value for name, value in deferred.items() if name != "kind"}
    data = {"tool": call.name, "input": call.args, "tool_call_id": call.id, "schema": call.schema, "kind": kind, **({"said": said} if said else {})}
    asks = f"Run {call.name}?" if kind == "approval" else f"{call.name} is done elsewhere: what is its result?"
    return Wait(approval=Approval(asks, data, within), until=datetime.fromisoformat(deferred["until"]) if deferred.get("until") else None)


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "TimeoutError: it took too long"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
