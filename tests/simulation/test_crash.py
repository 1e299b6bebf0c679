"""Agents killed everywhere: the harness, and what it finds when somebody breaks a rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from perdure import Engine, Happened, NotDone, effect, plain
from perdure.effects import EffectCall
from perdure.testing.crash import CrashReport, Ledger, crash_everywhere
from perdure.testing.models import call, calls, say
from perdure.testing.simulation._crash_main import EndStrategy, cashier, poet, triage
from perdure.testing.simulation._history import responses


class Email(BaseModel):
    """What the refund agent gets."""

    text: str


@pytest.fixture
def bank() -> dict[str, int]:
    """Refunds by idempotency key, as the bank sees them."""
    return {}


def refunds(bank: dict[str, int], unknown: Any = "ask") -> Any:
    """An agent with one effect tool."""
    agent = Agent("test", name="refunds")

    @agent.tool_plain(metadata=effect(unknown))
    async def refund(order: str, cents: int) -> dict[str, Any]:
        bank[order] = bank.get(order, 0) + 1
        return {"order": order, "cents": cents}

    return Engine("memory://").agent(agent, input=Email)


def test_text_survives_every_call() -> None:
    """An agent that only speaks finishes wherever it is killed, and never pays for more than one call again."""
    subject = poet()
    report = crash_everywhere(subject.agent, script=subject.script, input=subject.input)
    assert report.ok, str(report)
    assert report.points == report.calls * 3 == report.finished


def test_text_survives_some_callbacks_on_sqlite() -> None:
    """The same on a file, killed at every store call, each process with a connection of its own."""
    subject = poet()
    report = crash_everywhere(subject.agent, script=subject.script, input=subject.input, store="sqlite")
    assert report.ok, str(report)


def test_tools_and_typed_output_survive_every_call() -> None:
    """Parallel tools, a refused output and a good one: the same end, whatever call the process died at."""
    subject = triage()
    report = crash_everywhere(subject.agent, script=subject.script, input=subject.input)
    assert report.ok, str(report)
    assert report.model_calls_repeated_most == 1, "a response that was not stored yet has to be asked for again"


# case A12
def test_an_effect_happens_once_wherever_the_process_dies(crash_everywhere: Callable[..., CrashReport]) -> None:
    """The public fixture: an effect that asks is performed once, because people are asked where nobody can know."""
    script = [call("refund", order="o1", cents=900), say("done")]
    report = crash_everywhere(refunds({}), script=script, input=Email(text="refund me"))
    assert report.effects == {"refund": 1} and report.unfinished == [], str(report)
    assert report.ok, str(report)


# case A12
def test_an_effect_with_a_key_is_performed_under_one_key(crash_everywhere: Callable[..., CrashReport]) -> None:
    """An effect that may be repeated under its key goes out under that one key, however often."""
    script = [call("refund", order="o1", cents=900), say("done")]
    report = crash_everywhere(refunds({}, "retry"), script=script, input=Email(text="refund me"))
    assert report.effects == {"refund": 1} and report.unfinished == [], str(report)


# case A12
def test_an_effect_that_can_be_looked_up_happens_once(crash_everywhere: Callable[..., CrashReport], bank: dict[str, int]) -> None:
    """An effect with a verify callback is looked up in the outside world, and nobody is asked."""

    async def look(asked: EffectCall) -> Happened | NotDone:
        order = asked.input["order"]
        return Happened({"order": order, "cents": 900}) if bank.get(order) else NotDone()

    async def nobody(request: Any) -> None:
        raise AssertionError(f"asked about {request}")

    script = [call("refund", order="o1", cents=900), say("done")]
    agent = refunds(bank, look)
    report = crash_everywhere(agent, script=_fresh_orders(script, bank), input=Email(text="refund me"), answer=nobody)
    assert report.effects == {"refund": 1} and report.unfinished == [], str(report)


def _fresh_orders(script: list[Any], bank: dict[str, int]) -> Any:
    """The script, told to a bank that forgets when a new story begins. (Nothing has been refunded before the first response.)"""

    def tell(messages: list[Any]) -> Any:
        place = responses(messages)
        if place == 0:
            bank.clear()
        return script[place]

    return tell


@pytest.mark.parametrize("end_strategy", ["early", "graceful", "exhaustive"])
def test_effects_of_every_kind_in_one_response_happen_once(end_strategy: EndStrategy) -> None:
    """Ask, retry and verify, one that times out after its deed, plain tools beside them and an output tool among them: a sample of all places. # case A12"""
    subject = cashier(end_strategy)
    report = crash_everywhere(subject.agent, script=subject.script, input=subject.input, ledger=subject.ledger, every=11)
    assert report.ok, str(report)
    assert (report.performed_twice, report.asked_never_started) == ([], [])
    assert report.asked > report.points, "the effect that timed out is asked about in each"


def test_a_deed_that_is_done_twice_is_found_out() -> None:
    """The ledger is a file that the tools write and the report reads: one that does its deed twice is told on, at every place."""
    ledger, agent = Ledger(), Agent("test", name="stutter")

    @agent.tool_plain(metadata=effect())
    async def refund(order: str) -> str:
        ledger.enter(f"refunded {order}")
        return ledger.enter(f"refunded {order}")

    script = [call("refund", order="o1"), say("done")]
    report = crash_everywhere(Engine("memory://").agent(agent), script=script, input={}, ledger=ledger, every=5)
    assert not report.ok
    assert len(report.performed_twice) == report.points
    assert "refund" in report.performed_twice[0] and "2 times" in report.performed_twice[0]


def test_a_deed_needs_the_body_of_an_effect_tool() -> None:
    """A plain tool has no key to enter a deed under, and says so."""
    ledger, agent = Ledger(), Agent("test", name="careless")

    @agent.tool_plain(metadata=plain())
    async def refund(order: str) -> str:
        return ledger.enter(f"refunded {order}")

    script = [call("refund", order="o1"), say("done")]
    report = crash_everywhere(Engine("memory://").agent(agent), script=script, input={}, ledger=ledger, every=50)
    assert report.effects == {}
    assert ledger.deeds == {}


def test_an_effect_declared_plain_is_found_out() -> None:
    """A tool with a side effect that claims to have none: the report says that its run was repeated, which no rule forbids, and the bank paid twice."""
    paid: list[str] = []
    agent = Agent("test", name="careless")

    @agent.tool_plain(metadata=plain())
    async def refund(order: str) -> str:
        paid.append(order)
        return "paid"

    durable = Engine("memory://").agent(agent)
    report = crash_everywhere(durable, script=[calls(call("refund", order="o1")), say("done")], input={})
    assert report.ok, str(report)
    assert report.effects == {}
    assert len(paid) > report.points + 1, "some simulation paid twice"


def test_an_agent_that_fails_undisturbed_is_refused() -> None:
    """The harness has nothing to say about an agent that does not complete by itself."""
    durable = Engine("memory://").agent(Agent("test", name="broken", output_type=int))
    with pytest.raises(AssertionError, match="Undisturbed"):
        crash_everywhere(durable, script=[say("not a number")] * 9, input={})


def test_the_whole_harness_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m perdure.testing.crash` prints points, runs, repeated calls and refused histories, and answers 0."""
    from perdure.testing.simulation._crash_main import main

    assert main(["--agent", "poet", "--store", "memory", "--points", "calls", "--processes", "2"]) == 0
    told = capsys.readouterr().out
    assert "poet on memory: 3" in told and "runs finished" in told and "0 histories refused" in told
    assert "effects performed twice 0, asked about although never started 0" in told.splitlines()[-1]
