"""What a model call cost, as the core counts it.

Pydantic AI reports cached tokens *inside* the input tokens, for every provider. So `input_tokens` is everything that was read, `cache_read_tokens` and
`cache_write_tokens` say how much of it came from or went into a cache, and a total is input plus output.
"""

from __future__ import annotations

from decimal import Decimal

from pydantic_ai.messages import ModelResponse

from perdure.core.budget import Usage


def usage_of(response: ModelResponse, *, tool_calls: int = 0) -> Usage:
    """One response's usage, priced by genai-prices through Pydantic AI. A price that is not known stays None, never 0."""
    used = response.usage
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        requests=1,
        tool_calls=tool_calls,
        cost=_cost(response),
    )


def usage_of_failure(partial: ModelResponse | None) -> Usage:
    """What a call that failed cost, as far as is known: nothing before the first piece came, what the provider reported, else unknown."""
    if partial is None or not (partial.parts or partial.usage.has_values()):
        return Usage(requests=1)
    if partial.usage.has_values():
        return usage_of(partial)
    return Usage(requests=1, cost=None)


def _cost(response: ModelResponse) -> Decimal | None:
    if response.usage.cost is not None:
        return Decimal(response.usage.cost)
    if not response.model_name or response.usage.unmeasured_requests:
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError):
        # genai-prices does not know the model, or can't price such usage.
        return None
