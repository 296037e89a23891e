"""Standard streams that the caller has closed (`>&-`)."""

from __future__ import annotations

import os
import sys
from typing import Any


def reopen_closed() -> None:
    """Open a file for each standard stream that is closed, so that no connection takes its descriptor.

    stdin is then empty and stderr is discarded. Writing to stdout fails, as it does for any program.
    """
    if sys.stdin is None:
        sys.stdin = _open(0, os.O_RDONLY, "r")
    if sys.stdout is None:
        sys.stdout = _open(1, os.O_RDONLY, "w")
    if sys.stderr is None:
        sys.stderr = _open(2, os.O_WRONLY, "w")


def _open(descriptor: int, flags: int, mode: str) -> Any:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    return open(descriptor, mode, encoding="utf-8", closefd=False)
