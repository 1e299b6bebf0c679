"""`python -m perdure.testing.simulation`: the built-in cast under every kind of fault."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from perdure.testing.simulation._casts import cast_for
from perdure.testing.simulation._plan import KINDS
from perdure.testing.simulation._simulate import Series, SimulationReport

COMMAND = "python -m perdure.testing.simulation"


def main(arguments: list[str] | None = None) -> int:
    """Play seeds and print what they came to; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to play (default: 300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="only this one, told in full")
    parser.add_argument("--faults", help="with --seed: numbers of the faults of its plan to keep, such as 0,3 (an empty text: none)")
    parser.add_argument("--kinds", nargs="*", choices=sorted(KINDS), metavar="KIND", help=f"only these kinds of faults: {', '.join(KINDS)}")
    parser.add_argument("--replicas", type=int, default=3, help="simulated processes (default: 3)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="real processes (default: one for each processor)")
    options = parser.parse_args(arguments)
    series = Series(cast_for, replicas=options.replicas, kinds=options.kinds)
    if options.seed is not None:
        return _one(series, options.seed, options.faults)
    seeds = range(options.first, options.first + options.seeds)
    report = series.run(seeds, processes=options.processes, progress=_progress(options.seeds), tell=_again)
    print(report, flush=True)
    return 0 if report.ok else 1


def _again(seed: int, faults: Sequence[int]) -> str:
    kept = ",".join(map(str, faults))
    return f'{COMMAND} --seed {seed} --faults "{kept}"'


def _progress(seeds: int):  # type: ignore[no-untyped-def]
    def show(report: SimulationReport) -> None:
        if sys.stderr.isatty() and (report.seeds % 10 == 0 or report.seeds == seeds):
            print(
                f"\r{report.seeds}/{seeds} seeds, {len(report.failing)} failing",
                end="\n" if report.seeds == seeds else "",
                file=sys.stderr,
                flush=True,
            )

    return show


def _one(series: Series, seed: int, kept: str | None) -> int:
    """One seed, with all of its faults or some."""
    plan = series.plan(seed)
    if kept is not None:
        numbers = {int(each) for each in kept.split(",") if each}
        plan = tuple(fault for number, fault in enumerate(plan) if number in numbers)
    result = series.play(seed, plan)
    print(f"seed {seed}: {result.events:,} events, {result.calls:,} store calls, runs {dict(result.runs)}, trace {result.trace[:16]}")
    for fault in plan:
        print(f"  fault {fault}" + ("" if result.struck[fault.kind] else "  (did not strike)"))
    for line in result.story:
        print(f"  {line}")
    for violation in result.violations:
        print(f"  broken: {violation}")
    return 1 if result.violations else 0
