"""Build the documentation: the pages of this folder and a reference made from docstrings, as Markdown and HTML.

    python docs/build.py [FOLDER]        (default: build/docs)

Pages are plain files that can be read from disk or put behind any web server. The only library is the Markdown parser that Rich brings along.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from markdown_it import MarkdownIt

HERE = Path(__file__).parent
ROOT = HERE.parent
DOORS = ("perdure", "perdure.errors", "perdure.stores", "perdure.notifiers", "perdure.pipeline", "perdure.testing.crash", "perdure.testing.models")
SECTIONS = {"Args": "Parameters", "Raises": "Raises", "Returns": "Returns"}


# ── the reference ──────────────────────────────────────────────────────────────────────────────────────────
def public_names(module: ModuleType) -> list[str]:
    """What a door offers: its `__all__`, else what it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed, key=str.lower)
    return [name for name, value in vars(module).items() if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__]


def reference(module: ModuleType) -> str:
    """One page for one door."""
    parts = [f"# `{module.__name__}`", prose(inspect.getdoc(module) or "")]
    for name in public_names(module):
        value = getattr(module, name)
        if inspect.isclass(value):
            parts.append(class_entry(name, value))
        elif callable(value):
            parts += [f"## `{name}`", signature(name, value), prose(own_doc(value))]
        elif isinstance(value, frozenset | tuple) and all(isinstance(each, str) for each in value):
            parts += [f"## `{name}`", ", ".join(f"`{each}`" for each in sorted(value))]
    return "\n\n".join(part for part in parts if part) + "\n"


def class_entry(name: str, value: type) -> str:
    """A class with its fields, members and public methods."""
    kind = "exception" if issubclass(value, BaseException) else "class"
    parts = [f"## {kind} `{name}`", prose(own_doc(value))]
    if issubclass(value, Enum):
        parts.append(", ".join(f"`{member.value}`" for member in value))
    elif dataclasses.is_dataclass(value):
        rows = [
            f"| `{field.name}` | `{shown(field.type)}` | {default(field)} |" for field in dataclasses.fields(value) if not field.name.startswith("_")
        ]
        parts.append("\n".join(["| field | type | default |", "| --- | --- | --- |", *rows]) if rows else "")
    elif "__init__" in vars(value) and kind == "class":
        parts.append(signature(name, value))
    for member, call, what in members(value):
        parts += [f"### `{name}.{member}`", call, prose(what)]
    return "\n\n".join(part for part in parts if part)


def members(value: type) -> Iterator[tuple[str, str, str]]:
    """Public methods and properties that the class itself defines: name, signature, docstring."""
    for name, member in vars(value).items():
        raw = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if name.startswith("_"):
            continue
        if isinstance(raw, property):
            yield name, "", inspect.getdoc(raw) or ""
        elif inspect.isfunction(raw):
            yield name, signature(f"{'async ' if inspect.iscoroutinefunction(raw) else ''}{name}", raw), inspect.getdoc(raw) or ""


def signature(name: str, value: Any) -> str:
    """A block with the call as it is written, one parameter a line where they are many; without `self`."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    words: list[str] = []
    starred = False
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        elif each.kind is each.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(parameter(each))
    back = "" if found.return_annotation is found.empty else f" -> {written(found.return_annotation)}"
    line = f"{name}({', '.join(words)}){back}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){back}"
    return f"```text\n{line}\n```"


def parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else f": {written(each.annotation)}"
    value = "" if each.default is each.empty else f"{' = ' if kind else '='}{each.default!r}"
    return f"{stars}{each.name}{kind}{value}"


def written(annotation: Any) -> str:
    """An annotation as it stands in the source."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def shown(annotation: Any) -> str:
    return written(annotation).replace("|", "\\|")


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"`{field.default!r}`".replace("|", "\\|")
    return "" if field.default_factory is dataclasses.MISSING else "made anew"


def own_doc(value: Any) -> str:
    """The docstring, unless it is one that `dataclass` made up."""
    doc = inspect.getdoc(value) or ""
    return "" if doc.startswith(f"{getattr(value, '__name__', '')}(") else doc


def prose(doc: str) -> str:
    """A docstring as Markdown: `Args:` and its kin become lists."""
    out: list[str] = []
    section = False
    for line in doc.splitlines():
        head = re.fullmatch(r"(\w+):", line)
        entry = re.match(r"    (\*{0,2}\w+): (.*)", line)
        if head and head[1] in SECTIONS:
            out += ["", f"**{SECTIONS[head[1]]}**", ""]
            section = True
        elif section and entry:
            out.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("        "):
            out.append(f"  {line.strip()}")
        else:
            section = section and not line.strip()
            out.append(line)
    return "\n".join(out).strip()


# ── pages ──────────────────────────────────────────────────────────────────────────────────────────────────
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); --soft: color-mix(in srgb, currentColor 6%, transparent) }
body { font: 16px/1.6 system-ui, sans-serif; margin: 0; display: grid; grid-template-columns: minmax(14rem, 18rem) minmax(0, 50rem); gap: 3rem; padding: 2rem }
nav { font-size: .9rem; position: sticky; top: 2rem; align-self: start } nav ul { padding-left: 1rem } nav a { text-decoration: none }
pre { overflow-x: auto; padding: .8rem 1rem; background: var(--soft); border-radius: .4rem } code { font-size: .9em }
:not(pre) > code { background: var(--soft); padding: .1em .3em; border-radius: .2rem; overflow-wrap: anywhere }
table { border-collapse: collapse; display: block; overflow-x: auto } td, th { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top }
h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem }
@media (max-width: 60rem) { body { display: block } nav { position: static } }
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} – Perdure</title><style>{style}</style></head>
<body><nav aria-label="Contents">{nav}</nav><main>{body}</main></body></html>
"""


def render(markdown: MarkdownIt, text: str) -> str:
    """Markdown as HTML: links lead to the built pages, headings can be linked, what readers need not see is left out."""
    visible = re.sub(r"^<!--.*?-->\n?", "", text, flags=re.M | re.S)
    body = markdown.render(visible)
    body = re.sub(r'href="(?![a-z]+:)([^"#]+)\.md(#[^"]*)?"', lambda link: f'href="{link[1]}.html{link[2] or ""}"', body)
    return re.sub(r"<(h[1-6])>(.*?)</\1>", lambda head: f'<{head[1]} id="{anchor(head[2])}">{head[2]}</{head[1]}>', body)


def anchor(heading: str) -> str:
    """A heading's name in a link, made as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", html.unescape(re.sub(r"<.*?>", "", heading)).strip().lower()).replace(" ", "-")


def build(target: Path) -> list[Path]:
    """Write every page below `target` and answer the HTML files."""
    if target.exists():
        shutil.rmtree(target)
    pages = {path.relative_to(HERE): path.read_text() for path in sorted(HERE.rglob("*.md"))}
    for door in DOORS:
        pages[Path("reference") / f"{door}.md"] = reference(importlib.import_module(door))
    contents = pages[Path("index.md")].split("## Reference")[0].split("\n## ", 1)[1]
    contents = f"[Perdure](index.md)\n\n## {contents}\n## Reference\n\n" + "\n".join(f"- [`{door}`](reference/{door}.md)" for door in DOORS)
    contents = re.sub(r"^## (.*)$", r"**\1**", contents, flags=re.M)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    written: list[Path] = []
    for path, text in pages.items():
        title = (re.search(r"^# (.*)$", text, flags=re.M) or ["", path.stem])[1].replace("`", "")
        up = "../" * (len(path.parts) - 1)
        nav = render(markdown, re.sub(r"\]\((?![a-z]+:)", f"]({up}", contents))
        out = target / path.with_suffix(".html")
        out.parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text)
        out.write_text(PAGE.format(title=html.escape(title), style=STYLE, nav=nav, body=render(markdown, text)))
        written.append(out)
    return written


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    sys.path.insert(0, str(ROOT / "src"))
    print(f"{len(build(folder))} pages: {folder / 'index.html'}")
