"""Waits for Pydantic AI's external events: of a plain tool's body, and of a step whose calls are being decided (`RequestInput`)."""

from __future__ import annotations

from datetime import datetime, timedelta

from perdure.agents import DECIDING
from perdure.core.errors import ConfigurationError
from perdure.core.run import Run
from perdure.core.wait import WaitWrite
from perdure.engine._position import POSITION, Position


class Places:
    """Names the waits of one step: by the call whose body waits and by their order, so that the name is the same whenever the step is entered again."""

    def __init__(self) -> None:
        self._of_step = 0

    def next(self) -> tuple[Position | None, str]:
        """Whose wait this is (None: the step's), and its name in the step.

        Raises:
            ConfigurationError: Nothing may wait here.
        """
        at = POSITION.get()
        if at is not None and not at.effect:
            at.waits += 1
            return at, f"{at.call.position}:{at.waits}"
        if at is None and DECIDING.get():
            self._of_step += 1
            return None, f"step:{self._of_step}"
        raise ConfigurationError(
            "Waiting inside an effect tool would run its first lines again. End the tool with `raise Wait.event(…)` instead."
            if at is not None
            else "External events are waited for in tools that are no effects, and where calls are decided (`RequestInput`); nowhere else."
        )


def external_event(run: Run, index: int, place: str) -> str:
    """The name in the run's inbox under which the answer comes."""
    return f"external:{run.generation}:{index}:{place}"


def outside_row(
    at: Position | None, place: str, *, id: str, name: str, event: str, token: str, index: int, now: datetime, timeout: timedelta | None
) -> WaitWrite:
    """The row that the event resolves."""
    return WaitWrite(
        id=id,
        kind="event",
        question=f"outside:{place}",
        index=index,
        tool=None if at is None else at.call.name,
        tool_call_id=None if at is None else at.call.id,
        position=None if at is None else at.call.position,
        name=event,
        expires_at=None if timeout is None else now + timeout,
        data={"event": name, "token": token},
    )
