"""What a failed model call means: worth another try or not, when, and whether the stream was whole.

When a stream is whole. A stream that ends without the provider's finish part may be cut anywhere, and must not be acted on. What shows it differs:

- OpenAI's chat model puts `stop` where the wire had no reason at all; then the raw reason in `provider_details` is missing too.
- Anthropic, OpenAI Responses, Google and the rest leave `finish_reason` at None. A raw reason that Pydantic AI has no word for still counts.
- `FunctionModel` and `TestModel` have no wire and never give a reason: whatever they say is whole.
- Models of other packages are held to the same rule. One that can't give a reason says so with `requires_finish_part = False` on its class.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar, cast

from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from perdure.core.codec import clean_text
from perdure.core.errors import ExecutionError

T = TypeVar("T")

TRANSIENT: Final = (ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError, ModelRequestTimeout)
TRANSIENT_STATUS: Final = frozenset({408, 409, 425, 429})
WIRELESS: Final = frozenset({"pydantic_ai.models.function.FunctionModel", "pydantic_ai.models.test.TestModel"})
"""By name: importing them takes a tenth of the time in which the whole of Perdure is imported."""
WORDS_MAX: Final = 8_000
"""Characters of an error's own words that are kept."""
RETRY_AFTER_MAX: Final = timedelta(days=31)
"""A longer wish is taken for a mistake and counts as none."""


class StreamCut(Exception):
    """The stream ended without the provider's finish part."""


def innermost(model: Any) -> Any:
    """The model behind Pydantic AI's wrappers."""
    while (inner := getattr(model, "wrapped", None)) is not None:
        model = inner
    return model


def is_whole(response: ModelResponse, model: Any) -> bool:
    """Whether the response carries its provider's finish part (see the module)."""
    model = innermost(model)
    if getattr(model, "requires_finish_part", True) is False or not WIRELESS.isdisjoint(_names(model)):
        return True
    raw = (response.provider_details or {}).get("finish_reason")
    if _fabricates(model, response):
        return bool(raw) or response.finish_reason == "content_filter"
    return response.finish_reason is not None or bool(raw)


def _names(model: Model) -> list[str]:
    return [f"{each.__module__}.{each.__qualname__}" for each in type(model).__mro__]


def _fabricates(model: Model, response: ModelResponse) -> bool:
    # By name: importing the class would need the `openai` package. A fallback model names no provider of its own, so its response decides.
    names = [name for served in _members(model) for name in _names(served)]
    return (
        any(name.startswith("pydantic_ai.models.openai") and name.endswith(".OpenAIChatModel") for name in names) and response.finish_reason == "stop"
    )


def _members(model: Any) -> Iterator[Any]:
    yield model
    for each in cast("list[Any]", getattr(model, "models", None) or []):
        yield innermost(each)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside a group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(each)
    else:
        yield error


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: 429, 5xx, a broken connection, a cut stream. The provider's own word (`x-should-retry`) counts first."""
    if isinstance(error, FallbackExceptionGroup):
        return any(is_transient(each) for each in leaves(error))
    if isinstance(error, ModelQuotaExceededError):
        return False
    if isinstance(error, ModelHTTPError):
        hint = error.provider_retry_hint
        return hint if hint is not None else error.status_code >= 500 or error.status_code in TRANSIENT_STATUS
    broken = isinstance(error, (*TRANSIENT, StreamCut, ConnectionError, TimeoutError, asyncio.IncompleteReadError))
    return broken or _broken_wire(error) or _garbled(error)


def _garbled(error: BaseException) -> bool:
    """Whether something in the stream was no JSON or no UTF-8: a proxy spoke, or a piece is missing. What came may be cut anywhere."""
    return isinstance(error, ModelAPIError) and isinstance(error.__cause__, (json.JSONDecodeError, UnicodeDecodeError))


def _broken_wire(error: BaseException) -> bool:
    # A transport error that an adapter let through. By name: the transport library is the provider's business.
    return any(each.__name__ == "TransportError" and each.__module__.startswith(("httpx", "httpcore")) for each in type(error).__mro__)


def is_quota(error: BaseException) -> bool:
    """Whether the provider says that money or quota ran out, so that waiting a while will not help."""
    return any(isinstance(each, ModelQuotaExceededError) for each in leaves(error))


_NOT_ITS_THINKING: Final = re.compile(
    r"signature.*thinking|thinking.*signature|encrypted.content|'reasoning' item|type 'reasoning'", re.IGNORECASE | re.DOTALL
)


def refuses_thinking(error: BaseException) -> bool:
    """Whether the provider refused the request for a thinking block in it that it does not know as its own."""
    return isinstance(error, ModelHTTPError) and error.status_code == 400 and _NOT_ITS_THINKING.search(str(error.body)) is not None


def retry_after(error: BaseException, now: datetime) -> timedelta | None:
    """The provider's wish: `retry-after-ms`, seconds, an HTTP date, or else when the limit that is used up is filled again. Absent or absurd: None.

    Of several failed models the earliest counts.
    """
    wishes = [wish for each in leaves(error) if isinstance(each, ModelAPIError) and (wish := _wish(each, now)) is not None]
    return min(wishes) if wishes else None


def _wish(error: ModelAPIError, now: datetime) -> timedelta | None:
    seconds = error.retry_after
    headers = (error.headers or {}) if isinstance(error, ModelHTTPError) else {}
    date = headers.get("retry-after", "")
    if seconds is not None and "," in date:
        # Pydantic AI measures a date against the machine's clock. Ours may be another one.
        seconds = max(0.0, (parsedate_to_datetime(date).astimezone(UTC) - now).total_seconds())
    if seconds is None and date == "":
        seconds = _until_reset(headers, now)
    return timedelta(seconds=seconds) if seconds is not None and 0 <= seconds <= RETRY_AFTER_MAX.total_seconds() else None


_RESETS: Final = (re.compile(r"anthropic-ratelimit-(.+)-reset"), re.compile(r"x-ratelimit-reset-(.+)"))
_REMAINING: Final = ("anthropic-ratelimit-{}-remaining", "x-ratelimit-remaining-{}")
_SPAN: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")


def _until_reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until every limit that is used up (`remaining` is 0) is filled again, as Anthropic (times) and OpenAI (spans) report them."""
    waits: list[float] = []
    for pattern, remaining in zip(_RESETS, _REMAINING, strict=True):
        for name, value in headers.items():
            if (found := pattern.fullmatch(name)) and headers.get(remaining.format(found[1]), "").strip() == "0":
                wait = _seconds_until(value.strip(), now)
                if wait is not None:
                    waits.append(wait)
    return max(waits) if waits else None


def _seconds_until(value: str, now: datetime) -> float | None:
    if value and (span := _SPAN.fullmatch(value)):
        hours, minutes, seconds, milliseconds = (float(each or 0) for each in span.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return max(0.0, (moment - now).total_seconds()) if moment.tzinfo is not None else None


def describe(error: BaseException) -> str:
    """An error's name and words as they may be stored: never empty, never too long, whatever the error makes of itself."""
    try:
        text = clean_text(str(error)).strip()
    except Exception:
        text = ""  # a `__str__` that raises
    if len(text) > WORDS_MAX:
        text = f"{text[:WORDS_MAX]}… ({len(text)} characters)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def contained(work: Awaitable[T]) -> T:
    """Wait for code of the user's. What would end more than the run that it works for is an error of it: `sys.exit()` in a task ends the whole event loop, and
    `GeneratorExit` whatever awaits the task.

    Raises:
        ExecutionError: In place of those two.
    """
    task = asyncio.current_task()
    try:
        return await work
    except SystemExit as error:
        raise ExecutionError(f"The agent's own code raised {describe(error)}.", code="internal") from error
    except GeneratorExit as error:
        if _task_at_work() is not task:
            raise  # nobody raised it: whoever held this coroutine has closed it
        raise ExecutionError("The agent's own code raised GeneratorExit.", code="internal") from error


def _task_at_work() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
