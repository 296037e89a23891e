"""Links in causes: only http(s) URLs and ids of tickets, and nothing of a cause becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.net.urls import TicketLinks
from app.page.shared import with_links

TICKETS = TicketLinks.parse("https://tickets.example.com/browse/{id}", "[A-Z][A-Z0-9]+-[0-9]+")
HOSTILE = (
    "javascript:alert(1)",
    "JAVASCRIPT://example.com/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "https://user:secret@evil.example.com/",
    "https://google.com@evil.example.com",
    "https://",
    "https:///path",
    "https://[::1",
    "https://host:port/",
    "ftp://example.com/",
    "//example.com/",
    "https://ex\u202eample.com",
    "https://\u0435xample.com",
    "xhttps://example.com",
)


class Reader(HTMLParser):
    """Reads tags and text as a browser does."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str | None] = []
        self.others: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag == "a" and set(names) == {"href", "rel"}:
            self.links.append(names["href"])
        else:
            self.others.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str, tickets: TicketLinks = TICKETS) -> Reader:
    return Reader(str(with_links(tickets, text)))


@pytest.mark.parametrize(
    ("cause", "links"),
    [
        ("see https://wiki.example.com/a?b=c&d=e#f.", ["https://wiki.example.com/a?b=c&d=e#f"]),
        ("(http://10.0.0.1:3000/x)", ["http://10.0.0.1:3000/x"]),
        ("https://en.example.org/wiki/Disk_(drive)", ["https://en.example.org/wiki/Disk_(drive)"]),
        ("http://[::1]:80/", ["http://[::1]:80/"]),
        ("HTTPS://EXAMPLE.COM", ["HTTPS://EXAMPLE.COM"]),
        ("OPS-12: disk", ["https://tickets.example.com/browse/OPS-12"]),
        ("OPS-12/OPS-13", [f"https://tickets.example.com/browse/OPS-{number}" for number in (12, 13)]),
        ("https://a.example.com/OPS-12", ["https://a.example.com/OPS-12"]),
        ("worker-17 noOPS-12 OPS-12-3", []),
        *((text, []) for text in HOSTILE),
    ],
)
def test_only_urls_and_ticket_ids_are_links(cause: str, links: list[str]) -> None:
    assert read(cause).links == links


@pytest.mark.parametrize(
    "cause",
    [
        'https://example.com/"onmouseover=alert(1)//',
        "https://example.com/'><script>alert(1)</script>",
        'OPS-1"><img src=x onerror=alert(1)>',
        "<a href=javascript:alert(1)>https://example.com</a>",
        "&lt;https://example.com/&quot;",
    ],
)
def test_a_hostile_cause_adds_no_tag_and_no_attribute(cause: str) -> None:
    found = read(cause)
    assert found.others == []
    assert found.text == cause


ODD: Final = "htps:/.@<>\"'&;[]()OPS-1a ,{}\\\u202e"


@given(st.text(st.sampled_from(ODD), max_size=60).map("http://{}".format))
def test_the_text_is_unchanged_and_each_link_is_http(cause: str) -> None:
    found = read(cause)
    assert found.text == cause
    assert found.others == []
    assert all(link is not None and link.startswith(("http://", "https://")) for link in found.links)


def test_without_the_setting_ticket_ids_are_text() -> None:
    assert read("OPS-12", TicketLinks("", None)).links == []


def test_the_id_of_a_ticket_is_quoted() -> None:
    tickets = TicketLinks.parse("https://t.example.com/{id}", "[^ ]*#[0-9]+")
    assert read("../a?b#1", tickets).links == ["https://t.example.com/..%2Fa%3Fb%231"]


@pytest.mark.parametrize(
    ("url", "pattern", "error"),
    [
        ("javascript:alert({id})", "[0-9]+", "http or https"),
        ("https://me@example.com/{id}", "[0-9]+", "user name"),
        ("https://example.com/", "[0-9]+", "{id}"),
        ("https://{id}.example.com/", "[0-9]+", "{id}"),
        ("https://example.com/{id}", "[0-9", "regular expression"),
        ("https://example.com/{id}", "[0-9]*", "empty"),
    ],
)
def test_unusable_settings_are_refused(url: str, pattern: str, error: str) -> None:
    with pytest.raises(ValueError, match=error.replace("{", r"\{")):
        TicketLinks.parse(url, pattern)
