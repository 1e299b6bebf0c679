"""APP: the user's program, and the engine in it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, cast

from perdure.core.errors import ConfigurationError, PerdureError
from perdure.engine import Engine
from perdure.pipeline import Pipeline

T = TypeVar("T")
DEBUG_VARIABLE = "PERDURE_DEBUG"


HOW: Final = "APP is path/to/app.py:name or module:name, the name that of an Engine (for `perdure jobs`, of a Pipeline)."
"""How a command is told which program it works with."""


def load_engine(app: str) -> Engine:
    """The engine that `module:engine` or `path/to/app.py:engine` names. The name after the colon may be left out where the module has one engine.

    Raises:
        ConfigurationError: There is no such program, it can't be imported, or it holds no such engine; one sentence that says what to do.
    """
    where, _, name = app.rpartition(":")
    if not where or "/" in name or name.endswith(".py"):
        where, name = app, ""
    module = _from_file(Path(where)) if where.endswith(".py") or "/" in where else _from_name(where)
    return _engine_in(module, where, name)


def load_pipeline(app: str) -> Pipeline[Any]:
    """The pipeline that `module:pipeline` or `path/to/app.py:pipeline` names. Raises `ConfigurationError` as `load_engine` does."""
    where, _, name = app.rpartition(":")
    if not where or "/" in name or name.endswith(".py"):
        where, name = app, ""
    module = _from_file(Path(where)) if where.endswith(".py") or "/" in where else _from_name(where)
    found: dict[str, Pipeline[Any]] = {each: cast("Pipeline[Any]", value) for each, value in vars(module).items() if isinstance(value, Pipeline)}
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    listed = " or ".join(f"{where}:{each}" for each in sorted(found))
    hint = f"Write {listed}." if found else "No Pipeline stands at its top level: pipeline = Pipeline(phases, SqliteStorage('jobs.db'))."
    raise ConfigurationError(f"{where}: there is no pipeline {name!r}. {hint}" if name else f"{where}: which pipeline? {hint}")


def _engine_in(module: ModuleType, where: str, name: str) -> Engine:
    found = {each: value for each, value in vars(module).items() if isinstance(value, Engine)}
    if name:
        value = getattr(module, name, None)
        if isinstance(value, Engine):
            return value
        what = f"has no {name!r}" if value is None else f"has a {type(value).__name__} as {name!r}, not an Engine"
        raise ConfigurationError(f"{where} {what}. {_engines(found, where)}")
    if len(set(map(id, found.values()))) == 1:
        return next(iter(found.values()))
    raise ConfigurationError(f"{where}: which engine? {_engines(found, where)}")


def _engines(found: dict[str, Engine], where: str) -> str:
    if found:
        return "Write " + " or ".join(f"{where}:{each}" for each in sorted(found)) + "."
    return "No Engine stands at its top level: engine = Engine('sqlite:///perdure.db')."


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"There is no file {str(path)!r}. {HOW}")
    name = path.stem
    # As `python path/to/app.py` would: what stands beside the program can be imported.
    sys.path.insert(0, str(path.parent.resolve()))
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{str(path)!r} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    try:
        _importing(str(path), lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]  # half a program is none
        raise
    return module


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} names no program. {HOW}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _importing(name, lambda: importlib.import_module(name))


def _importing(where: str, load: Callable[[], T]) -> T:
    """Run the program's own code. Whatever it raises becomes one sentence, and a traceback for those who ask for one.

    What it prints meanwhile goes to stderr: stdout is for the command's answer.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return load()
    except (Exception, SystemExit) as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name and where.startswith(error.name):
            raise ConfigurationError(f"There is no module {error.name!r} here. {HOW}") from error
        raise ConfigurationError(f"{_place(error, where)}: {_what(error)} ({DEBUG_VARIABLE}=1 shows the traceback.)") from error


def _place(error: BaseException, where: str) -> str:
    """The line of the program that it comes from: the last one that is not in an installed library."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short(error.filename)}, line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_theirs(each.filename)]
    return f"{_short(frames[-1].filename)}, line {frames[-1].lineno}" if frames else where


def _is_theirs(filename: str) -> bool:
    ours = str(Path(__file__).parents[1])
    return not filename.startswith(("<", ours, sys.base_prefix)) and "site-packages" not in filename


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _what(error: BaseException) -> str:
    if isinstance(error, PerdureError):
        return error.message
    if isinstance(error, SystemExit):
        return f"the program ended itself (exit {error.code}) while it was loaded; put what it does under `if __name__ == '__main__':`."
    said = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {said if said.endswith(('.', '!', '?')) else said + '.'}"
