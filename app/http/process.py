"""The process and its operating system: the open-file limit, and readiness for systemd."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from typing import Final

import structlog

log = structlog.get_logger(__name__)

RECOMMENDED_FILES: Final = 4096


def raise_nofile_limit() -> None:
    """Raise the soft limit of open files to the hard limit; warn if that is low, as each connection is a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < RECOMMENDED_FILES:
        log.warning("open-file limit is low; it limits connections", limit=hard, recommended=RECOMMENDED_FILES)


def sd_notify_ready() -> None:
    """Report readiness to systemd (Type=notify); do nothing where NOTIFY_SOCKET is not set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A leading @ stands for Linux's abstract namespace.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
        out.sendto(b"READY=1", name)
