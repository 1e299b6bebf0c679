"""The simulator as a whole: the built-in cast, its seeds, its checkers, and the bugs that it has to find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from bugs import BUGS, Bug
from pydantic_ai import Agent

from perdure import Engine, effect
from perdure.errors import ConfigurationError
from perdure.testing.models import call, say
from perdure.testing.simulation import KINDS, ROW_CHECKERS, Fault, Series, simulate
from perdure.testing.simulation._casts import cast_for
from perdure.testing.simulation._loop import tidy
from perdure.testing.simulation._main import main
from perdure.testing.simulation._plan import plan_for, shrunk

SEEDS = 12
"""Seeds that every test run plays; `make sim` plays many more."""
SEEDS_OF_A_CHANGE = 300
"""Seeds that every change has to pass, and so the most in which a planted bug may stay hidden."""
SEEDS_FOR_A_BUG = 60
"""Seeds in which each planted bug shows, if it is searched for without a hint."""


def test_the_engine_keeps_its_promises_under_every_kind_of_fault() -> None:
    """Real engines on simulated replicas: no promise is broken, whatever the seed."""
    report = Series(cast_for).run(range(SEEDS))
    assert report.ok, str(report)
    assert report.seeds == SEEDS and report.events > 10_000
    assert sum(report.faults.values()) > SEEDS


def first_seed(bug: Bug, seeds: Iterable[int]) -> int | None:
    """The first of the seeds that shows the bug, by a promise that it should break."""
    series = Series(cast_for, store=bug.store)
    with bug.patch() if bug.patch else nullcontext(), tidy():
        return next((seed for seed in seeds if {each.checker for each in series.play(seed).violations} & set(bug.breaks)), None)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.split()[0])
def test_a_planted_bug_is_found(bug: Bug) -> None:
    """Each planted bug breaks the promise that it should break, within the seeds that every change has to pass."""
    # Those that are known to show it come first; where the simulator has changed since, all are searched.
    assert first_seed(bug, [*bug.seeds, *range(SEEDS_OF_A_CHANGE)]) is not None, f"{bug.name}: no seed breaks {bug.breaks}"


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.split()[0])
def test_a_planted_bug_is_found_from_scratch(bug: Bug) -> None:
    """A fifth of those seeds is enough, and every seed that is listed still shows its bug."""
    assert first_seed(bug, range(SEEDS_FOR_A_BUG)) is not None, f"{bug.name}: {SEEDS_FOR_A_BUG} seeds break none of {bug.breaks}"
    stale = [seed for seed in bug.seeds if first_seed(bug, [seed]) is None]
    assert not stale, f"{bug.name}: seeds {stale} show it no more; list others in bugs.py"


def test_one_seed_is_one_simulation_in_every_process() -> None:
    """The same seed gives the same trace, however Python hashes strings."""

    def trace(hash_seed: str) -> str:
        code = "from perdure.testing.simulation import Series; from perdure.testing.simulation._casts import cast_for; print([Series(cast_for).play(s).trace for s in (3, 5)])"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        return done.stdout

    first = trace("1")
    assert len(first) > 100
    assert first == trace("2")


def test_different_seeds_are_different_simulations() -> None:
    """A seed decides the work, the order of things and what goes wrong."""
    series = Series(cast_for)
    assert len({series.play(seed, ()).trace for seed in range(3)}) == 3


def test_a_failing_seed_is_shrunk_and_can_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """Faults that are not needed are left out, and the command that is told repeats the same violation."""
    bug = next(bug for bug in BUGS if bug.name.startswith("6 "))
    series = Series(cast_for, store=bug.store)
    with tidy():
        plan = series.plan(bug.seeds[0])
        smallest, result = series.shrink(bug.seeds[0])
    assert len(smallest) <= len(plan)
    assert len(smallest) <= 2, [str(fault) for fault in smallest]
    assert result.violations and result.story
    report = series.run([bug.seeds[0]], tell=lambda seed, faults: f"sim --seed {seed} --faults {list(faults)}")
    assert not report.ok
    assert f"again: sim --seed {bug.seeds[0]}" in str(report) and "fault " in str(report)


def test_shrinking_keeps_what_matters() -> None:
    """Of twelve faults of which two are needed together, two are left."""
    plan = tuple(Fault("crash", slot, slot + 1) for slot in range(12))
    needed = {plan[3], plan[9]}
    assert set(shrunk(plan, lambda smaller: needed <= set(smaller))) == needed


def test_plans_cover_every_kind_of_fault() -> None:
    """No kind is forgotten, and some seeds have none: a simulation without faults is a case too."""
    plans = [plan_for(seed, replicas=3, runs=6) for seed in range(300)]
    assert {fault.kind for plan in plans for fault in plan} == set(KINDS)
    assert any(not plan for plan in plans)


def test_every_checker_says_its_promise_in_one_sentence() -> None:
    """A checker is one promise, and a reader finds it in its first line."""
    for checker in ROW_CHECKERS:
        promise = checker.promise()
        assert promise.endswith(".") and "\n\n" not in promise, checker.__name__


def test_users_simulate_their_own_agent() -> None:
    """Ten lines: a registered agent, what its model says, and some inputs."""
    agent = Agent("test", name="refunds")

    @agent.tool_plain(metadata=effect("ask"))
    async def refund(order: str) -> str:
        return f"refunded {order}"

    durable = Engine("memory://").agent(agent)
    report = simulate(durable, script=[call("refund", order="o1"), say("done")], inputs=[{"n": 1}, {"n": 2}], seeds=range(4))
    assert report.violations == []
    assert report.runs.total() == 8


def test_a_fault_that_does_not_exist_is_refused() -> None:
    """Misspelt kinds are named, with those that there are."""
    durable = Engine("memory://").agent(Agent("test", name="poet"))
    with pytest.raises(ConfigurationError, match="crahs"):
        simulate(durable, script=[say("hi")], inputs=[{}], faults=["crahs"])


def test_the_command_tells_seeds_events_faults_and_violations(capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m perdure.testing.simulation` prints what was played and answers 0 when nothing was broken."""
    assert main(["--seeds", "4", "--processes", "2"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("4 seeds, ") and "store calls" in told and "faults: " in told and "violations: 0" in told


def test_the_command_repeats_one_seed_with_some_of_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    """`--seed` tells one simulation in full; `--faults` leaves some of its faults out."""
    assert main(["--seed", "5", "--faults", ""]) == 0
    assert "seed 5: " in capsys.readouterr().out
