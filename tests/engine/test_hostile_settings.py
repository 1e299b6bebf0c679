"""Settings that are nothing of the kind are refused where they are written; what can only be found out in a run ends with a word."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Budget, Engine, Retry, RunStatus, Wait, approve, current_run, effect, plain
from perdure.errors import ConfigurationError
from perdure.testing.models import ScriptedModel, call, say

NO_SPANS: list[Any] = [5, "1h", timedelta(-1), timedelta.max, datetime(2030, 1, 1)]
ENGINE: list[tuple[str, Any]] = [
    *(("workers", value) for value in ("2", -1, 1.5, True, None)),
    *(("deaths_max", value) for value in ("2", 0, 1.5)),
    *((name, value) for name in ("lease", "drain_grace", "effect_grace", "tick", "poll") for value in NO_SPANS),
    *((name, timedelta(0)) for name in ("lease", "tick", "poll")),
    ("lease", timedelta(microseconds=1)),
    *(("notifiers", value) for value in (5, "console", None)),
    *((name, "no function") for name in ("link", "on_error")),
]


@pytest.mark.parametrize("setting", ENGINE, ids=[f"{at}-{each[0]}" for at, each in enumerate(ENGINE)])
def test_a_setting_of_an_engine_that_is_none_is_refused(setting: tuple[str, Any]) -> None:
    """Its name is in the message."""
    with pytest.raises(ConfigurationError, match=setting[0]):
        Engine("memory://", **{setting[0]: setting[1]})


AGENT: list[tuple[str, Any]] = [
    *(("limit", value) for value in ("2", 0, -1, 1.5, True)),
    *(("model_tries", value) for value in ("2", 0, None)),
    *((name, value) for name in ("step_timeout", "tool_timeout") for value in (*NO_SPANS, timedelta(0))),
    *(("effects", value) for value in ("asks", 5, None)),
    *(("history", value) for value in ("threads", 5, None)),
    *(("version", value) for value in (5, b"3")),
    *(("name", value) for value in (5, b"shop", "x" * 200, " shop", "sh\nop")),
    *(("budget", value) for value in (5, {"max_steps": 3})),
    *(("tools", value) for value in (["pay"], {"pay": "effect"}, "pay")),
    *((name, value) for name in ("render", "toolset") for value in (5, "text")),
]


@pytest.mark.parametrize("option", AGENT, ids=[f"{at}-{each[0]}" for at, each in enumerate(AGENT)])
def test_an_option_of_an_agent_that_is_none_is_refused(option: tuple[str, Any]) -> None:
    """Nothing of it is registered then."""
    engine = Engine("memory://")
    with pytest.raises(ConfigurationError, match=option[0]):
        engine.agent(Agent(ScriptedModel([say("done")])), **{"name": "shop", option[0]: option[1]})
    assert not engine.agents


async def nobody_waits(_call: Any) -> bool:
    return False


class NobodyWaits:
    async def __call__(self, _call: Any) -> bool:
        return False


RULES: list[tuple[Callable[..., Any], str, Any]] = [
    *((approve, "when", value) for value in (5, "always", nobody_waits, NobodyWaits())),
    *((approve, "within", value) for value in (*NO_SPANS, timedelta(0), "ever", None)),
    *((approve, "on_expiry", value) for value in ("run", None)),
    *((approve, "warn_at", value) for value in ("half", True, 0, 1, 80)),
    *((approve, "approvers", value) for value in ("eva", [5], [""], 5, None)),
    *((approve, "quorum", value) for value in ("2", 0, 1.5, True)),
    *((effect, "unknown", value) for value in (5, "asks", None)),
    *((effect, "certain", value) for value in (ValueError, [ValueError], ("ValueError",), (KeyboardInterrupt,))),
    *((effect, "key", value) for value in (5, "", b"order", nobody_waits)),
    *((effect, "scope", value) for value in ("world", None)),
    *((effect, "retries", value) for value in (3, "twice")),
    *((effect, "timeout", value) for value in (*NO_SPANS, timedelta(0))),
    *((Retry, "attempts", value) for value in ("2", 0, 1.5, True)),
    *((Retry, name, value) for name in ("backoff", "longest") for value in NO_SPANS),
    *((Retry, "factor", value) for value in ("2", 0, -1, float("nan"), float("inf"))),
]


@pytest.mark.parametrize("rule", RULES, ids=[f"{at}-{each[0].__name__}-{each[1]}" for at, each in enumerate(RULES)])
def test_a_rule_that_means_nothing_is_refused_where_it_is_written(rule: tuple[Callable[..., Any], str, Any]) -> None:
    """A list of approvers that is one name would be a list of its letters; an async predicate would always say yes."""
    make, name, value = rule
    with pytest.raises(ConfigurationError, match=name):
        make(**{name: value})


@pytest.mark.parametrize("attempts", [10, 5_000])
def test_a_back_off_never_overflows(attempts: int) -> None:
    """However often: at most the longest pause."""
    assert Retry(attempts=attempts, factor=10).delay(attempts) == 300


# ── what only a run can find out ───────────────────────────────────────────────────────────────────────────
@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/perdure.db"


@pytest.mark.parametrize("when", [lambda call: None, lambda call: nobody_waits(call), partial(nobody_waits)])
async def test_a_predicate_that_gives_no_verdict_lets_nothing_run(address: str, when: Any) -> None:
    """Nothing that it gives instead of True or False is a yes or a no."""
    calls: list[str] = []
    engine = Engine(address)
    agent = Agent(ScriptedModel([call("pay"), say("done")]), name="shop")

    @agent.tool_plain
    def pay() -> str:
        calls.append("paid")
        return "ok"

    try:
        shop = engine.agent(agent, tools={"pay": plain() | approve(when=when)})
    except ConfigurationError:
        return
    async with engine:
        run = await shop.start({})
        settled = await engine.settled(run.id, 120)
        assert settled.status.final
        assert calls == []
        [step] = [step for step in await run.steps() if step.kind == "tool"]
        assert "predicate" in str((await run.messages(step=step.row.index))[-1].parts)


@pytest.mark.parametrize(
    "given", [None, "", [], (), 5, b"hello", {"text": "hello"}, (each for each in ["hello"])], ids=lambda each: type(each).__name__
)
async def test_a_render_that_gives_nothing_to_say_is_named(address: str, given: Any) -> None:
    """The run fails before a model is asked, and says which hook gave what."""
    engine = Engine(address)
    shop = engine.agent(Agent(ScriptedModel([say("done")]), name="shop"), render=lambda trigger: given)
    async with engine:
        settled = await engine.settled((await shop.start({})).id, 120)
        assert settled.error is not None
        assert settled.error.code == "setup_failed"
        assert "render gave" in settled.error.message
        assert settled.usage.requests == 0


@pytest.mark.parametrize("rule", [plain(), effect()], ids=["plain", "effect"])
@pytest.mark.parametrize("whose", ["own", "nobody's"])
async def test_a_wait_for_a_run_that_cant_end_is_a_failure_that_the_model_sees(address: str, rule: dict[str, Any], whose: str) -> None:
    """Its own run waits for it, and a run that nobody started settles never."""
    engine = Engine(address)
    agent = Agent(ScriptedModel([call("wait"), say("done")]), name="shop")

    @agent.tool_plain(metadata=rule)
    async def wait() -> str:
        raise Wait.run(current_run().id if whose == "own" else "01890a5d-ac96-774b-bcce-b302099a8057")

    shop = engine.agent(agent)
    async with engine:
        run = await shop.start({})
        assert await run.result(120) == "done"
        [step] = [step for step in await run.steps() if step.kind == "tool"]
        assert "waits for" in str((await run.messages(step=step.row.index))[-1].parts)


@pytest.mark.parametrize("rule", [plain(), effect()], ids=["plain", "effect"])
async def test_a_wait_for_a_run_that_has_ended_is_over_at_once(address: str, rule: dict[str, Any]) -> None:
    """Whoever comes late gets the outcome."""
    engine = Engine(address)
    child = engine.agent(Agent(ScriptedModel([say("grown")]), name="child"))
    agent = Agent(ScriptedModel([call("wait"), say("done")]), name="shop")
    ended: list[str] = []

    @agent.tool_plain(metadata=rule)
    async def wait() -> str:
        raise Wait.run(ended[0])

    shop = engine.agent(agent)
    async with engine:
        first = await child.start({})
        await first.result(120)
        ended.append(first.id)
        assert await (await shop.start({})).result(120) == "done"


@pytest.mark.parametrize("moment", [timedelta(-1), timedelta(0), datetime(2001, 1, 1, tzinfo=UTC)])
async def test_a_wait_for_the_past_is_over_at_once(address: str, moment: Any) -> None:
    """A span that was reckoned from two clocks may come out below nothing."""
    engine = Engine(address, tick=timedelta(milliseconds=50))
    agent = Agent(ScriptedModel([call("wait"), say("done")]), name="shop")

    @agent.tool_plain(metadata=plain())
    async def wait() -> str:
        raise Wait.until(moment)

    shop = engine.agent(agent, budget=Budget(max_steps=5))
    async with engine:
        run = await shop.start({})
        assert await run.result(120) == "done"
        assert (await run.run()).status is RunStatus.COMPLETED
