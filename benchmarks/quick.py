"""The quick look: overhead, flatness, size and import time, as ratios, in a few minutes.

    python -m benchmarks.quick [--rounds N] [--steps 10,100,400]

Rounds are interleaved (bare, floor, Perdure, bare, …); a ratio is taken within its round, and the median of the rounds is printed with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter

from benchmarks.floors import loop_with_two_commits, sqlite_two_commits
from benchmarks.work import PROMPT, agent_of, bare
from perdure import Budget, Engine
from perdure.agents import decode_all
from perdure.stores import Store


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def durable(url: str | Store, steps: int) -> tuple[float, int]:
    """One run on a store: seconds from its start to its end, and the bytes of its history as Pydantic AI's own JSON."""
    engine = Engine(url)
    agent = engine.agent(agent_of(steps), budget=Budget(max_steps=steps + 10))
    async with engine:
        began = time.perf_counter()
        run = await agent.start(PROMPT)
        await run.result()
        seconds = time.perf_counter() - began
        checkpoint = await engine.store.checkpoint(run.id)
        assert checkpoint is not None
        history = len(ModelMessagesTypeAdapter.dump_json(decode_all(checkpoint.messages)))
    return seconds, history


def _run(work: Callable[[int], Coroutine[Any, Any, None]], steps: int) -> None:
    asyncio.run(work(steps))


def line(label: str, values: list[float], unit: str = "", target: str = "") -> None:
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"  {label:<58} {middle:8.2f}{unit:<4} ({low:.2f} … {high:.2f})  {target}", flush=True)


def overhead(rounds: int, sizes: list[int]) -> None:
    print("Overhead of a durable step on SQLite (WAL, FULL) over the bare streaming loop, against the raw two-commit floor")
    per_size: dict[int, float] = {}
    for steps in sizes:
        ratios, extra, floors, bares, within, against = [], [], [], [], [], []
        size = 0.0
        for number in range(rounds + 1):
            with tempfile.TemporaryDirectory() as folder:
                bare_s = timed(partial(_run, bare, steps))
                floor_s = timed(partial(sqlite_two_commits, Path(folder) / "floor.db", steps))
                within_s = timed(partial(_run, partial(loop_with_two_commits, Path(folder) / "loop.db"), steps))
                path = Path(folder) / "perdure.db"
                ours_s, history = asyncio.run(durable(f"sqlite:///{path}", steps))
                size = path.stat().st_size / history
            if number == 0:
                continue  # the first round warms caches up
            ours_ms, bare_ms, floor_ms = (seconds / steps * 1_000 for seconds in (ours_s, bare_s, floor_s))
            extra.append(ours_ms - bare_ms)
            floors.append(floor_ms)
            bares.append(bare_ms)
            ratios.append((ours_ms - bare_ms) / floor_ms)
            within.append(within_s / steps * 1_000 - bare_ms)
            against.append((ours_s - bare_s) / (within_s - bare_s))
        per_size[steps] = statistics.median(extra)
        line(f"N={steps}: bare loop, ms a step", bares)
        line(f"N={steps}: floor, ms a step", floors)
        line(f"N={steps}: overhead, ms a step", extra)
        line(f"N={steps}: overhead / floor", ratios, "x", "target ≤ 2")
        line(f"N={steps}: the floor's commits within the bare loop, ms a step", within)
        line(f"N={steps}: overhead / these", against, "x")
        if steps == max(sizes):
            line(f"N={steps}: bytes on disk / JSON of the history", [size], "x", "target ≤ 1.5")
    first, last = per_size[min(sizes)], per_size[max(sizes)]
    line(f"overhead a step, N={max(sizes)} / N={min(sizes)}", [last / first], "x", "target 0.8 … 1.2")


def imports(rounds: int) -> None:
    print("Import time")
    ratios = []
    for number in range(rounds + 1):
        ours = timed(lambda: subprocess.run([sys.executable, "-c", "import perdure"], check=True))
        theirs = timed(lambda: subprocess.run([sys.executable, "-c", "import pydantic_ai"], check=True))
        if number:
            ratios.append(ours / theirs)
    line("import perdure / import pydantic_ai", ratios, "x", "target ≤ 1.15")


async def _throughput(url: str | Store | None, runs: int, steps: int) -> float:
    began = time.perf_counter()
    if url is None:
        await asyncio.gather(*(bare(steps) for _ in range(runs)))
    else:
        engine = Engine(url, workers=runs)
        agent = engine.agent(agent_of(steps), budget=Budget(max_steps=steps + 10))
        async with engine:
            handles = [await agent.start({"n": number, "prompt": PROMPT}) for number in range(runs)]
            for handle in handles:
                await handle.result()
    return runs * steps / (time.perf_counter() - began)


def throughput(rounds: int, runs: int = 200, steps: int = 10) -> None:
    print(f"Throughput of {runs} runs of {steps} steps in one process")
    ratios, ours, alone = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            alone.append(asyncio.run(_throughput(None, runs, steps)))
            ours.append(asyncio.run(_throughput(f"sqlite:///{folder}/perdure.db", runs, steps)))
        ratios.append(ours[-1] / alone[-1])
    line("Pydantic AI alone, steps a second", alone)
    line("Perdure on SQLite, steps a second", ours)
    line("Perdure / Pydantic AI alone", ratios, "x", "target ≥ 0.8")


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", default="10,100,400")
    given = parser.parse_args()
    overhead(given.rounds, [int(each) for each in given.steps.split(",")])
    throughput(max(1, given.rounds // 2))
    imports(given.rounds)


if __name__ == "__main__":
    main()
