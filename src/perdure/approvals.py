"""Declaring that a tool call needs somebody's word first.

`approve(…)` returns a plain mapping: it stands beside the tool as `metadata=approve(…)` or in `tools={"pattern": approve(…)}`, and joins with `effect(…)` by `|`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

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
        """The predicate's verdict; without one, always."""
        return True if self.when is None else bool(self.when(call))

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
        when: A predicate of the validated input and the run; its verdict is recorded and not asked again. Absent: always.
        within: The deadline, or `"never"`. Silence is never consent.
        on_expiry: `"deny"` tells the model that the request lapsed; `"fail"` ends the run as `approval_expired`.
        warn_at: Share of the time after which one warning goes out, in (0, 1); None for none.
        approvers: Who may decide; empty for anybody.
        quorum: How many different people must approve. One denial settles it.
        not_requester: Whoever started the run (the trigger's `requester` label) may not decide.

    Raises:
        ConfigurationError: A value is out of its range.
    """
    if quorum < 1 or (approvers and quorum > len(set(approvers))):
        raise ConfigurationError(f"approve(quorum={quorum}): it must be at least 1 and at most the number of approvers.")
    if warn_at is not None and not 0 < warn_at < 1:
        raise ConfigurationError(f"approve(warn_at={warn_at}): a share of the time, between 0 and 1, or None.")
    if within != "never" and within <= timedelta(0):
        raise ConfigurationError(f"approve(within={within!r}): longer than 0, or 'never'.")
    return {
        APPROVAL: ApprovalRule(when, None if within == "never" else within, on_expiry, warn_at, tuple(approvers), quorum, not_requester),
    }


def approval_rule(metadata: Mapping[str, Any] | None) -> ApprovalRule | None:
    """The approval that a tool's metadata declares, if any."""
    rule = metadata.get(APPROVAL) if metadata else None
    return rule if isinstance(rule, ApprovalRule) else None
