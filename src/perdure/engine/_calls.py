"""An effect call as callbacks see it, and the business key that it names."""

from __future__ import annotations

from perdure.agents import Call
from perdure.core.codec import clean, dump
from perdure.core.errors import ConfigurationError
from perdure.core.run import Run
from perdure.effects import EffectCall, EffectRule


def shown_to_callbacks(run: Run, call: Call, key: str) -> EffectCall:
    """The call, for a rule's callbacks."""
    return EffectCall(run.id, run.agent, call.name, call.args or {}, key, run.thread)


def business_key(run: Run, call: Call, rule: EffectRule, key: str) -> str | None:
    """The claim on its business key (E6); None where the rule names none.

    Raises:
        ConfigurationError: The key came to None.
    """
    if rule.key is None:
        return None
    named = (call.args or {}).get(rule.key) if isinstance(rule.key, str) else rule.key(shown_to_callbacks(run, call, key))
    if named is None:
        raise ConfigurationError(
            f"{call.name}: its business key came to None, and calls without one have nothing in common. Check effect(key={rule.key!r})."
        )
    shown = clean(named)
    owner = {"run": run.id, "thread": run.thread or run.id, "agent": run.agent}[rule.scope]
    return f"{rule.scope}:{owner}:{call.name}:{shown if isinstance(shown, str) else dump(shown)}"
