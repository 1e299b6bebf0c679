"""What the scripted model decides: an e-mail and what the shop said about it, in; the next act, out.

Keywords and a few ifs, in two languages. It is no intelligence, but it reads the real message: another e-mail gives other calls and another ticket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from mail import Email

Category = Literal["delivery", "damaged", "return", "billing", "invoice", "cancellation", "address", "sales", "praise", "spam", "other"]
Priority = Literal["low", "normal", "high", "urgent"]


@dataclass(frozen=True)
class Act:
    """One turn: something said, then either one tool call or the ticket."""

    say: str
    tool: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    ticket: dict[str, Any] | None = None


# Which words speak for which category; the more specific ones weigh more. Ties go to the first.
_WORDS: dict[Category, dict[str, int]] = {
    "spam": {"verify your account": 5, "click here": 3, "within 24 hours": 2, "claim": 1},
    "billing": {"charged twice": 5, "twice": 1, "chargeback": 5, "refund": 1, "money back": 3, "payment": 1, "doppelt abgebucht": 5},
    "damaged": {"broken": 4, "crack": 3, "damaged": 4, "came off": 3, "kaputt": 4, "replacement": 2},
    "return": {"return label": 5, "send it back": 4, "wrong size": 2, "return": 1, "zurückschicken": 4},
    "invoice": {"invoice": 2, "corrected invoice": 3, "rechnung": 3, "beleg": 2},
    "cancellation": {"cancel": 5, "by mistake": 2, "stornieren": 5},
    "address": {"lieferadresse": 5, "new address": 5, "alte adresse": 3},
    "sales": {"quotation": 5, "volume discount": 3, "lead time": 1, "angebot": 4},
    "praise": {"thank you 🙏": 3, "wonderful": 3, "no reply needed": 3},
    "delivery": {"where is": 2, "in transit": 2, "delivered": 1, "arrive": 1, "tracking": 1, "no confirmation": 2, "nothing arrived": 2},
}
_URGENT = ("lawyer", "chargeback", "final notice")
_SOON = ("this thursday", "on sunday!", "by friday", "before it ships", "on monday", "today")
_GERMAN = frozenset({"wir", "für", "bitte", "die", "der", "und", "grüße", "grüßen", "guten"})
_PARCEL_MATTERS = frozenset({"delivery", "damaged", "return", "cancellation", "address", "billing"})
_NEEDS_PERSON = frozenset({"billing", "damaged", "sales", "spam"})
assert set(_WORDS) | {"other"} == set(get_args(Category))


def decide(email: Email, facts: Mapping[str, Any]) -> Act:
    """The next act for `email`, when `facts` holds each tool's answer so far: a dict, or a text where the shop had nothing to give."""
    category, order_id = categorise(email), order_number(email)
    if order_id and category != "spam" and "lookup_order" not in facts:
        return Act(f"{opening(email)} It names order {order_id}, so I look that up first.", "lookup_order", {"order_id": order_id})
    order, shipment = facts.get("lookup_order"), facts.get("shipment_status")
    if isinstance(order, dict) and category in _PARCEL_MATTERS and shipment is None:
        say = f"The order is {order['customer']}'s, over {euros(order['total_cents'])}, and stands as {order['status']}. Now the parcel."
        return Act(say, "shipment_status", {"order_id": order_id})
    if category == "billing" and (cents := surplus(order)) > 0 and "refund" not in facts:
        say = f"The customer is right: {euros(cents)} too much was taken. That has to go back."
        return Act(say, "refund", {"order_id": order_id, "cents": cents})
    written = ticket(email, category, order_id, order, shipment, refunded=isinstance(facts.get("refund"), dict))
    if "file_ticket" not in facts:
        return Act(verdict(category, order, shipment), "file_ticket", {"ticket": written})
    return Act(f"Filed as {facts['file_ticket']}.", ticket=written)


def order_number(email: Email) -> str | None:
    """The order that the message is about: in its new words, else its subject, and in the quoted thread only at last."""
    for text in (email.text, email.subject, email.quoted):
        if found := re.search(r"\bKL-\d{4}\b", text, re.IGNORECASE):
            return found.group().upper()
    return None


def categorise(email: Email) -> Category:
    text = f"{email.subject}\n{email.text}".lower()
    scores = {category: sum(weight for words, weight in table.items() if words in text) for category, table in _WORDS.items()}
    best = max(scores, key=lambda category: scores[category])
    return best if scores[best] else "other"


def prioritise(email: Email, category: Category) -> Priority:
    text = f"{email.subject}\n{email.text}".lower()
    if any(words in text for words in _URGENT):
        return "urgent"
    if category in {"praise", "spam"}:
        return "low"
    return "high" if any(words in text for words in _SOON) else "normal"


def opening(email: Email) -> str:
    files = f" with {len(email.attachments)} attachment{'s' * (len(email.attachments) > 1)}" if email.attachments else ""
    return f"A message from {name_of(email)}{files}: “{email.subject}”."


def verdict(category: Category, order: Any, shipment: Any) -> str:
    if isinstance(shipment, dict):
        return f"{shipment['carrier']} says {shipment['status']}, last seen: {shipment['last_seen']}. That settles it: a matter of {category}. I file the ticket."
    if isinstance(order, str):
        return f"The shop says: {order} I can only ask the customer. I file the ticket."
    return f"Nothing more to look up: this is a matter of {category}. I file the ticket."


def ticket(email: Email, category: Category, order_id: str | None, order: Any, shipment: Any, *, refunded: bool = False) -> dict[str, Any]:
    known = isinstance(order, dict)
    priority = prioritise(email, category)
    return {
        "category": category,
        "priority": priority,
        "order_id": order_id if known else None,
        "summary": summary(email),
        "suggested_reply": reply(email, category, order_id, order, shipment, refunded=refunded),
        "needs_human": priority == "urgent" or category in _NEEDS_PERSON or (order_id is not None and not known and category != "spam"),
    }


def summary(email: Email) -> str:
    """The sentence with most of the words that decided the category, cut to fit a table."""
    words = _WORDS.get(categorise(email), {})
    sentences = [" ".join(each.split()) for each in re.split(r"(?<=[.!?])\s+|\n\n", email.text)]
    sentences = [each for each in sentences if len(each) > 12] or [email.subject]
    best = max(sentences, key=lambda each: sum(weight for word, weight in words.items() if word in each.lower()))
    return best if len(best) <= 140 else f"{best[:137].rsplit(' ', 1)[0]} …"


def reply(email: Email, category: Category, order_id: str | None, order: Any, shipment: Any, *, refunded: bool = False) -> str:
    if category == "spam":
        return ""
    german = len(_GERMAN & set(re.findall(r"\w+", email.text.lower()))) >= 3
    body = _german(category, order_id, order, shipment) if german else _english(category, order_id, order, shipment, refunded)
    hello, bye = (
        (f"Guten Tag {name_of(email)},", "Mit freundlichen Grüßen\nKettle & Loom")
        if german
        else (f"Dear {name_of(email)},", "Kind regards\nKettle & Loom")
    )
    return f"{hello}\n\n{body}\n\n{bye}"


def _english(category: Category, order_id: str | None, order: Any, shipment: Any, refunded: bool) -> str:
    if isinstance(order, str):
        return f"we could not find order {order_id}. Could you check the number, or send us the address that you ordered with?"
    match category:
        case "praise":
            return "what a lovely message. We have passed it on to the weavers."
        case "sales":
            return "thank you for the list. Our sales team will send you a quotation with volume prices and lead times within ten working days."
    if order_id is None:
        return "please send us the order number (it starts with KL-) or the date and amount of the payment, and we will look at once."
    parcel = parcel_line(shipment)
    match category:
        case "billing" if surplus(order) > 0:
            next_step = "It is on its way back to your card." if refunded else "A colleague is looking into it and will call you today."
            return f"you are right: {euros(surplus(order))} too much was taken for {order_id}. {next_step}"
        case "billing":
            return f"we have read all of your messages about {order_id} again. {parcel} A colleague will call you today about the money."
        case "damaged":
            return f"we are sorry that {order_id} arrived like this. A replacement is being prepared; you need not send anything back."
        case "return":
            return f"of course. The return label for {order_id} (A4) is attached. {parcel}"
        case "invoice":
            return f"our records for {order_id} say {euros(order['total_cents'])}. The corrected invoice is attached; please ignore the other one."
        case "cancellation":
            gone = isinstance(shipment, dict)
            return (
                f"{order_id} has already left: {parcel}"
                if gone
                else f"{order_id} had not left yet. It is cancelled and the money is on its way back."
            )
        case _:
            return f"thank you for asking about {order_id}. {parcel}"


def _german(category: Category, order_id: str | None, order: Any, shipment: Any) -> str:
    if not isinstance(order, dict):
        return "bitte nennen Sie uns die Bestellnummer (sie beginnt mit KL-), dann sehen wir gleich nach."
    match category:
        case "invoice":
            return f"die Rechnung zu {order_id} über {euros(order['total_cents'])} hängt an dieser Nachricht."
        case "address" if order["status"] in {"paid", "packing"}:
            return f"{order_id} ist noch im Lager. Wir haben die Adresse geändert, das kostet nichts."
        case _:
            return f"zu {order_id}: {parcel_line(shipment)}"


def parcel_line(shipment: Any) -> str:
    if not isinstance(shipment, dict):
        return "Nothing has been sent yet."
    due = f", expected on {shipment['expected_on']}" if shipment["expected_on"] else ""
    return f"{shipment['carrier']} {shipment['tracking']}: {shipment['status']}, last seen at “{shipment['last_seen']}”{due}."


def surplus(order: Any) -> int:
    """Cents paid beyond the order's total."""
    return sum(each["cents"] for each in order["payments"]) - order["total_cents"] if isinstance(order, dict) and order["status"] != "returned" else 0


def euros(cents: int) -> str:
    return f"€ {cents // 100}.{cents % 100:02}"


def name_of(email: Email) -> str:
    return re.sub(r"\s*<.*", "", email.sender).strip('" ') or "customer"
