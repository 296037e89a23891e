"""The Prefer header (RFC 7240). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_WAIT: Final = 60
"""Maximum of `Prefer: wait=N`, in seconds."""
_WAIT: Final = re.compile(r'wait\s*=\s*(?:"([0-9]{1,99})"|([0-9]{1,99}))', re.ASCII | re.IGNORECASE)


def wait_seconds(prefer: Iterable[str]) -> int | None:
    """N of the first valid `wait=N` in Prefer headers, at most MAX_WAIT; None if there is none."""
    for preference in ",".join(prefer).split(","):
        if match := _WAIT.fullmatch(preference.partition(";")[0].strip()):
            return min(int(match[1] or match[2]), MAX_WAIT)
    return None
