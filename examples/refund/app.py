"""A refund that a person has to allow. The agent proposes an amount; whoever answers may change it.

In one terminal (it stays while the run waits; kill it, and `perdure continue app.py last --wait` goes on):

    perdure run app.py refunds --text "Order KL-1042 arrived with a cracked lid." --wait

In a second one, with the end of the request's id that the first one shows:

    perdure approvals list
    perdure approvals approve 7f3a9c21 --input '{"order": "KL-1042", "cents": 1900}' --by eva

The tool then gets 1,900 cents, once, and `paid.txt` has one line. The model is `PERDURE_MODEL` (any model string of Pydantic AI) where its key is in
the environment, else a scripted one, which the first line says.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from pydantic_ai.models import Model, infer_model

from perdure import Engine, approve, current_run, effect, plain
from perdure.testing.models import Reply, ScriptedModel, call, say

ORDERS = {"KL-1042": {"item": "Kettle “Alba”", "cents": 6_400}, "KL-1077": {"item": "Blanket “Fjell”", "cents": 8_900}}
PAID = Path("paid.txt")


def script(messages: list[ModelMessage]) -> Reply:
    """What a model would do: look the order up, propose to pay all of it back, say what was really paid."""
    results = [
        part.content for message in messages if isinstance(message, ModelRequest) for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    if not results:
        order = next((number for number in ORDERS if number in str(messages[0])), "KL-1042")
        return call("look_up", order=order)
    if len(results) == 1:
        return call("refund", order=results[0]["order"], cents=results[0]["cents"])
    return say(f"{results[-1]} We are sorry for the trouble.")


def choose_model() -> tuple[Model, str]:
    """The model, and a line that says which one it is."""
    wanted = os.environ.get("PERDURE_MODEL", "")
    if not wanted:
        return ScriptedModel(script), "Model: scripted, no key needed (set PERDURE_MODEL and its key for a real one)."
    try:
        return infer_model(wanted), f"Model: {wanted}."
    except (UserError, ImportError, ValueError) as error:
        return ScriptedModel(script), f"Model: scripted, since {wanted} can't be used: {str(error).splitlines()[0]}"


model, MODEL_LINE = choose_model()
print(MODEL_LINE, file=sys.stderr)

agent = Agent(
    model,
    name="refunds",
    instructions="Look the order up. If something is wrong with it, refund it, once. Then answer the customer in one sentence that names the amount paid.",
)


@agent.tool_plain(metadata=plain())
def look_up(order: str) -> dict[str, str | int]:
    """What was bought, and what was paid for it in cents."""
    return {"order": order, **ORDERS.get(order, {"item": "unknown", "cents": 0})}


@agent.tool_plain(metadata=effect() | approve(within=timedelta(days=2)))
def refund(order: str, cents: int) -> str:
    """Pay money back.

    Args:
        order: The order's number.
        cents: Cents of a euro.
    """
    with PAID.open("a") as book:
        book.write(f"{order}: {cents / 100:.2f} EUR, reference {current_run().key}\n")
    return f"{cents / 100:.2f} EUR were paid back for order {order}."


engine = Engine("sqlite:///perdure.db")
refunds = engine.agent(agent, input=str)
