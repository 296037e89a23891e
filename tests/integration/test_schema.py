"""The published OpenAPI and the service agree, whatever is asked."""

from __future__ import annotations

from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from app.main import create_app
from app.settings import Settings
from tests.integration.databases import ON_BOTH
from tests.integration.guarded import Guarded

pytestmark = ON_BOTH

PUBLISHED: Final = create_app(Settings(database_url="sqlite:///never-opened.db")).openapi()
ENDLESS: Final = "/blocklist/watch"
SCHEMA: Final = schemathesis.openapi.from_dict(PUBLISHED)
# Each case comes with a token that is good; that it needs one is a check of its own.
SCHEMA.config.generation.update(with_security_parameters=False)
finite = SCHEMA.exclude(path=ENDLESS)


@finite.parametrize()
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_answer_is_one_that_the_interface_declares(case: Case[Any], guarded: Guarded) -> None:
    excluded = beyond_a_schema(case)
    do_not_wait(case)
    bearer = {"Authorization": f"Bearer {guarded.admin}"}
    case.call_and_validate(base_url=guarded.process.url, headers=bearer, excluded_checks=excluded, timeout=30)


def beyond_a_schema(case: Case[Any]) -> list[CheckFunction]:
    """Checks that take the schema for the whole rule, where it cannot be."""
    excluded: list[CheckFunction] = []
    if case.method in {"PUT", "POST"}:
        # An end must be after now; and 1.0 is an integer to a schema, but a number with a fraction to us.
        excluded.append(positive_data_acceptance)
    if "at" in (case.query or {}):
        excluded.append(positive_data_acceptance)  # It must be before now.
    if {"prefer", "if-none-match", "accept"} & {name.lower() for name in case.headers}:
        excluded.append(negative_data_rejection)  # Rubbish in these is ignored.
    return excluded


def do_not_wait(case: Case[Any]) -> None:
    """A revision far ahead waits 2 s for a 503, and `Prefer: wait` for a change: both have their own tests."""
    query: dict[str, Any] = dict(case.query or {})
    if any(str(value).isdecimal() for value in as_list(query.get("minRevision", []))):
        query["minRevision"] = 0
        case.query = query
    for name in [name for name in case.headers if name.lower() == "prefer"]:
        del case.headers[name]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def test_the_running_service_publishes_it(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == PUBLISHED


def test_the_watch_is_declared_as_a_stream_of_events() -> None:
    watch = PUBLISHED["paths"][ENDLESS]["get"]
    assert list(watch["responses"]["200"]["content"]) == ["text/event-stream"]
    declared = {parameter["name"].lower() for parameter in watch["parameters"]}
    assert declared >= {"since", "last-event-id"}


@pytest.mark.parametrize("path", PUBLISHED["paths"])
def test_every_error_is_declared_as_a_problem_and_malformed_is_400(path: str) -> None:
    for operation in PUBLISHED["paths"][path].values():
        errors = {code: answer for code, answer in operation["responses"].items() if code.startswith(("4", "5"))}
        kinds = {kind for answer in errors.values() for kind in answer["content"]}
        assert kinds <= {"application/problem+json"}
        assert "422" not in errors
