"""Routes that are called by a plan return what they return where FastAPI resolves their parameters."""

from __future__ import annotations

import json
import re
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Cookie, Header, Response
from fastapi.routing import APIRoute

import app.main
from app.main import called_directly
from app.settings import Settings
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.process import ROOT

VOLATILE = re.compile(r'[0-9]{13}|"[0-9a-f]{8}"|[0-9]+[.][0-9]+|/service[0-9]+/')


@pytest.fixture
def pair(start_in_process: StartInProcess, monkeypatch: pytest.MonkeyPatch) -> list[httpx.Client]:
    """Clients of two services with the same list: one calls its routes by plans, one leaves all to FastAPI."""
    clients = [start_in_process(fast_path="false").client()]
    monkeypatch.setattr(app.main, "called_directly", lambda route: route)
    clients.append(start_in_process(fast_path="false").client())
    for client in clients:
        assert client.put("/blocklist/nodes", json={"n1": block(), "n2.example.com": block()}).status_code == 200
    return clients


def operations() -> list[tuple[str, str]]:
    """Every operation of the API: method and path."""
    paths = json.loads((ROOT / "openapi/blocklist.json").read_text())["paths"]
    return [(method.upper(), path) for path, found in paths.items() for method in found if "watch" not in path]


def test_every_operation_gets_the_same_response(pair: list[httpx.Client]) -> None:
    for method, path in operations():
        for value in ("n1", "N2", "no such", ".."):
            for headers in ({}, {"prefer": "wait=0, x"}, {"if-none-match": '"x"', "x-request-id": "one"}):
                url = re.sub(r"{\w+}", value, path)
                answers = [client.request(method, url, headers=headers, content=b"{}") for client in pair]
                assert answers[0].status_code == answers[1].status_code, (method, url)
                assert VOLATILE.sub("", answers[0].text) == VOLATILE.sub("", answers[1].text), (method, url)


def is_planned(route: APIRoute) -> bool:
    return called_directly(route) is not route


def test_what_must_be_validated_is_left_to_fastapi() -> None:
    router = APIRouter()

    @router.get("/none")
    async def none() -> None: ...

    @router.get("/number/{number}")
    async def number(number: int) -> None: ...

    @router.get("/required")
    async def required(given: str) -> None: ...

    @router.get("/mutable")
    async def mutable(given: Annotated[list[str], Header()] = []) -> None: ...  # noqa: B006

    @router.get("/cookie")
    async def cookie(given: Annotated[str, Cookie()] = "") -> None: ...

    @router.get("/response")
    async def response(response: Response) -> None: ...

    @router.get("/thread")
    def thread() -> None: ...

    class OwnRoute(APIRoute):
        pass

    router.add_api_route("/own", none, route_class_override=OwnRoute)
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    assert [route.path for route in routes if is_planned(route)] == ["/none"]


def test_an_application_leaves_the_routes_that_all_share_as_they_are() -> None:
    """Otherwise each application would wrap those of the applications before it."""
    before = [getattr(route, "app", None) for route in app.api.nodes.router.routes]
    app.main.create_app(Settings())
    assert [getattr(route, "app", None) for route in app.api.nodes.router.routes] == before


def test_nearly_all_routes_are_planned() -> None:
    routes = [route for route in app.main.create_app(Settings()).router.routes if type(route) is APIRoute]
    resolved = {route.path for route in routes if "called_directly" not in getattr(route.app, "__qualname__", "")}
    assert resolved <= {
        "/blocklist/nodes",
        "/blocklist/watch",
        "/claims/{owner:owner}",
        "/listeners/modes",
        "/openapi.json",
        "/spark/blocklist-spark.jar",
    }
