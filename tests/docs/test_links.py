"""Links in README.md and docs/ lead somewhere: to files that are there, and to headings in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.integration.process import ROOT

PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(page: Path) -> list[str]:
    found: list[str] = _LINK.findall(_prose(page))
    return [link for link in found if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to its headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(_prose(page))}


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


def test_each_page_is_found_from_the_readme() -> None:
    """By links, over as many pages as it takes."""
    seen, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            linked = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
            ahead += [target for target in linked if target.suffix == ".md" and target.is_file()]
    assert set(PAGES) <= seen
