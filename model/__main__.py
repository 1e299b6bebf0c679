"""`python -m model`: explore every small world, or show what one rule is for."""

from __future__ import annotations

import argparse
import sys

from model.catalogue import MODELS, build, names
from model.checker import Report, explore
from model.rules import RULES


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m model", description="Explore the protocol's small worlds to the last order of events.")
    parser.add_argument("world", nargs="*", help="worlds to explore (default: all of every day)")
    parser.add_argument("--deep", action="store_true", help="the large worlds too (minutes, gigabytes)")
    parser.add_argument("--without", action="append", default=[], metavar="RULE", help="take a rule away; explores the world that shows its need")
    parser.add_argument("--trace", action="store_true", help="print the shortest story of each violation")
    parser.add_argument("--limit", type=int, default=20_000_000, help="give a world up after so many states")
    parser.add_argument("--list", action="store_true", help="list worlds and rules")
    return parser.parse_args()


def print_list() -> None:
    for name, about in MODELS.items():
        print(f"{name:28} {about.about}{' (deep)' if about.deep else ''}")
    print()
    for name, rule in RULES.items():
        print(f"[{name}] in {rule.scenario!r}: without it {rule.without}")


def print_report(report: Report, *, trace: bool) -> None:
    end = "" if report.complete else "  GIVEN UP"
    print(
        f"{report.model:28} {report.states:>9,} states {report.edges:>10,} edges  depth {report.depth:>3}  {report.seconds:6.1f} s{end}", flush=True
    )
    for violation in report.violations:
        print(f"  VIOLATED {violation.name}: {violation.sentence}")
        if trace:
            for number, (step, world) in enumerate(violation.story):
                print(f"   {number or '':>3} {step:<60} {world}")


def main() -> int:
    asked = arguments()
    if asked.list:
        print_list()
        return 0
    without = frozenset(asked.without)
    for name in asked.without:
        without |= set(RULES[name].together)
    worlds = asked.world or (sorted({RULES[name].scenario for name in asked.without}) if without else names(deep=asked.deep))
    reports = []
    for name in worlds:
        report = explore(build(name, without), limit=asked.limit, stop_first=asked.trace or bool(without))
        print_report(report, trace=asked.trace)
        reports.append(report)
    states, seconds = sum(each.states for each in reports), sum(each.seconds for each in reports)
    violations = sum(len(each.violations) for each in reports)
    print(f"{len(reports)} worlds, {states:,} states, {sum(each.edges for each in reports):,} edges, {seconds:.0f} s: {violations} violations")
    return 0 if all(each.clean for each in reports) else 1


sys.exit(main())
