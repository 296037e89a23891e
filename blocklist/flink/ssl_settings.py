"""Whether the configuration has what Flink's RPC needs for TLS. Flink itself starts without, and reaches nobody."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_ENABLED: Final = "security.ssl.internal.enabled"
_INTERNAL, _COMMON = "security.ssl.internal", "security.ssl"
_FILES: Final = ("keystore", "truststore")
_NEEDED: Final = (*_FILES, "keystore-password", "key-password", "truststore-password")


def missing_ssl(configuration: Mapping[str, str], readable: Callable[[str], bool]) -> str | None:
    """What is missing and what to do, as the begin of a sentence; None if nothing is."""
    if str(configuration.get(_ENABLED, "false")).strip().lower() != "true":
        return None
    values = {it: configuration.get(f"{_INTERNAL}.{it}") or configuration.get(f"{_COMMON}.{it}") for it in _NEEDED}
    if unset := [f"{_INTERNAL}.{it}" for it, value in values.items() if not value]:
        return f"{_ENABLED} is true, but {', '.join(unset)} is not set. Copy the JobManager's settings"
    for name in _FILES:
        file = str(values[name])
        if not readable(file):
            return f"{file} cannot be read by this user. Copy it from the JobManager, or correct {_INTERNAL}.{name}"
    return None


def is_readable(file: str) -> bool:
    """Whether this process can read it."""
    return Path(file).is_file() and os.access(file, os.R_OK)
