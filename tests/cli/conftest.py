"""The real command line: in a process of its own, or, where that makes no difference, in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from shop_cli import Cli, Said, environment

from perdure.cli._app import run_command


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `perdure …` in an empty folder."""

    def run(*arguments: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None, code: int | None = None, before: str = "") -> Said:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        # `before` is Python that prepares the process, such as limits that only bind the command itself.
        start = f"{before}\nimport sys\nfrom perdure.cli import main\nsys.argv[0] = 'perdure'\nmain()"
        command: list[Any] = [sys.executable, "-c", start, *arguments]
        done = subprocess.run(command, cwd=tmp_path, input=given, capture_output=True, env=environment(env), check=False, timeout=240)
        said = Said(done.returncode, done.stdout.decode(), done.stderr.decode())
        if code is not None:
            assert said.code == code, (said.code, said.out, said.err)
        return said

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run `perdure …` in an empty folder, without starting another Python for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = dict(sys.modules)
    monkeypatch.setenv("COLUMNS", "100")
    for name in set(os.environ) - set(environment()):
        monkeypatch.delenv(name)

    def run(*arguments: str, code: int | None = None) -> Said:
        capsys.readouterr()
        found = run_command(arguments)
        out, err = capsys.readouterr()
        said = Said(found, out, err)
        if code is not None:
            assert said.code == code, (said.code, said.out, said.err)
        return said

    yield run
    # Programs of this folder make room for others of the same name.
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
            if name in modules:
                sys.modules[name] = modules[name]
