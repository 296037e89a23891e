"""The service conforms to its OpenAPI document for generated requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from app.http.connection import MAX_URL_BYTES
from app.main import SECURITY_HEADERS, create_app
from app.settings import Settings
from tests.integration.databases import Databases
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.length import longer

DOCUMENT: Final = create_app(Settings(database_url="sqlite:///never-opened.db")).openapi()
WATCH_PATH: Final = "/blocklist/watch"
SCHEMA: Final = schemathesis.openapi.from_dict(DOCUMENT)
# Each case has a valid token; authentication has its own tests.
SCHEMA.config.generation.update(with_security_parameters=False)
finite = SCHEMA.exclude(path=WATCH_PATH)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path_factory.mktemp("secured"), databases) as secured:
        yield secured


@finite.parametrize()
@settings(max_examples=longer(5), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_response_conforms_to_the_document(case: Case[Any], secured: SecuredInProcess) -> None:
    excluded = checks_to_skip(case)
    remove_waits(case)
    bearer = {"Authorization": f"Bearer {secured.admin}"}
    call: dict[str, Any] = {"base_url": secured.url, "headers": bearer, "timeout": 30}
    response = case.call(**call)
    if response.status_code == HTTPStatus.REQUEST_URI_TOO_LONG:
        # It is refused before its parameters are read, valid or not.
        assert len(response.request.url or "") > MAX_URL_BYTES
        excluded += [positive_data_acceptance, negative_data_rejection]
    case.validate_response(response, excluded_checks=excluded, headers=bearer, transport_kwargs=call)
    check_headers(case, response.status_code, response.headers)
    if case.method != "HEAD" and response.headers.get("content-type", [""])[0].endswith("json"):
        assert response.content.endswith(b"\n")


OF_HTTP: Final = {"content-type", "content-length", "transfer-encoding", "connection", "date", "allow"}
"""Of any response of any service."""


def check_headers(case: Case[Any], status: int, headers: Iterable[str]) -> None:
    """The document has each header of the response."""
    if case.method.lower() in DOCUMENT["paths"][case.path]:
        described = DOCUMENT["paths"][case.path][case.method.lower()]["responses"].get(str(status), {})
        names = {name.lower() for name in described.get("headers", ())}
        assert {name.lower() for name in headers} - OF_HTTP - {name for name, _ in SECURITY_HEADERS} <= names


def checks_to_skip(case: Case[Any]) -> list[CheckFunction]:
    """Checks to skip where the schema cannot express the whole rule."""
    excluded: list[CheckFunction] = []
    if case.method in {"PUT", "POST"}:
        # An end must be in the future; 1.0 is an integer for a schema, but not for the service.
        excluded.append(positive_data_acceptance)
    if "at" in (case.query or {}):
        excluded.append(positive_data_acceptance)  # It must be in the past.
    if "after" in (case.query or {}) and case.path in {"/audit", "/blocklist/changes"}:
        excluded.append(positive_data_acceptance)  # It must be a number.
    if "pattern" in (case.query or {}):
        excluded.append(positive_data_acceptance)  # It must be an id, or the beginning of ids and `*`.
    if isinstance(case.body, dict) and _has_another_spelling(case.body):
        excluded.append(negative_data_rejection)
    if case.method != "GET" and {"if-match", "if-none-match"} & {name.lower() for name in case.headers}:
        excluded.append(positive_data_acceptance)  # A valid ETag may be that of another state: 412.
    if {"prefer", "if-match", "if-none-match"} & {name.lower() for name in case.headers}:
        excluded.append(negative_data_rejection)  # Invalid values of these are ignored.
    return excluded


def _has_another_spelling(value: object) -> bool:
    """Whether the body has a time as an integer or a flag as a text, which the service reads and the document omits."""
    if isinstance(value, dict):
        return any(
            (name.endswith("Timestamp") and isinstance(each, int))
            or (name in {"allowMerge", "canary"} and each in ("true", "false"))
            or _has_another_spelling(each)
            for name, each in value.items()
        )
    return isinstance(value, list) and any(map(_has_another_spelling, value))


def remove_waits(case: Case[Any]) -> None:
    """Avoid requests that wait: a revision far ahead, and `Prefer: wait`. Both have their own tests."""
    # As they are sent, because generated values of any type become texts.
    params = case.as_transport_kwargs(base_url="http://127.0.0.1")["params"]
    url = requests.Request("GET", "http://127.0.0.1", params=params).prepare().url or ""
    if any(value.strip().isdecimal() for value in parse_qs(urlsplit(url).query).get("minRevision", ())):
        case.query = {**(case.query or {}), "minRevision": 0}
    for name in [name for name in case.headers if name.lower() == "prefer"]:
        del case.headers[name]


def test_the_running_service_serves_the_document_and_names_itself_as_a_server(client: httpx.Client) -> None:
    served = client.get("/openapi.json").json()
    assert [server["url"] for server in served["servers"]] == ["/", "http://127.0.0.1:8224"]
    assert served | {"servers": DOCUMENT["servers"]} == DOCUMENT


def test_the_watch_is_declared_as_a_stream_of_events() -> None:
    watch = DOCUMENT["paths"][WATCH_PATH]["get"]
    assert list(watch["responses"]["200"]["content"]) == ["text/event-stream"]
    declared = {parameter["name"].lower() for parameter in watch["parameters"]}
    assert declared >= {"since", "last-event-id"}


def test_all_lists_that_have_pages_have_them_in_the_same_form() -> None:
    paged = {
        path: operations["get"]
        for path, operations in DOCUMENT["paths"].items()
        if any(parameter["name"] == "limit" for parameter in operations.get("get", {}).get("parameters", ()))
    }
    assert set(paged) == {"/audit", "/blocklist/changes", "/claims", "/nodes"}
    forms = []
    for operation in paged.values():
        name = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        body = DOCUMENT["components"]["schemas"][name]
        assert "next" in body["required"]
        parameters = [it for it in operation["parameters"] if it["name"] in {"limit", "after"}]
        forms.append((parameters, body["properties"]["next"]))
    assert len(forms[0][0]) == 2
    assert forms == forms[:1] * 4


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_every_error_is_declared_as_a_problem_and_malformed_is_400(path: str) -> None:
    for operation in DOCUMENT["paths"][path].values():
        errors = {code: answer for code, answer in operation["responses"].items() if code.startswith(("4", "5"))}
        kinds = {kind for answer in errors.values() for kind in answer["content"]}
        assert kinds <= {"application/problem+json"}
        assert "422" not in errors
