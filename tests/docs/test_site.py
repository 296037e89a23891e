"""The documentation site: it builds without a warning, and shows everything without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.browsing import chromium, monitored
from tests.http_server import Handler, serving
from tests.integration.process import ROOT
from website.links import site_path

_LOADING: Final = {"src", "srcset", "data", "poster"}
_CSS_ADDRESS: Final = re.compile(r"""(?:url\(|@import)\s*["']?((?:\w+:)?//[^"')]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: a warning fails the build."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Loads(HTMLParser):
    """Gathers the addresses that a browser loads by itself; a link to follow is none."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name in _LOADING or (tag == "link" and name == "href")):
                self.addresses.append(value)
            elif value and name == "style":
                self.addresses += _CSS_ADDRESS.findall(value)


def _external(address: str) -> bool:
    return re.match(r"(\w+:)?//", address) is not None


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = _Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        assert [address for address in loads.addresses if _external(address)] == [], page
    for sheet in site.rglob("*.css"):
        assert _CSS_ADDRESS.findall(sheet.read_text(encoding="utf-8")) == [], sheet


def test_a_file_outside_the_docs_folder_is_on_the_site(site: Path) -> None:
    for file in ("deploy/nginx.conf", "openapi/blocklist.json", "docker-compose.yml"):
        assert (site / file).read_bytes() == (ROOT / file).read_bytes()
    assert site_path(ROOT / "README.md") == "index.md"
    assert 'src="images/page-light.png"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Files(Handler, SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(site))

    with serving(Files) as url:
        yield url


def test_a_browser_draws_the_diagrams_and_asks_no_other_host(address: str) -> None:
    with chromium() as browser, monitored(browser, address) as own:
        page = own.context.new_page()
        page.goto("/")
        page.goto("/architecture/")
        # Material puts the drawing in place of the source.
        page.locator("div.mermaid").first.wait_for()
        assert page.locator("pre.mermaid").count() == 0
        page.get_by_role("textbox", name="Search").press_sequentially("acknowledge")
        page.locator(".md-search-result__link").first.wait_for()
