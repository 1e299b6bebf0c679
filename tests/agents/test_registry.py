"""Agents under a name: what is checked when they are registered, what goes in and comes out."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, TextOutput, ToolOutput
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from session_host import RUNTIME, Drawer, Host, to_the_end
from typing_extensions import TypedDict

from perdure.agents import Registration
from perdure.context import CurrentRun, current_run, enter, leave
from perdure.core.budget import Budget
from perdure.core.errors import ConfigurationError, ExecutionError, InvalidTrigger
from perdure.core.trigger import TriggerEnvelope
from perdure.effects import effect, plain
from perdure.testing.models import ScriptedModel, call, calls, say


class Ticket(BaseModel):
    subject: str = Field(min_length=1)
    lines: list[int] = []
    due: date | None = None


def agent_of(*replies: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(replies) or [say("Done.")]), name="support", **options)


@contextmanager
def running(payload: Any = None) -> Iterator[CurrentRun]:
    trigger = TriggerEnvelope("t1", "python", "support", payload, received_at=datetime(2026, 1, 1, tzinfo=UTC))
    absent: Any = None
    current = CurrentRun(
        id="r1",
        agent="support",
        generation=1,
        step=0,
        trigger=trigger,
        input=payload,
        cancellation=absent,
        artifacts=Drawer(),
        write_log=absent,
        launch=absent,
    )
    token = enter(current)
    try:
        yield current
    finally:
        leave(token)


async def run(registration: Registration, payload: Any = None, host: Host | None = None, **options: Any) -> Any:
    with running(payload) as current:
        opened = registration.open(
            current, host=host or Host(), runtime=RUNTIME, history=[], artifacts=Drawer(), start=True, **options
        )  # fmt: skip
        async with opened as session:
            return await to_the_end(session), session.messages


def test_the_agents_own_name_is_the_default() -> None:
    """And another one may be given."""
    assert Registration(agent_of()).name == "support"
    assert Registration(agent_of(), name="billing").name == "billing"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": "not an agent"}, "takes a Pydantic AI Agent, not str"),
        ({"agent": Agent(TestModel())}, "has no name"),
        ({"name": "x" * 121}, "at most 120"),
        ({"name": " padded "}, "won't do"),
        ({"name": "line\nbreak"}, "won't do"),
        ({"agent": Agent(name="bare")}, "has no model"),
        ({"agent": Agent(TestModel(), name="a", deps_type=Ticket)}, "needs deps of type Ticket"),
        ({"input": object()}, "not a type that Pydantic can validate"),
        ({"tools": [1]}, "rules by pattern"),
        ({"tools": {"x*": True}}, "effect(…), approve(…), plain()"),
        ({"tools": {"refnud": effect()}}, "fits no tool of this agent. Its tools: refund"),
        ({"render": "text"}, "render= takes a function, not str"),
        ({"toolset": [1]}, "toolset= takes a function, not list"),
        ({"budget": Budget(max_cost=Decimal(1))}, "none is known for 'scripted'"),
    ],
)
def test_what_is_wired_wrongly_is_refused_with_what_to_write_instead(options: dict[str, Any], message: str) -> None:
    """At registration, not in the middle of a run."""
    agent = options.pop("agent", None)
    if agent is None:
        agent = agent_of()
        agent.tool_plain(lambda: "x", name="refund")
    with pytest.raises(ConfigurationError) as refused:
        Registration(agent, **options)
    assert message in str(refused.value)


def test_a_rule_may_be_for_tools_that_are_not_known_yet() -> None:
    """An MCP server's or a factory's: those show themselves at run time."""
    external = ExternalToolset([])
    Registration(agent_of(toolsets=[external]), tools={"remote_*": effect()})
    Registration(agent_of(), tools={"made": effect()}, toolset=lambda run: [])


def test_a_cost_limit_needs_a_price_or_the_word_that_none_is_needed() -> None:
    """A known model has one."""
    Registration(Agent("openai:gpt-4o", name="a", defer_model_check=True), budget=Budget(max_cost=Decimal(1)))
    Registration(agent_of(), budget=Budget(max_cost=Decimal(1), unknown_price="ignore"))


@pytest.mark.parametrize(
    ("payload", "field", "fields"),
    [
        ({}, "subject", ["subject"]),
        ({"subject": ""}, "subject", ["subject"]),
        ({"subject": "x", "lines": [1, "b", "c"]}, "lines.1", ["lines.1", "lines.2"]),
        ("text", "", [""]),
        (None, "", [""]),
    ],
)
def test_bad_input_names_the_field_that_is_wrong(payload: Any, field: str, fields: list[str]) -> None:
    """The first in `field`, all of them in `errors`."""  # G5
    with pytest.raises(InvalidTrigger) as refused:
        Registration(agent_of(), input=Ticket).check(payload)
    assert refused.value.details["field"] == field
    assert [each["field"] for each in refused.value.details["errors"]] == fields
    assert (f"payload.{field}" if field else "payload:") in str(refused.value)


class Mapped(TypedDict):
    id: int


@dataclass
class Pair:
    left: int
    right: str


@pytest.mark.parametrize(
    ("kind", "payload", "stored", "value"),
    [
        (
            Ticket,
            {"subject": "x", "due": "2026-05-01"},
            {"subject": "x", "lines": [], "due": "2026-05-01"},
            Ticket(subject="x", due=date(2026, 5, 1)),
        ),
        (Ticket, Ticket(subject="x"), {"subject": "x", "lines": [], "due": None}, Ticket(subject="x")),
        (Pair, {"left": "1", "right": "r"}, {"left": 1, "right": "r"}, Pair(1, "r")),
        (Mapped, {"id": 3}, {"id": 3}, {"id": 3}),
        (list[int], ["1", 2], [1, 2], [1, 2]),
        (Literal["a", "b"], "a", "a", "a"),
        (Any, {"free": [1, None, "x\x00"]}, {"free": [1, None, "x␀"]}, {"free": [1, None, "x␀"]}),
    ],
)
def test_input_is_any_type_that_pydantic_validates(kind: Any, payload: Any, stored: Any, value: Any) -> None:
    """Stored as JSON, and read back as what the agent declared."""
    registration = Registration(agent_of(), input=kind)
    assert registration.check(payload) == stored
    assert registration.validated(stored) == value
    assert isinstance(registration.input_schema, dict)


class Colour(enum.Enum):
    RED = "red"


def price(amount: int) -> Decimal:
    """An output function."""
    return Decimal(amount)


def priced(text: str) -> Decimal:
    """A text function."""
    return Decimal(text)


@pytest.mark.parametrize(
    ("output_type", "stored", "value", "text"),
    [
        (str, "x", "x", True),
        (Ticket, {"subject": "x"}, Ticket(subject="x"), False),
        (ToolOutput(Ticket), {"subject": "x"}, Ticket(subject="x"), False),
        (NativeOutput(Ticket), {"subject": "x"}, Ticket(subject="x"), False),
        (PromptedOutput([Ticket, Pair]), {"left": 1, "right": "r"}, Pair(1, "r"), False),
        ([Ticket, str], "x", "x", False),
        (price, "7", Decimal(7), False),
        (TextOutput(priced), "7", Decimal(7), False),
        (Colour, "red", Colour.RED, False),
        (list[Pair], [{"left": 1, "right": "r"}], [Pair(1, "r")], False),
    ],
)
def test_a_stored_output_is_read_back_as_the_agent_gave_it(output_type: Any, stored: Any, value: Any, text: bool) -> None:
    """Whatever stands around the type: markers, functions, unions."""
    registration = Registration(agent_of(output_type=output_type))
    assert registration.parse_output(stored) == value
    assert registration.text_output is text
    assert isinstance(registration.output_schema, dict)


def test_tools_that_nobody_declared_are_listed() -> None:
    """Those may run again after a crash: by metadata, rule or annotation one is declared."""
    prefixed: FunctionToolset[None] = FunctionToolset()
    prefixed.add_function(lambda: "x", name="look")
    prefixed.add_function(lambda: "x", name="book")
    agent = agent_of(toolsets=[prefixed.prefixed("cal")])
    agent.tool_plain(lambda: "x", name="refund", metadata=effect())
    agent.tool_plain(lambda: "x", name="search", metadata=plain())
    agent.tool_plain(lambda: "x", name="mail")
    agent.tool_plain(lambda: "x", name="hinted", metadata={"annotations": {"readOnlyHint": True}})
    registration = Registration(agent, tools={"cal_b*": effect("retry")})
    assert registration.undeclared() == ["cal_look", "mail"]
    assert {tool.name for tool in registration.static_tools} == {"refund", "search", "mail", "hinted", "cal_look", "cal_book"}


def test_the_hash_of_the_tools_changes_with_their_schemas_alone() -> None:
    """So that a difference between two versions can be told."""

    def with_tool(kind: type, name: str = "t") -> str:
        agent = agent_of()

        def tool(x: Any) -> str:
            return "x"

        tool.__annotations__["x"] = kind
        agent.tool_plain(tool, name=name)
        return Registration(agent).tools_hash

    assert with_tool(int) == with_tool(int)
    assert with_tool(int) != with_tool(str)
    assert with_tool(int) != with_tool(int, "u")


class Resource:
    """Something that must be closed."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    async def __aenter__(self) -> Resource:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left += 1


def reading(seen: list[Any]) -> Agent[Any, Any]:
    agent = agent_of(call("look"), say("Done."), deps_type=object)

    @agent.tool
    def look(ctx: RunContext[Any]) -> str:
        seen.append(ctx.deps)
        return "seen"

    return agent


async def test_deps_are_a_value_a_function_of_the_run_or_a_context() -> None:
    """A value is never entered, whatever it can do; a context made by `@asynccontextmanager` is entered and left with the execution."""
    seen: list[Any] = []
    pool = Resource()
    opened = Resource()

    async def later(run: CurrentRun) -> str:
        return f"async {run.id}"

    @asynccontextmanager
    async def scoped(run: CurrentRun) -> AsyncIterator[Resource]:
        async with opened:
            yield opened

    for deps in (pool, lambda run: f"of {run.id}", lambda: "of nothing", later, partial(lambda word, run: word, "bound"), lambda run: pool):
        await run(Registration(reading(seen), deps=deps))
    await run(Registration(reading(seen), deps=scoped))
    assert seen == [pool, "of r1", "of nothing", "async r1", "bound", pool, opened]
    assert (pool.entered, pool.left) == (0, 0)
    assert (opened.entered, opened.left) == (1, 1)


async def test_a_toolset_factory_is_called_once_per_execution_with_the_run() -> None:
    """A toolset, a list of functions and tools, or nothing; sync or async."""
    made: list[str] = []

    def one(x: int) -> int:
        return x + 1

    async def factory(run: CurrentRun) -> list[Any]:
        made.append(run.id)
        return [one, Tool(lambda: current_run().id, name="whoami")]

    agent = agent_of(calls(call("one", x=1), call("whoami")), call("one", x=2), say("Done."))
    host = Host()
    _, messages = await run(Registration(agent, toolset=factory), host=host)
    assert made == ["r1"]
    assert host.names == ["one", "whoami", "one"]
    assert [part.content for part in messages[2].parts] == [2, "r1"]
    shared: FunctionToolset[None] = FunctionToolset()
    shared.add_function(one)
    for given in (lambda run: shared, lambda run: [shared], lambda run: None):
        again = agent_of(say("Done."))
        await run(Registration(again, toolset=given))
    assert list(agent.toolsets) == list(agent.toolsets)
    assert len(Registration(agent).static_tools) == 0, "the user's agent is left as it was"


async def test_what_a_hook_raises_before_the_run_fails_the_set_up() -> None:
    """And names the hook."""

    def broken(*_: Any) -> Any:
        raise LookupError("no tenant")

    for option in ("deps", "toolset", "render"):
        with pytest.raises(ExecutionError) as failed:
            await run(Registration(agent_of(), **{option: broken}))
        assert failed.value.code == "setup_failed"
        assert str(failed.value) == f"{option} raised LookupError: no tenant"


async def test_a_render_hook_takes_the_place_of_the_start_message() -> None:
    """Text or parts, sync or async."""

    async def rendered(trigger: TriggerEnvelope) -> list[Any]:
        return ["Please:", str(trigger.payload["n"])]

    _, messages = await run(Registration(agent_of(), render=lambda trigger: f"n is {trigger.payload['n']}"), {"n": 3})
    assert messages[0].parts[0].content == "n is 3"
    _, messages = await run(Registration(agent_of(), render=rendered), {"n": 3})
    assert messages[0].parts[0].content == ["Please:", "3"]
    _, messages = await run(Registration(agent_of()), {"n": 3})
    assert messages[0].parts[0].content.startswith('```json\n{\n  "source": "python",')


async def test_another_model_than_the_agents_own_can_be_registered() -> None:
    """The agent keeps its own."""
    other = ScriptedModel([say("From the other.")], name="other")
    registration = Registration(agent_of(say("From its own.")), model=other)
    finished, _ = await run(registration)
    assert finished.output == "From the other."
    assert registration.model_name == "other"
    assert Registration(Agent(name="a", model="openai:gpt-4o", defer_model_check=True)).model_name == "openai:gpt-4o"
