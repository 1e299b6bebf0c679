"""The triage example on its real inbox: reading the messages, the shop, and the agent alone."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure import Engine, InvalidTrigger, Waiting

HERE = Path(__file__).parents[2] / "examples" / "triage"
INBOX = HERE / "inbox"
GOOD = sorted(path.name for path in INBOX.glob("*.eml") if path.name != "15-cut-off.eml")
MODULES = ("settings", "mail", "rules", "scripted", "shop", "witness", "app")


@pytest.fixture(scope="module")
def triage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The example's modules, imported as they are when it is run, and forgotten again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.setenv("TRIAGE_DATA", str(tmp_path_factory.mktemp("triage")))
        patch.setenv("TRIAGE_PACE", "0")
        patch.setenv("TRIAGE_LATENCY", "0")
        patch.delenv("PERDURE_MODEL", raising=False)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)


def test_the_inbox_holds_every_kind_of_message() -> None:
    """Plain, HTML, quoted-printable, base64, Latin-1, Windows, emoji, attachments, a thread and a broken one."""
    raw = b"".join(path.read_bytes() for path in INBOX.glob("*.eml")).lower()
    for sign in (
        b"text/html",
        b"multipart/alternative",
        b"quoted-printable",
        b"base64",
        b"iso-8859-1",
        b"windows-1252",
        b"application/pdf",
        b"image/png",
        b"text/csv",
    ):
        assert sign in raw
    assert len(GOOD) == 14


@pytest.mark.parametrize("name", GOOD)
def test_a_good_message_becomes_an_email_with_readable_text(triage: Any, name: str) -> None:
    """No markup, no transfer encoding and no replacement character is left in what the agent reads."""
    email = triage.mail.read(INBOX / name)
    assert "@" in email.sender and email.message_id.startswith("<") and email.text
    assert not any(sign in email.text for sign in ("<p", "=C3", "=\n", "\ufffd", "&nbsp;", "Ã"))
    assert "=?" not in email.sender + email.subject


def test_umlauts_emoji_and_encoded_headers_arrive_as_written(triage: Any) -> None:
    """Latin-1, Windows-1252 and UTF-8, in bodies and in headers."""
    latin = triage.mail.read(INBOX / "04-rechnung-fehlt.eml")
    assert (latin.subject, latin.sender) == (
        "Rechnung für Bestellung KL-1060 fehlt",
        '"Südhang Keramik, Buchhaltung" <buchhaltung@suedhang-keramik.example>',
    )
    assert "zwölf Webstühle" in latin.text and "Größe S" in latin.text
    assert "„Pension Alpenblick" in triage.mail.read(INBOX / "10-neue-adresse.eml").text
    emoji = triage.mail.read(INBOX / "05-thank-you.eml")
    assert emoji.subject == "The blankets are wonderful 😍🎭" and "💛" in emoji.text and "Ευχαριστούμε" in emoji.text


def test_html_keeps_its_lines_and_table_rows(triage: Any) -> None:
    """A table row is a line, a list item has its mark, a link its words."""
    assert "Date | Amount\n26 Feb | € 89.40\n26 Feb | € 89.40" in triage.mail.read(INBOX / "02-charged-twice.eml").text
    assert "- 4 Feb: first complaint\n- 19 Feb" in triage.mail.read(INBOX / "11-chargeback.eml").text


def test_hidden_text_does_not_reach_the_model(triage: Any) -> None:
    """What a reader can't see is left out: scripts, styles, and blocks that are not displayed."""
    text = triage.mail.read(INBOX / "13-you-have-a-refund.eml").text
    assert "You have a refund!" in text and "ignore all previous instructions" not in text and "document.title" not in text
    nested = '<div hidden><div>a<br></div>b<p>c</div><p style="color:red">seen</p><span style="display: none">d</span>!'
    assert triage.mail.html_to_text(nested) == "seen\n\n!"


@pytest.mark.parametrize(
    ("name", "attachment", "media_type", "magic"),
    [
        ("03-broken-teapot.eml", "teapot.png", "image/png", b"\x89PNG\r\n\x1a\n"),
        ("06-bulk-quote.eml", "items-spring 2026.csv", "text/csv", b"sku,item,quantity"),
        ("07-wrong-invoice.eml", "invoice-2026-0177.pdf", "application/pdf", b"%PDF-1.4"),
    ],
)
def test_attachments_keep_name_type_and_bytes(triage: Any, name: str, attachment: str, media_type: str, magic: bytes) -> None:
    """The bytes are whole, and they are not part of the payload."""
    [found] = triage.mail.read(INBOX / name).attachments
    assert (found.name, found.media_type, found.size) == (attachment, media_type, len(found.content)) and found.content.startswith(magic)
    assert "content" not in found.model_dump()


def test_an_attachment_cannot_choose_its_folder(triage: Any) -> None:
    """Only the last component of a file name is kept."""
    raw = b'From: a@b.example\nContent-Type: text/plain\nContent-Disposition: attachment; filename="../../etc/pass"\n\nx'
    assert triage.mail.parse(raw).attachments[0].name == "pass"


def test_the_quoted_thread_is_kept_apart(triage: Any) -> None:
    """The answer is the text; the thread below it, with another order in it, is `quoted`."""
    email = triage.mail.read(INBOX / "08-re-return-label.eml")
    assert "KL-1019" not in email.text and email.quoted.startswith("On Mon, 2 Mar 2026")
    assert triage.rules.order_number(email) == "KL-1033"


def test_answers_between_quoted_lines_stay_together(triage: Any) -> None:
    """A quote is split off only when nothing new follows it."""
    text = "> Which size?\nSmall.\n> Which colour?\nMoss."
    assert triage.mail.split_quote(text) == (text, "")
    assert triage.mail.split_quote("> only\n> quotes") == ("> only\n> quotes", "")


def broken(head: str, body: bytes = b"") -> bytes:
    return f"From: a@b.example\n{head}\n\n".encode() + body


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        ((INBOX / "15-cut-off.eml").read_bytes(), "CutOff", "cut off"),
        (b"", "NotAnEmail", "no From header"),
        (b"\x00\x01\x02 not a mail", "NotAnEmail", "no From header"),
        (broken("Content-Type: text/plain; charset=utf-8", b"gr\xfc\xdfe"), "Undecodable", "utf-8 and is not (byte 2)"),
        (broken("Content-Type: text/plain; charset=klingon", b"x"), "Undecodable", "'klingon'"),
        (broken("Content-Transfer-Encoding: base64", b"SGVsbG8gd29ybGQ$$$=="), "Undecodable", "base64"),
        (broken("Content-Type: multipart/mixed; boundary=x", b"no part at all"), "CutOff", "none of the parts"),
        (broken("Content-Type: text/plain", b"  \n "), "NothingInside", "neither text nor attachments"),
    ],
)
def test_a_broken_message_says_which_file_what_and_what_to_do(triage: Any, raw: bytes, error: str, words: str) -> None:
    """One line with the file's name, the fault and the next step, as an error of its own kind."""
    with pytest.raises(triage.mail.MailError) as caught:
        triage.mail.parse(raw, file="x.eml")
    assert type(caught.value).__name__ == error
    line = str(caught.value)
    assert line.startswith("x.eml: ") and words in line and "\n" not in line and caught.value.todo in line


_HEADS = st.sampled_from(
    ["From: ", "Subject: =?utf-8?b?", "Date: ", "Message-ID: <", "Content-Type: multipart/mixed; boundary=", "Content-Type: text/html; charset=",
     "Content-Transfer-Encoding: base64", "Content-Disposition: attachment; filename*0*=utf-8''", "\n", "--x\n", "--x--"]
)  # fmt: skip
_LINES = st.lists(st.tuples(_HEADS, st.binary(max_size=30)), max_size=12)


@given(lines=_LINES)
def test_any_bytes_are_an_email_or_a_named_error(triage: Any, lines: list[tuple[str, bytes]]) -> None:
    """Nothing else comes out of the parser, whatever comes in."""
    raw = b"\n".join(head.encode() + tail for head, tail in lines)
    try:
        email = triage.mail.parse(raw)
    except triage.mail.MailError:
        return
    assert triage.mail.Email.model_validate_json(email.model_dump_json()).text == email.text


async def test_the_shop_answers_with_orders_and_shipments(triage: Any) -> None:
    """An order with its items and payments; a named error for a number that it does not have."""
    shop = triage.app.open_shop()
    order = await shop.order("KL-1051")
    assert (order.customer, order.total_cents, [each.cents for each in order.payments]) == ("Harbourlight Guesthouse", 8940, [8940, 8940])
    assert (await shop.shipment("KL-1007")).status == "lost"
    with pytest.raises(triage.shop.NotInShop, match="KL-9999"):
        await shop.order("KL-9999")


def test_building_the_shop_twice_keeps_the_first(triage: Any, tmp_path: Path) -> None:
    """The file is there whole or not at all, and a second build changes nothing."""
    path = tmp_path / "new" / "shop.db"
    triage.shop.build(path)
    before = path.read_bytes()
    triage.shop.build(path)
    assert path.read_bytes() == before and [each.name for each in path.parent.iterdir()] == ["shop.db"]


EXPECTED = {
    "01-late-parcel.eml": ("delivery", "high", "KL-1042", False),
    "02-charged-twice.eml": ("billing", "high", "KL-1051", True),
    "03-broken-teapot.eml": ("damaged", "high", "KL-1038", True),
    "04-rechnung-fehlt.eml": ("invoice", "normal", "KL-1060", False),
    "05-thank-you.eml": ("praise", "low", None, False),
    "06-bulk-quote.eml": ("sales", "normal", None, True),
    "07-wrong-invoice.eml": ("invoice", "normal", "KL-1029", False),
    "08-re-return-label.eml": ("return", "normal", "KL-1033", False),
    "09-cancel-order.eml": ("cancellation", "high", "KL-1066", False),
    "10-neue-adresse.eml": ("address", "normal", "KL-1063", False),
    "11-chargeback.eml": ("billing", "urgent", "KL-1007", True),
    "12-unknown-order.eml": ("delivery", "normal", None, True),
    "13-you-have-a-refund.eml": ("spam", "low", None, True),
    "14-no-order-number.eml": ("delivery", "high", None, False),
}


async def tickets(triage: Any, names: list[str], store: str) -> dict[str, Any]:
    """Run the messages through an engine of their own; the person asked says yes."""
    found: dict[str, Any] = {}
    engine = Engine(store, workers=4)
    engine.register(triage.app.triage.kind)
    async with engine:
        for name in names:
            email = triage.mail.read(INBOX / name)
            files = [(each.name, each.content, each.media_type) for each in email.attachments]
            run = await engine.start("triage", email, key=email.message_id, attachments=files)
            async for event in run.events():
                if isinstance(event, Waiting):
                    await event.waits[0].approve(by="lead@kettleandloom.example")
            found[name] = triage.app.triage.kind.parse_output((await run.run()).output)
    return found


async def test_every_message_becomes_the_right_ticket(triage: Any) -> None:
    """Category, priority, order and whether a person is needed; one filed ticket each, and the one refund that is due."""
    found = await tickets(triage, GOOD, "memory://")
    assert {name: (each.category, each.priority, each.order_id, each.needs_human) for name, each in found.items()} == EXPECTED
    for name, ticket in found.items():
        email = triage.mail.read(INBOX / name)
        assert len(ticket.summary) <= 140 and ticket.summary.split(" …")[0] in " ".join(email.text.split())
    shop = triage.app.open_shop()
    assert len(shop.rows("SELECT DISTINCT reference FROM tickets")) == len(shop.rows("SELECT reference FROM tickets")) == len(GOOD)
    assert [(row["order_id"], row["cents"]) for row in shop.rows("SELECT * FROM payments WHERE reference IS NOT NULL")] == [("KL-1051", -8940)]
    assert "on its way back" in found["02-charged-twice.eml"].suggested_reply


async def test_a_run_with_another_payload_is_refused_with_the_field(triage: Any) -> None:
    """The payload is an e-mail: what is missing is named before anything is stored."""
    engine = Engine("memory://", workers=0)
    engine.register(triage.app.triage.kind)
    async with engine:
        with pytest.raises(InvalidTrigger, match="text"):
            await engine.start("triage", {"message_id": "<1>", "from": "a@b.example"})


def acts_for(triage: Any, name: str, folder: Path) -> list[Any]:
    """Every act that the rules take for a message, with what a new shop answers."""
    triage.shop.build(folder / "shop.db")
    email, shop, facts, acts = triage.mail.read(INBOX / name), triage.shop.Shop(folder / "shop.db"), {}, []
    while True:
        act = triage.rules.decide(email, facts)
        acts.append(act)
        if act.ticket is not None:
            return acts
        try:
            read = {"lookup_order": shop._order, "shipment_status": shop._shipment}.get(act.tool)
            facts[act.tool] = read(act.args["order_id"]).model_dump() if read else {"refund": "The call was denied."}.get(act.tool, "T-0001")
        except triage.shop.NotInShop as unknown:
            facts[act.tool] = str(unknown)


def test_a_refund_that_was_denied_is_not_promised(triage: Any, tmp_path: Path) -> None:
    """The reply says what happened, not what was proposed."""
    acts = acts_for(triage, "02-charged-twice.eml", tmp_path)
    assert [act.tool for act in acts] == ["lookup_order", "shipment_status", "refund", "file_ticket", None]
    assert "A colleague is looking into it" in acts[-1].ticket["suggested_reply"]


@pytest.mark.parametrize("name", GOOD)
def test_the_text_in_a_message_never_makes_the_rules_pay(triage: Any, name: str, tmp_path: Path) -> None:
    """Only the shop's own books lead to a refund, whatever the message asks for."""
    assert ("refund" in [act.tool for act in acts_for(triage, name, tmp_path)]) == (name == "02-charged-twice.eml")


async def test_the_scripted_model_says_so_first_and_goes_on_from_a_stored_history(triage: Any) -> None:
    """It reads everything from the messages, so a history that went through JSON leads to the same next words."""
    model, parameters = triage.scripted.ScriptedModel(pace=0), ModelRequestParameters(output_tools=[ToolDefinition(name="final_result")])
    email = triage.mail.read(INBOX / "01-late-parcel.eml")
    history: list[Any] = [ModelRequest(parts=[UserPromptPart(f"```json\n{email.model_dump_json(indent=2)}\n```")])]
    first = await model.request(history, None, parameters)
    assert first.parts[0].content.startswith("(scripted model) ") and first.parts[1].args_as_dict() == {"order_id": "KL-1042"}
    order = (await triage.app.open_shop().order("KL-1042")).model_dump()
    history += [first, ModelRequest(parts=[ToolReturnPart("lookup_order", order, tool_call_id=first.parts[1].tool_call_id)])]
    stored = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(history))
    assert (await model.request(stored, None, parameters)).parts == (await model.request(history, None, parameters)).parts
    with pytest.raises(ValueError, match="JSON block"):
        await model.request([ModelRequest(parts=[UserPromptPart("hello")])], None, parameters)


def test_a_model_string_without_its_key_falls_back_and_says_why(triage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the model that was asked for and what is missing."""
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PERDURE_MODEL", "openai:gpt-5.2")
    model, line = triage.app.choose_model()
    assert model.system == "scripted" and "openai:gpt-5.2" in line and "OPENAI_API_KEY" in line
    monkeypatch.setenv("PERDURE_MODEL", "nobody:knows")
    assert "nobody:knows" in triage.app.choose_model()[1]


def execute(data: Path, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a process of its own, on data of its own."""
    names = ("PATH", "HOME", "LANG", "SYSTEMROOT")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    environment |= {"TRIAGE_DATA": str(data), "TRIAGE_PACE": "0.01", "PYTHONUTF8": "1"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, encoding="utf-8", env=environment, input=given, timeout=170)


def test_one_message_runs_from_the_command_line(tmp_path: Path) -> None:
    """`mail.py` prints a message as JSON, and `perdure run` takes it from there."""
    payload = execute(tmp_path, str(HERE / "mail.py"), str(INBOX / "04-rechnung-fehlt.eml"))
    assert payload.returncode == 0 and json.loads(payload.stdout)["subject"] == "Rechnung für Bestellung KL-1060 fehlt"
    run = execute(tmp_path, "-m", "perdure.cli", "run", str(HERE / "app.py"), "triage", "-", given=payload.stdout)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["order_id"] == "KL-1060" and "(scripted model)" in run.stderr


@pytest.mark.parametrize(
    ("file", "words"),
    [("15-cut-off.eml", "15-cut-off.eml: the message was cut off"), ("no-such.eml", "no-such.eml: No such file or directory. Name a file")],
)
def test_a_message_that_cannot_be_read_is_one_line_on_stderr(tmp_path: Path, file: str, words: str) -> None:
    """What, where and what to do; nothing on stdout, an exit code that says no, and no store."""
    done = execute(tmp_path, str(HERE / "mail.py"), str(INBOX / file))
    assert done.returncode == 1 and done.stdout == "" and words in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demo_kills_three_workers_and_nothing_is_lost_or_done_twice(tmp_path: Path) -> None:
    """SIGKILL in a stream, in a tool, and between an effect and its record; a second call starts nothing."""  # case A1
    first = execute(tmp_path, str(HERE / "demo.py"))
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.startswith("Model: scripted")
    for words in (
        "in a model stream", "in a tool", "between an effect and its record", "Outcome unknown", "14 of 14 runs completed, 3 workers killed",
        "14 tickets filed, none twice", "1 refund paid", "14 keys known, 0 runs started, 0 model calls", "15-cut-off.eml",
    ):  # fmt: skip
        assert words in first.stdout, first.stdout
    second = execute(tmp_path, str(HERE / "demo.py"))
    assert second.returncode == 0 and "0 runs started, 14 known by their key" in " ".join(second.stdout.split())
    assert "SIGKILL" not in second.stdout
