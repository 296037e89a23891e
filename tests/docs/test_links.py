"""Links and paths in the documentation lead to existing files and headings."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from blocklist.cli.main import command_tree
from tests.integration.process import ROOT

PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WITH_PATHS: Final = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PATH: Final = re.compile(r"`((?:app|blocklist|tests|migrations|docs|benchmarks|website)/[\w./-]*)`")
_COMMAND: Final = re.compile(r"(?:^|`)blocklist ([^`\n]+)", re.MULTILINE)
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
def test_each_link_has_a_target(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("name", ["detection", "performance", "reliability", "security"])
def test_a_page_with_evidence_of_its_own_says_only_what_a_user_needs(name: str) -> None:
    assert len((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split()) <= 1500


def test_each_page_can_be_reached_from_the_readme() -> None:
    seen, queue = set[Path](), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page not in seen:
            seen.add(page)
            linked = [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
            queue += [target for target in linked if target.suffix == ".md" and target.is_file()]
    assert set(PAGES) <= seen


@pytest.mark.parametrize("page", WITH_PATHS, ids=lambda page: page.name)
def test_each_path_that_a_recipe_names_exists(page: Path) -> None:
    paths = _PATH.findall(page.read_text(encoding="utf-8"))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_command_of_the_runbooks_exists() -> None:
    lines = _COMMAND.findall((ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8"))
    assert len(lines) > 10
    for line in lines:
        command: Any = command_tree()
        arguments = shlex.split(line)
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)].load()
        # An option that the command does not have is an error.
        command.make_context("blocklist", arguments)
