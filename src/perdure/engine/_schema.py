"""Whether a value fits a tool's JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def schema_error(value: Any, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `value`, with its path; None where it fits."""
    import jsonschema  # only answers with an edited input need it

    validator: Any = jsonschema.Draft202012Validator(schema)
    try:
        first = min(validator.iter_errors(value), key=lambda each: len(each.absolute_path), default=None)
    except Exception:
        # The schema itself is broken, which a server's own may be: the tool's validator has the last word anyway.
        return None
    if first is None:
        return None
    where = ".".join(str(each) for each in first.absolute_path)
    return f"{where}: {first.message}" if where else first.message
