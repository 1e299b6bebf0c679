"""What an agent's output type is as a Python type, so that a stored output can be read back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, Union, cast, get_type_hints

from pydantic import TypeAdapter
from pydantic_ai import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.messages import BinaryContent, MultiModalContent


def output_adapter(output_type: Any) -> TypeAdapter[Any]:
    """Validates an agent's stored output: the types behind markers and output functions, as one union.

    A function that does not say what it returns makes it `Any`.
    """
    types = list(dict.fromkeys(_types(output_type)))
    if not types or any(each is Any for each in types):
        return TypeAdapter(Any)
    return TypeAdapter(cast("Any", Union)[tuple(types)])


def is_text(output_type: Any) -> bool:
    """Whether the output is plain text."""
    return output_type is str


def _types(spec: Any) -> Iterator[Any]:
    if isinstance(spec, (list, tuple)):
        for each in cast("Sequence[Any]", spec):
            yield from _types(each)
    elif isinstance(spec, ToolOutput):
        yield from _types(cast("ToolOutput[Any]", spec).output)
    elif isinstance(spec, (NativeOutput, PromptedOutput)):
        yield from _types(cast("NativeOutput[Any]", spec).outputs)
    elif isinstance(spec, TextOutput):
        yield _returned(cast("TextOutput[Any]", spec).output_function)
    elif inspect.isroutine(spec):
        yield _returned(spec)
    elif isinstance(spec, type) and issubclass(spec, BinaryContent):
        # Stored as a reference to an artifact.
        yield MultiModalContent
    else:
        yield NoneType if spec is None else spec


def _returned(function: Any) -> Any:
    try:
        hint = get_type_hints(function).get("return", Any)
    except Exception:
        return Any
    return NoneType if hint is None else hint
