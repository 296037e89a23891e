"""The page on which an admin creates, lists and revokes tokens."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.api.parameters import required_role
from blocklist.model.claims import Role
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_auth import ROUTES
from tests.integration.test_sessions import csrf_of, log_in

PAGE = "/page/tokens"
FORM = {"name": "carla", "role": "operator", "ends": "for", "for": "30d", "owners": "", "listeners": ""}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path_factory.mktemp("tokens"), databases) as secured:
        yield secured


@pytest.fixture
def admin(guarded: SecuredInProcess) -> Iterator[httpx.Client]:
    """An admin in a browser."""
    with guarded.client() as client:
        log_in(client, guarded.admin)
        client.headers["Origin"] = guarded.url
        client.headers["Sec-Fetch-Site"] = "same-origin"
        yield client


def submit(admin: httpx.Client, path: str = PAGE, **form: str) -> httpx.Response:
    return admin.post(path, data={"csrf_token": csrf_of(admin), **form})


def text_in(page: str) -> str | None:
    """The text of a token that is on the page."""
    found = re.search(r"blocklist_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", page)
    return None if found is None else found[0]


def test_a_token_is_shown_once_works_and_is_listed(guarded: SecuredInProcess, admin: httpx.Client) -> None:
    made = submit(admin, **FORM)
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    token = text_in(made.text)
    assert token is not None
    with guarded.client(token) as carla:
        assert carla.get("/whoami").json()["role"] == "operator"
    listed = admin.get(PAGE)
    assert text_in(listed.text) is None
    assert listed.headers["cache-control"] == "no-store"
    (row,) = re.findall(
        rf"<tr><th scope=\"row\">carla</th>\n<td[^>]*>{token[10:18]}</td>.*?</tr>", listed.text, re.DOTALL
    )
    assert "by admin" in row
    assert "29 d" in row or "30 d" in row
    assert "never" not in row, "it was used"
    with guarded.client(guarded.admin) as api:
        record = api.get("/audit", params={"kind": "token-created", "newest": "true"}).json()["records"][0]
    assert (record["way"], record["principal"], record["details"]["name"]) == ("page", "admin", "carla")


def test_what_it_may_do_can_be_restricted(guarded: SecuredInProcess, admin: httpx.Client) -> None:
    made = submit(admin, **FORM | {"owners": "alertmanager/*, carla"})
    with guarded.client(text_in(made.text)) as carla:
        assert carla.get("/whoami").json()["owners"] == ["alertmanager/*", "carla"]
    submit(admin, **FORM | {"name": "etl", "role": "listener", "listeners": "etl-*", "ends": "never"})
    page = admin.get(PAGE).text
    assert "alertmanager/*, carla" in page
    assert "etl-*" in page


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "two words"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "detection"}, "automatic owner"),
        ({"role": "king"}, "role"),
        ({"for": "soon"}, "duration"),
        ({"role": "reader", "owners": "x"}, "operator only"),
        ({"listeners": "a-*"}, "listener or manager only"),
        ({"name": "<script>alert(1)</script>"}, "name"),
    ],
)
def test_a_form_that_cannot_be_used_is_shown_again(admin: httpx.Client, wrong: dict[str, str], words: str) -> None:
    before = admin.get(PAGE).text.count("/revoke")
    answer = submit(admin, **FORM | wrong)
    assert answer.status_code == 400
    assert "No token was created" in answer.text
    assert words in answer.text
    assert "<script>alert" not in answer.text
    (name,) = re.findall(r'name="name" value="(.*?)"', answer.text)
    assert html.unescape(name) == (FORM | wrong)["name"]
    assert admin.get(PAGE).text.count("/revoke") == before


def test_a_token_is_revoked_after_a_question(guarded: SecuredInProcess, admin: httpx.Client) -> None:
    token = guarded.make_token(Role.READER, "rita")
    path = f"{PAGE}/{token['id']}/revoke"
    assert "Revoke the token of rita?" in admin.get(path).text
    with guarded.client(token["token"]) as rita:
        assert rita.get("/blocklist").status_code == 200
        answer = submit(admin, path)
        assert (answer.status_code, answer.headers["location"]) == (303, PAGE)
        assert rita.get("/blocklist").status_code == 401
    page = admin.get(PAGE, params={"search": "RITA"}).text
    assert "0 valid tokens" in page
    assert re.search(r"rita</th>.*revoked", page, re.DOTALL)
    assert "it was revoked" in admin.get(path).text
    assert admin.get(f"{PAGE}/00000000/revoke").status_code == 404
    assert submit(admin, f"{PAGE}/00000000/revoke").status_code == 404


def test_it_is_for_admins_only() -> None:
    roles = {required_role(route) for route in ROUTES if route.path.startswith(PAGE)}
    assert roles == {Role.ADMIN}, "and tests of all routes ask each with each role, and with forged forms"


def test_without_authentication_there_are_none(start_in_process: StartInProcess, tmp_path: Path) -> None:
    with start_in_process(tmp_path).client() as client:
        assert PAGE not in client.get("/").text
        for answer in (client.get(PAGE), client.post(PAGE, data=FORM)):
            assert answer.status_code == 403
            assert "BLOCKLIST_AUTH=tokens" in answer.text
