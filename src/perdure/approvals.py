"""Declaring that a tool call needs somebody's word first.

`approve(…)` returns a plain mapping: it stands beside the tool as `metadata=approve(…)` or in `tools={"pattern": approve(…)}`, and joins with `effect(…)` by `|`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, cast

from perdure.core import given
from perdure.core.errors import ConfigurationError
from perdure.core.limits import APPROVAL_WITHIN
from perdure.core.trigger import TriggerEnvelope
from perdure.core.wait import OnExpiry

APPROVAL: Final = "perdure.approval"


@dataclass(frozen=True, slots=True)
class ApprovalCall:
    """A call that may need approval, as a predicate sees it: validated input, and the run's trigger."""

    tool: str
    input: dict[str, Any]
    run_id: str
    agent: str
    trigger: TriggerEnvelope


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Who must say what, by when. Made by `approve`."""

    when: Callable[[ApprovalCall], bool] | None = None
    within: timedelta | None = APPROVAL_WITHIN
    on_expiry: OnExpiry = "deny"
    warn_at: float | None = 0.8
    approvers: tuple[str, ...] = ()
    quorum: int = 1
    not_requester: bool = False

    def needed(self, call: ApprovalCall) -> bool:
        """The predicate's verdict; without one, always.

        Raises:
            ConfigurationError: It gave none: it needs a `return`, or an `await` that nobody does. The call must not run on that.
        """
        if self.when is None:
            return True
        verdict: Any = self.when(call)
        if inspect.isawaitable(verdict):
            if inspect.iscoroutine(verdict):
                verdict.close()
            raise ConfigurationError(f"approve(when=…) of {call.tool!r}: the predicate is async, and nobody awaits it. Write a plain function.")
        if verdict is None:
            raise ConfigurationError(f"approve(when=…) of {call.tool!r}: the predicate gave None. Return True or False.")
        return bool(verdict)

    def policy(self, requester: str | None) -> dict[str, Any]:
        """What the store checks each answer against."""
        return {"approvers": list(self.approvers), "quorum": self.quorum, "not_requester": self.not_requester, "requester": requester}


def approve(
    *,
    when: Callable[[ApprovalCall], bool] | None = None,
    within: timedelta | Literal["never"] = APPROVAL_WITHIN,
    on_expiry: OnExpiry = "deny",
    warn_at: float | None = 0.8,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    not_requester: bool = False,
) -> dict[str, Any]:
    """Declare that a tool call waits for a person.

    Args:
        when: A predicate of the validated input and the run, not async; its verdict is recorded and not asked again. Absent: always.
        within: The deadline, or `"never"`. Silence is never consent.
        on_expiry: `"deny"` tells the model that the request lapsed; `"fail"` ends the run as `approval_expired`.
        warn_at: Share of the time after which one warning goes out, in (0, 1); None for none.
        approvers: Who may decide; empty for anybody.
        quorum: How many different people must approve. One denial settles it.
        not_requester: Whoever started the run (the trigger's `requester` label) may not decide.

    Raises:
        ConfigurationError: A value is out of its range.
    """
    _check_types(when, within, on_expiry, warn_at, approvers, quorum)
    if quorum < 1 or (approvers and quorum > len(set(approvers))):
        raise ConfigurationError(f"approve(quorum={quorum}): it must be at least 1 and at most the number of approvers.")
    if warn_at is not None and not 0 < warn_at < 1:
        raise ConfigurationError(f"approve(warn_at={warn_at}): a share of the time, between 0 and 1, or None.")
    return {
        APPROVAL: ApprovalRule(when, None if within == "never" else within, on_expiry, warn_at, tuple(approvers), quorum, not_requester),
    }


def _check_types(when: Any, within: Any, on_expiry: Any, warn_at: Any, approvers: Any, quorum: Any) -> None:
    named = isinstance(approvers, Sequence) and not isinstance(approvers, (str, bytes))
    number = isinstance(warn_at, (int, float)) and not isinstance(warn_at, bool)
    faults = {
        "when": None if when is None or callable(when) else "takes a function",
        "within": None if within == "never" else given.span(within, positive=True),
        "on_expiry": None if on_expiry in ("deny", "fail") else "takes 'deny' or 'fail'",
        "warn_at": None if warn_at is None or number else "takes a share of the time, between 0 and 1, or None",
        "approvers": None if named and all(given.text(each) is None for each in cast("Sequence[Any]", approvers)) else "takes a list of names",
        "quorum": given.whole(quorum, least=1),
    }
    if when is not None and (inspect.iscoroutinefunction(when) or inspect.iscoroutinefunction(getattr(when, "__call__", None))):  # noqa: B004 - an object's own
        faults["when"] = "takes a function that is not async: whether somebody is asked must be known before anything else of the response runs"
    values: dict[str, Any] = {
        "when": when,
        "within": within,
        "on_expiry": on_expiry,
        "warn_at": warn_at,
        "approvers": cast(object, approvers),
        "quorum": quorum,
    }
    for name, wrong in faults.items():
        if wrong is not None:
            raise ConfigurationError(f"approve({name}={given.shown(values[name])}): it {wrong}.")


def approval_rule(metadata: Mapping[str, Any] | None) -> ApprovalRule | None:
    """The approval that a tool's metadata declares, if any."""
    rule = metadata.get(APPROVAL) if metadata else None
    return rule if isinstance(rule, ApprovalRule) else None
