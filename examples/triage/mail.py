"""Reads one stored e-mail: bytes in, a typed `Email` out, or an error that names the file, what is wrong and what to do.

    python mail.py inbox/01-late-parcel.eml | perdure run app.py triage -

MailError
├── NotAnEmail        there are no headers of a message in it
├── CutOff            the message ends before its own structure does
├── Undecodable       the bytes do not fit the encoding that they claim
└── NothingInside     neither a text nor an attachment
"""

from __future__ import annotations

import binascii
import email
import email.policy
import hashlib
import re
import sys
from datetime import datetime
from email.errors import (
    CloseBoundaryNotFoundDefect,
    InvalidBase64CharactersDefect,
    InvalidBase64LengthDefect,
    InvalidBase64PaddingDefect,
    MessageDefect,
    MultipartInvariantViolationDefect,
    StartBoundaryNotFoundDefect,
)
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class Attachment(BaseModel):
    """A file that came with an e-mail. `content` never becomes part of a JSON payload: bytes travel as attachments of the run."""

    name: str
    media_type: str
    size: int = Field(description="In bytes.")
    content: bytes = Field(default=b"", exclude=True, repr=False)


class Email(BaseModel):
    """What a person wrote to the shop.

    `text` is what is new in this message; the thread that it answers, where it was quoted below, is in `quoted`.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    message_id: str
    sender: str = Field(alias="from", description="Display name and address.")
    subject: str = ""
    sent_at: datetime | None = None
    text: str
    quoted: str = ""
    attachments: list[Attachment] = []


class MailError(Exception):
    """An e-mail that can't be read. Nothing of it was kept."""

    def __init__(self, file: str, what: str, todo: str) -> None:
        super().__init__(f"{file}: {what}. {todo}")
        self.file, self.what, self.todo = file, what, todo


class NotAnEmail(MailError):
    def __init__(self, file: str, what: str) -> None:
        super().__init__(file, what, "Put only messages into the inbox: save them as .eml with all headers.")


class CutOff(MailError):
    def __init__(self, file: str, what: str) -> None:
        super().__init__(file, what, "Fetch the message again from the mail server, or ask the sender to send it again.")


class Undecodable(MailError):
    def __init__(self, file: str, what: str) -> None:
        super().__init__(file, what, "Ask the sender to send it again as UTF-8, or read it by hand.")


class NothingInside(MailError):
    def __init__(self, file: str) -> None:
        super().__init__(file, "the message has neither text nor attachments", "Read it by hand; there is nothing here to triage.")


def read(path: Path) -> Email:
    """Read one `.eml` file.

    Raises:
        MailError: One of the four above.
        OSError: The file itself can't be read.
    """
    return parse(path.read_bytes(), file=path.name)


def parse(data: bytes, *, file: str = "message") -> Email:
    """Parse the bytes of one message. `file` is its name in errors.

    Raises:
        MailError: One of the four above; nothing else, whatever the bytes are.
    """
    try:
        message = email.message_from_bytes(data, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        return _email(message, data, file)
    except MailError:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, AssertionError, RecursionError) as error:
        # The standard parser still stumbles over some malformed headers with errors of its own making.
        raise NotAnEmail(file, f"its headers can't be parsed ({type(error).__name__})") from error


def _email(message: EmailMessage, data: bytes, file: str) -> Email:
    if message["from"] is None:
        raise NotAnEmail(file, "it has no From header")
    _refuse_cut(message, file)
    text, attachments = _body(message, file), _attachments(message, file)
    if not text and not attachments:
        raise NothingInside(file)
    new, quoted = split_quote(text)
    # The rare message without an id gets one from its bytes, so that the same file is the same message tomorrow.
    message_id = str(message["message-id"] or "").strip() or f"<{hashlib.sha256(data).hexdigest()[:24]}@unnamed.invalid>"
    return Email(
        message_id=message_id,
        sender=str(message["from"]),
        subject=" ".join(str(message["subject"] or "").split()),
        sent_at=_date(message),
        text=new,
        quoted=quoted,
        attachments=attachments,
    )


_CUT: dict[type[MessageDefect], str] = {
    CloseBoundaryNotFoundDefect: "it ends in the middle of a part",
    StartBoundaryNotFoundDefect: "none of the parts that it announces is in it",
    MultipartInvariantViolationDefect: "it announces several parts and has none",
}


def _refuse_cut(message: EmailMessage, file: str) -> None:
    for number, part in enumerate(message.walk()):
        for defect in part.defects:
            if what := _CUT.get(type(defect)):
                where = "" if number == 0 else f" (part {number})"
                raise CutOff(file, f"the message was cut off: {what}{where}")


def _body(message: EmailMessage, file: str) -> str:
    """The text, from the plain part where there is one, else from the HTML."""
    plain = message.get_body(("plain",))
    if plain is not None and (text := _text(plain, file).strip()):
        return _tidy(text)
    html = message.get_body(("html",))
    return "" if html is None else html_to_text(_text(html, file))


def _attachments(message: EmailMessage, file: str) -> list[Attachment]:
    found: list[Attachment] = []
    for part in message.walk():
        inline = part.get_content_disposition() == "inline" and part["content-id"] is not None  # a logo in a signature is not a file that was sent
        if part.is_multipart() or inline or not (part.get_filename() or part.get_content_disposition() == "attachment"):
            continue
        name = part.get_filename() or f"attachment-{len(found) + 1}"
        content = _bytes(part, file, repr(name))
        # Only the last component: a sender does not choose the folder.
        found.append(Attachment(name=re.split(r"[\\/]", name)[-1], media_type=part.get_content_type(), size=len(content), content=content))
    return found


def _text(part: EmailMessage, file: str) -> str:
    data = _bytes(part, file, "its text")
    charset = part.get_content_charset("us-ascii")
    # Many senders say nothing, or ASCII, and mean UTF-8.
    charset = "utf-8" if charset == "us-ascii" else charset
    try:
        return data.decode(charset).replace("\r\n", "\n")
    except LookupError:
        raise Undecodable(file, f"its text claims the character set {charset!r}, which nobody knows") from None
    except UnicodeDecodeError as error:
        raise Undecodable(file, f"its text claims to be {charset} and is not (byte {error.start})") from None


def _bytes(part: EmailMessage, file: str, what: str) -> bytes:
    try:
        data = part.get_payload(decode=True)
    except (binascii.Error, ValueError) as error:
        raise Undecodable(file, f"{what} can't be decoded") from error
    for defect in part.defects:
        if isinstance(defect, InvalidBase64PaddingDefect | InvalidBase64LengthDefect | InvalidBase64CharactersDefect):
            raise Undecodable(file, f"{what} claims to be base64 and is not")
    return data if isinstance(data, bytes) else b""


def _date(message: EmailMessage) -> datetime | None:
    sent = getattr(message["date"], "datetime", None)
    return sent if isinstance(sent, datetime) else None


_ATTRIBUTION = re.compile(r"^(on .+ wrote:|am .+ schrieb.*:|le .+ a écrit :|-{3,} ?original message ?-{3,})$", re.IGNORECASE)


def split_quote(text: str) -> tuple[str, str]:
    """What is new, and the quoted thread below it.

    Only a quote that runs to the end is split off: answers between quoted lines make no sense without them.
    """
    lines = text.split("\n")
    start = len(lines)
    while start and (not lines[start - 1].strip() or lines[start - 1].startswith(">")):
        start -= 1
    if not any(line.startswith(">") for line in lines[start:]):
        return text.strip(), ""
    if start and _ATTRIBUTION.match(lines[start - 1].strip()):
        start -= 1
    new = "\n".join(lines[:start]).strip()
    return (new, "\n".join(lines[start:]).strip()) if new else (text.strip(), "")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BLOCKS = _names(
    "address article blockquote div dl dt dd fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li main ol p pre section table tr ul"
)
_SPACED = _names("p h1 h2 h3 h4 blockquote ul ol table pre")
_VOID = _names("area base br col embed hr img input link meta source track wbr")
_UNSEEN = _names("head script style template title")
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?![.\d])", re.IGNORECASE)


def html_to_text(html: str) -> str:
    """The words of an HTML message as a person sees them: lines where blocks end, list marks, and nothing that is hidden.

    What a reader can't see must not reach the model either: hidden text in a mail is meant for machines.
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return _tidy("".join(reader.out))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.out: list[str] = []
        self._unseen: list[str] = []  # the open elements from the one that hides its content inwards
        self._cells = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            if tag in {"br", "hr"} and not self._unseen:
                self.out.append("\n")
            return
        given = dict(attrs)
        if self._unseen or tag in _UNSEEN or "hidden" in given or _HIDDEN.search(given.get("style") or ""):
            self._unseen.append(tag)
            return
        self._break(tag)
        if tag == "li":
            self.out.append("- ")
        if tag == "tr":
            self._cells = 0
        if tag in {"td", "th"}:
            self.out.append(" | " if self._cells else "")
            self._cells += 1

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            if tag in self._unseen:
                while self._unseen.pop() != tag:
                    pass  # elements left open inside a closed one end with it
            return
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._unseen and (text := re.sub(r"\s+", " ", data)).strip(" "):
            self.out.append(text)
        elif not self._unseen and self.out and not self.out[-1].endswith((" ", "\n")):
            self.out.append(" ")

    def _break(self, tag: str) -> None:
        """End the line that is open; a paragraph leaves an empty line too."""
        if tag in _BLOCKS and self.out and not self.out[-1].endswith("\n"):
            self.out.append("\n")
        if tag in _SPACED:
            self.out.append("\n")


def _tidy(text: str) -> str:
    """No trailing blanks, no more than one empty line in a row, no zero-width or no-break trickery."""
    text = re.sub(r"[\u200b\u2060\ufeff\u00ad]", "", text).replace("\u00a0", " ")
    lines = [line.strip() if not line.startswith(">") else line.rstrip() for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def main(arguments: list[str]) -> int:
    """Print one message as the payload of a run."""
    if len(arguments) != 1:
        print("mail.py takes one .eml file and prints it as JSON.", file=sys.stderr)
        return 2
    try:
        print(read(Path(arguments[0])).model_dump_json(indent=2))
    except MailError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{arguments[0]}: {error.strerror}. Name a file that is there and that you may read.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # JSON is UTF-8, whatever the terminal speaks
    sys.exit(main(sys.argv[1:]))
