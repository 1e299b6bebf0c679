"""What a run may spend and what it has spent."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from perdure.core import given
from perdure.core.errors import ConfigurationError
from perdure.core.limits import MAX_STEPS_DEFAULT

OnLimit = Literal["stop", "fail", "pause"]
Limit = Literal["max_steps", "max_tokens", "max_cost"]
MONEY: Final = ("cost", "cost_known")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run has spent so far. Absolute values; never a difference.

    `cost` is in US dollars; None means that some price is unknown, which is never the same as 0. `cost_known` is what the rest of it cost then.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    requests: int = 0
    tool_calls: int = 0
    cost: Decimal | None = Decimal(0)
    cost_known: Decimal = Decimal(0)

    @property
    def total_tokens(self) -> int:
        """Input and output tokens. Providers count cached tokens inside the input, so they are not added again."""
        return self.input_tokens + self.output_tokens

    @property
    def cost_at_least(self) -> Decimal:
        """US dollars that were spent for certain: one call without a price must not lift a cap."""
        return self.cost_known if self.cost is None else self.cost

    def __add__(self, other: Usage) -> Usage:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in MONEY}
        if self.cost is None or other.cost is None:
            return Usage(**sums, cost=None, cost_known=self.cost_at_least + other.cost_at_least)
        return Usage(**sums, cost=self.cost + other.cost)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in MONEY}
        data["cost"] = None if self.cost is None else str(self.cost)
        if self.cost is None and self.cost_known:
            data["cost_known"] = str(self.cost_known)
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Usage:
        cost = data.get("cost")
        money = {"cost": None if cost is None else Decimal(cost), "cost_known": Decimal(data.get("cost_known", 0))}
        fields: dict[str, Any] = {**data, **money}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a run. Absent means no limit, 0 means none at all.

    Args:
        max_steps: Model calls per generation, over all executions.
        max_tokens: Input plus output tokens over the life of the run.
        max_cost: US dollars over the life of the run. Needs a model whose price is known,
            unless `unknown_price="ignore"`.
        timeout: Wall clock of one execution; each resume gets the whole of it again.
        deadline: Wall clock of the whole run, from its admission.
        on_limit: What a reached limit does: `stop` completes with the text so far (the default where the
            output is text), `fail` ends the run as `budget_exceeded` (the default elsewhere), `pause` waits for a top-up.
        unknown_price: `refuse` a `max_cost` whose price can't be known, or `ignore` it.

    Raises:
        ConfigurationError: A limit is negative, or none at all; its name is in the message.
    """

    max_steps: int = MAX_STEPS_DEFAULT
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    timeout: timedelta | None = None
    deadline: timedelta | None = None
    on_limit: OnLimit | None = None
    unknown_price: Literal["refuse", "ignore"] = "refuse"

    def __post_init__(self) -> None:
        self._check("max_steps", given.whole(self.max_steps))
        self._check("max_tokens", None if self.max_tokens is None else given.whole(self.max_tokens))
        self._check("max_cost", None if self.max_cost is None else given.money(self.max_cost))
        for name in ("timeout", "deadline"):
            value = getattr(self, name)
            self._check(name, None if value is None else given.span(value, positive=True))
        self._check("on_limit", None if self.on_limit in (None, "stop", "fail", "pause") else "takes 'stop', 'fail', 'pause' or None")
        self._check("unknown_price", None if self.unknown_price in ("refuse", "ignore") else "takes 'refuse' or 'ignore'")
        if self.max_cost is not None and not isinstance(self.max_cost, Decimal):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            object.__setattr__(self, "max_cost", Decimal(str(self.max_cost)))

    def _check(self, name: str, wrong: str | None) -> None:
        if wrong is not None:
            raise ConfigurationError(f"Budget({name}={given.shown(getattr(self, name))}): {name} {wrong}. Leave it out for the default.")

    def reached(self, usage: Usage, steps: int) -> Limit | None:
        """The first limit that leaves no room for one more model call, if any.

        `steps` counts the model calls of this generation that did not end in an error.
        """
        if steps >= self.max_steps:
            return "max_steps"
        if self.max_tokens is not None and usage.total_tokens >= self.max_tokens:
            return "max_tokens"
        if self.max_cost is not None and usage.cost_at_least >= self.max_cost:
            return "max_cost"
        return None

    def merged(self, **changes: Any) -> Budget:
        """This budget with some limits replaced: a top-up."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        return {
            "max_steps": self.max_steps,
            "max_tokens": self.max_tokens,
            "max_cost": None if self.max_cost is None else str(self.max_cost),
            "timeout": None if self.timeout is None else self.timeout.total_seconds(),
            "deadline": None if self.deadline is None else self.deadline.total_seconds(),
            "on_limit": self.on_limit,
            "unknown_price": self.unknown_price,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Budget:
        seconds = {name: None if data.get(name) is None else timedelta(seconds=data[name]) for name in ("timeout", "deadline")}
        cost = data.get("max_cost")
        fields: dict[str, Any] = {**data, **seconds, "max_cost": None if cost is None else Decimal(cost)}
        return cls(**fields)
