"""Every error response: RFC 9457 with `errors`, a sentence for people, nothing internal."""

from __future__ import annotations

import json
from typing import Any

import httpx
import httpx2

from tests.integration.raw_http import RawResponse

INSIDE = ("Traceback", "pydantic", "sqlalchemy", "sqlite", "starlette", "fastapi", 'File "', ".py")


def problem_of(answer: httpx.Response | httpx2.Response | RawResponse, status: int) -> dict[str, Any]:
    """The problem in a response; checks its form and status."""
    if isinstance(answer, RawResponse):
        code, kind, body = answer.status, answer.header("content-type"), answer.body
    else:
        code, kind, body = answer.status_code, answer.headers.get("content-type"), answer.content
    assert code == status, body[:500]
    assert (kind or "").split(";")[0] == "application/problem+json"
    problem: dict[str, Any] = json.loads(body)
    check_problem(problem, status)
    return problem


def check_problem(problem: dict[str, Any], status: int) -> None:
    assert problem["status"] == status
    for field in ("type", "title", "detail", "instance"):
        assert isinstance(problem[field], str), field
        assert problem[field], field
    assert " " in problem["detail"], "the detail is a sentence"
    assert problem["errors"], "at least one line says what is wrong"
    assert all(isinstance(line, str) and line for line in problem["errors"])
    said = json.dumps({**problem, "instance": ""}).lower()
    assert len(said) < 8_192, "an error never echoes a whole request"
    assert not [word for word in INSIDE if word.lower() in said]
