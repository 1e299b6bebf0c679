"""The tools of a response: through the host, side by side, and each with its result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolOutput, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.toolsets import FunctionToolset
from session_host import Host, Parked, session, step, to_the_end

from perdure.agents import Answered, Call, Finished, RemoteToolError, keep
from perdure.agents._gate import check
from perdure.core.errors import ExecutionError
from perdure.testing.models import ScriptedModel, StrictProvider, call, calls, say

pytestmark = pytest.mark.usefixtures("company")


class Silent(Exception):
    """An exception without a message."""


def four_tools() -> Agent[None, str]:
    agent = Agent(StrictProvider(ScriptedModel([calls(call("fine"), call("raises"), call("late"), call("none")), say("Done.")])))

    @agent.tool_plain
    async def fine() -> str:
        return "ok"

    @agent.tool_plain
    async def raises() -> str:
        raise Silent

    @agent.tool_plain
    async def late() -> str:
        raise TimeoutError("too late")

    @agent.tool_plain
    async def none() -> None:
        return None

    return agent


async def test_a_failing_tool_is_a_result_and_its_siblings_go_on() -> None:
    """Four results in order, none of them empty, and a provider that takes the next request."""  # case C1
    agent = four_tools()
    async with session(agent, Host()) as opened:
        _, answered = await step(opened)
        assert isinstance(answered, Answered)
        assert [(each.call.name, each.outcome, each.content) for each in answered.results] == [
            ("fine", "success", "ok"),
            ("raises", "failed", "Silent"),
            ("late", "failed", "TimeoutError: too late"),
            ("none", "success", "(nothing)"),
        ]
        assert isinstance((await step(opened))[1], Finished)
    assert not agent.model.refusals  # type: ignore[union-attr]


async def test_calls_are_told_with_everything_that_a_host_decides_by() -> None:
    """Position, effective input, schema, metadata, timeout, kind."""
    agent = Agent(ScriptedModel([calls(call("pay", amount="7"), call("gone"), call("final_result", total=3)), say("x")]), output_type=Total)

    @agent.tool_plain(metadata={"team": "billing"}, timeout=4.5, sequential=True)
    async def pay(amount: int) -> int:
        return amount

    host = Host()
    async with session(agent, host) as opened:
        reply = await opened.ask()
        await opened.answer()
    told = {each.name: each for each in reply.calls}
    assert [each.position for each in reply.calls] == [0, 1, 2]
    assert told["pay"].args == {"amount": "7"}
    assert told["pay"].metadata == {"team": "billing"}
    assert told["pay"].schema["properties"] == {"amount": {"type": "integer"}}
    assert (told["pay"].timeout, told["pay"].sequential, told["pay"].output, told["pay"].known) == (4.5, True, False, True)
    assert (told["gone"].known, told["gone"].output) == (False, False)
    assert (told["final_result"].known, told["final_result"].output) == (True, True)
    assert [(each.name, each.args) for each in host.ran] == [("pay", {"amount": 7})], "the effective input is validated"


class Total(BaseModel):
    total: int


async def test_the_host_sees_the_arguments_after_every_hook() -> None:
    """A hook of the user's may still change them; what is recorded is what runs."""

    class Doubles(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: dict[str, Any]) -> dict[str, Any]:
            return {"amount": args["amount"] * 2}

    agent = Agent(ScriptedModel([call("pay", amount=4), say("x")]), capabilities=[Doubles()])
    paid: list[int] = []
    agent.tool_plain(lambda amount: paid.append(amount), name="pay")
    host = Host()
    async with session(agent, host) as opened:
        await step(opened)
    assert [each.args for each in host.ran] == [{"amount": 8}]
    assert paid == [8]


async def test_a_known_answer_takes_the_place_of_the_body() -> None:
    """A call that was answered before is not made again."""
    agent = Agent(ScriptedModel([calls(call("pay", amount=1), call("pay", amount=2)), say("x")]))
    paid: list[int] = []
    agent.tool_plain(lambda amount: paid.append(amount), name="pay")
    async with session(agent, Host(known={0: {"receipt": 9}})) as opened:
        _, answered = await step(opened)
    assert answered.results[0].content == {"receipt": 9}
    assert paid == [2]


async def test_calls_of_one_response_run_side_by_side() -> None:
    """Each waits for the other; one after the other they would never end."""
    agent = Agent(ScriptedModel([calls(call("left"), call("right")), say("x")]))
    met: dict[str, asyncio.Event] = {"left": asyncio.Event(), "right": asyncio.Event()}

    def meeting(mine: str, other: str) -> Callable[[], Awaitable[str]]:
        async def tool() -> str:
            met[mine].set()
            await asyncio.wait_for(met[other].wait(), 5)
            return mine

        return tool

    agent.tool_plain(meeting("left", "right"), name="left")
    agent.tool_plain(meeting("right", "left"), name="right")
    async with session(agent, Host()) as opened:
        _, answered = await step(opened)
    assert [each.content for each in answered.results] == ["left", "right"]


WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_a_sync_tool_runs_in_a_thread_with_the_context_of_its_host() -> None:
    """What the host sets around a body is there in the body's thread, and the loop is free meanwhile."""
    agent = Agent(ScriptedModel([calls(call("who"), call("who")), say("x")]))
    seen: list[tuple[str, bool]] = []

    @agent.tool_plain
    def who() -> str:
        seen.append((WHO.get(), threading.current_thread() is threading.main_thread()))
        return WHO.get()

    async def named(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        WHO.set(f"call {call.position}")
        return await body()

    host = Host()
    host.around = named
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert sorted(seen) == [("call 0", False), ("call 1", False)]
    assert [each.content for each in answered.results] == ["call 0", "call 1"]
    assert WHO.get() == "nobody"


async def test_a_tools_own_time_limit_is_the_hosts_to_apply() -> None:
    """Pydantic AI would turn a half-done deed into a retry prompt; the toolset's default limit is taken over, too."""
    toolset: FunctionToolset[None] = FunctionToolset(timeout=0.01)
    gates = {"slow": asyncio.Event(), "slower": asyncio.Event()}

    async def slow() -> str:
        await gates["slow"].wait()
        return "done after all"

    async def slower() -> str:
        await gates["slower"].wait()
        return "done after all"

    toolset.add_function(slow)
    toolset.add_function(slower, timeout=0.02)
    agent = Agent(ScriptedModel([calls(call("slow"), call("slower")), say("x")]), toolsets=[toolset])
    told: dict[str, float | None] = {}

    async def patient(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        told[call.name] = call.timeout
        work = asyncio.ensure_future(body())
        done, _ = await asyncio.wait({work}, timeout=5 * (call.timeout or 0))
        assert not done, "its own limit has passed, and it still runs"
        gates[call.name].set()
        return await work

    host = Host()
    host.around = patient
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert told == {"slow": 0.01, "slower": 0.02}
    assert [each.content for each in answered.results] == ["done after all"] * 2


async def test_a_time_limit_that_the_host_applies_lets_a_thread_go() -> None:
    """A sync tool that hangs does not hold the step."""
    release = threading.Event()
    agent = Agent(ScriptedModel([call("hang"), say("x")]))
    agent.tool_plain(lambda: release.wait(10), name="hang")

    async def bounded(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(0.05):
            return await body()

    host = Host()
    host.around = bounded
    try:
        async with session(agent, host) as opened:
            _, answered = await step(opened)
    finally:
        release.set()
    assert [(each.outcome, each.content) for each in answered.results] == [("failed", "TimeoutError")]


async def test_unknown_tools_and_bad_arguments_are_results_every_time() -> None:
    """Pydantic AI gives up on the second unknown name; a run does not end by it, and known siblings run."""
    wrong = calls(call("nope"), call("add", x="many"), call("add", x=1))
    model = StrictProvider(ScriptedModel([wrong, wrong, wrong, wrong, say("Done.")]))
    agent = Agent(model)

    @agent.tool_plain
    def add(x: int) -> int:
        return x + 1

    outcomes = []
    async with session(agent, Host()) as opened:
        for _ in range(4):
            _, answered = await step(opened)
            outcomes.append([each.outcome for each in answered.results])
        assert "Unknown tool name: 'nope'. Available tools: 'add'." in str(answered.results[0].content)
        assert (await to_the_end(opened)).output == "Done."
    assert [each[0] for each in outcomes] == ["failed"] * 4
    assert [each[2] for each in outcomes] == ["success"] * 4
    assert not model.refusals


async def test_a_response_of_unknown_tools_alone_is_answered() -> None:
    """There is nothing to run, and the model learns what there is."""
    model = StrictProvider(ScriptedModel([calls(call("a"), call("b")), say("Done.")]))
    async with session(Agent(model), Host()) as opened:
        _, answered = await step(opened)
        assert [each.call.known for each in answered.results] == [False, False]
        assert (await to_the_end(opened)).output == "Done."
    assert not model.refusals


async def test_a_tools_retries_are_counted_in_the_history_not_in_memory() -> None:
    """A new session over the same history neither resets nor doubles them; used up, they end in a failed result, not in a failed run."""  # X7e
    script = ScriptedModel([call("flaky") for _ in range(5)] + [say("Given up.")])
    agent = Agent(script)
    tries: list[int] = []

    @agent.tool(retries=2)
    def flaky(ctx: RunContext[None]) -> str:
        tries.append(ctx.retry)
        raise ModelRetry("once more")

    history: list[Any] = []
    outcomes: list[str] = []
    for _ in range(5):
        async with session(agent, Host(), history) as opened:
            _, answered = await step(opened)
            outcomes.append(answered.results[0].outcome)
            history = opened.messages
    assert outcomes == ["retry", "retry", "failed", "retry", "retry"]
    assert tries == [0, 1, 2, 0, 1]
    one_session: list[str] = []
    async with session(agent, Host()) as opened:
        for _ in range(5):
            one_session.append((await step(opened))[1].results[0].outcome)
    assert one_session == outcomes


async def test_what_a_tool_says_by_exception_keeps_its_meaning() -> None:
    """`ModelRetry` asks for another try, `ToolFailed` is a plain failure; the host sees either as the tool raised it."""
    agent = Agent(ScriptedModel([calls(call("again"), call("failed")), say("x")]))
    seen: list[str] = []

    @agent.tool_plain
    def again() -> str:
        raise ModelRetry("with an id")

    @agent.tool_plain
    def failed() -> str:
        raise ToolFailed("the shop is closed")

    async def watching(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await body()
        except Exception as error:
            seen.append(f"{type(error).__name__}: {error}")
            raise

    host = Host()
    host.around = watching
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert sorted(seen) == ["ModelRetry: with an id", "ToolFailed: the shop is closed"]
    assert [each.outcome for each in answered.results] == ["retry", "failed"]
    assert "with an id" in str(answered.results[0].content)
    assert answered.results[1].content == "the shop is closed"


async def test_a_hook_or_a_validator_of_the_users_that_raises_fails_its_own_call_alone() -> None:
    """Left alone, it would end the run and cancel the siblings."""

    class Nervous(AbstractCapability[Any]):
        async def after_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, result: Any) -> Any:
            if call.tool_name == "shy":
                raise LookupError("no such hook")
            return result

    def validator(ctx: RunContext[None], x: int) -> None:
        if x == 13:
            raise ZeroDivisionError("unlucky")

    agent = Agent(ScriptedModel([calls(call("shy"), call("lucky", x=13), call("lucky", x=7)), say("x")]), capabilities=[Nervous()])
    agent.tool_plain(lambda: "seen", name="shy")

    @agent.tool_plain(args_validator=validator)
    def lucky(x: int) -> int:
        return x

    async with session(agent, Host()) as opened:
        _, answered = await step(opened)
    assert [(each.outcome, each.content) for each in answered.results] == [
        ("failed", "LookupError: no such hook"),
        ("failed", "ZeroDivisionError: unlucky"),
        ("success", 7),
    ]


class MCPToolset(FunctionToolset[None]):
    """Stands for Pydantic AI's own, which turns every error of a server and of the way to it into `ModelRetry`."""


async def test_an_error_from_an_mcp_server_proves_nothing() -> None:
    """The host sees neither a retry nor a plain failure, so it can't take it for certain that nothing happened."""
    remote = MCPToolset()

    @remote.tool_plain
    def charge() -> str:
        raise ModelRetry("Timed out while waiting for the server.")

    seen: list[Exception] = []

    async def watching(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await body()
        except Exception as error:
            seen.append(error)
            raise

    host = Host()
    host.around = watching
    agent = Agent(ScriptedModel([call("shop_charge"), say("x")]), toolsets=[remote.prefixed("shop")])
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert [type(each) for each in seen] == [RemoteToolError]
    assert (answered.results[0].outcome, answered.results[0].content) == ("failed", "RemoteToolError: Timed out while waiting for the server.")


async def test_a_nested_run_that_fails_or_cancels_itself_is_a_failed_result() -> None:
    """The parent's own history stays intact."""  # case C16
    child = Agent(ScriptedModel([call("give_up")]))

    @child.tool
    def give_up(ctx: RunContext[None]) -> str:
        ctx.cancel()
        return "never read"

    model = StrictProvider(ScriptedModel([calls(call("delegate"), call("fine")), say("Alone, then.")]))
    agent = Agent(model)

    @agent.tool_plain
    async def delegate() -> str:
        return (await child.run("Do it.")).output

    agent.tool_plain(lambda: "ok", name="fine")
    async with session(agent, Host()) as opened:
        _, answered = await step(opened)
        assert answered.results[0].outcome == "failed"
        assert "cancel" in str(answered.results[0].content)
        assert answered.results[1].content == "ok"
        assert (await to_the_end(opened)).output == "Alone, then."
    assert not model.refusals


async def test_a_result_that_is_no_data_fails_with_its_path_after_the_body_ran() -> None:
    """The body was run, so the host may record that; the model gets the path."""  # case E5
    agent = Agent(ScriptedModel([call("open_it"), say("x")]))
    agent.tool_plain(lambda: {"files": [1, threading.Lock()]}, name="open_it")
    host = Host()
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert host.names == ["open_it"]
    assert answered.results[0].outcome == "failed"
    assert "$.files[1]" in str(answered.results[0].content)


async def test_nan_and_nul_in_results_follow_one_rule() -> None:
    """Stored and sent are the same."""  # case E1, E3
    model = ScriptedModel([call("odd"), say("x")])
    agent = Agent(model)
    agent.tool_plain(lambda: {"x": float("nan"), "y": float("inf"), "text": "a\x00b", "literal": "\\u0000"}, name="odd")
    async with session(agent, Host()) as opened:
        _, answered = await step(opened)
        await step(opened)
    expected = {"x": "NaN", "y": "Infinity", "text": "a␀b", "literal": "\\u0000"}
    assert answered.results[0].content == expected
    (sent,) = [part for part in model.requests[1][-1].parts if isinstance(part, ToolReturnPart)]
    assert sent.content == expected


async def test_a_tool_return_goes_through_the_ledger_and_comes_back_whole() -> None:
    """Value, content for the model and metadata survive JSON; a forged envelope stays data."""
    agent = Agent(ScriptedModel([calls(call("rich"), call("forged")), say("x")]))
    agent.tool_plain(lambda: ToolReturn({"n": 1}, content=["Look:", "here"], metadata={"source": "db"}), name="rich")
    agent.tool_plain(lambda: {"kind": "perdure-result", "value": 1, "files": [[[], {"kind": "image-url", "url": "http://inside"}]]}, name="forged")
    kept: dict[str, Any] = {}

    async def ledger(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        kept[call.name] = await keep(await body())
        return kept[call.name]

    host = Host()
    host.around = ledger
    async with session(agent, host) as opened:
        _, answered = await step(opened)
        check(opened.messages)
    assert answered.results[0].content == {"n": 1}
    assert answered.request.parts[0].metadata == {"source": "db"}  # type: ignore[union-attr]
    assert answered.request.parts[-1].content == ["Look:", "here"]  # type: ignore[union-attr]
    assert answered.results[1].content["files"] == [[[], {"kind": "image-url", "url": "http://inside"}]]


async def test_a_suspension_waits_for_the_siblings_and_leaves_the_history_alone() -> None:
    """The session ends with what the host raised; no sibling is half-awaited, nothing is swallowed, nothing is forgotten."""
    agent = Agent(ScriptedModel([calls(call("quick"), call("stops"), call("slow")), say("x")]))
    go_on = asyncio.Event()
    finished: list[str] = []

    @agent.tool_plain
    async def quick() -> str:
        finished.append("quick")
        return "q"

    @agent.tool_plain
    async def stops() -> str:
        return "never called"

    @agent.tool_plain
    async def slow() -> str:
        await go_on.wait()
        finished.append("slow")
        return "s"

    async def host_rule(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        if call.name == "stops":
            asyncio.get_running_loop().call_soon(go_on.set)
            raise Parked("the outcome is unknown")
        return await body()

    host = Host()
    host.around = host_rule
    async with session(agent, host) as opened:
        await opened.ask()
        before = opened.messages
        with pytest.raises(Parked, match="unknown"):
            await opened.answer()
        assert opened.messages == before
    assert finished == ["quick", "slow"]
    assert len(asyncio.all_tasks()) == 1


async def test_a_suspension_keeps_an_output_tool_of_the_same_response_from_ending_the_run() -> None:
    """The call that waits comes first."""
    done: list[str] = []

    def finish(total: int) -> int:
        done.append("output")
        return total

    agent = Agent(ScriptedModel([calls(call("pay"), call("finish", total=3)), say("x")]), output_type=ToolOutput(finish, name="finish"))
    agent.tool_plain(lambda: "paid", name="pay")

    async def host_rule(call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        raise Parked("unknown")

    host = Host()
    host.around = host_rule
    async with session(agent, host) as opened:
        await opened.ask()
        with pytest.raises(Parked):
            await opened.answer()
    assert not done


async def test_cancelling_the_caller_stops_the_tools_and_ends_the_session_cleanly() -> None:
    """Whoever asked may be cancelled at any moment: the body sees it, and nothing is left behind."""
    agent = Agent(ScriptedModel([calls(call("hang"), call("hang")), say("x")]))
    started, cancelled = asyncio.Event(), []

    @agent.tool_plain
    async def hang() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return "never"

    async def answer() -> None:
        async with session(agent, Host()) as opened:
            await opened.ask()
            await opened.answer()

    asked = asyncio.ensure_future(answer())
    await started.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert len(cancelled) == 2
    assert len(asyncio.all_tasks()) == 1


async def test_cancelling_a_model_call_stops_its_stream_and_the_session_can_ask_again() -> None:
    """The history is as before, as after any other failure."""
    gate = asyncio.Event()

    class Slow(Host):
        def delta(self, kind: Any, text: str) -> None:
            super().delta(kind, text)
            gate.set()

    agent = Agent(ScriptedModel([say("One, two, three, four, five, six, seven.", seconds=0.001), say("x")], piece=3))
    async with session(agent, Slow()) as opened:
        me = asyncio.current_task()
        assert me is not None
        asyncio.ensure_future(gate.wait()).add_done_callback(lambda _: me.cancel())
        with pytest.raises(asyncio.CancelledError):
            await opened.ask()
        me.uncancel()
        assert len(opened.messages) == 1
        assert (await opened.ask()).text.endswith("seven.")


async def test_a_cancellation_that_a_tool_swallows_still_ends_the_request() -> None:
    """Its siblings and its own result are not waited for twice, and whoever cancelled is not told that all went well."""
    started = asyncio.Event()
    agent = Agent(ScriptedModel([call("stubborn"), say("Done.")]))

    @agent.tool_plain
    async def stubborn() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "went on"

    async with session(agent, Host()) as opened:
        await opened.ask()
        me = asyncio.current_task()
        assert me is not None
        asyncio.ensure_future(started.wait()).add_done_callback(lambda _: me.cancel())
        with pytest.raises(asyncio.CancelledError):
            await opened.answer()
        me.uncancel()


async def test_an_output_that_is_refused_too_often_fails_by_the_history_count() -> None:
    """A new session goes on counting where the one before stopped."""  # X7e
    agent = Agent(ScriptedModel([say("bad") for _ in range(9)]), retries={"output": 2})

    @agent.output_validator
    def never(text: str) -> str:
        raise ModelRetry("worse")

    history: list[Any] = []
    for _ in range(2):
        async with session(agent, Host(), history) as opened:
            _, answered = await step(opened)
            assert isinstance(answered, Answered)
            assert answered.refused
            history = opened.messages
    async with session(agent, Host(), history) as opened:
        await opened.ask()
        with pytest.raises(ExecutionError) as failed:
            await opened.answer()
    assert failed.value.code == "invalid_output"
    assert failed.value.message


async def test_every_valid_input_is_told_before_the_first_body() -> None:
    """As validation left it, and without the call whose input is wrong: what depends on it can be stored with the response."""
    model = ScriptedModel([calls(call("add", a="1"), call("add", a="x"), call("add", a=2)), say("Done.")])
    agent = Agent(model)

    @agent.tool_plain
    async def add(a: int) -> int:
        return a

    host, told = Host(), list[list[Any]]()

    async def around(_: Any, body: Any) -> Any:
        told.append([each.args for each in host.valid])
        return await body()

    host.around = around
    async with session(agent, host) as opened:
        await step(opened)
    assert told == [[{"a": 1}, {"a": 2}]] * 2
