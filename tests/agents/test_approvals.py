"""Calls that need somebody's word: decided by the host, in every mixture and for every kind of output."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    NativeOutput,
    PromptedOutput,
    RunContext,
    TextOutput,
    ToolOutput,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import ToolReturnPart, UserPromptPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ApprovalRequiredToolset, ExternalToolset, FunctionToolset
from session_host import Host, Parked, session, step, to_the_end

from perdure.agents import Answered, Decision, Finished
from perdure.testing.models import Reply, ScriptedModel, StrictProvider, call, calls, say

pytestmark = pytest.mark.usefixtures("company")


class Refund(BaseModel):
    amount: int


def doubled(amount: int) -> int:
    return amount * 2


def shouted(text: str) -> str:
    return text.upper()


OUTPUTS: list[tuple[str, Any, Reply, Any]] = [
    ("text", str, say("done"), "done"),
    ("structured", Refund, call("final_result", amount=5), Refund(amount=5)),
    ("tool", ToolOutput(Refund, name="finish"), call("finish", amount=5), Refund(amount=5)),
    ("native", NativeOutput(Refund), say('{"amount": 5}'), Refund(amount=5)),
    ("prompted", PromptedOutput(Refund), say('{"amount": 5}'), Refund(amount=5)),
    ("union", [Refund, str], say("done"), "done"),
    ("function", doubled, call("final_result", amount=5), 10),
    ("text function", TextOutput(shouted), say("done"), "DONE"),
    ("declared", [str, DeferredToolRequests], say("done"), "done"),
]


def gated(output_type: Any, last: Reply, **options: Any) -> tuple[Agent[None, Any], StrictProvider, list[str]]:
    model = StrictProvider(ScriptedModel([calls(call("free"), call("refund", amount="5"), call("refund", amount=7)), last]))
    agent: Agent[None, Any] = Agent(model, output_type=output_type, **options)
    done: list[str] = []

    @agent.tool_plain
    def free() -> str:
        done.append("free")
        return "free"

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> str:
        done.append(f"refund {amount}")
        return f"refunded {amount}"

    return agent, model, done


@pytest.mark.parametrize(("output_type", "last", "expected"), [each[1:] for each in OUTPUTS], ids=[each[0] for each in OUTPUTS])
@pytest.mark.parametrize("validator", [False, True], ids=["", "validated"])
async def test_approvals_work_for_every_kind_of_output(output_type: Any, last: Reply, expected: Any, validator: bool) -> None:
    """Parked first, decided later, with output validators too: Pydantic AI's own way refuses some of these."""
    agent, model, done = gated(output_type, last)
    if validator:
        agent.output_validator(lambda value: value)
    host = Host()
    async with session(agent, host) as opened:
        await opened.ask()
        with pytest.raises(Parked):
            await opened.answer()
        history = opened.messages
    assert done == ["free"], "what needs no approval has run; nothing else has"
    assert [each.args for each in host.asked[0]] == [{"amount": 5}, {"amount": 7}]
    host = Host({"refund": Decision(approved=True)}, known={0: "free"})
    async with session(agent, host, history) as opened:
        answered = await opened.answer()
        assert [each.content for each in answered.results] == ["free", "refunded 5", "refunded 7"]
        finished = await to_the_end(opened)
    assert finished.output == expected
    assert host.approved == ["refund", "refund"]
    assert not model.refusals


async def test_each_of_several_calls_gets_its_own_decision() -> None:
    """One approved, one with other arguments, one denied: bound to the call, never to a position."""  # case B6, B10, B11
    model = StrictProvider(ScriptedModel([calls(call("pay", n=1), call("pay", n=2), call("free"), call("pay", n=3)), say("Done.")]))
    agent = Agent(model)
    paid: list[int] = []

    @agent.tool_plain(requires_approval=True)
    def pay(n: int) -> str:
        paid.append(n)
        return f"paid {n}"

    agent.tool_plain(lambda: "free", name="free")

    class Each(Host):
        async def decide(self, asked: Any) -> dict[str, Decision]:
            rule = {1: Decision(True), 2: Decision(True, args={"n": 20}), 3: Decision(False, message="Not this one.")}
            return {each.id: rule[each.args["n"]] for each in reversed(asked)}

    host = Each()
    async with session(agent, host) as opened:
        _, answered = await step(opened)
        assert [(each.outcome, each.content) for each in answered.results] == [
            ("success", "paid 1"),
            ("success", "paid 20"),
            ("success", "free"),
            ("denied", "Not this one."),
        ]
        *returned, told = answered.request.parts
        assert [(part.tool_name, part.tool_call_id) for part in returned] == [
            ("pay", "call-0-0"),
            ("pay", "call-0-1"),
            ("free", "call-0-2"),
            ("pay", "call-0-3"),
        ]
        assert isinstance(told, UserPromptPart), "the model learns of the changed input, and of that alone"
        assert told.content == 'The call of pay was approved with a changed input: {"n":20} in place of {"n":2}. Do not repeat it with the first one.'
        await to_the_end(opened)
    assert sorted(paid) == [1, 20]
    assert {each.position: each.args for each in host.ran}[1] == {"n": 20}, "the effective input is the edited one"
    assert not model.refusals


async def test_edited_arguments_pass_the_tools_own_validator() -> None:
    """An edit that the tool refuses does not run; the model is told."""  # case B11
    agent, _, done = gated(str, say("done"))
    async with session(agent, Host({"refund": Decision(True, args={"amount": "a lot"})})) as opened:
        _, answered = await step(opened)
    assert [each.outcome for each in answered.results] == ["success", "retry", "retry"]
    assert done == ["free"]


async def test_every_way_of_asking_for_approval_reaches_the_host() -> None:
    """Declared on the tool, raised by the tool, raised by its validator, put on by a toolset: all are asked about at once."""
    toolset: FunctionToolset[None] = FunctionToolset()
    toolset.add_function(lambda: "wrapped", name="wrapped")

    def careful(ctx: RunContext[None]) -> None:
        if not ctx.tool_call_approved:
            raise ApprovalRequired({"why": "validator"})

    script = [calls(call("declared"), call("raised"), call("validated"), call("wrapped")), say("Done.")]
    model = StrictProvider(ScriptedModel(script))
    agent: Agent[None, str] = Agent(model, toolsets=[ApprovalRequiredToolset(toolset)])
    agent.tool_plain(lambda: "declared", name="declared", requires_approval=True)
    agent.tool(lambda ctx: "validated", name="validated", args_validator=careful)

    @agent.tool
    def raised(ctx: RunContext[None]) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired({"why": "amount"})
        return "raised"

    host = Host({name: Decision(True) for name in ("declared", "raised", "validated", "wrapped")})
    async with session(agent, host) as opened:
        _, answered = await step(opened)
        assert [each.content for each in answered.results] == ["declared", "raised", "validated", "wrapped"]
        await to_the_end(opened)
    (asked,) = host.asked
    assert sorted((each.name, each.requires_approval) for each in asked) == [
        ("declared", True),
        ("raised", False),
        ("validated", False),
        ("wrapped", False),
    ]
    assert {each.name: each.metadata["deferred"] for each in asked}["raised"] == {"kind": "approval", "why": "amount"}
    assert not model.refusals


async def test_a_deferred_or_external_call_is_answered_with_a_result() -> None:
    """`CallDeferred` and tools that run elsewhere: the host's value is the result, and no body runs."""
    external = ExternalToolset([ToolDefinition(name="elsewhere", parameters_json_schema={"type": "object", "properties": {}})])
    model = StrictProvider(ScriptedModel([calls(call("later"), call("elsewhere"), call("asked"), call("refused")), say("Done.")]))
    agent = Agent(model, toolsets=[external])

    def deferring(kind: Literal["external", "question"]) -> Any:
        def tool() -> str:
            raise CallDeferred({"ticket": 7}, kind=kind)

        return tool

    agent.tool_plain(deferring("external"), name="later")
    agent.tool_plain(deferring("question"), name="asked")
    agent.tool_plain(deferring("external"), name="refused")
    answers = {name: Decision(True, answered=True, result={"from": name}) for name in ("later", "elsewhere", "asked")}
    host = Host({**answers, "refused": Decision(False, message="Nobody answered.")})
    async with session(agent, host) as opened:
        _, answered = await step(opened)
        assert [(each.outcome, each.content) for each in answered.results] == [
            ("success", {"from": "later"}),
            ("success", {"from": "elsewhere"}),
            ("success", {"from": "asked"}),
            ("failed", "Nobody answered."),
        ]
        await to_the_end(opened)
    kinds = {each.name: each.metadata["deferred"]["kind"] for each in host.asked[0]}
    assert kinds == {"later": "external", "elsewhere": "external", "asked": "question", "refused": "external"}
    assert not model.refusals


async def test_an_approval_may_be_answered_by_the_host_itself() -> None:
    """Somebody says "it happened, this is the result": the tool is let through and the host answers in its place."""
    agent, _, done = gated(str, say("done"))

    class Told(Host):
        async def run_tool(self, call: Any, body: Any, *, approved: bool) -> Any:
            return "it happened" if approved else await super().run_tool(call, body, approved=approved)

    async with session(agent, Told({"refund": Decision(True, answered=True)})) as opened:
        _, answered = await step(opened)
    assert [each.content for each in answered.results] == ["free", "it happened", "it happened"]
    assert done == ["free"]


async def test_a_handler_of_the_users_own_comes_first() -> None:
    """What the agent decides by itself, nobody is asked about."""

    def handler(ctx: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
        return DeferredToolResults(
            approvals={each.tool_call_id: each.args_as_dict()["amount"] == 7 for each in requests.approvals if "7" in str(each.args)}
        )

    agent, _, done = gated(str, say("done"), capabilities=[HandleDeferredToolCalls(handler=handler)])
    host = Host({"refund": Decision(False, message="No.")})
    async with session(agent, host) as opened:
        _, answered = await step(opened)
    assert [each.outcome for each in answered.results] == ["success", "denied", "success"]
    assert [len(each) for each in host.asked] == [1]
    assert done == ["free", "refund 7"]


async def test_an_approved_call_may_still_have_to_wait() -> None:
    """Its outcome became unknown, for example: that is asked about too, and what comes of it is its result."""
    model = StrictProvider(ScriptedModel([calls(call("pay"), call("free")), say("Done.")]))
    agent = Agent(model)
    agent.tool_plain(lambda: "paid", name="pay", requires_approval=True)
    agent.tool_plain(lambda: "free", name="free")

    class Unknown(Host):
        said: Decision | None = None

        async def run_tool(self, call: Any, body: Any, *, approved: bool) -> Any:
            if approved:
                raise CallDeferred({"outcome": "unknown"})
            return await super().run_tool(call, body, approved=approved)

        async def decide(self, asked: Any) -> dict[str, Decision]:
            self.asked.append(tuple(asked))
            if len(self.asked) == 1:
                return {each.id: Decision(True) for each in asked}
            if self.said is None:
                raise Parked("unknown")
            return {each.id: self.said for each in asked}

    for said, outcome in (
        (None, None),
        (Decision(True, answered=True, result=7), ("success", 7)),
        (Decision(False, message="Lost."), ("denied", "Lost.")),
    ):
        host = Unknown()
        host.said = said
        async with session(agent, host) as opened:
            await opened.ask()
            if outcome is None:
                with pytest.raises(Parked):
                    await opened.answer()
                continue
            answered = await opened.answer()
            assert [(each.outcome, each.content) for each in answered.results] == [outcome, ("success", "free")]
            await to_the_end(opened)
        assert host.asked[1][0].metadata["deferred"] == {"kind": "external", "outcome": "unknown"}
    assert not model.refusals


async def test_a_gated_call_beside_an_output_tool_is_not_run_when_the_output_ends_the_run() -> None:
    """Pydantic AI's own rule; the history still pairs every call."""
    model = StrictProvider(ScriptedModel([calls(call("refund"), call("final_result", amount=1))]))
    agent = Agent(model, output_type=Refund)
    done: list[int] = []
    agent.tool_plain(lambda: done.append(1), name="refund", requires_approval=True)
    host = Host()
    async with session(agent, host) as opened:
        _, finished = await step(opened)
        assert isinstance(finished, Finished)
        assert [(each.call.name, each.outcome) for each in finished.results] == [("refund", "skipped"), ("final_result", "success")]
        last = opened.messages[-1]
        assert [part.tool_call_id for part in last.parts if isinstance(part, ToolReturnPart)] == ["call-0-0", "call-0-1"]
    assert not host.asked
    assert not done


async def test_a_call_that_the_host_deferred_is_asked_about_before_an_output_tool_ends_the_run() -> None:
    """A deed of unknown outcome is not buried under a final result."""
    agent = Agent(ScriptedModel([calls(call("pay"), call("final_result", amount=1))]), output_type=Refund)
    agent.tool_plain(lambda: "paid", name="pay")

    class Unknown(Host):
        async def run_tool(self, call: Any, body: Any, *, approved: bool) -> Any:
            raise CallDeferred

    host = Unknown()
    async with session(agent, host) as opened:
        await opened.ask()
        with pytest.raises(Parked):
            await opened.answer()
    assert [each.name for each in host.asked[0]] == ["pay"]


async def test_decisions_are_asked_for_only_after_the_other_calls_have_finished() -> None:
    """Their results can be stored with the wait."""
    agent = Agent(ScriptedModel([calls(call("gated"), call("slow")), say("x")]))
    order: list[str] = []
    agent.tool_plain(lambda: "g", name="gated", requires_approval=True)

    @agent.tool_plain
    async def slow() -> str:
        turn = asyncio.Event()
        asyncio.get_running_loop().call_later(0.001, turn.set)
        await turn.wait()
        order.append("slow")
        return "s"

    class Ordered(Host):
        async def decide(self, asked: Any) -> dict[str, Decision]:
            order.append("decide")
            return await super().decide(asked)

    async with session(agent, Ordered({"gated": Decision(True)})) as opened:
        await step(opened)
    assert order == ["slow", "decide"]


async def test_an_output_validator_that_refuses_after_an_approval_goes_on_as_always() -> None:
    """Approval and refusal do not disturb each other."""
    model = StrictProvider(ScriptedModel([call("refund", amount=1), say("too short"), say("long enough by now")]))
    agent = Agent(model)
    agent.tool_plain(lambda amount: "ok", name="refund", requires_approval=True)

    @agent.output_validator
    def longer(text: str) -> str:
        if len(text) < 12:
            raise ModelRetry("Longer.")
        return text

    async with session(agent, Host({"refund": Decision(True)})) as opened:
        await step(opened)
        _, refused = await step(opened)
        assert isinstance(refused, Answered)
        assert refused.refused
        assert (await to_the_end(opened)).output == "long enough by now"
    assert not model.refusals
