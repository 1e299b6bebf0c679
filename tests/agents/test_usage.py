"""What a model call cost."""

from __future__ import annotations

from decimal import Decimal

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage
from session_host import Host, session

from perdure.agents._usage import usage_of, usage_of_failure
from perdure.testing.models import ScriptedModel, say


def response(name: str | None, provider: str | None, **usage: int) -> ModelResponse:
    return ModelResponse(parts=[TextPart("x")], model_name=name, provider_name=provider, usage=RequestUsage(**usage))


def test_a_known_model_has_a_price_and_an_unknown_one_none() -> None:
    """Unknown stays unknown, never 0."""
    known = usage_of(response("gpt-4o", "openai", input_tokens=1_000_000, output_tokens=100_000))
    assert known.cost is not None
    assert known.cost > 1
    assert usage_of(response("no-such-model", "openai", input_tokens=10)).cost is None
    assert usage_of(response(None, None, input_tokens=10)).cost is None


def test_cached_tokens_are_part_of_the_input() -> None:
    """So they are cheaper, and not counted twice."""
    plain = usage_of(response("gpt-4o", "openai", input_tokens=1_000_000))
    cached = usage_of(response("gpt-4o", "openai", input_tokens=1_000_000, cache_read_tokens=800_000))
    assert cached.total_tokens == plain.total_tokens == 1_000_000
    assert cached.cache_read_tokens == 800_000
    assert cached.cost is not None
    assert plain.cost is not None
    assert cached.cost < plain.cost


def test_a_price_that_the_provider_told_is_taken() -> None:
    """It knows better than a list."""
    told = response("gpt-4o", "openai", input_tokens=5)
    told.usage.cost = Decimal("0.125")
    assert usage_of(told).cost == Decimal("0.125")


def test_a_failure_costs_what_is_known_of_it() -> None:
    """Nothing came: nothing. Something came and nobody counted: unknown."""
    assert usage_of_failure(None).cost == 0
    assert usage_of_failure(ModelResponse(parts=[])).cost == 0
    assert usage_of_failure(ModelResponse(parts=[TextPart("half")])).cost is None
    assert usage_of_failure(response("gpt-4o", "openai", input_tokens=1000)).cost


async def test_a_replys_usage_is_its_own_alone() -> None:
    """Not the run's sum, and the cost is in what is stored, too."""
    agent = Agent(ScriptedModel([say("", cost=Decimal(1), thinking="hm"), say("One.", input_tokens=7, output_tokens=2, cost=Decimal("0.25"))]))
    async with session(agent, Host()) as opened:
        await opened.ask()
        opened.drop()
        reply = await opened.ask()
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.requests, reply.usage.cost) == (7, 2, 1, Decimal("0.25"))
    assert reply.message.usage.cost == Decimal("0.25")
