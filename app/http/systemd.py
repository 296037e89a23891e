"""Ready: tells who started the service that it listens, where that is systemd (Type=notify)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def sd_notify_ready() -> None:
    """Say so to the socket of NOTIFY_SOCKET; nothing where there is none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A name that begins with @ is in no file system.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, suppress(OSError):
        out.sendto(b"READY=1", name)
