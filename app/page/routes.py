"""All routes of the page."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from app.page import block_routes, docs, history, listener_routes, listing, login, node, static_files

router: Final = APIRouter()
for part in (listing, block_routes, node, listener_routes, history, login, docs, static_files):
    router.routes.extend(part.router.routes)
