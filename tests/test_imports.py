"""Who may import whom, and what importing Perdure does to a process."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "perdure"

HOMES = {
    "pydantic_ai": ("agents", "pipeline", "engine", "testing", "cli"),
    "psycopg": ("stores/postgres", "pipeline/_postgres"),
    "sqlite3": ("stores/sqlite", "pipeline/_sqlite"),
    "typer": ("cli",),
    "rich": ("cli",),
    "opentelemetry": ("telemetry", "telemetry.py"),
    "fastapi": ("http",),
    "starlette": ("http",),
    "uvicorn": ("http", "cli"),
    "restate": ("restate",),
    "hypothesis": ("testing",),
    "pytest": ("testing",),
}
"""Each third-party library (and sqlite3) has one home, so that leaving it is work in one place."""

IMPORT_PROBE = """
import json, sys
seen = []
def hook(event, args):
    if event.startswith("socket.") or event in ("_thread.start_new_thread", "subprocess.Popen", "os.posix_spawn", "os.fork", "os.mkdir", "sqlite3.connect"):
        seen.append(f"{event} {args!r:.100}")
    if event == "open" and isinstance(args[0], str):
        mode, flags = args[1], args[2]
        if (mode and set(mode) & set("wax+")) or (not mode and flags & 3):
            seen.append(f"open for writing {args[0]}")
        elif args[0].endswith((".db", ".toml", ".env", ".ini", ".cfg", ".yaml", ".yml")):
            seen.append(f"open {args[0]}")
sys.addaudithook(hook)
import perdure
import perdure.core.runtime
print(json.dumps({"seen": seen, "modules": sorted(sys.modules)}))
"""

OPTIONAL = (
    "psycopg",
    "asyncpg",
    "openai",
    "anthropic",
    "opentelemetry.sdk",
    "fastapi",
    "starlette",
    "uvicorn",
    "restate",
    "typer",
    "pytest",
    "hypothesis",
)


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def sources() -> list[tuple[str, Path]]:
    return [(path.relative_to(SOURCE).as_posix(), path) for path in sorted(SOURCE.rglob("*.py"))]


def test_imports_point_down() -> None:
    """The layers of pyproject.toml hold, and every package has its place in them."""
    # Its own process: import-linter builds a graph of the files and must not see what pytest has loaded.
    result = subprocess.run([sys.executable, "-c", "import sys; from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
                            cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, check=False)  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr


def test_stores_do_not_know_each_other() -> None:
    """Memory, SQLite and Postgres share the protocol and nothing else."""
    kinds = ("memory", "sqlite", "postgres")
    crossing = {
        (name, module)
        for name, path in sources()
        for own in kinds
        if name.startswith((f"stores/{own}/", f"stores/{own}.py"))
        for module in imported(path)
        for other in kinds
        if other != own and module.startswith(f"perdure.stores.{other}")
    }
    assert not crossing


def test_the_phase_runner_needs_no_engine() -> None:
    """The pipeline's own parts work with an engine, an agent or a store nowhere near."""
    parts = ("pipeline/_phase", "pipeline/_runner", "pipeline/_adapters")
    above = ("perdure.engine", "perdure.agents", "perdure.stores")
    crossing = {(name, module) for name, path in sources() if name.startswith(parts) for module in imported(path) if module.startswith(above)}
    assert not crossing


def test_only_the_command_line_names_concrete_stores() -> None:
    """Whoever is not the composition root takes a `Store`; the engine opens one by its address through one function."""
    openers = ("cli/", "testing/", "stores/", "engine/_open.py", "engine/_address.py", "pipeline/_postgres.py")
    crossing = {
        (name, module)
        for name, path in sources()
        if not name.startswith(openers)
        for module in imported(path)
        if module.startswith(("perdure.stores.memory", "perdure.stores.sqlite", "perdure.stores.postgres"))
    }
    assert not crossing


@pytest.mark.parametrize("library", sorted(HOMES))
def test_a_library_has_one_home(library: str) -> None:
    """Third-party imports stay in the package that owns them."""
    strays = {
        name
        for name, path in sources()
        if any(module == library or module.startswith(f"{library}.") for module in imported(path)) and not name.startswith(tuple(HOMES[library]))
    }
    assert not strays


def test_nobody_inside_imports_the_front_door() -> None:
    """`perdure/__init__.py` is names for users; inside, a module is named by its own path."""
    assert not {name for name, path in sources() if "perdure" in imported(path)}


def test_importing_perdure_opens_nothing_and_pulls_no_optional_part() -> None:
    """A bare import starts no thread, opens no socket, writes no file and loads no extra."""
    # case N6
    result = subprocess.run([sys.executable, "-B", "-c", IMPORT_PROBE], capture_output=True, text=True, check=True)
    answer = json.loads(result.stdout)
    assert answer["seen"] == []
    assert not [module for module in answer["modules"] if any(module == name or module.startswith(f"{name}.") for name in OPTIONAL)]
