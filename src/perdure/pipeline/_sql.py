"""Named statements from the `.sql` file beside this module."""

from __future__ import annotations

import re
from importlib.resources import files

from perdure.core.errors import ConfigurationError


def statements(file: str, prefix: str) -> dict[str, str]:
    """Every `-- name: …` block of the file, for tables of this prefix.

    Raises:
        ConfigurationError: The prefix is not a plain identifier.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,40}", prefix):
        raise ConfigurationError(f"prefix={prefix!r}: a table prefix is letters, digits and underscores, at most 41, not starting with a digit.")
    text = files("perdure.pipeline").joinpath(file).read_text("utf-8")
    blocks = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    # `replace`, not `format`: SQL has braces of its own (JSON paths).
    return {name: body.strip().replace("{p}", prefix) for name, body in zip(blocks[::2], blocks[1::2], strict=True)}
