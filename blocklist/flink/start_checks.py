"""Whether the cluster's configuration lets Flink obey. Pure.

Flink handles blocked nodes only with speculative execution switched on; otherwise it acknowledges and ignores them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.flink.state import FlinkError

ENABLED: Final = "execution.batch.speculative.enabled"
_ENABLED_BEFORE: Final = "jobmanager.adaptive-batch-scheduler.speculative.enabled"
CHECK_INTERVAL: Final = "slow-task-detector.check-interval"
MIN_CHECK_INTERVAL: Final = 10.0
"""Seconds; below it a block may never end in Flink (FLINK-37607)."""
LINES_TO_ADD: Final = (
    f"{ENABLED}: true",
    f"{CHECK_INTERVAL}: 15 s",
    "slow-task-detector.execution-time.baseline-lower-bound: 10000 d",
    "execution.batch.speculative.block-slow-node-duration: 0 s",
)
"""What makes Flink obey, and nothing else: the last two keep it from speculating and blocking by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationCheck:
    """`error` is why Flink ignores the list, None if it does not. `check_interval` is in seconds."""

    error: str | None
    warnings: tuple[str, ...]
    check_interval: float


def parse_configuration(text: str) -> dict[str, str]:
    """The answer of the REST API: a list of keys and values.

    Raises FlinkError for anything else, also for an empty list: a setting that is missing there must not count as off.
    """
    try:
        entries = json.loads(text)
        found = {entry["key"]: entry["value"] for entry in entries}
    except (ValueError, RecursionError, TypeError, KeyError):
        raise FlinkError(f"The JobManager's configuration cannot be read: {text[:100]!r}") from None
    if not found or None in found.values():
        raise FlinkError("The JobManager's configuration is empty, or settings in it have no value")
    return {str(key): str(value) for key, value in found.items()}


def check_configuration(configuration: Mapping[str, str]) -> ConfigurationCheck:
    """Check the configuration that the JobManager runs with."""
    interval = duration_seconds(configuration.get(CHECK_INTERVAL, "1 s"))
    enabled = configuration.get(ENABLED) or configuration.get(_ENABLED_BEFORE) or "false"
    if enabled.strip().lower() != "true":
        return ConfigurationCheck(error=_switched_off(), warnings=(), check_interval=interval)
    return ConfigurationCheck(error=None, warnings=_warnings(interval), check_interval=interval)


def advice() -> str:
    """The lines to add, each on a line of its own."""
    return "\n".join(f"  {line}" for line in LINES_TO_ADD)


def _switched_off() -> str:
    # All lines: the first alone would make Flink speculate.
    return (
        f"Flink ignores blocked nodes. Add to the JobManager's configuration and restart it: {'; '.join(LINES_TO_ADD)}"
    )


def _warnings(interval: float) -> tuple[str, ...]:
    if interval >= MIN_CHECK_INTERVAL:
        return ()
    warning = (
        f"{CHECK_INTERVAL} is {interval:g} s. If Flink checks before a JobMaster has started, it never checks again"
        " (FLINK-37607): blocks do not end there, and slots are allocated and rejected in a loop. Set it to"
        " 15 s and restart the JobManager."
    )
    return (warning,)


# Durations as Flink writes them. Pure.

# The units of Flink's TimeUtils; a number without a unit is in milliseconds.
_UNITS: Final = {
    name: seconds
    for seconds, names in (
        (86400.0, "d day days"),
        (3600.0, "h hour hours"),
        (60.0, "m min minute minutes"),
        (1.0, "s sec secs second seconds"),
        (1e-3, "ms milli millis millisecond milliseconds"),
        (1e-6, "\u00b5s \u03bcs micro micros microsecond microseconds"),
        (1e-9, "ns nano nanos nanosecond nanoseconds"),
    )
    for name in names.split()
}
_ISO: Final = re.compile(r"P(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+(?:\.[0-9]+)?)S)?)?")


def duration_seconds(text: str) -> float:
    """A duration of Flink, such as `15 s`, `1 hour` or `P1DT2H`; 0 if it is not understood."""
    iso = _ISO.fullmatch(text.strip().upper())
    if iso is not None:
        days, hours, minutes, seconds = (float(part or 0) for part in iso.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    found = re.fullmatch(r"([0-9]+)\s*(\D*)", text.strip().lower())
    return float(found[1]) * _UNITS.get(found[2] or "ms", 0.0) if found is not None else 0.0
