"""Declaring that a tool has a side effect, and what to do when nobody knows whether it happened.

`effect(…)` returns a plain mapping, so it stands beside the tool as `metadata=effect(…)` or in an agent's `tools={"pattern": effect(…)}`, and it joins
with `approve(…)` by `|`. The user's function is never wrapped.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, cast

from perdure.core import given
from perdure.core.effect import Scope, Unknown, stricter
from perdure.core.errors import ConfigurationError

EFFECT: Final = "perdure.effect"
PLAIN: Final = "perdure.plain"

HeldEffects = Literal["ask", "reuse", "run", "block"]
"""What a full retry or a fork does with an effect that an earlier life may have performed."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Tries of one tool call: `attempts` in all, spaced by `backoff`, each longer by `factor`, at most `longest`."""

    attempts: int = 3
    backoff: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    longest: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        factor: Any = self.factor
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool) and 0 < factor < 1_000
        for name, wrong in (
            ("attempts", given.whole(self.attempts, least=1)),
            ("backoff", given.span(self.backoff)),
            ("factor", None if number else "must be a number above 0"),
            ("longest", given.span(self.longest)),
        ):
            if wrong is not None:
                raise ConfigurationError(f"Retry({name}={given.shown(getattr(self, name))}): it {wrong}.")

    def delay(self, tried: int) -> float:
        """Seconds before the try that follows `tried` tries."""
        longest = self.longest.total_seconds()
        try:
            return min(self.backoff.total_seconds() * self.factor ** (tried - 1), longest)
        except OverflowError:
            return longest


@dataclass(frozen=True, slots=True)
class Happened:
    """A verify callback's word: the effect happened, and this is its result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """A verify callback's word: the effect did not happen; it may run again."""


@dataclass(frozen=True, slots=True)
class EffectCall:
    """One effect call, as callbacks see it: `key` is its idempotency key, `input` the effective arguments."""

    run_id: str
    agent: str
    tool: str
    input: dict[str, Any]
    key: str
    thread: str | None = None


Verify = Callable[[EffectCall], Awaitable[Happened | NotDone]]
BusinessKey = Callable[[EffectCall], str]


@dataclass(frozen=True, slots=True)
class EffectRule:
    """How an effect tool is treated. Made by `effect`."""

    unknown: Unknown = "ask"
    verify: Verify | None = None
    certain: tuple[type[Exception], ...] = ()
    key: str | BusinessKey | None = None
    scope: Scope = "run"
    retries: Retry | None = None
    independent: bool = False
    timeout: timedelta | None = None
    transaction: bool = False

    @property
    def proof(self) -> tuple[type[Exception], ...]:
        """Exceptions that say that nothing happened. A deed that is nothing but rows of a transaction was taken back with any of them."""
        return (Exception,) if self.transaction else self.certain

    def joined(self, other: EffectRule) -> EffectRule:
        """Two declarations of one tool as one: the stricter answer to *unknown*, and what either adds."""
        unknown = stricter(self.unknown, other.unknown)
        return replace(
            self,
            unknown=unknown,
            verify=self.verify or other.verify,
            certain=(*self.certain, *other.certain),
            key=self.key or other.key,
            scope=self.scope if self.key else other.scope,
            retries=self.retries or other.retries,
            independent=self.independent and other.independent,
            timeout=self.timeout or other.timeout,
            transaction=self.transaction and other.transaction,
        )


def effect(
    unknown: Literal["ask", "retry", "transaction"] | Verify = "ask",
    *,
    certain: tuple[type[Exception], ...] = (),
    key: str | BusinessKey | None = None,
    scope: Scope = "run",
    retries: Retry | None = None,
    independent: bool = False,
    timeout: timedelta | None = None,
) -> dict[str, Any]:
    """Declare a tool's side effect.

    Args:
        unknown: What happens when nobody knows whether the deed was done (a crash, a time-out, most exceptions): `"ask"` a person, `"retry"`
            with the same idempotency key (`current_run().key`, which the tool must pass on), or an async callback that asks the outside
            world and answers `Happened(result)` or `NotDone()`. `"transaction"`: it is always known, because all that the tool does is in
            `current_run().transaction()` (Postgres).
        certain: Exception classes that prove that nothing happened.
        key: A business key: the name of the argument that holds it, or a function of the call. It holds over runs, retries and forks.
        scope: How far the business key reaches: this `run`, its `thread`, or every run of the `agent`.
        retries: Further tries after a failure that is certain (or any, with `unknown="retry"`). Crashes are not tries.
        independent: May run beside other effects of the same response.
        timeout: How long the body may take.

    Raises:
        ConfigurationError: `unknown` is none of the above.
    """
    _check_types(certain, key, scope, retries, timeout)
    verify: Verify | None = None
    if unknown == "transaction":
        word: Unknown = "retry"  # what has no record by the end has not happened, so it may run again
    elif callable(unknown):
        verify, word = unknown, cast(Unknown, "verify")
    elif unknown in ("ask", "retry"):
        word = cast(Unknown, unknown)
    else:
        raise ConfigurationError(f"effect(unknown={unknown!r}): use 'ask', 'retry', 'transaction', or an async function that asks the outside world.")
    return {EFFECT: EffectRule(word, verify, certain, key, scope, retries, independent, timeout, unknown == "transaction")}


def _check_types(certain: Any, key: Any, scope: Any, retries: Any, timeout: Any) -> None:
    listed: list[Any] | None = list(cast("tuple[Any, ...]", certain)) if isinstance(certain, tuple) else None
    classes = listed is not None and all(isinstance(each, type) and issubclass(each, Exception) for each in listed)
    async_key = inspect.iscoroutinefunction(key)
    faults: dict[str, tuple[Any, str | None]] = {
        "certain": (cast(object, certain), None if classes else "takes a tuple of exception classes"),
        "key": (
            key,
            None
            if key is None or (callable(key) and not async_key) or (isinstance(key, str) and key)
            else "takes an argument's name, or a function (not async) of the call",
        ),
        "scope": (scope, None if scope in ("run", "thread", "agent") else "takes 'run', 'thread' or 'agent'"),
        "retries": (retries, None if retries is None or isinstance(retries, Retry) else "takes Retry(…)"),
        "timeout": (timeout, None if timeout is None else given.span(timeout, positive=True)),
    }
    for name, (value, wrong) in faults.items():
        if wrong is not None:
            raise ConfigurationError(f"effect({name}={given.shown(value)}): it {wrong}.")


def plain() -> dict[str, Any]:
    """Declare that a tool has no side effect: it may run again after a crash."""
    return {PLAIN: True}


def effect_rule(metadata: Mapping[str, Any] | None) -> EffectRule | None:
    """The effect that a tool's metadata declares: ours, or what MCP annotations say.

    Read-only is plain, idempotent may be repeated. Everything else that a server says about a tool that is not read-only is an effect that asks, what "only
    adds" too: adding twice is not adding once.
    """
    if not metadata:
        return None
    ours = metadata.get(EFFECT)
    if isinstance(ours, EffectRule):
        return ours
    hints = metadata.get("annotations")
    if not isinstance(hints, Mapping) or metadata.get(PLAIN):
        return None
    known = cast(Mapping[str, Any], hints)
    if known.get("readOnlyHint"):
        return None
    if known.get("idempotentHint"):
        return EffectRule("retry")
    changes = known.get("readOnlyHint") is False or known.get("destructiveHint") is not None or known.get("idempotentHint") is False
    return EffectRule("ask") if changes else None


def declared(metadata: Mapping[str, Any] | None) -> bool:
    """Whether anybody said what this tool is: an effect, plain, or annotated by its MCP server."""
    if not metadata:
        return False
    hints = metadata.get("annotations")
    # A server that says nothing about a hint sends it as None.
    known: Mapping[str, Any] = cast(Mapping[str, Any], hints) if isinstance(hints, Mapping) else {}
    annotated = any(known.get(name) is not None for name in ("readOnlyHint", "idempotentHint", "destructiveHint"))
    return EFFECT in metadata or PLAIN in metadata or annotated
