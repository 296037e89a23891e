"""Access: log-in, roles, and protection against forms of other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import httpx
import pytest
from playwright.sync_api import Browser, expect

from app.page.shared import CONTENT_SECURITY_POLICY
from tests.browser.browsing import monitored
from tests.browser.conftest import SecuredService, log_in
from tests.integration.bodies import all_changes, block
from tests.integration.listeners import put, register


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


FORM = {"nodes": "n1", "action": "mark", "cause": "x", "ends": "never", "confirmed": "yes"}
HERE = {"Sec-Fetch-Site": "same-origin"}


@contextmanager
def logged_in(secured: SecuredService, role: str) -> Iterator[httpx.Client]:
    """A client with a session, like a browser."""
    with secured.service.client() as client:
        answer = client.post("/login", data={"token": secured.tokens[role], "next": "/"}, headers=HERE)
        assert answer.status_code == 303, answer.text
        yield client


def csrf_of(client: httpx.Client) -> str:
    found = re.search(r'name="csrf_token" value="([0-9a-f]+)"', client.get("/").text)
    assert found
    return found[1]


def test_log_in_and_out(browser: Browser, secured: SecuredService) -> None:
    """Without a session, each page leads to the login form and from there back."""
    with monitored(browser, secured.service.url) as monitor:
        monitor.expected.add("401")
        page = monitor.context.new_page()
        page.goto("/page/listeners?x=1")
        page.wait_for_url("/login?next=/page/listeners%3Fx%3D1")
        page.get_by_label("Token").fill("blocklist_00000000_nonsense")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("The token is not valid")
        page.get_by_label("Token").fill(secured.tokens["operator"])
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("/page/listeners?x=1")
        expect(page.get_by_text("the-operator")).to_be_visible()
        (cookie,) = monitor.context.cookies()
        assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("blocklist_session", True, "Strict")
        assert cookie["path"] == "/"
        page.goto("/")
        page.get_by_text("Live", exact=True).wait_for()
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("/login")
        assert monitor.context.cookies() == []
        page.goto("/")
        page.wait_for_url("/login")


def test_what_was_typed_is_kept_when_the_session_has_ended(browser: Browser, secured: SecuredService) -> None:
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["operator"], "/page/block")
        page.get_by_label("Nodes").fill("n1 n2\nn3")
        page.get_by_label("Reason").fill('Fan & "disk" <1>')
        page.get_by_label("Duration from now").fill("7h")
        monitor.context.clear_cookies()
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_contain_text("Your session has ended, and nothing was changed.")
        page.get_by_label("Token").fill(secured.tokens["operator"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_label("Nodes")).to_have_value("n1 n2\nn3")
        expect(page.get_by_label("Reason")).to_have_value('Fan & "disk" <1>')
        expect(page.get_by_label("Duration from now")).to_have_value("7h")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Block 3 nodes?")).to_be_visible()


@pytest.mark.parametrize("body", ["nodes=" + "n" * 20_000, "\xff=1", "", "a"], ids=["long", "no text", "empty", "one"])
def test_any_form_without_a_session_leads_to_the_login_form(secured: SecuredService, body: str) -> None:
    with secured.service.client() as client:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = client.post("/page/block", content=body.encode("latin-1"), headers=HERE | form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/page/block&ended=yes")


def test_the_author_of_a_change_is_the_logged_in_user(browser: Browser, secured: SecuredService) -> None:
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["operator"], "/page/block")
        page.get_by_label("Nodes").fill("n1")
        page.get_by_label("Reason").fill("Fan broken")
        page.get_by_role("button", name="Preview").click()
        page.get_by_role("button", name="Block n1").click()
        page.wait_for_url("/page/nodes/n1")
        assert all_changes(secured.admin, node="n1")[-1]["createdBy"] == "the-operator"
        page.goto("/?by=the-operator")
        expect(page.locator("#node-n1")).to_contain_text("the-operator")


def test_an_admin_creates_and_revokes_a_token(browser: Browser, secured: SecuredService) -> None:
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        page.set_viewport_size({"width": 360, "height": 740})
        log_in(page, secured.tokens["admin"])
        page.get_by_role("link", name="Tokens").click()
        page.get_by_label("Name").fill("carla")
        page.get_by_label("Role").select_option("reader")
        page.get_by_role("button", name="Create the token").click()
        made = page.get_by_role("alert").get_by_role("textbox").input_value()
        with secured.service.client() as carla:
            carla.headers["Authorization"] = f"Bearer {made}"
            assert carla.get("/whoami").json()["name"] == "carla"
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert inline_code(page.content()) == []
            page.goto("/page/tokens")
            expect(page.get_by_role("alert")).to_have_count(0)
            page.get_by_role("row", name="carla").get_by_role("link", name="Revoke").click()
            page.get_by_role("button", name="Revoke the token").click()
            page.wait_for_url("/page/tokens")
            expect(page.get_by_role("row", name="carla")).to_have_count(0)
            page.get_by_text("1 token revoked or expired").click()
            expect(page.get_by_role("row", name="carla")).to_be_visible()
            assert carla.get("/blocklist").status_code == 401


def test_a_reader_sees_no_buttons(browser: Browser, secured: SecuredService) -> None:
    """The forms themselves answer with the required role."""
    secured.admin.put("/blocklist/nodes/n1", json=block())
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["reader"])
        page.get_by_text("Live", exact=True).wait_for()
        expect(page.locator("#node-n1")).to_be_visible()
        for path in ("/", "/page/nodes/n1"):
            page.goto(path)
            expect(page.get_by_role("link", name=re.compile("Block nodes|Extend|Unblock|Tokens"))).to_have_count(0)
        monitor.expected.add("403")
        page.goto("/page/nodes/n1/unblock")
        expect(page.get_by_role("alert")).to_have_text("This requires the role operator; yours is reader.")


def test_an_operator_cannot_force(secured: SecuredService) -> None:
    for number in range(3):
        secured.admin.put(f"/blocklist/nodes/a{number}", json=block())
    with logged_in(secured, "operator") as client:
        form = FORM | {"csrf_token": csrf_of(client)}
        answer = client.post("/page/block", data=form, headers=HERE)
        assert answer.status_code == 409
        assert "at most 3 may be blocked at once" in answer.text
        assert "Override the limit" not in answer.text
        forced = client.post("/page/block", data=form | {"force": "because"}, headers=HERE)
        assert forced.status_code == 403
    assert len(secured.admin.get("/blocklist").json()) == 3


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/a\r\nX: 1", ""]
)
def test_log_in_redirects_only_to_this_service(secured: SecuredService, wanted: str) -> None:
    with secured.service.client() as client:
        form = {"token": secured.tokens["reader"], "next": wanted}
        assert client.post("/login", data=form, headers=HERE).headers["location"] == "/"
        cross = client.post("/login", data=form, headers={"Origin": "http://evil.example"})
        assert (cross.status_code, "set-cookie" in cross.headers) == (403, False)


def test_inline_code_is_found_and_text_that_looks_like_it_is_not() -> None:
    assert inline_code("<p onclick=x style=y>&lt;img onerror=z&gt; onerror=z</p><style></style>") == [
        "<p onclick>",
        "<p style>",
        "<style>",
    ]
    assert inline_code("<script src=/a></script><script>a()</script>") == ["<script>"]


def test_every_page_has_the_content_security_policy(listener_client: httpx.Client) -> None:
    """Pages contain nothing inline, whatever is in a cause; static files are cacheable."""
    put(listener_client, "n1", cause="<img src=x onerror=window.hit=1 style=x><script>window.hit=1</script>")
    register(listener_client, "etl")
    pages = ("/", "/page/block", "/?group=cause", "/page/history", "/page/listeners", "/page/evidence", "/docs")
    for path in (*pages, "/page/nodes/n1", "/page/listeners/etl"):
        answer = listener_client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert inline_code(answer.text) == [], path
        for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
            static = listener_client.get(name)
            assert static.status_code == 200
            assert "immutable" in static.headers["cache-control"]
            again = listener_client.get(name, headers={"If-None-Match": static.headers["etag"]})
            assert again.status_code == 304
            assert listener_client.get(name.partition("?")[0]).headers["cache-control"] == "no-cache"
    for path in (
        "/static/nothing",
        "/static/../main.py",
        "/static/%2e%2e/pages.py",
        "/static/vendor/htmx-4.0.1/LICENSE",
    ):
        assert listener_client.get(path).status_code == 404


@pytest.mark.parametrize("body", [b"\xff=1", b"a=1&" * 100, b"nodes=" + b"a" * 70_000], ids=["bytes", "many", "large"])
def test_an_invalid_form_is_an_html_error(listener_client: httpx.Client, body: bytes) -> None:
    headers = HERE | {"Content-Type": "application/x-www-form-urlencoded"}
    answer = listener_client.post("/page/block", content=body, headers=headers)
    assert answer.status_code in {400, 413}
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_people_remove_their_own_claim_and_see_who_else_blocks_the_node(
    browser: Browser, secured: SecuredService
) -> None:
    body = {"action": "MARK_BLOCKED", "cause": "Broken DIMM"}
    for path in ("/blocklist/nodes/w1/claims/bob", "/blocklist/nodes/w1/claims/the-operator"):
        assert secured.admin.put(path, json=body).status_code == 201
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["operator"], "/page/nodes/w1/unblock")
        expect(page.get_by_role("row", name="the-operator (you)")).to_be_visible()
        page.get_by_role("button", name="Remove my claim").click()
        page.wait_for_url("/page/nodes/w1")
        page.goto("/page/nodes/w1/unblock")
        expect(page.get_by_role("button", name="Remove my claim")).to_have_count(0)
        expect(page.get_by_role("row", name="bob")).to_be_visible()
        page.get_by_role("button", name="Unblock w1 for all owners").click()
        page.wait_for_url("/page/nodes/w1")
    assert secured.admin.get("/blocklist").json() == {}
