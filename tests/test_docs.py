"""The docs do what they say: every Python block is executed, every link leads somewhere.

The blocks of a page share one namespace and run in order, in an empty folder, on one event loop; `await` works at the top level, as in a notebook. A block that readers need not see (a
scripted model in place of a provider) stands in an HTML comment that begins with `<!-- python`. A block that can't run says why in a comment of the form
`<!-- not executed: reason -->` on the line before it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.exists()]
SKIPPED_MAX = 8
"""Blocks that may say that they can't run. A page that needs more of them is not documentation that is tested."""

BLOCK = re.compile(
    r"(?:^<!-- not executed: (?P<reason>[^>]+?) -->\n)?^(?P<indent> *)```python\n(?P<shown>.*?)^(?P=indent)```$|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """One Python block of a page."""

    line: int
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, hidden ones included."""
    text = page.read_text()
    found: list[Block] = []
    for match in BLOCK.finditer(text):
        name = "shown" if match["shown"] is not None else "hidden"
        code, indent = match[name], match["indent"] or ""
        code = "\n".join(line.removeprefix(indent) for line in code.splitlines()) + "\n"
        found.append(Block(text[: match.start(name)].count("\n"), code, match["reason"]))
    return found


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_block(code: str, page: Path, line: int, names: dict[str, Any], runner: asyncio.Runner) -> None:
    """Execute a block as if it stood at its line of the page, so that a traceback names the place."""
    tree = ast.increment_lineno(ast.parse(code, filename=str(page)), line)
    compiled = compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        runner.run(result)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy, paste, run: what a reader would do with this page works."""
    monkeypatch.chdir(tmp_path)
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(key, "not-a-key")
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.reason is None:
                run_block(block.code, page, block.line, names, runner)


def test_blocks_that_do_not_run_are_few_and_say_why() -> None:
    """Each skipped block has its reason, and there are not many."""
    skipped = [(page_id(page), block.line, block.reason) for page in PAGES for block in blocks(page) if block.reason is not None]
    for where, line, reason in skipped:
        print(f"not executed: {where}:{line}: {reason}")
    assert len(skipped) <= SKIPPED_MAX


def test_every_python_fence_is_found() -> None:
    """No block escapes by its indentation or its spelling."""
    for page in PAGES:
        fences = len(re.findall(r"^ *```(?:python|py)\b", page.read_text(), flags=re.M))
        assert fences == len([block for block in blocks(page) if block.code]) - page.read_text().count("<!-- python\n"), page_id(page)


def headings(page: Path) -> set[str]:
    """The anchors that a page offers, made as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower().replace("`", "")).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_inside_the_docs_leads_somewhere(page: Path) -> None:
    """Pages and headings that are linked exist."""
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        generated = other.is_relative_to(ROOT / "docs" / "reference")
        if not generated and (not other.exists() or (anchor and other.suffix == ".md" and anchor not in headings(other))):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_table_of_contents() -> None:
    """docs/index.md leads to every page."""
    index = (ROOT / "docs" / "index.md").read_text()
    missing = [
        page_id(page)
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and page.name != "index.md" and page.relative_to(ROOT / "docs").as_posix() not in index
    ]
    assert not missing
