"""The front door: which names users may rely on, and that each is in one place."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import perdure

NAMES = [
    "ApprovalCall",
    "Artifact",
    "Budget",
    "Conflict",
    "CurrentRun",
    "Delta",
    "DurableAgent",
    "Effect",
    "EffectCall",
    "Engine",
    "Event",
    "Happened",
    "InvalidTrigger",
    "LeaseLostError",
    "NotDone",
    "PerdureError",
    "Request",
    "Reset",
    "Retry",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunStatus",
    "Settled",
    "StillWaiting",
    "TriggerEnvelope",
    "Usage",
    "Wait",
    "Waiting",
    "approve",
    "current_run",
    "effect",
    "plain",
]
"""A name that is added here is a promise; one that is taken away breaks somebody. Both belong into the changelog."""

OTHER_DOORS = ("perdure.errors", "perdure.stores", "perdure.notifiers", "perdure.pipeline", "perdure.testing")


def test_the_front_door_has_exactly_these_names() -> None:
    """Nobody adds or drops a public name by accident."""
    assert sorted(perdure.__all__) == sorted(NAMES)


def test_the_front_door_is_sorted_and_says_each_name_once() -> None:
    """A list that is read is kept in order."""
    assert list(perdure.__all__) == sorted(set(perdure.__all__))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_is(name: str) -> None:
    """Every class and function of the front door has a docstring of its own."""
    value = getattr(perdure, name)
    assert inspect.getdoc(value)
    assert isinstance(value, type) or callable(value)
    if isinstance(value, type):
        assert value.__doc__ and not value.__doc__.startswith(f"{name}("), "a dataclass's generated signature is no docstring"


def test_the_front_door_hides_nothing_behind_itself() -> None:
    """What the package offers without an underscore is public, or a submodule."""
    modules = {info.name for info in pkgutil.iter_modules(perdure.__path__)}
    strays = {
        name
        for name, value in vars(perdure).items()
        if not name.startswith("_") and name not in perdure.__all__ and not isinstance(value, ModuleType) and name not in modules
    }
    assert not strays


@pytest.mark.parametrize("door", OTHER_DOORS)
def test_another_door_keeps_its_word(door: str) -> None:
    """Every name in `__all__` is there, and once."""
    module = importlib.import_module(door)
    names = list(getattr(module, "__all__", []))
    assert all(hasattr(module, name) for name in names)
    assert len(names) == len(set(names))


def test_no_two_doors_sell_different_things_under_one_name() -> None:
    """A name that two doors share is one thing."""
    known = {name: getattr(perdure, name) for name in perdure.__all__}
    for door in OTHER_DOORS:
        module = importlib.import_module(door)
        clashes = {name for name in getattr(module, "__all__", []) if name in known and getattr(module, name) is not known[name]}
        # The pipeline has words of its own: it is used without the engine, and its docs say so.
        assert door == "perdure.pipeline" or not clashes, door
