"""For the agents in Spark drivers: the table of blocked nodes, and the agent's jar.

Plain requests for the table are answered by app.http.fast_path, all others here.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Header, Request, Response

from app.api.listing import LIST_HEADERS, PreparedResponse
from app.api.parameters import (
    KNOWN_PARAMETERS,
    PUBLIC,
    REQUIRE_READER,
    ApiRouter,
    MinRevision,
    check_after_wait,
    require_revision,
    slots_of,
)
from app.api.responses import FROM_MEMORY, age_header, problem_responses
from app.engine.list_view import ListView
from app.service import service_of
from app.watch import run_until_disconnect, wait_seconds
from blocklist.model.errors import NotFoundError
from blocklist.spark.jar import JAR_NAME, jar_path

router = ApiRouter(tags=["Spark"])

_JAR_TYPE: Final = "application/octet-stream"
_EXAMPLE: Final = (
    "blocklist-table 1 7 3\n"
    "10.0.0.9\t1652319000000\tcanary\t10.0.0.9\t2.1x slower than its peers\n"
    "worker-17\t1652319000000\tevacuate\tworker-17\tNo space left on device\n"
    "worker-17.\t1652319000000\tevacuate\tworker-17\tNo space left on device\n"
)
_TABLE_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": LIST_HEADERS,
        "content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}},
    },
    304: {"description": "The table still matches `If-None-Match`.", "headers": LIST_HEADERS},
    **problem_responses(400, 503),
}
_JAR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {_JAR_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {"ETag": LIST_HEADERS["ETag"]},
    },
    304: {"description": "The jar still matches `If-None-Match`."},
    **problem_responses(404, _404="This installation has no jar."),
}


@router.get(
    "/blocklist/table",
    summary="The blocked nodes as drivers need them",
    operation_id="getTable",
    dependencies=[REQUIRE_READER, KNOWN_PARAMETERS, MinRevision, FROM_MEMORY],
    response_class=Response,
    responses=_TABLE_RESPONSES,
)
async def get_table(
    request: Request,
    if_none_match: Annotated[list[str] | None, Header(description="ETags that the client has stored.")] = None,
    prefer: Annotated[
        list[str] | None,
        Header(
            description="`wait=N`: if `If-None-Match` matches, wait for a change for at most N seconds (maximum 60)."
        ),
    ] = None,
) -> Response:
    """A line for each name and address of a blocked node, the weakest block first; see docs/listeners.md.

    The first line is `blocklist-table 1 REVISION LINES`; each of the others has, separated by tabs, a key (a name, an
    address, or `n7.` for all names that begin so), the end in Unix ms, `canary`, `mark` or `evacuate`, the node id and
    the cause. `canary` is a mark that leaves one executor of each application on the host.
    """
    view = service_of(request).view
    etags = ",".join(if_none_match).encode("latin-1") if if_none_match is not None else None
    accepted = ",".join(request.headers.getlist("accept-encoding")).encode("latin-1") or None
    if etags is not None and (revision := view.table.revision_ahead(etags)) is not None:
        # An older table would free nodes that are blocked.
        await require_revision(view, revision)
    seconds = wait_seconds(prefer or [])
    applied = seconds is not None and etags is not None and view.table.current().matches(etags)
    if applied:
        with await slots_of(request):
            await run_until_disconnect(request.receive, _until_changed(view, etags or b"", seconds or 0))
        check_after_wait(request)
    extra = age_header(request) + ([(b"preference-applied", b"wait=%d" % (seconds or 0))] if applied else [])
    return PreparedResponse(view.table.current().response_for(etags, accepted), extra)


async def _until_changed(view: ListView, etags: bytes, seconds: int) -> None:
    """Return when the table no longer matches `etags`, after `seconds`, or when the service stops."""
    table = view.table
    await table.changed.wait_for(lambda: view.closed or not table.current().matches(etags), seconds)


@router.get(
    f"/spark/{JAR_NAME}",
    summary="The agent for Spark drivers",
    operation_id="getSparkJar",
    dependencies=[PUBLIC],
    response_class=Response,
    responses=_JAR_RESPONSES,
)
async def get_jar(
    if_none_match: Annotated[str | None, Header(description="The ETag that the client has stored.")] = None,
) -> Response:
    """The jar to be copied to the machines on which drivers run."""
    try:
        path = jar_path()
        body, tag = await asyncio.to_thread(_read_jar, path, path.stat().st_mtime_ns)
    except OSError as error:
        raise NotFoundError(str(error)) from None
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if if_none_match == headers["ETag"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, headers=headers, media_type=_JAR_TYPE)


@lru_cache(maxsize=1)
def _read_jar(path: Path, modified_ns: int) -> tuple[bytes, str]:  # noqa: ARG001
    """The jar and its tag; read again when the file was replaced."""
    body = path.read_bytes()
    return body, hashlib.sha256(body).hexdigest()[:24]
