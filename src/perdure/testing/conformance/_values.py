"""Values: what the codec rule lets through comes back equal, through every column that holds JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from perdure.core.budget import Budget, Usage
from perdure.core.codec import clean
from perdure.core.commit import Resolve, Settle, Signal
from perdure.core.effect import EffectState
from perdure.core.event import EventWrite
from perdure.core.run import RunError, RunStatus
from perdure.core.step import StepWrite
from perdure.testing.conformance._bench import Bench, approval, effect, new_run, said, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

VALUES: Final[dict[str, Any]] = {
    "emoji": "👩🏽‍🚀 naïve 漢字 \U0001f600",
    "literal-nul-escape": "\\u0000 stays six characters",
    "quotes": "'; drop table run; -- \" ` $1 %s :name ?",
    "line-ends": "a\r\nb\tc\u2028d\x1b[0m\x7f",
    "big-integers": [2**53 + 1, -(2**63), 2**64, 10**40],
    "floats": [0.1, 1e308, -0.0, 5e-324],
    "nothing": [None, True, False, "", [], {}, 0],
    "keys": {"": 1, " ": 2, "a.b[0]": 3, "ключ": 4, "$ref": 5, "__class__": "os.system"},
    "deep": [[[[[[[[[["x"]]]]]]]]]],
    "nul": clean("a\x00b"),
    "surrogate": clean("a\ud800b"),
    "not-a-number": clean({"x": float("nan"), "y": float("inf"), "z": float("-inf")}),
}
"""By name; the last three as the rule leaves them."""


class ValueConformance(Conformance):
    """Round trips."""

    @pytest.mark.parametrize("name", VALUES)
    async def test_a_value_comes_back_from_every_column(self, kit: Kit, name: str) -> None:
        """Payload, input, output, result, error, event, step, wait row, resolution, signal."""  # case E1 E3 E7 E11
        value = VALUES[name]
        async with kit.open() as store:
            bench = Bench(store)
            await store.admit(new_run(payload=value))
            owner = await bench.own()
            error: dict[str, Any] = {"code": "tool_error", "details": value}
            await owner.commit(
                steps=(StepWrite("tool", 1, "t", input=value, output=value, error=error, usage={"x": value}),),
                effects=(effect(EffectState.DONE, input=value, result=value, error=error),),
                waits=(approval(input=value, data={"x": value}), wait_row("w2", kind="event", name="paid")),
                events=(EventWrite("log", {"x": value}),),
            )
            await store.resolve(Resolve("w1", said(value=value, reason="because")))
            await store.signal(Signal("s1", "r1", "paid", value))
            await owner.commit(ending=Settle(RunStatus.FAILED, output=value, error=RunError("internal", "no", {"x": value})))
        async with kit.open() as store:
            loaded = await store.load("r1")
            run = loaded.run
            assert run.trigger.payload == value and run.output == value
            assert run.error is not None and run.error.details == {"x": value}
            step = (await store.steps("r1"))[0].row
            assert (step.input, step.output, step.error, step.usage) == (value, value, error, {"x": value})
            row = loaded.effects[0].row
            assert (row.input, row.result, row.error) == (value, value, error)
            one, two = loaded.waits
            assert (one.row.input, one.row.data) == (value, {"x": value})
            assert one.resolution is not None and (one.resolution.value, one.resolution.reason) == (value, "because")
            assert two.resolution is not None and two.resolution.value == value
            assert {"x": value} in [event.data for event in await store.events("r1")]

    @pytest.mark.parametrize("text", ["👩🏽‍🚀 漢字", "\\u0000", "'; drop table run; --", "%_\\"])
    async def test_text_comes_back_from_every_text_column(self, kit: Kit, text: str) -> None:
        """Names, keys, threads and labels."""  # case E1 J3
        async with kit.open() as store:
            bench = Bench(store)
            run = await bench.admit(agent=text, key=text, concurrency_key=text, thread=text, labels={text: text}, trigger=text)
            assert run == await store.get("r1")
            assert (run.agent, run.thread, run.concurrency_key, run.labels, run.trigger.key) == (text, text, text, {text: text}, text)
            owner = await bench.own()
            await owner.commit(steps=(StepWrite("llm", 1, text, text=text),), version=text)
            step = (await store.steps("r1"))[0].row
            assert (step.name, step.text, (await bench.run()).version) == (text, text, text)

    async def test_times_and_money_keep_their_precision(self, kit: Kit) -> None:
        """Microseconds, UTC, and every decimal."""
        async with kit.open() as store:
            bench = Bench(store)
            at = datetime(2031, 3, 30, 1, 59, 59, 123457, tzinfo=UTC)
            cost = Decimal("0.000000123456789")
            budget = Budget(max_steps=3, max_tokens=2**40, max_cost=cost, timeout=timedelta(milliseconds=1), on_limit="pause")
            await store.admit(new_run(budget=budget, received_at=at))
            owner = await bench.own()
            usage = Usage(2**40, 1, 2, 3, 4, 5, cost)
            await owner.commit(usage=usage, steps=(StepWrite("llm", 1, "m", started_at=at, finished_at=at),), waits=(approval(expires_at=at),))
            run = await bench.run()
            assert (run.usage, run.budget, run.trigger.received_at) == (usage, budget, at)
            step = (await store.steps("r1"))[0].row
            assert (step.started_at, step.finished_at) == (at, at)
            expires = (await bench.wait("w1")).row.expires_at
            assert expires is not None and expires.tzinfo is not None and expires == at
