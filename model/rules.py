"""The rules that can be taken away, each a sentence of docs/concepts/protocol.md.

A rule that can be removed without the checker noticing is either not needed or not checked: `tests/model` removes each in turn.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What goes wrong without it, and where: `scenario` shows it, `breaks` names the invariant (or `stuck`, `livelock`)."""

    without: str
    scenario: str
    breaks: str
    together: tuple[str, ...] = ()
    """Rules that cover for this one and must go with it."""


RULES: dict[str, Rule] = {}


def rule(name: str, without: str, scenario: str, breaks: str, *together: str) -> None:
    """Declare one rule."""
    assert name not in RULES, name
    RULES[name] = Rule(without, scenario, breaks, together)


class Ruled:
    """A model with rules: all in force but `without`."""

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        unknown = without - RULES.keys()
        if unknown:
            raise ValueError(f"no such rule: {', '.join(sorted(unknown))}")
        self.without = without

    def rule(self, name: str) -> bool:
        """Whether the rule is in force."""
        if name not in RULES:
            raise KeyError(name)
        return name not in self.without
