"""The built documentation is whole: every public name is in it, every link leads somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "docs"
    builder().build(target)
    return target


def test_every_link_of_the_site_leads_to_a_page_and_a_heading(site: Path) -> None:
    """Nothing points into the void, in the text or in the table of contents."""
    ids = {page: set(re.findall(r'id="([^"]*)"', page.read_text())) for page in site.rglob("*.html")}
    broken: list[str] = []
    for page, own in ids.items():
        for target in re.findall(r'href="([^"]*)"', page.read_text()):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target) or path.startswith(".."):
                path = path if not re.match(r"[a-z]+:", target) else ""
            if re.match(r"[a-z]+:", target):
                continue
            other = (page.parent / path).resolve() if path else page
            outside = not other.is_relative_to(site)
            if not outside and (other not in ids or (anchor and anchor not in (ids[other] if path else own))):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert not broken


def test_every_public_name_has_its_entry(site: Path) -> None:
    """The reference leaves out nobody."""
    for door in builder().DOORS:
        page = (site / "reference" / f"{door}.html").read_text()
        names = getattr(importlib.import_module(door), "__all__", [])
        assert not [name for name in names if f"<code>{name}" not in page], door


def test_no_page_shows_what_readers_need_not_see(site: Path) -> None:
    """Hidden blocks and raw docstring sections stay out of the pages."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert "<!-- python" not in text and "&lt;!--" not in text, page.name
        assert "<p>Args:" not in text, page.name


def test_docstring_sections_become_lists() -> None:
    """`Args:` and `Raises:` are read as the lists that they are."""
    doc = "Do it.\n\nArgs:\n    much: How much,\n        in grams.\n\nRaises:\n    Conflict: Somebody was first."
    assert (
        builder().prose(doc) == "Do it.\n\n\n**Parameters**\n\n- `much`: How much,\n  in grams.\n\n\n**Raises**\n\n- `Conflict`: Somebody was first."
    )
