"""The OpenAPI document: FastAPI's, with the schemas of bodies that endpoints parse themselves, and with roles."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from app.api.authorization import PUBLIC, required_role
from app.api.problems import problem_responses
from app.api.responses import JsonResponse
from app.integrations.alertmanager.wire import AlertmanagerPost
from blocklist import __version__
from blocklist.wire.json import dump_json
from blocklist.wire.listeners import HeartbeatBody, RegistrationBody, SessionBody
from blocklist.wire.nodes import BlockRequest
from blocklist.wire.problems import CompactedProblem, ConflictProblem, ConflictsProblem, Problem
from blocklist.wire.pushes import PushBody
from blocklist.wire.tokens import TokenRequest

_MODELS = (
    AlertmanagerPost,
    BlockRequest,
    RegistrationBody,
    HeartbeatBody,
    SessionBody,
    PushBody,
    TokenRequest,
    Problem,
    ConflictProblem,
    ConflictsProblem,
    CompactedProblem,
)
_DESCRIPTION = """Keeps one list of machines on which a data platform must not run work: the blocklist API of FLIP-224.

Times are Unix milliseconds as decimal strings. The end 9223372036854775807 means permanent."""


def install_openapi(app: FastAPI) -> None:
    """Serve the complete document at /openapi.json."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @app.api_route("/openapi.json", methods=["GET", "HEAD"], dependencies=[PUBLIC], include_in_schema=False)
    async def get_openapi_json(request: Request) -> Response:
        return JsonResponse(request, dump_json(openapi()))


def _build(app: FastAPI) -> dict[str, Any]:
    built = get_openapi(title=app.title, version=__version__, description=_DESCRIPTION, routes=app.routes)
    models: list[Any] = [(model, "validation") for model in _MODELS]
    _, extra = models_json_schema(models, ref_template="#/components/schemas/{model}")
    schemas = built.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for path in built["paths"].values():
        for operation in path.values():
            # FastAPI declares 422 responses; here an invalid request is a 400 problem.
            operation["responses"].pop("422", None)
    _add_security(app, built)
    return built


def _add_security(app: FastAPI, built: dict[str, Any]) -> None:
    """Declare the required role of each operation."""
    scheme = {"type": "http", "scheme": "bearer", "description": "A token, or a JWT of the trusted issuer."}
    built["components"]["securitySchemes"] = {"bearer": scheme}
    for route in app.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema or (role := required_role(route)) is None:
            continue
        for method in route.methods or ():
            operation = built["paths"][route.path_format][method.lower()]
            operation["security"] = [{"bearer": []}]
            denied = problem_responses(401, 403, _403=f"This requires the role {role.value}.")
            operation["responses"] |= {str(status): response for status, response in denied.items()}
