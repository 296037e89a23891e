"""The security headers of all responses."""

from __future__ import annotations

from typing import Final

ALL_RESPONSES: Final = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""For every response, including errors."""

HSTS: Final = ("strict-transport-security", "max-age=31536000")
"""For every response if the service itself terminates TLS."""
