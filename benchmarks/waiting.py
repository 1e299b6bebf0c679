"""What runs that wait cost a worker that has nothing to do: CPU, memory, and the time of a claim, against an empty database.

    python -m benchmarks.waiting [--runs 10000] [--seconds 60] [--claims 2000]

On SQLite, with the engine as it is by default. What else the machine does hits both databases alike: the two idle workers are two processes that run at the
same time, and the claims alternate between the two databases in one process. Linux only: memory is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent

from perdure import Engine, approve, effect
from perdure.core.checkpoint import FORMAT
from perdure.core.commit import ClaimRequest
from perdure.core.runtime import RealRuntime
from perdure.testing.models import ScriptedModel, call, say

CPU_MAX = 0.5
"""Percent of one core."""
MEMORY_MAX = 5.0
"""Megabytes more than on an empty database."""
CLAIM_MAX = 1.5
"""Times the 95th percentile on an empty database."""
WARM_SECONDS = 3.0
WARM_TURNS = 30
"""Claims that come first and are not counted."""
BATCH = 200


def engine_on(path: Path, **options: Any) -> Engine:
    """The engine of a desk whose refunds wait for somebody."""
    agent = Agent(ScriptedModel([call("refund", order="7", cents=900), say("done")]), name="desk")

    @agent.tool_plain(metadata=effect() | approve(within=timedelta(days=30)))
    async def refund(order: str, cents: int) -> str:
        return "refunded"

    engine = Engine(f"sqlite:///{path}", **options)
    engine.agent(agent)
    return engine


# ── in processes of their own ──────────────────────────────────────────────────────────────────────────────
async def fill(path: Path, runs: int) -> None:
    """Bring so many runs to their wait, by the engine itself."""
    engine = engine_on(path, workers=16)
    async with engine:
        for start in range(0, runs, BATCH):
            await asyncio.gather(*(engine.start("desk", {"order": "7"}) for _ in range(min(BATCH, runs - start))))
        while (await engine.store.counts()).get("waiting", 0) < runs:  # noqa: ASYNC110 - no one event says that all of them wait
            await asyncio.sleep(0.2)  # beside the work, which is not what is measured here


async def idle(path: Path, seconds: float) -> dict[str, float]:
    """CPU in percent of one core and memory in megabytes of a worker that finds nothing to do."""
    async with engine_on(path):
        await asyncio.sleep(WARM_SECONDS)
        cpu, wall = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        used = 100 * (time.process_time() - cpu) / (time.monotonic() - wall)
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6  # noqa: ASYNC240 - not a disk
    return {"cpu": used, "memory": resident}


async def claims(paths: Sequence[Path], count: int) -> list[dict[str, float]]:
    """For each database: the 95th percentile of one claim that takes a run, and of one that finds none, in milliseconds."""
    runtime = RealRuntime()
    times: list[dict[str, list[float]]] = [{"took": [], "empty": []} for _ in paths]

    def request() -> ClaimRequest:
        return ClaimRequest("bench", runtime.host(), runtime.new_token(), {"desk": None}, timedelta(hours=1), limit=1, format=FORMAT)

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine_on(path, workers=0)) for path in paths]
        # A collection in the middle of one claim would be that database's bad luck.
        gc.collect()
        gc.disable()
        for turn in range(WARM_TURNS + count):
            for what, found in (("empty", 0), ("took", 1)):
                both = list(zip(engines, times, strict=True))
                for engine, kept in both if turn % 2 else reversed(both):
                    if found:
                        await engine.start("desk", {"order": "8"})
                    began = time.perf_counter()
                    runs = await engine.store.claim(request())
                    took = (time.perf_counter() - began) * 1_000
                    assert len(runs) == found
                    if turn >= WARM_TURNS:
                        kept[what].append(took)
        gc.enable()
    return [{what: percentile(values) for what, values in kept.items()} for kept in times]


def percentile(values: list[float]) -> float:
    """The 95th."""
    return statistics.quantiles(values, n=20)[-1]


# ── the comparison ─────────────────────────────────────────────────────────────────────────────────────────
def begin(what: str, *paths: Path, amount: float) -> subprocess.Popen[str]:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.waiting", "--only", what, "--amount", str(amount), "--paths", *map(str, paths)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def end(*processes: subprocess.Popen[str]) -> list[Any]:
    """What they measured."""
    told = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("A measurement failed.")
    return [json.loads(each) if each else None for each in told]


def compare(runs: int, seconds: float, count: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        empty, full = Path(folder) / "empty.db", Path(folder) / "full.db"
        began = time.monotonic()
        end(begin("fill", empty, amount=0))
        end(begin("fill", full, amount=runs))
        print(
            f"{runs:,} runs wait on one SQLite file of {full.stat().st_size / 1e6:.1f} MB (brought there in {time.monotonic() - began:.0f} s)",
            flush=True,
        )
        without, beside = end(*(begin("idle", path, amount=seconds) for path in (empty, full)))
        [[first, second]] = end(begin("claims", empty, full, amount=count))
    more = beside["memory"] - without["memory"]
    ok = [
        line("idle CPU, % of a core", without["cpu"], beside["cpu"], beside["cpu"] < CPU_MAX, f"< {CPU_MAX}"),
        line("memory, MB", without["memory"], beside["memory"], more <= MEMORY_MAX, f"{more:+.1f}, at most {MEMORY_MAX:+.1f}"),
    ]
    for name, label in (("took", "claim that takes a run, p95 ms"), ("empty", "claim that finds none, p95 ms")):
        ratio = second[name] / first[name]
        ok.append(line(label, first[name], second[name], ratio <= CLAIM_MAX, f"{ratio:.2f} ×, at most {CLAIM_MAX} ×"))
    return all(ok)


def line(label: str, empty: float, full: float, ok: bool, target: str) -> bool:
    print(f"  {label:<32} empty {empty:8.2f}   waiting {full:8.2f}   {target:<24} {'ok' if ok else 'MISSED'}", flush=True)
    return ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--claims", type=int, default=2_000)
    parser.add_argument("--only", choices=["fill", "idle", "claims"], help=argparse.SUPPRESS)
    parser.add_argument("--paths", type=Path, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.only is None:
        sys.exit(0 if compare(options.runs, options.seconds, options.claims) else 1)
    work: dict[str, Callable[[], Any]] = {
        "fill": lambda: fill(options.paths[0], int(options.amount)),
        "idle": lambda: idle(options.paths[0], options.amount),
        "claims": lambda: claims(options.paths, int(options.amount)),
    }
    result = asyncio.run(work[options.only]())
    if result is not None:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
