"""Static files: a fixed set, read at start, each with a URL that changes with its content."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from app.api.authorization import PUBLIC
from app.engine.cached_list import accepts_gzip
from blocklist.model.errors import NotFoundError

router = APIRouter(dependencies=[PUBLIC], include_in_schema=False)

FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_YEAR: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class StaticFile:
    """A file with its media type."""

    body: bytes
    type: str

    @cached_property
    def version(self) -> str:
        return hashlib.blake2b(self.body, digest_size=6).hexdigest()

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.body, compresslevel=6, mtime=0)


def _read() -> dict[str, StaticFile]:
    paths = [path for path in FOLDER.rglob("*") if path.suffix in _TYPES]
    return {
        path.relative_to(FOLDER).as_posix(): StaticFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(paths)
    }


FILES: Final = _read()


def static_url(name: str) -> str:
    """The URL of a static file, including its version, so that caches may keep it permanently."""
    return f"/static/{name}?v={FILES[name].version}"


@router.head("/static/{name:path}")
@router.get("/static/{name:path}")
async def get_static(request: Request, name: str, v: str = "") -> Response:
    """The file; cacheable for a year if the URL names its current version."""
    file = FILES.get(name)
    if file is None:
        raise NotFoundError("There is no such file.")
    headers = {
        "Cache-Control": _YEAR if v == file.version else "no-cache",
        "ETag": f'"{file.version}"',
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    body = file.body
    if accepts_gzip(request.headers.get("accept-encoding", "").encode("latin-1")):
        headers["Content-Encoding"] = "gzip"
        # In a thread, because the first compression of the largest file is slow.
        body = await asyncio.to_thread(lambda: file.zipped)
    return Response(body, headers=headers, media_type=file.type)
