"""The headers that browsers keep to."""

from __future__ import annotations

from typing import Final

ALL_RESPONSES: Final = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)
"""On every answer, errors too."""

HSTS: Final = ("strict-transport-security", "max-age=31536000")
"""Also on every answer, where the service itself speaks TLS."""

PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The Content-Security-Policy of an HTML page: nothing from elsewhere, nothing inline, in nobody's frame."""
