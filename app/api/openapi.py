"""The OpenAPI document: FastAPI's, with the schemas of bodies that endpoints parse themselves, and with roles."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from app.alertmanager import AlertmanagerPost
from app.api.parameters import PUBLIC, required_role
from app.api.responses import (
    PATHS_WITH_REVISION,
    CompactedProblem,
    ConflictProblem,
    ConflictsProblem,
    JsonResponse,
    Problem,
    problem_responses,
)
from app.requests import (
    BlockRequest,
    ClaimRequest,
    HeartbeatBody,
    ModeBody,
    RegistrationBody,
    SessionBody,
    TokenRequest,
)
from blocklist import __version__
from blocklist.wire.body import dump_json
from blocklist.wire.changes import PushBody
from blocklist.wire.nodes import NodeResult, PutClaimResult, RemovedClaimBody, UnblockedNode

_MODELS = (
    AlertmanagerPost,
    BlockRequest,
    ClaimRequest,
    RegistrationBody,
    HeartbeatBody,
    ModeBody,
    SessionBody,
    PushBody,
    TokenRequest,
    Problem,
    ConflictProblem,
    ConflictsProblem,
    CompactedProblem,
    # In answers that are described as any object: see _open_choice.
    NodeResult,
    UnblockedNode,
    PutClaimResult,
    RemovedClaimBody,
)
_DESCRIPTION = """Keeps one list of machines on which a data platform must not run work: the blocklist API of FLIP-224.

Times are Unix milliseconds as decimal strings. The end 9223372036854775807 means permanent."""
_PRECONDITIONS = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "title": name},
        "description": description,
    }
    for name, description in {
        "If-Match": "Change it only if it still has this `ETag`, of the node and its claims; `*`: if it is there.",
        "If-None-Match": "Change it only if it does not have this `ETag`; `*`: if it is not there.",
    }.items()
]
_HEADERS = {
    "Blocklist-Version": "The version of the service.",
    "X-Request-ID": "The id of the request in the log: of changes, of errors, and where the request gave one.",
    "Blocklist-Revision": "Of a change the revision that it made; otherwise that of the list.",
    "Blocklist-History": "The history to which the revision belongs.",
    "ETag": "The tag of what the response shows.",
    "Age": "While the database is unavailable: for how many seconds this may have been out of date.",
    "Cache-Control": "Whether the response may be stored.",
    "Vary": "The headers of the request on which the body depends.",
    "Content-Encoding": "gzip, if the body is compressed.",
    "Preference-Applied": "The part of `Prefer` that was followed.",
    "Blocklist-Applied": "With `Prefer: wait`: how many listeners have applied the change, and of how many: `5/7`.",
    "Blocklist-Refused": "Listeners that refuse the change: at most 20, and how many more.",
    "Blocklist-Not-Applied": "Listeners that have not applied the change yet: at most 20, and how many more.",
    "Blocklist-Observing": "Listeners that only observe, or are off: at most 20, and how many more. They do not count.",
    "Blocklist-Not-Here": "Listeners that have none of the nodes: at most 20, and how many more.",
    "Blocklist-Superseded": "Nodes that were changed otherwise meanwhile: at most 20, and how many more.",
    "Warning": "A sentence for people, such as that a label or a name is not clear.",
    "WWW-Authenticate": "How to authenticate.",
    "Retry-After": "After how many seconds to try again.",
}
_OF_CACHED_READS = ("ETag", "Cache-Control", "Vary", "Content-Encoding", "Preference-Applied", "Warning")
_OF_CHANGES = (
    "Preference-Applied",
    "Blocklist-Applied",
    "Blocklist-Refused",
    "Blocklist-Not-Applied",
    "Blocklist-Not-Here",
    "Blocklist-Observing",
    "Blocklist-Superseded",
    "Warning",
)
_DEFAULT_SERVER = {"url": "http://127.0.0.1:8224", "description": "A service on this machine, with default settings."}
_THIS_SERVER = "The service that sent this document."

router = APIRouter()


@router.api_route("/openapi.json", methods=["GET", "HEAD"], dependencies=[PUBLIC], include_in_schema=False)
async def get_openapi_json(request: Request) -> Response:
    """Serve the complete document."""
    document, url = request.app.openapi(), request.scope.get("root_path") or "/"
    servers = [{"url": url, "description": _THIS_SERVER}, *document["servers"]]
    return JsonResponse(request, dump_json({**document, "servers": servers}))


def build_document(app: FastAPI) -> dict[str, Any]:
    servers: list[dict[str, Any]] = [_DEFAULT_SERVER]
    built = get_openapi(
        title=app.title, version=__version__, description=_DESCRIPTION, routes=app.routes, servers=servers
    )
    _add_models(built.setdefault("components", {}).setdefault("schemas", {}))
    _add_security(app, built)
    for name, path in built["paths"].items():
        for method, operation in path.items():
            # FastAPI declares 422 responses; here an invalid request is a 400 problem.
            operation["responses"].pop("422", None)
            if "{node_id}" in name and method in {"put", "delete"}:
                operation["parameters"] += map(dict, _PRECONDITIONS)
                operation["responses"] |= {str(status): it for status, it in problem_responses(412).items()}
            for parameter in operation.get("parameters", ()):
                _simplify(parameter)
            for status, response in operation["responses"].items():
                for header in _headers_of(name, method, int(status)):
                    headers = response.setdefault("headers", {})
                    headers.setdefault(header, {"$ref": f"#/components/headers/{header}"})
                for content in response.get("content", {}).values():
                    _open_choice(content)
    built["components"]["headers"] = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()
    }
    return _with_inline_enumerations(built)


def _headers_of(path: str, method: str, status: int) -> list[str]:
    """The headers that the responses of an operation with this status may have, apart from those of HTTP itself."""
    found = ["Blocklist-Version", "X-Request-ID"]
    if path.startswith(PATHS_WITH_REVISION):
        found += ["Blocklist-Revision", "Blocklist-History"]
    if method == "get" and status in {200, 304, 404, 409}:
        found.append("Age")
    if method == "get" and status in {200, 304}:
        found += _OF_CACHED_READS
    elif method == "get" or (path == "/tokens" and method == "post"):
        found.append("Cache-Control")
    if method in {"put", "delete"} and status < 300 and path.startswith(("/blocklist/nodes", "/claims")):
        found += _OF_CHANGES
    return found + {401: ["WWW-Authenticate"], 503: ["Retry-After"]}.get(status, [])


def _add_models(schemas: dict[str, Any]) -> None:
    adapters: list[Any] = [(model, "validation", TypeAdapter(model)) for model in _MODELS]
    _, extra = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    for name, schema in extra["$defs"].items():
        schemas.setdefault(name, schema)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            # openapi-typescript makes a field with a default mandatory; the description says what its absence means.
            field.pop("default", None)


def _simplify(parameter: dict[str, Any]) -> None:
    """Describe a parameter as generators of clients understand it: an absent one is absent, not null."""
    schema = parameter["schema"]
    if parameter["in"] == "header":
        # Several lines of a header mean the same as one with their values (RFC 9110), and every value is a string.
        parameter["schema"] = {"type": "string", "title": schema["title"]}
        return
    if {"type": "boolean"} in schema.get("anyOf", ()):
        # In a URL `true` is a text anyway.
        parameter["schema"] = {"type": "boolean", "title": schema["title"]}
        return
    if {"type": "null"} in schema.get("anyOf", ()):
        schema["anyOf"].remove({"type": "null"})
        if len(schema["anyOf"]) == 1:
            parameter["schema"] = {**schema.pop("anyOf")[0], **schema}


def _open_choice(content: dict[str, Any]) -> None:
    """Describe a choice between a map and something else as any object: openapi-generator has no such type in Java."""
    choice = content.get("schema", {}).get("anyOf", ())
    values = [one["additionalProperties"]["$ref"] for one in choice if "additionalProperties" in one]
    if values:
        value, other = (ref.rpartition("/")[2] for ref in (*values, choice[-1]["$ref"]))
        text = f"By node id a `{value}`; with `dryRun=true` a `{other}`."
        content["schema"] = {"type": "object", "additionalProperties": True, "description": text}


def _with_inline_enumerations(built: dict[str, Any]) -> dict[str, Any]:
    """The document without schemas that are only an enumeration: in Go their values are constants of one package."""
    schemas = built["components"]["schemas"]
    enumerations = {
        f"#/components/schemas/{name}": {"type": "string", "enum": schemas.pop(name)["enum"]}
        for name in [name for name, schema in schemas.items() if "enum" in schema]
    }

    def inline(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("type") == "boolean":
                # Java's enumerations have no flags.
                value = {name: each for name, each in value.items() if name not in {"const", "enum"}}
            if value.get("type") == "integer":
                # Revisions and Unix milliseconds are too large for an integer of Java without it.
                value = {**value, "format": "int64"}
            return enumerations.get(value.get("$ref", "")) or {name: inline(each) for name, each in value.items()}
        return list(map(inline, value)) if isinstance(value, list) else value

    return dict(inline(built))


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
