"""All routes of the page."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from app.page import changing, docs, history, listing, login, node, people, static_files

router: Final = APIRouter()
for part in (listing, changing, node, people, history, login, docs, static_files):
    router.routes.extend(part.router.routes)
