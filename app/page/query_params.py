"""What an address asks for: what nobody could mean is passed over, so that no link of the page ever fails."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request

_DIGITS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)


def int_param(request: Request, name: str) -> int | None:
    """A whole number; None where there is none."""
    text = request.query_params.get(name, "")
    return int(text) if _DIGITS.fullmatch(text) else None
