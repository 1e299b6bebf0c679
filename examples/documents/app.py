"""The pipeline: extract → classify → draft → review → archive.

extract    reads the file, page by page, and saves after each
classify   an agent: looks the customer up, says what the document is
draft      writes the letter that answers it
review     a person decides about large amounts and complaints; everything else goes on
archive    books it and files the letter: the deed that must happen once
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent

import clerk_model
from office import Office, customer_number
from papers import PaperError, read
from perdure.pipeline import (
    AgentCheckpoint,
    AgentOutcome,
    Approval,
    Done,
    Error,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    RetryPolicy,
    Wait,
    build_agent_phase,
)

LIMIT_CENTS = 1_000_00
"""Above this a person has to look."""


class Filing(BaseModel):
    """What the agent says about a document."""

    kind: Literal["invoice", "complaint", "order"]
    customer: str
    cents: int
    summary: str


@dataclass
class Case:
    """One document on its way through the office. `digest` is of its bytes: the same document is the same deed, whoever sends it again."""

    path: str
    digest: str = ""
    pages: list[str] = field(default_factory=list)
    filing: dict[str, Any] = field(default_factory=dict)
    letter: str = ""
    decided_by: str = "the rules"


Witness = Callable[[str, str], None]


def build(office: Office, witness: Witness = lambda job, phase: None) -> list[Phase[Any]]:
    """The phases. `witness` hears of every entry into one: job and phase."""

    async def extract(ctx: PhaseContext[Case]) -> PhaseResult[Any]:
        witness(ctx.job_id, "extract")
        path = Path(ctx.state.path)
        try:
            pages, digest = read(path), digest_of(path)
        except (PaperError, FileNotFoundError) as error:
            return Error(str(error))
        case = replace(ctx.state, digest=digest)
        for done in range(len(case.pages), len(pages)):
            case = replace(case, pages=pages[: done + 1])
            await ctx.save_state(case)
            ctx.progress(done + 1, len(pages))
        await ctx.log(f"{path.name}: {len(pages)} page(s), {sum(map(len, pages))} characters")
        prompt = f"File {path.name}\n\n" + "\n".join(case.pages)
        return Next("classify", AgentCheckpoint.start(prompt, carry=case))

    def classified(outcome: AgentOutcome[Any], carry: Any) -> PhaseResult[Any]:
        if not isinstance(outcome.output, Filing):
            return Error(f"The model came to no answer: it stopped by {outcome.stopped_by}.")
        return Next("draft", {**carry, "filing": outcome.output.model_dump()})

    async def draft(ctx: PhaseContext[Case]) -> PhaseResult[Any]:
        witness(ctx.job_id, "draft")
        filing = Filing.model_validate(ctx.state.filing)
        letter = template(filing.kind).format(customer=filing.customer, euros=f"{filing.cents / 100:,.2f}", document=Path(ctx.state.path).name)
        return Next("review", replace(ctx.state, letter=letter))

    async def review(ctx: PhaseContext[Case]) -> PhaseResult[Any]:
        witness(ctx.job_id, "review")
        filing = Filing.model_validate(ctx.state.filing)
        if ctx.answer is not None:
            if not ctx.answer.approved:
                return Error(f"Not approved: {ctx.answer.reason or 'no reason given'}")
            return Next("archive", replace(ctx.state, decided_by=ctx.answer.by or "somebody"))
        if filing.kind == "complaint" or filing.cents > LIMIT_CENTS:
            return Wait(approval=Approval(f"{filing.summary}, € {filing.cents / 100:,.2f}: send it?", {"letter": ctx.state.letter}))
        return Next("archive", ctx.state)

    async def archive(ctx: PhaseContext[Case]) -> PhaseResult[Any]:
        witness(ctx.job_id, "archive")
        filing = Filing.model_validate(ctx.state.filing)
        office.file(ctx.state.path, ctx.state.letter)
        # The document itself is the key: another full run of this job, or the same file sent twice, books nothing more.
        new = office.book(ctx.state.digest, Path(ctx.state.path).name, filing.kind, filing.cents)
        return Done({**ctx.state.filing, "booked": new, "decided_by": ctx.state.decided_by})

    classify = build_agent_phase(clerk(witness), max_turns=6, name="classify", then=classified)
    again = RetryPolicy(attempts=3, on=(OSError,))
    return [Phase("extract", extract), classify, Phase("draft", draft), Phase("review", review), Phase("archive", archive, retry=again)]


def digest_of(path: Path) -> str:
    """What names a document by its content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def template(kind: str) -> str:
    """The letter that answers a document of this kind. `DOCUMENTS_LETTERS` is another folder of them."""
    return (Path(os.environ.get("DOCUMENTS_LETTERS", Path(__file__).parent / "letters")) / f"{kind}.txt").read_text("utf-8")


def clerk(witness: Witness) -> Agent[None, Filing]:
    """The agent that says what a document is."""
    agent = Agent(
        clerk_model.chosen(lambda: witness("", "model")), output_type=Filing, name="clerk",
        instructions="Say what kind of document this is, whose it is and what it amounts to in cents (EUR). Look the customer up first.",
    )  # fmt: skip

    @agent.tool_plain
    def find_customer(name: str) -> str:
        """The number of a customer."""
        witness("", f"find_customer {name}")
        number = customer_number(name)
        return f"customer {number}" if number else "not a customer yet"

    return agent
