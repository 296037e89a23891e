"""The service below a path, behind a proxy that strips the path from requests and behind one that keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from app.main import create_app, header_below
from app.requests import MAX_REPORT_BODY
from app.settings import Settings, SettingsError
from blocklist import BlocklistClient
from tests.integration.bodies import EVACUATE, block
from tests.integration.databases import Databases
from tests.integration.in_process import refusal
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.nginx import nginx_below
from tests.integration.problems import problem_of
from tests.integration.process import environment, run_app, url_of
from tests.integration.secured import SecuredInProcess, secured_in_process

ROOT: Final = "/tools/blocklist"
ORIGIN: Final = "http://localhost"
NOT_LINKED: Final = {
    "/page/map/rows",  # htmx asks for these when something has changed
    "/page/selection",  # from a form with nodes that were chosen
    "/page/selection/extend",
    "/page/selection/unblock",
}
"""Pages without a link to them."""


WATCH: Final = "/blocklist/watch"
MAX_OF_A_KIND: Final = 12
"""Of many links to nodes and to pages of lists, this number is followed."""


class Proxy(httpx.BaseTransport):
    """Passes on what is below the path, as a proxy does, and nothing else."""

    def __init__(self, service: httpx.BaseTransport, *, strips: bool) -> None:
        self._service = service
        self._strips = strips

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        assert path == ROOT or path.startswith(f"{ROOT}/"), f"{path} is not below {ROOT}"
        if self._strips:
            request.url = request.url.copy_with(raw_path=(path.removeprefix(ROOT) or "/").encode())
        return self._service.handle_request(request)


class Links(HTMLParser):
    """Whatever a browser, htmx or the page's scripts would ask for; `forms` are posted."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.paths: set[str] = set()
        self.forms: set[str] = set()
        self.csrf = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if given.get("name") == "csrf_token":
            self.csrf = given["value"]
        for name, value in given.items():
            if name == "action" and given.get("method") == "post":
                self.forms.add(value)
            elif name in {"href", "src", "action"} or name.startswith("hx-get"):
                self.paths.add(value)
            elif name.startswith("data-") and value.startswith("/"):
                self.paths.add(f"{value}n1" if value.endswith(("/", "=")) else value)


def route_of(routes: Sequence[APIRoute], path: str) -> str:
    """The template of the path. Fails if there is nothing."""
    scope = {"type": "http", "path": path, "method": "GET"}
    found = [route.path for route in routes if route.matches(scope)[0] is Match.FULL]
    assert found, path
    return found[0]


@pytest.fixture(params=[True, False], ids=["stripped", "kept"])
def strips(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def secured(tmp_path: Path, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path, databases, root_path=ROOT, evidence_applications="0") as secured:
        yield secured
        databases.drop(tmp_path)


@pytest.fixture
def browser(secured: SecuredInProcess, strips: bool) -> Iterator[httpx.Client]:
    """Somebody who has logged in, with a browser."""
    service = secured.service.client()
    with httpx.Client(transport=Proxy(service._transport, strips=strips), base_url=ORIGIN) as client:
        client.headers["Origin"] = ORIGIN
        shown = client.get(f"{ROOT}/page/map", follow_redirects=True)
        form = Links(shown.text).forms
        assert form == {f"{ROOT}/login"}
        answer = client.post(form.pop(), data={"token": secured.admin, "next": "/page/map"})
        assert (answer.status_code, answer.headers["location"]) == (303, f"{ROOT}/page/map")
        yield client


def fill(secured: SecuredInProcess) -> None:
    """Something on every page: blocks, listeners with tasks, evidence, more nodes than a page shows."""
    with secured.client(secured.admin) as client:
        register(client, "rm", role=RM)
        nodes = [{"id": f"n{place}", "labels": {"rack": f"r{place % 3}"}} for place in range(300)]
        heartbeat(client, "rm", nodes=nodes)
        register(client, "app")
        for place in range(120):
            cause = f"/data1 of https://example.com/{place}"
            client.put(f"/blocklist/nodes/n{place}", json=block(action=EVACUATE, cause=cause)).raise_for_status()
        evidence = {"n7": {"kind": "slow", "reason": "/slow"}}
        heartbeat(client, "app", taskManagers={"tm": "n1"}, runningTasks={"tm": 2}, evidence=evidence)


class TestPages:
    def test_every_link_of_every_page_leads_somewhere(self, secured: SecuredInProcess, browser: httpx.Client) -> None:
        fill(secured)
        routes = [it for it in secured.service.app.routes if isinstance(it, APIRoute) and "GET" in (it.methods or ())]
        waiting, asked, forms = [f"{ROOT}/"], {"/": [f"{ROOT}/"]}, dict[str, str]()
        while waiting:
            path = waiting.pop()
            shown = browser.get(path, follow_redirects=True)
            assert shown.status_code == 200, (path, shown.text)
            links = Links(shown.text) if "html" in shown.headers["content-type"] else Links("")
            forms |= dict.fromkeys(links.forms, links.csrf)
            for link in links.paths:
                url = urlsplit(urljoin(f"{ORIGIN}{path}", link))
                if f"{url.scheme}://{url.netloc}" != ORIGIN:
                    continue
                assert url.path.startswith(f"{ROOT}/"), (path, link)
                target = url._replace(scheme="", netloc="", fragment="").geturl()
                those = asked.setdefault(route_of(routes, url.path.removeprefix(ROOT)), [])
                if target not in those and len(those) < MAX_OF_A_KIND:
                    those.append(target)
                    waiting += [target] if WATCH not in target else []
        pages = {it.path for it in routes if it.path.startswith("/page/") or it.path == "/"}
        assert pages - asked.keys() <= NOT_LINKED
        assert asked[WATCH]
        for path, csrf in sorted(forms.items(), key=lambda form: form[0].endswith("/logout")):
            answer = browser.post(path, data={"csrf_token": csrf})
            assert answer.status_code in {200, 303, 400, 404, 409}, (path, answer.text)
            assert "There is nothing at this path" not in answer.text, path
            assert answer.headers.get("location", ROOT).startswith(ROOT)

    def test_text_that_looks_like_a_path_stays_as_it_is(self, secured: SecuredInProcess, browser: httpx.Client) -> None:
        fill(secured)
        shown = browser.get(f"{ROOT}/page/nodes/n1").text
        assert f"{ROOT}/data1" not in shown
        assert "/data1 of " in shown

    def test_the_cookie_is_for_the_path_alone(self, browser: httpx.Client) -> None:
        assert {(it.name, it.path) for it in browser.cookies.jar} == {("blocklist_session", ROOT)}
        csrf = Links(browser.get(f"{ROOT}/").text).csrf
        answer = browser.post(f"{ROOT}/logout", data={"csrf_token": csrf})
        assert answer.headers["location"] == f"{ROOT}/login"
        assert not list(browser.cookies.jar)

    def test_a_session_that_has_ended_leads_to_the_log_in_and_back(self, browser: httpx.Client) -> None:
        browser.cookies.clear()
        shown = browser.get(f"{ROOT}/page/history?days=7")
        assert shown.headers["location"] == f"{ROOT}/login?next=/page/history%3Fdays%3D7"
        polled = browser.get(f"{ROOT}/page/map/states", headers={"HX-Request": "true"})
        assert (polled.status_code, polled.headers["hx-redirect"]) == (401, f"{ROOT}/login")

    @pytest.mark.parametrize("asked", ["/page/map", f"{ROOT}/page/map"], ids=["local", "as the browser shows it"])
    def test_the_way_back_is_below_the_path_once(
        self, secured: SecuredInProcess, browser: httpx.Client, asked: str
    ) -> None:
        answer = browser.post(f"{ROOT}/login", data={"token": secured.admin, "next": asked})
        assert answer.headers["location"] == f"{ROOT}/page/map"

    @pytest.mark.parametrize("asked", ["//evil.example", "https://evil.example/", f"{ROOT}//evil.example", "/\\evil"])
    def test_the_way_back_stays_on_this_host(
        self, secured: SecuredInProcess, browser: httpx.Client, asked: str
    ) -> None:
        answer = browser.post(f"{ROOT}/login", data={"token": secured.admin, "next": asked})
        assert answer.headers["location"].startswith(f"{ROOT}/")


class TestTheApi:
    def test_the_first_command_that_the_page_shows_works(
        self, secured: SecuredInProcess, browser: httpx.Client
    ) -> None:
        shown = unescape(browser.get(f"{ROOT}/").text)
        bearer = '-H "Authorization: Bearer TOKEN"'
        assert f"curl -X PUT {ORIGIN}{ROOT}/blocklist/nodes/worker-17 {bearer} \\\n" in shown
        assert secured.service.settings.root_path == ROOT

    def test_behind_a_proxy_with_tls_it_has_its_url(self, tmp_path: Path, databases: Databases) -> None:
        own = {"root_path": ROOT, "trusted_proxies": "127.0.0.1"}
        with secured_in_process(tmp_path, databases, **own) as secured, secured.client(secured.admin) as client:
            headers = {"Host": "tools.example", "X-Forwarded-Proto": "https"}
            assert f"curl -X PUT https://tools.example{ROOT}/" in client.get("/", headers=headers).text

    def test_the_document_names_the_path(self, browser: httpx.Client) -> None:
        servers = browser.get(f"{ROOT}/openapi.json").json()["servers"]
        assert servers[0]["url"] == ROOT

    def test_problems_name_the_path_that_was_asked_for(self, browser: httpx.Client) -> None:
        for path in ("/blocklist/nodes/n1", "/nowhere", "/blocklist/nodes/%2e%2e"):
            assert problem_of(browser.get(ROOT + path), browser.get(ROOT + path).status_code)["instance"] == ROOT + path


class TestOnTheWire:
    """With uvicorn's protocol, its limits and the fast path."""

    @pytest.fixture
    def base(self, secured: SecuredInProcess, strips: bool) -> str:
        """What the proxy asks for."""
        return secured.url if strips else f"{secured.url}{ROOT}"

    def test_the_fast_path_answers(self, secured: SecuredInProcess, base: str) -> None:
        service = secured.service.app.state.service
        with secured.client(secured.admin) as client:
            client.get(f"{base}/whoami").raise_for_status()  # the token is known
            answer = client.put(f"{base}/blocklist/nodes/n1", json=block())
            assert answer.status_code == 201
            refused = client.put(f"{base}/blocklist/nodes/n1", json=block())
            assert problem_of(refused, 409)["instance"] == f"{ROOT}/blocklist/nodes/n1"
            assert service.metrics.fast_puts.total() == 2
            assert list(client.get(f"{base}/blocklist").json()) == ["n1"]
            assert client.get(f"{base}/blocklist/table").status_code == 200
            assert (service.view.fast_reads, service.view.table.fast_reads) == (1, 1)

    def test_what_is_refused_before_a_route_names_the_path(self, secured: SecuredInProcess, base: str) -> None:
        with secured.client() as client:
            refused = client.get(f"{base}/{'x' * 17000}")
        assert problem_of(refused, 414)["instance"].startswith(f"{ROOT}/xxx")

    def test_a_watch(self, secured: SecuredInProcess, base: str) -> None:
        with BlocklistClient(base, token=secured.admin) as client, client.watch() as watch:
            events = iter(watch)
            client.block("n1", "disk")
            assert next(events) is not None


def test_the_recipe_for_nginx_passes_on_the_largest_body(tmp_path: Path, secured: SecuredInProcess) -> None:
    """A heartbeat has it: what is larger is refused in the service's own words."""
    with (
        nginx_below(tmp_path, secured.service, strips=False) as url,
        secured.client(secured.admin) as client,
    ):
        for more, status in ((0, 400), (1, 413)):
            problem_of(client.post(f"{url}/listeners/job/heartbeat", content=b"[" * (MAX_REPORT_BODY + more)), status)


class TestSettings:
    @pytest.mark.parametrize("given", ["", "/"])
    def test_none(self, given: str) -> None:
        assert Settings(root_path=given).root_path == ""

    @pytest.mark.parametrize("given", ["/tools/blocklist", "/tools/blocklist/", "/a", "/spark/blocklist", "/A.b_c~d-e"])
    def test_a_path(self, given: str) -> None:
        create_app(Settings(root_path=given))

    @pytest.mark.parametrize(
        "given",
        ["tools", "/a//b", "/a/../b", "/.", "/a b", "/%41", "/a?b", "/a#b", "https://x/a", '/a"b', "/ä", "/a" * 101],
    )
    def test_no_path(self, given: str) -> None:
        assert refusal(root_path=given).startswith("BLOCKLIST_ROOT_PATH: give a path such as /tools/blocklist")

    @pytest.mark.parametrize("root_path", ["", "/tools/blocklist"])
    @pytest.mark.parametrize("path", ["", "/", "/tools/blocklist/", "/tools"])
    def test_the_public_url_has_it(self, root_path: str, path: str) -> None:
        url = f"https://host.example{path}"
        if path.rstrip("/") == root_path:
            assert Settings(root_path=root_path, public_url=url).public_url == f"https://host.example{root_path}"
        else:
            said = refusal(root_path=root_path, public_url=url)
            expected = f"its path must be that of BLOCKLIST_ROOT_PATH: https://host.example{root_path}"
            assert said == f"BLOCKLIST_PUBLIC_URL: {expected}"

    @pytest.mark.parametrize(
        "given", ["/blocklist", "/nodes/x", "/page", "/static/x/y", "/login", "/claims/a/b", "/docs"]
    )
    def test_a_path_that_the_service_has_itself(self, given: str) -> None:
        with pytest.raises(SettingsError, match=f"choose another one, such as /tools{given}"):
            create_app(Settings(root_path=given))


@pytest.mark.parametrize("command", ["serve", "check-settings"])
def test_the_start_and_the_check_refuse_it_and_leave_no_database(tmp_path: Path, command: str) -> None:
    done = run_app(command, env=environment(database_url=url_of(tmp_path / "new.db"), root_path="/blocklist"))
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert done.stderr.startswith("blocklist: BLOCKLIST_ROOT_PATH: /blocklist is also the beginning of a path")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a=b; Path=/; Secure", f"a=b; Path={ROOT}; Secure"),
        ("a=b; HttpOnly; path=/", f"a=b; HttpOnly; path={ROOT}"),
        ("a=b; Path=/login", f"a=b; Path={ROOT}/login"),
        ("a=/b; Max-Age=0", "a=/b; Max-Age=0"),
    ],
)
def test_every_cookie_is_for_what_is_below(given: str, expected: str) -> None:
    assert header_below(ROOT.encode(), b"set-cookie", given.encode()) == expected.encode()
