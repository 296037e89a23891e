"""What a page's HTML contains that the content security policy forbids."""

from __future__ import annotations

from html.parser import HTMLParser


class _InlineCode(HTMLParser):
    """Collects inline scripts, styles and handlers. Text such as a cause may look like them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(f"<{tag}>")
        self.found += [f"<{tag} {name}>" for name in sorted(names) if name == "style" or name.startswith("on")]


def inline_code(html: str) -> list[str]:
    """The elements and attributes with inline code or styles, in order."""
    parser = _InlineCode()
    parser.feed(html)
    parser.close()
    return parser.found
