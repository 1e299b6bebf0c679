"""Ids as people give them: whole, by their end, or by a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn, TypeVar

from perdure.core.commit import EffectFilter, RunFilter, WaitFilter
from perdure.core.effect import Effect
from perdure.core.errors import Conflict, EffectNotFoundError, InvalidTrigger, RunNotFoundError, WaitNotFoundError
from perdure.core.run import Run
from perdure.core.wait import WaitPoint
from perdure.engine import Engine

LOOK_BACK: Final = 2_000
"""How many of the newest rows a short name is looked up in; older ones have their whole id."""
ID_LENGTH: Final = 36
NAME_LEAST: Final = 4
"""Characters that a short name has at least."""
LAST: Final = "last"

T = TypeVar("T")


async def find_run(engine: Engine, name: str) -> Run:
    """The run that `name` stands for: its id, the end of its id, `AGENT/KEY`, or `last`.

    Raises:
        RunNotFoundError: There is none.
        Conflict: There are several.
    """
    _check_length(name)
    if len(name) == ID_LENGTH:
        return await engine.run(name)
    if "/" in name:
        agent, _, key = name.partition("/")
        if (run := await engine.store.find(agent, key)) is not None:
            return run
        raise RunNotFoundError(name)
    recent = await engine.runs(RunFilter(limit=1 if name == LAST else LOOK_BACK))
    found = recent if name == LAST else [run for run in recent if run.id.endswith(name)]
    return _only(found, name, [run.id for run in found]) or _missing(RunNotFoundError(name))


async def find_wait(engine: Engine, name: str) -> WaitPoint:
    """The wait point that `name` stands for: its id, the end of its id, or a run with one open request (`last`, `AGENT/KEY`, or the end of its id).

    Raises:
        WaitNotFoundError: There is none.
        Conflict: There are several.
    """
    _check_length(name)
    name = await _run_id(engine, name)
    if len(name) == ID_LENGTH and (wait := await engine.store.wait(name)) is not None:
        return wait
    rows = await engine.store.waits(WaitFilter(open=True, limit=LOOK_BACK))
    found = [wait for wait in rows if wait.id.endswith(name)]
    if not found:
        found = [wait for wait in await engine.store.waits(WaitFilter(open=False, limit=LOOK_BACK)) if wait.id.endswith(name)]
    if not found:
        found = [wait for wait in rows if wait.run_id.endswith(name)]
    return _only(found, name, [wait.id for wait in found]) or _missing(WaitNotFoundError(name))


async def find_effect(engine: Engine, name: str) -> Effect:
    """The effect that `name` stands for: its key, the end of its key, or its run (`last`, `AGENT/KEY`, or the end of its id) where one is of unknown outcome.

    Raises:
        EffectNotFoundError: There is none.
        Conflict: There are several.
    """
    _check_length(name)
    name = await _run_id(engine, name)
    run_id = name.partition(":")[0]
    if len(run_id) == ID_LENGTH:
        rows = await engine.store.effects(EffectFilter(run_id=run_id, limit=LOOK_BACK))
        found = [effect for effect in rows if effect.key == name] or [effect for effect in rows if run_id == name and effect.state == "unknown"]
    else:
        rows = await engine.store.effects(EffectFilter(limit=LOOK_BACK))
        found = [effect for effect in rows if effect.key.endswith(name)]
        found = found or [effect for effect in rows if effect.run_id.endswith(name) and effect.state == "unknown"]
    return _only(found, name, [effect.key for effect in found]) or _missing(EffectNotFoundError(name))


def _check_length(name: str) -> None:
    """A character or two would name, and decide, whatever happens to end on them.

    Raises:
        InvalidTrigger: It is shorter than `NAME_LEAST`.
    """
    if len(name) < NAME_LEAST and "/" not in name:
        raise InvalidTrigger(f"{name!r} is too short to name anything. Give at least the last {NAME_LEAST} characters of the id.")


async def _run_id(engine: Engine, name: str) -> str:
    """The names that only a run has, as its id; whatever else as it is."""
    return (await find_run(engine, name)).id if name == LAST or "/" in name else name


def _only(found: Iterable[T], name: str, ids: list[str]) -> T | None:
    rows = list(found)
    if len(rows) > 1:
        raise Conflict(f"{name!r} stands for {len(rows)} things: {', '.join(ids[:4])}{', …' if len(ids) > 4 else ''}. Give more of the id.")
    return rows[0] if rows else None


def _missing(error: Exception) -> NoReturn:
    raise error
