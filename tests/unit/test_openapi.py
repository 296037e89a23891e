"""The API document is one that generators of clients understand."""

from __future__ import annotations

import re
from typing import Any, Final

from app.main import create_app
from app.settings import Settings

DOCUMENT: Final[dict[str, Any]] = create_app(Settings(database_url="sqlite:///never-opened.db")).openapi()
OPERATIONS: Final[list[dict[str, Any]]] = [
    operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
]
PARAMETERS: Final[list[dict[str, Any]]] = [
    parameter for operation in OPERATIONS for parameter in operation.get("parameters", ())
]
SCHEMAS: Final[dict[str, Any]] = DOCUMENT["components"]["schemas"]


def test_every_operation_has_a_name_of_its_own_for_a_function() -> None:
    names = [operation["operationId"] for operation in OPERATIONS]
    assert [name for name in names if not re.fullmatch("[a-z]+([A-Z][a-z]+){1,3}", name)] == []
    assert len(set(names)) == len(names)
    assert {"blockNode", "unblockNode", "listBlockedNodes"} <= set(names)


def test_a_header_parameter_is_a_plain_string() -> None:
    headers = [parameter for parameter in PARAMETERS if parameter["in"] == "header"]
    assert headers
    for header in headers:
        assert header["schema"].keys() <= {"type", "title"}
        assert header["schema"]["type"] == "string"


def test_no_parameter_is_a_header_that_openapi_reserves() -> None:
    """A generator ignores such a parameter or refuses its operation."""
    names = {parameter["name"].lower() for parameter in PARAMETERS if parameter["in"] == "header"}
    assert names & {"accept", "content-type", "authorization"} == set()


def test_a_parameter_is_absent_and_never_null() -> None:
    """A URL has no null."""
    assert [parameter for parameter in PARAMETERS if "null" in str(parameter["schema"])] == []


def test_an_optional_field_has_no_default() -> None:
    """openapi-typescript makes it mandatory, also in requests."""
    fields = [(name, field) for name, schema in SCHEMAS.items() for field in schema.get("properties", {}).items()]
    assert [(name, field) for name, (field, schema) in fields if "default" in schema] == []
    assert SCHEMAS["BlockRequest"]["required"] == ["action", "cause"]


def test_the_document_names_a_server() -> None:
    assert [server["url"] for server in DOCUMENT["servers"]] == ["http://127.0.0.1:8224"]
