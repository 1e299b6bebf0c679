"""Which model classifies: a real one where `PERDURE_MODEL` and a key are in the environment, else a script that says so."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model

from perdure.testing.models import Reply, ScriptedModel, call, calls

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")
MONEY = re.compile(r"(?:€\s*([\d.,]+)|([\d.,]+)\s*EUR)")


def chosen(asked: Callable[[], None] = lambda: None) -> Model | str:
    """The model to use. `asked` hears of each request to the script."""
    name = os.environ.get("PERDURE_MODEL")
    if name and any(os.environ.get(key) for key in KEYS):
        return name
    return ScriptedModel(_reply, name="scripted-clerk", on_request=lambda messages: asked())


def described() -> str:
    """One line about it, for the top of a demo."""
    model = chosen()
    if isinstance(model, str):
        return f"Model: {model}"
    return "Model: a script that stands in for one (set PERDURE_MODEL and its key to use a real one)"


def _reply(messages: list[ModelMessage]) -> Reply:
    """Look the customer up, then say what the document is."""
    parts = [part for message in messages if isinstance(message, ModelRequest) for part in message.parts]
    text = next(str(part.content) for part in parts if isinstance(part, UserPromptPart))
    customer = _customer(text)
    if not any(isinstance(part, ToolReturnPart) for part in parts):
        return calls(call("find_customer", name=customer), text="(scripted model) Who is this from?")
    kind, cents = _kind(text), _cents(text)
    return call("final_result", kind=kind, customer=customer, cents=cents, summary=f"{kind} of {customer}")


def _kind(text: str) -> str:
    if "invoice" in text.lower():
        return "invoice"
    return "complaint" if "would like my" in text else "order"


def _customer(text: str) -> str:
    for sign in (r"customer: ([^;\n]+)", r"liefern Sie an ([^,\n]+)", r"Yours\n([^,\n]+)"):
        if found := re.search(sign, text):
            return found[1].strip()
    first = next(line for line in text.splitlines() if line.strip() and not line.startswith("File "))
    return first.split("·")[0].strip()


def _cents(text: str) -> int:
    if total := re.search(r"^Total\s+€ ([\d.,]+)", text, flags=re.MULTILINE):
        return _value(total[1])
    if rows := re.findall(r"boxes: (\d+); price: ([\d.]+)", text):
        return sum(int(boxes) * _value(price) for boxes, price in rows)
    if rows := re.findall(r"(\d+) Kisten .* zu ([\d,]+) EUR", text):
        return sum(int(boxes) * _value(price) for boxes, price in rows)
    amounts = [_value(one or other) for one, other in MONEY.findall(text)]
    return max(amounts, default=0)


def _value(text: str) -> int:
    """Cents of an amount, whichever way its decimals are marked."""
    whole, _, decimals = text.replace(",", ".").rpartition(".")
    return int(whole.replace(".", "") or 0) * 100 + int(decimals.ljust(2, "0")[:2])
