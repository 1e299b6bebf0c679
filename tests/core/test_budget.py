"""Usage and budgets."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.budget import Budget, Usage
from perdure.core.errors import ConfigurationError
from perdure.core.limits import MAX_STEPS_DEFAULT

COSTS = st.none() | st.decimals(0, 1000, places=9)
COUNTS = st.integers(0, 2**40)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COSTS) | st.builds(
    Usage, cost=st.none(), cost_known=st.decimals(0, 1000, places=9)
)
TIMES = st.none() | st.timedeltas(timedelta(microseconds=1), timedelta(days=365))
BUDGETS = st.builds(
    Budget,
    st.integers(0, 1000),
    st.none() | COUNTS,
    COSTS,
    TIMES,
    TIMES,
    st.sampled_from([None, "stop", "fail", "pause"]),
    st.sampled_from(["refuse", "ignore"]),
)


@given(USAGES)
def test_a_usage_comes_back_from_json(usage: Usage) -> None:
    """Money as text, so that no decimal is lost."""
    assert Usage.from_json(usage.to_json()) == usage


@given(BUDGETS)
def test_a_budget_comes_back_from_json(budget: Budget) -> None:
    """Every limit."""
    assert Budget.from_json(budget.to_json()) == budget


@given(USAGES, USAGES, USAGES)
def test_usages_add_up_in_any_order(one: Usage, two: Usage, three: Usage) -> None:
    """And an unknown price makes the sum unknown, never 0."""
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert ((one + two).cost is None) == (one.cost is None or two.cost is None)
    assert (one + two).cost_at_least == one.cost_at_least + two.cost_at_least


def test_cached_tokens_are_not_counted_twice() -> None:
    """Providers count them inside the input."""  # case K7
    assert Usage(input_tokens=100, output_tokens=10, cache_read_tokens=90).total_tokens == 110


@pytest.mark.parametrize(
    ("budget", "usage", "steps", "limit"),
    [
        (Budget(), Usage(), MAX_STEPS_DEFAULT - 1, None),
        (Budget(), Usage(), MAX_STEPS_DEFAULT, "max_steps"),
        (Budget(max_steps=0), Usage(), 0, "max_steps"),
        (Budget(max_tokens=10), Usage(input_tokens=9), 0, None),
        (Budget(max_tokens=10), Usage(input_tokens=5, output_tokens=5), 0, "max_tokens"),
        (Budget(max_tokens=0), Usage(), 0, "max_tokens"),
        (Budget(max_cost=Decimal("0.1")), Usage(cost=Decimal("0.09")), 0, None),
        (Budget(max_cost=Decimal("0.1")), Usage(cost=Decimal("0.1")), 0, "max_cost"),
        (Budget(max_cost=Decimal("0.1")), Usage(cost=None), 0, None),
        (Budget(max_steps=1, max_tokens=1), Usage(input_tokens=1), 1, "max_steps"),
    ],
)
def test_a_limit_is_reached_when_nothing_is_left(budget: Budget, usage: Usage, steps: int, limit: str | None) -> None:
    """0 means none at all, absent means no limit."""  # case K2
    assert budget.reached(usage, steps) == limit


@pytest.mark.parametrize(
    "limits", [{"max_steps": -1}, {"max_tokens": -1}, {"max_cost": Decimal(-1)}, {"timeout": timedelta(0)}, {"deadline": -timedelta(1)}]
)
def test_a_limit_below_nothing_is_refused(limits: dict[str, object]) -> None:
    """The message names it."""
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        Budget(**limits)  # type: ignore[arg-type]


def test_a_top_up_replaces_only_what_it_names() -> None:
    """The rest stays."""
    assert Budget(max_steps=1, max_tokens=2).merged(max_steps=9, max_tokens=None) == Budget(max_steps=9, max_tokens=2)
