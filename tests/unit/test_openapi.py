"""The API document is one that generators of clients understand."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.claims import OWNER_PATTERN
from app.main import create_app
from app.settings import Settings
from blocklist.model.claims import check_owner
from blocklist.model.errors import InvalidError
from blocklist.model.node import is_id
from blocklist.wire.body import ID_SCHEMA

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


def _values(value: Any, name: str) -> list[Any]:
    """What the document has under this name, anywhere."""
    if isinstance(value, dict):
        here = [value[name]] if name in value else []
        return here + [found for each in value.values() for found in _values(each, name)]
    return [found for each in value for found in _values(each, name)] if isinstance(value, list) else []


def test_a_regular_expression_is_one_of_go_and_rust() -> None:
    """They know neither look-ahead nor look-behind, nor references back."""
    patterns = [pattern for pattern in _values(DOCUMENT, "pattern") if isinstance(pattern, str)]
    assert patterns
    assert [pattern for pattern in patterns if re.search(r"\(\?[=!<]|\\[1-9Zz]", pattern)] == []


def test_a_choice_is_between_schemas_that_have_a_name_or_one_of_them_and_null() -> None:
    """openapi-generator's Java has no class for a map, and Go no default for a text or a flag."""
    for choice in _values(DOCUMENT, "anyOf"):
        some = [one for one in choice if one != {"type": "null"}]
        assert len(some) == 1 or all(one.keys() == {"$ref"} for one in some), choice


def test_no_schema_is_the_constructor_of_another_in_go() -> None:
    assert {f"New{name}" for name in SCHEMAS} & SCHEMAS.keys() == set()


def test_no_schema_is_an_enumeration() -> None:
    """Go has one constant for each value in the whole package: two of one name do not compile."""
    assert [name for name, schema in SCHEMAS.items() if "enum" in schema] == []


def test_every_part_that_is_named_is_there() -> None:
    for ref in set(_values(DOCUMENT, "$ref")):
        _, _, kind, name = str(ref).split("/")
        assert name in DOCUMENT["components"][kind], ref


@pytest.mark.parametrize(
    "text",
    ["n1", "...", ".a", "..a", "....", "fe80::1", "a" * 253, "", ".", "..", "a b", "a/b", "é", "a" * 254, "[::1]"],
)
def test_the_pattern_of_an_id_is_its_rule(text: str) -> None:
    found = (
        len(text) <= ID_SCHEMA["maxLength"] and re.search(ID_SCHEMA["pattern"].replace("$", r"\Z"), text) is not None
    )
    assert found == is_id(text)


@given(st.text(alphabet="a. /*\t\n\u00e9\ufffd", max_size=6))
def test_the_pattern_of_an_owner_is_its_rule(text: str) -> None:
    try:
        valid = bool(check_owner(text))
    except InvalidError:
        valid = False
    assert (re.search(OWNER_PATTERN.replace("$", r"\Z"), text) is not None) == valid
