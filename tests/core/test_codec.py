"""One rule for what may be stored."""

from __future__ import annotations

import enum
import io
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from perdure.core.codec import LONE, NUL, PlainCodec, clean, clean_text, dump, fingerprint, load
from perdure.core.errors import UnserializableError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_is_clean_is_valid_json_everywhere(value: Any) -> None:
    """No NUL, no lone surrogate, no NaN; UTF-8 takes it, and reading back gives the same."""  # case E1 E3 E11
    plain = clean(value)
    text = dump(plain)
    assert "\x00" not in text and "\\u0000" not in text.replace("\\\\", "")
    text.encode()
    assert load(text) == plain
    assert load(text.encode()) == plain


@given(JSON)
def test_cleaning_twice_is_cleaning_once(value: Any) -> None:
    """The rule is idempotent."""
    assert clean(clean(value)) == clean(value)


@given(st.text(st.characters(codec=None)))
def test_only_what_the_rule_names_is_changed(text: str) -> None:
    """Character by character."""
    expected = "".join(NUL if each == "\x00" else LONE if 0xD800 <= ord(each) <= 0xDFFF else each for each in text)
    assert clean_text(text) == expected


def test_the_literal_escape_is_ordinary_text() -> None:
    """Six characters, not a NUL."""  # case E1
    assert clean("\\u0000") == "\\u0000"
    assert load(dump(clean({"\\u0000": "\\u0000"}))) == {"\\u0000": "\\u0000"}


def test_nan_and_the_infinities_become_their_names() -> None:
    """Valid JSON by one stated rule, also as keys."""  # case E3
    assert clean({"x": math.nan, "y": [math.inf, -math.inf]}) == {"x": "NaN", "y": ["Infinity", "-Infinity"]}
    assert clean({math.nan: 1}) == {"NaN": 1}
    assert clean({"d": Decimal("NaN")}) == {"d": "NaN"}


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    at: datetime
    ratio: float = math.nan
    text: str = "a\x00b"


@dataclass
class Data:
    one: Any
    more: list[Any] = field(default_factory=list)


def test_models_dataclasses_and_friends_become_plain_data() -> None:
    """As Pydantic writes them, by the same rule inside."""
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert clean(Model(at=at)) == {"at": "2030-01-02T03:04:05Z", "ratio": "NaN", "text": f"a{NUL}b"}
    assert clean(Data(at, [Colour.RED, Decimal("1.50"), UUID(int=1)])) == {
        "one": "2030-01-02T03:04:05Z", "more": ["red", "1.50", "00000000-0000-0000-0000-000000000001"],
    }  # fmt: skip
    assert clean((1, {2})) == [1, [2]]


def test_keys_become_text() -> None:
    """Like JSON writes them."""
    assert clean({None: 1, True: 2, 3: 3, 1.5: 4, "a\x00": 5, Colour.RED: 6}) == {"null": 1, "true": 2, "3": 3, "1.5": 4, f"a{NUL}": 5, "red": 6}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (io.BytesIO(), "$"),
        ({"a": [1, {"b": io.BytesIO()}]}, "$.a[1].b"),
        (Data(1, [object()]), "$.more[0]"),
        ({"lock": [print]}, "$.lock[0]"),
    ],
    ids=["top", "nested", "dataclass", "function"],
)
def test_what_json_has_no_word_for_is_named_by_its_path(value: Any, path: str) -> None:
    """An error with the field, not a loop and not a pickle."""  # case E5 E7
    with pytest.raises(UnserializableError) as caught:
        clean(value)
    assert caught.value.details["path"] == path
    assert path in str(caught.value)


def test_what_contains_itself_is_refused() -> None:
    """And what is nested without end."""  # case E5
    circle: list[Any] = []
    circle.append({"again": circle})
    with pytest.raises(UnserializableError):
        clean(circle)


def test_an_open_file_or_a_generator_is_not_read() -> None:
    """It is refused as it is, with all that is in it."""  # case E5
    numbers = iter([1, 2, 3])
    with pytest.raises(UnserializableError):
        clean({"numbers": numbers})
    assert list(numbers) == [1, 2, 3]


def test_equal_data_has_one_fingerprint_whatever_the_order_of_keys() -> None:
    """And unequal data another."""
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert len({fingerprint(value) for value in ({"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": None}, {"b": 1}, [1, 2], [2, 1])}) == 7


def test_big_integers_keep_every_digit() -> None:
    """No float on the way."""
    assert load(dump(clean(10**40 + 1))) == 10**40 + 1


def test_nothing_loads_as_nothing() -> None:
    """A column that is empty."""
    assert load(None) is None


def test_the_plain_codec_changes_nothing() -> None:
    """Bytes in, bytes out."""
    assert PlainCodec().decode(PlainCodec().encode(b"\x00\xff")) == b"\x00\xff"


def test_dump_refuses_what_was_not_cleaned() -> None:
    """The gate is before it."""
    with pytest.raises(ValueError, match="JSON"):
        dump(math.nan)
    assert json.loads(dump({"é": "漢"})) == {"é": "漢"}
    assert "漢" in dump("漢"), "readable in the database"


def test_two_keys_that_are_one_as_text_are_refused() -> None:
    """One of the two values would be lost without a word."""
    with pytest.raises(UnserializableError) as caught:
        clean({"rows": {1: "a", "1": "b"}})
    assert caught.value.details["path"] == "$.rows"
