"""Text out of real files: PDF (what its content streams draw), CSV, and text in whatever encoding it came."""

from __future__ import annotations

import csv
import re
import zlib
from pathlib import Path

STREAM = re.compile(rb"<<(?P<about>[^>]*(?:>(?!>)[^>]*)*)>>\s*stream\r?\n(?P<data>.*?)\r?\nendstream", re.DOTALL)
SHOWN = re.compile(rb"\((?P<text>(?:\\.|[^\\()])*)\)\s*Tj", re.DOTALL)
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


class PaperError(Exception):
    """The file can't be read; the message says why and what to do."""


def read(path: Path) -> list[str]:
    """The text of a file, page by page.

    Raises:
        PaperError: It is of no kind that is known, is cut off, or has no text.
    """
    readers = {".pdf": _pdf, ".csv": _csv, ".txt": _text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PaperError(f"{path.name}: no reader for {path.suffix or 'files without a suffix'}; known: {', '.join(readers)}.")
    pages = [page.strip() for page in reader(path.read_bytes(), path.name)]
    if not any(pages):
        raise PaperError(f"{path.name}: there is no text in it (a scan?). Have it typed or run it through OCR.")
    return pages


def _pdf(data: bytes, name: str) -> list[str]:
    if not data.startswith(b"%PDF-"):
        raise PaperError(f"{name}: not a PDF, whatever its name says.")
    if b"%%EOF" not in data[-1024:]:
        raise PaperError(f"{name}: the PDF is cut off after {len(data)} bytes. Ask for it again.")
    return [_shown(_inflated(found["about"], found["data"], name)) for found in STREAM.finditer(data)]


def _inflated(about: bytes, data: bytes, name: str) -> bytes:
    if b"/FlateDecode" not in about:
        return data
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise PaperError(f"{name}: a page of the PDF is damaged ({error}). Ask for it again.") from error


def _shown(content: bytes) -> str:
    """What a content stream draws: one line for each string, in Windows' Latin alphabet, as the file's font says."""
    lines = [re.sub(rb"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), found["text"]) for found in SHOWN.finditer(content)]
    return "\n".join(line.decode("cp1252") for line in lines)


def _csv(data: bytes, name: str) -> list[str]:
    rows = list(csv.DictReader(_decoded(data).splitlines()))
    return ["\n".join("; ".join(f"{column}: {value}" for column, value in row.items()) for row in rows)]


def _text(data: bytes, name: str) -> list[str]:
    return [_decoded(data)]


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252")
