"""Settings of engines and agents, checked where they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core import given
from perdure.core.errors import ConfigurationError
from perdure.core.limits import LEASE_LEAST


def check_engine(
    *, workers: Any, lease: Any, deaths_max: Any, drain_grace: Any, effect_grace: Any, tick: Any, poll: Any, notifiers: Any, link: Any, on_error: Any
) -> None:
    """Raises `ConfigurationError` that names the argument of `Engine` that is none."""
    what = "Engine"
    _check(what, "workers", workers, given.whole(workers, most=10_000))
    _check(what, "lease", lease, given.span(lease, positive=True) or (f"must be at least {LEASE_LEAST!r}" if lease < LEASE_LEAST else None))
    _check(what, "deaths_max", deaths_max, given.whole(deaths_max, least=1))
    _check(what, "drain_grace", drain_grace, given.span(drain_grace))
    _check(what, "effect_grace", effect_grace, given.span(effect_grace))
    _check(what, "tick", tick, None if tick is None else given.span(tick, positive=True))
    _check(what, "poll", poll, given.span(poll, positive=True))
    _check(
        what, "notifiers", notifiers, None if isinstance(notifiers, Sequence) and not isinstance(notifiers, str) else "must be a list of notifiers"
    )
    for name, hook in (("link", link), ("on_error", on_error)):
        _check(what, name, hook, None if hook is None or callable(hook) else "must be a function or None")


def check_agent(name: str, *, effects: Any, history: Any, limit: Any, step_timeout: Any, tool_timeout: Any, model_tries: Any) -> None:
    """Raises `ConfigurationError` that names the option of `engine.agent` that is none."""
    what = f"Agent {name!r}"
    _check(what, "effects", effects, None if effects in ("ask", "reuse", "run", "block", "*") else "takes 'ask', 'reuse', 'run', 'block' or '*'")
    _check(what, "history", history, None if history in ("none", "thread") else "takes 'none' or 'thread'")
    _check(what, "limit", limit, None if limit is None else given.whole(limit, least=1))
    _check(what, "model_tries", model_tries, given.whole(model_tries, least=1))
    for option, value in (("step_timeout", step_timeout), ("tool_timeout", tool_timeout)):
        _check(what, option, value, None if value is None else given.span(value, positive=True))


def _check(what: str, name: str, value: Any, wrong: str | None) -> None:
    if wrong is not None:
        raise ConfigurationError(f"{what}: {name}={given.shown(value)}: it {wrong}.")
