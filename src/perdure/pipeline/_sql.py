"""Named statements from the `.sql` files beside this module."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Literal, cast

from perdure.core import given
from perdure.core.errors import ConfigurationError

_PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,40}")


def statements(dialect: Literal["sqlite", "postgres"], words: dict[str, str]) -> dict[str, str]:
    """Every `-- name: …` block that this dialect has, its own and the shared ones, with `{word}` replaced."""
    texts = (files("perdure.pipeline").joinpath(f"{name}.sql").read_text("utf-8") for name in ("jobs", dialect))
    found: dict[str, str] = {}
    for text in texts:
        blocks = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
        for name, body in zip(blocks[::2], blocks[1::2], strict=True):
            if name in found:
                raise ValueError(f"{dialect}: two statements are named {name!r}")
            found[name] = _filled(body, words)
    return found


def _filled(body: str, words: dict[str, str]) -> str:
    plain = "\n".join(line for line in body.strip().splitlines() if not line.lstrip().startswith("--"))
    # `replace`, not `format`: SQL may have braces of its own (JSON paths).
    for word, text in words.items():
        plain = plain.replace(f"{{{word}}}", text)
    return plain


def checked_prefix(prefix: str) -> str:
    """The prefix of the tables' names.

    Raises:
        ConfigurationError: It is not a plain identifier.
    """
    if not isinstance(cast(object, prefix), str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"prefix={given.shown(prefix)}: a table prefix is letters, digits and underscores, at most 41, not starting with a digit."
        )
    return prefix
