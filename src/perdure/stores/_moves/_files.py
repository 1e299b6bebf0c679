"""SQL as files: named queries and numbered migrations, read once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_MIGRATION: Final = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One forward step of the schema. `number` is the schema's version once it is applied."""

    number: int
    name: str
    text: str


def load_queries(package: str) -> dict[str, str]:
    """Every query under `package`/queries by its name, without its comments.

    A query begins with a line ``-- name: <name>`` and ends where the next begins.
    """
    found: dict[str, str] = {}
    for file in sorted(files(package).joinpath("queries").iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise ValueError(f"{package}: two queries are named {name!r}")
            lines = (line.partition("-- ")[0].strip() for line in text.splitlines())
            found[name] = " ".join(line for line in lines if line).rstrip("; ")
    return found


def load_migrations(package: str) -> list[Migration]:
    """Every migration under `package`/migrations, in order."""
    steps: list[Migration] = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := _MIGRATION.match(file.name):
            steps.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    steps.sort(key=lambda step: step.number)
    if [step.number for step in steps] != list(range(1, len(steps) + 1)):
        raise ValueError(f"{package}: migrations must be numbered from 1 without gaps")
    return steps
