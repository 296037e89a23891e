"""How many files, and so connections, this process may have open."""

from __future__ import annotations

import resource
from typing import Final

import structlog

log = structlog.get_logger(__name__)

RECOMMENDED_FILES: Final = 4096


def raise_nofile_limit() -> None:
    """As many as the system lets us; says so in the log if that is not much."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < RECOMMENDED_FILES:
        log.warning("few files may be open, and each connection is one", limit=hard, wanted=RECOMMENDED_FILES)
