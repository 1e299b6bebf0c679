"""Tool results as plain JSON: what the ledger stores, and what the history shows, are one value.

A result that is not plain data keeps its form through a tag: `ToolReturn` as `{"kind": "perdure-tool-return", …}`. Files become references.
"""

from __future__ import annotations

from typing import Any, Final, cast

from pydantic_ai.messages import ToolReturn

from perdure.core.codec import clean

TOOL_RETURN: Final = "perdure-tool-return"


def to_plain(value: Any) -> Any:
    """`value` as JSON data by the rule of `core.codec`.

    Raises:
        UnserializableError: Something in it has no JSON form; its path is named.
    """
    if isinstance(value, ToolReturn):
        given = cast("ToolReturn[Any]", value)
        return {
            "kind": TOOL_RETURN,
            "value": clean(given.return_value, path="$.return_value"),
            "content": clean(given.content, path="$.content"),
            "metadata": clean(given.metadata, path="$.metadata"),
        }
    return clean(value)


def from_plain(value: Any) -> Any:
    """What Pydantic AI is handed for a stored result."""
    if isinstance(value, dict) and cast("dict[str, Any]", value).get("kind") == TOOL_RETURN:
        stored = cast("dict[str, Any]", value)
        return ToolReturn(return_value=stored["value"], content=stored["content"], metadata=stored["metadata"])
    return value
