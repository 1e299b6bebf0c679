"""What must not creep into the source: other doors to time and chance, paths of one machine, codes nobody declared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from perdure.core.errors import CODES
from perdure.core.event import EVENT_TYPES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "perdure"
DOORS = (SOURCE / "core" / "runtime.py", SOURCE / "testing")
"""The real door; and the testing tools, which hold the simulated one and drive everything else from outside."""
LINES_MAX = 700

FORBIDDEN_MODULES = {"time", "random", "secrets", "uuid", "_thread", "concurrent", "multiprocessing", "subprocess", "socket", "sched"}
"""Modules that are doors as a whole."""

FORBIDDEN_NAMES = {
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
    "os.urandom", "os.getrandom", "os.fork",
    "asyncio.sleep", "asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.TaskGroup", "asyncio.to_thread",
    "asyncio.run", "asyncio.Runner", "asyncio.run_coroutine_threadsafe", "asyncio.new_event_loop",
    "anyio.sleep", "anyio.create_task_group", "anyio.to_thread",
    "threading.Thread", "threading.Timer", "threading.get_ident", "threading.Barrier",
}  # fmt: skip
"""Names that are doors inside modules that are fine otherwise. `asyncio.timeout`, `wait`, `wait_for`, `Event`, `Lock`, `Queue` start nothing of their own, and neither do
`threading.Lock` and `threading.Event`."""

FORBIDDEN_METHODS = {"create_task", "ensure_future", "run_in_executor", "call_later", "call_at", "start_soon"}
"""Methods of an event loop or a task group, whatever the variable is called."""

ALLOWED: dict[tuple[str, str], str] = {
    ("engine/_sync.py", "asyncio.run"): "run_sync() is a whole program of its own",
    ("engine/_sync.py", "asyncio.run_coroutine_threadsafe"): "run_sync() from another thread hands its work to the engine's loop",
    ("engine/_notify.py", "asyncio.gather"): "notices of one batch; the runtime's loop orders them like everything else",
}
"""(file, name): the reason."""


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def text_files() -> Iterator[Path]:
    """Every file of ours that people read: source, tests, docs, settings."""
    folders = ("src", "tests", "docs", "model", "examples", "benchmarks", "changelog.d", ".github")
    endings = {".py", ".md", ".toml", ".yml", ".yaml", ".sql", ".js", ".css", ".html", ".sh", ".txt", ".json"}
    for folder in folders:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in endings and path.is_file())
    yield from (path for path in sorted(ROOT.iterdir()) if path.is_file() and (path.suffix in endings or path.name in {"Makefile", "Dockerfile"}))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain, or an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{left}.{node.attr}" if (left := dotted(node.value)) else ""
    return ""


def doors(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every place that reaches for time, ids, chance, tasks or threads by itself: its line and its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module.split(".")[0] in FORBIDDEN_MODULES:
                yield node.lineno, node.module
            yield from ((node.lineno, name) for alias in node.names if (name := f"{node.module}.{alias.name}") in FORBIDDEN_NAMES)
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            if ".".join(name.split(".")[-2:]) in FORBIDDEN_NAMES:
                yield node.lineno, ".".join(name.split(".")[-2:])
            elif node.attr in FORBIDDEN_METHODS:
                yield node.lineno, f".{node.attr}"


def test_the_runtime_is_the_only_door_to_time_ids_chance_tasks_and_threads() -> None:
    """One forgotten clock read makes every simulation lie, so nobody but core/runtime.py may have one."""
    found = {
        (str(path.relative_to(SOURCE)), line, name)
        for path in python_files("src")
        if not any(path.is_relative_to(door) for door in DOORS)
        for line, name in doors(parse(path))
        if (str(path.relative_to(SOURCE)), name) not in ALLOWED
    }
    assert not found, "take a Runtime instead, or give a reason in ALLOWED: " + ", ".join(
        f"{file}:{line} {name}" for file, line, name in sorted(found)
    )


def test_every_exception_from_that_rule_is_still_used() -> None:
    """An allowance that nothing needs any more is taken back."""
    used = {(str(path.relative_to(SOURCE)), name) for path in python_files("src") for _, name in doors(parse(path))}
    assert set(ALLOWED) <= used, f"not needed any more: {sorted(set(ALLOWED) - used)}"


@pytest.mark.parametrize(
    "code",
    [
        "import time", "from time import monotonic", "import asyncio\nasyncio.sleep(1)", "from asyncio import create_task", "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()", "loop.create_task(x)", "import uuid", "import os\nos.urandom(3)", "import concurrent.futures",
    ],
)  # fmt: skip
def test_a_second_door_is_found(code: str) -> None:
    """The search itself finds each kind of door."""
    assert list(doors(ast.parse(code)))


def test_no_source_file_is_longer_than_a_reader_can_hold() -> None:
    """A file above the limit has a second noun in it."""
    long = {str(path.relative_to(ROOT)): count for path in python_files("src") if (count := len(path.read_text().splitlines())) > LINES_MAX}
    assert not long


VIRTUAL = ROOT / "tests" / "simulation"
"""There `asyncio.sleep` moves a simulated clock and takes no time."""

SLEEPERS: dict[str, str] = {
    "tests/faults/launcher.py": "a program that is killed for real: its tools take real time, so that there is a middle to be killed in",
    "tests/contract/test_provider_engine.py": "a runtime that cuts every wait of the engine to at most 5 ms: with none at all its loops would spin",
}
"""Files that take real time, and why."""


def sleeps(tree: ast.Module) -> Iterator[int]:
    """Calls that wait for real time; `sleep(0)` only lets others go first."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        # `RealRuntime().sleep` is the machine's own clock again, under another name.
        made_here = isinstance(node.func, ast.Attribute) and node.func.attr == "sleep" and isinstance(node.func.value, ast.Call)
        if made_here or dotted(node.func) in {"time.sleep", "asyncio.sleep", "sleep", "anyio.sleep"}:
            first = node.args[0] if node.args else None
            if not (isinstance(first, ast.Constant) and first.value == 0):
                yield node.lineno


@pytest.mark.parametrize("code", ["time.sleep(1)", "await asyncio.sleep(0.1)", "await RealRuntime().sleep(0.05)", "__import__('time').sleep(600)"])
def test_a_sleep_is_found(code: str) -> None:
    """The search itself finds each kind of sleep."""
    assert list(sleeps(ast.parse(f"async def f():\n    {code}")))


def test_no_test_sleeps() -> None:
    """A test waits for a signal or moves the clock."""
    found = [f"{path.relative_to(ROOT)}:{line}" for path in python_files("tests") if path.parent != VIRTUAL for line in sleeps(parse(path))]
    found = [place for place in found if place.split(":")[0] not in SLEEPERS]
    assert not found


MACHINE_PATHS = re.compile("|".join(("/wor" + r"k/\w", "/roo" + "t/", r"/hom" + r"e/\w", "/User" + r"s/\w", "/tm" + r"p/\w")))
UNWANTED = re.compile(
    "|".join(
        (
            r"\bissue #?\d", r"\bas an ai\b", r"co-authored-by", r"\bgenerated (?:by|with) (?:an? )?(?:ai|llm|claude|gpt|copilot)", r"\bFIXME\b", r"\bXXX\b", r"\bHACK\b",
            r"\bai (?:assistant|helper)\b", r"\bsub-?agents? of this project\b", r"\bthe brief\b",
        )
    ),
    re.IGNORECASE,
)  # fmt: skip


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in text_files()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_two_test_files_have_one_name() -> None:
    """Pytest would read only one of them: they are imported by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_file_names_a_path_of_one_machine() -> None:
    """What works only where it was written does not work."""
    assert not lines_matching(MACHINE_PATHS)


def test_the_repository_speaks_of_the_project_alone() -> None:
    """No notes to oneself, no numbers of somebody's list, no marks left for later."""
    assert not lines_matching(UNWANTED)


def strings_at(tree: ast.Module, *, calls: set[str], keyword: str, assigned: str | None = None) -> Iterator[tuple[int, str]]:
    """Literal texts given to `calls` as their first argument or as `keyword`, and literals assigned to a class's `assigned`."""

    def literals(node: ast.AST | None) -> Iterator[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.IfExp):
            yield from literals(node.body)
            yield from literals(node.orelse)

    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func).split(".")[-1]
            if name in calls and node.args:
                yield from ((node.lineno, text) for text in literals(node.args[0]))
            if name in calls or not calls:
                for each in node.keywords:
                    if each.arg == keyword:
                        yield from ((node.lineno, text) for text in literals(each.value))
        elif assigned and isinstance(node, ast.ClassDef):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
                for target in targets:
                    names = target.elts if isinstance(target, ast.Tuple) else [target]
                    values = line.value.elts if isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple) else [line.value]
                    for one, value in zip(names, values, strict=False):
                        if isinstance(one, ast.Name) and one.id == assigned:
                            yield from ((node.lineno, text) for text in literals(value))


def error_classes() -> set[str]:
    """Our error classes, and `RunError`: a `code=` given to one of them is an error code."""
    tree = parse(SOURCE / "core" / "errors.py")
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)} | {"ModelFailed"}


def test_every_error_code_is_declared() -> None:
    """A code that users may meet is in CODES, where the docs list it."""
    found: set[tuple[str, int, str]] = set()
    for path in python_files("src"):
        where = str(path.relative_to(SOURCE))
        uses = [*strings_at(parse(path), calls={"RunError"}, keyword="code"), *strings_at(parse(path), calls=error_classes(), keyword="code")]
        # The first argument of an error class is its message; only RunError's is the code.
        found |= {(where, line, code) for line, code in uses if re.fullmatch(r"[a-z_]+", code)}
        if path.name in {"errors.py", "_turn.py"}:
            found |= {(where, line, code) for line, code in strings_at(parse(path), calls={"-"}, keyword="-", assigned="code")}
    assert found, "the search finds nothing: it is broken"
    assert not {each for each in found if each[2] not in CODES}


def test_every_event_type_is_declared() -> None:
    """An event that a run may carry is in EVENT_TYPES, where the docs list it."""
    found = {
        (str(path.relative_to(SOURCE)), line, type_)
        for path in python_files("src")
        for line, type_ in strings_at(parse(path), calls={"EventWrite"}, keyword="type")
    }
    assert not {each for each in found if each[2] not in EVENT_TYPES}
