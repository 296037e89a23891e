"""A hook of MkDocs: links that work on a git host work on the site, too.

On the site docs/ is the root, README.md its home page, and every other file that a page links to keeps its path in the
checkout.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
# docs/security.md is a page as well, and file systems may take the two names for one.
NAMES: Final = {"README.md": "index.md", "SECURITY.md": "report-a-vulnerability.md"}
_FENCED: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add README.md, and the files outside docs/ that pages link to."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    seen = set(pages)
    while pages:
        page = pages.pop()
        if not page.is_relative_to(DOCS):
            files.append(File.generated(config, site_path(page), abs_src_path=str(page)))
        if page.suffix == ".md":
            found = set(linked(page)) - seen
            seen |= found
            pages += found
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - MkDocs passes these
    """Point the links of a page to where their targets are on the site."""
    source = Path(str(page.file.abs_src_path))
    start = posixpath.dirname(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        target = _target(source, match[1])
        return posixpath.relpath(site_path(target), start) if target else match[1]

    # Odd parts are fenced blocks.
    parts = _FENCED.split(markdown)
    parts[::2] = [_LINK.sub(on_site, part) for part in parts[::2]]
    return "".join(parts)


def linked(page: Path) -> Iterator[Path]:
    """The files of the checkout that a page links to."""
    for link in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        if target := _target(page, link):
            yield target


def site_path(file: Path) -> str:
    """The path of a file of the checkout on the site."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    path = file.relative_to(ROOT).as_posix()
    return NAMES.get(path, path)


def _target(page: Path, link: str) -> Path | None:
    """The file that a link leads to; None for an address, a folder, and what does not exist: MkDocs reports these."""
    target = (page.parent / link).resolve()
    return target if target.is_file() and target.is_relative_to(ROOT) else None
