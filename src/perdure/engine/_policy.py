"""What the engine does with a tool call: pure, from what was declared beside the tool and by the agent's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from perdure.approvals import ApprovalRule, approval_rule
from perdure.effects import EffectRule, declared, effect_rule

Undeclared = Literal["plain", "*"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How one tool is treated."""

    effect: EffectRule | None = None
    approval: ApprovalRule | None = None
    declared: bool = True
    """Whether anybody said what this tool does: here, in the agent's rules, or its MCP server."""


def policy_of(name: str, metadata: Mapping[str, Any] | None, rules: Mapping[str, Mapping[str, Any]], undeclared: Undeclared = "plain") -> Policy:
    """The tool's own metadata and every rule whose pattern fits its name, combined: the stricter effect; the last approval named.

    With `undeclared="*"` a tool that nobody declared is an effect that asks.
    """
    found: list[Mapping[str, Any]] = [metadata] if metadata else []
    found += [rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)]
    effect: EffectRule | None = None
    approval: ApprovalRule | None = None
    for each in found:
        rule = effect_rule(each)
        if rule is not None:
            effect = rule if effect is None else effect.joined(rule)
        approval = approval_rule(each) or approval
    said = any(declared(each) for each in found)
    if effect is None and undeclared == "*" and not said:
        effect = EffectRule("ask")
    return Policy(effect, approval, said)
