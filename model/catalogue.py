"""Every world by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from model.budgets import BudgetModel
from model.checker import Model
from model.commits import CommitModel
from model.edits import SETTINGS, EditModel
from model.joined import JoinedModel
from model.keys import FAMILIES, KeyModel
from model.run import RunModel
from model.scenarios import SCENARIOS
from model.sharing import SharingModel
from model.votes import VoteModel


@dataclass(frozen=True, slots=True)
class Entry:
    """How to build one world."""

    about: str
    make: Callable[[frozenset[str]], Model[Any]]
    deep: bool = False


MODELS: dict[str, Entry] = {
    **{each.name: Entry(each.about, partial(RunModel, each), each.deep) for each in SCENARIOS},
    "commits": Entry(
        "two tasks of one execution, delayed copies, a second claim", partial(CommitModel, "commits", tasks=2, second=True, others=False)
    ),
    "commits and others": Entry(
        "commits beside renewals, answers and children", partial(CommitModel, "commits and others", tasks=2, second=False, others=True)
    ),
    **{each.name: Entry(each.about, partial(KeyModel, each)) for each in FAMILIES},
    "business key": Entry("two runs that hold one business key", partial(SharingModel, "business key", fork=False)),
    "fork": Entry("a fork of a run that still has the call open", partial(SharingModel, "fork", fork=True)),
    "quorum": Entry("two yeses of two people about one input, edits that cross", VoteModel),
    **{each.name: Entry(each.about, partial(EditModel, each)) for each in SETTINGS},
    "shared budget": Entry("three runs under one cap", BudgetModel),
    "joined": Entry("record and deed in one transaction", JoinedModel),
}


def names(*, deep: bool = False) -> list[str]:
    """The worlds of every day; with `deep` all of them."""
    return [name for name, entry in MODELS.items() if deep or not entry.deep]


def build(name: str, without: frozenset[str] = frozenset()) -> Model[Any]:
    """One world, with rules taken away."""
    return MODELS[name].make(without)
