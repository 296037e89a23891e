"""PUT of one node, handled in front of FastAPI, whose layers cost more than all the rest of it.

The ordinary route does the same by the same function; it serves all that is not plain here, and documents both.
"""

from __future__ import annotations

import re
from typing import Final

import structlog
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.api.errors import broken, refused
from app.api.nodes import block_node
from blocklist.errors import BlocklistError

log = structlog.get_logger(__name__)

_PATH: Final = re.compile(r"/blocklist/nodes/([A-Za-z0-9][A-Za-z0-9._:-]{0,252})", re.ASCII)
_NOT_PLAIN: Final = frozenset((b"authorization", b"prefer"))


class DirectPut:
    """An ASGI app in front of the service's: answers a plain PUT of one node, passes everything else on."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["method"] != "PUT"
            or not (match := _PATH.fullmatch(scope["path"]))
            or any(name in _NOT_PLAIN for name, _ in scope["headers"])
        ):
            await self._app(scope, receive, send)
        else:
            scope["app"] = self._app
            response = await _answer(Request(scope, receive), match[1])
            await response(scope, receive, send)


async def _answer(request: Request, node_id: str) -> Response:
    try:
        return await block_node(request, node_id)
    except BlocklistError as error:
        return refused(request, error)
    except ClientDisconnect:
        return Response(status_code=400)  # Nobody reads it.
    except Exception as error:
        log.exception("PUT failed")
        return broken(request, error)
