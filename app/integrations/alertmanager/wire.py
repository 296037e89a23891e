"""The bodies of Alertmanager's webhook, parsed leniently: versions differ, and other programs send it too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.integrations.alertmanager.rules import Alert, AlertOutcome
from blocklist.model.errors import InvalidError
from blocklist.model.node import ACTION_BY_NAME, is_node_id
from blocklist.wire.json import parse_json

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
ALERTS_PER_TURN: Final = 2_000
"""Number of alerts that are read in one turn of the event loop: some ten milliseconds."""
_MAX_COUNT: Final = 2**53
"""A metric is a float: it has all integers up to this one, and none as large as JSON allows."""
_HOST_PORT: Final = re.compile(r"(?:\[(?P<inner>[^\]]*)\]|(?P<host>[^:]*))(?::[0-9]*)?")


class AlertBody(BaseModel):
    """One alert; unknown fields are ignored."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    annotations: dict[str, str] = {}
    fingerprint: str = ""
    startsAt: Any = None  # noqa: N815


class AlertmanagerPost(BaseModel):
    """A post of Alertmanager's webhook: a group of alerts. All other fields are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "version": "4",
                    "receiver": "blocklist",
                    "status": "firing",
                    "truncatedAlerts": 0,
                    "alerts": [
                        {
                            "status": "firing",
                            "labels": {
                                "alertname": "DiskReadOnly",
                                "instance": "worker-17:9100",
                                "blocklist": "evacuate",
                            },
                            "annotations": {"summary": "/data1 is read-only"},
                            "startsAt": "2026-11-21T07:55:04.371Z",
                            "endsAt": "0001-01-01T00:00:00Z",
                            "fingerprint": "809c736d29768b8c",
                        }
                    ],
                }
            ]
        }
    )

    alerts: Annotated[list[Any], Field(description="Alerts without the label `blocklist` are counted and ignored.")]
    truncatedAlerts: Annotated[Any, Field(description="Number of alerts that Alertmanager omitted.")] = 0  # noqa: N815

    @property
    def truncated(self) -> int:
        """The number of omitted alerts; 0 if the field is not a positive integer of at most 2^53."""
        count = self.truncatedAlerts
        return count if type(count) is int and 0 < count <= _MAX_COUNT else 0


class AlertsBody(BaseModel):
    """The outcomes of the alerts of a post."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"alerts": {"blocked": 1, "unlabelled": 2}, "truncatedAlerts": 0}]}
    )

    alerts: Annotated[dict[AlertOutcome, int], Field(description="Number of alerts by outcome.")]
    truncatedAlerts: int  # noqa: N815


def parse_post(body: bytes) -> AlertmanagerPost:
    """Parse a post. Raises InvalidError."""
    try:
        return AlertmanagerPost.model_validate(parse_json(body))
    except ValidationError:
        raise InvalidError("The body is not a post of Alertmanager: send an object with a list `alerts`.") from None


async def read_alerts(values: Sequence[object], node_label: str) -> list[Alert | AlertOutcome]:
    """What `read_alert` returns for each, read in several turns of the event loop."""
    read: list[Alert | AlertOutcome] = []
    for start in range(0, len(values), ALERTS_PER_TURN):
        read += [read_alert(value, node_label) for value in values[start : start + ALERTS_PER_TURN]]
        await asyncio.sleep(0)
    return read


def read_alert(value: object, node_label: str) -> Alert | AlertOutcome:
    """The alert, or the outcome that says why it is ignored."""
    try:
        alert = AlertBody.model_validate(value)
    except ValidationError:
        return AlertOutcome.UNREADABLE
    action = ACTION_BY_NAME.get(label := alert.labels.get("blocklist", ""))
    if action is None:
        return AlertOutcome.UNKNOWN_ACTION if label else AlertOutcome.UNLABELLED
    node = node_of(alert.labels, node_label)
    if node is None:
        return AlertOutcome.NO_NODE
    if not is_node_id(node):
        return AlertOutcome.BAD_NODE
    return Alert(
        node=node,
        action=action,
        firing=alert.status == "firing",
        fingerprint=_fingerprint(alert),
        name=alert.labels.get("alertname", ""),
        summary=alert.annotations.get("summary", ""),
        started_at=_unix_millis(alert.startsAt),
    )


def _unix_millis(time: object) -> int | None:
    """A time as RFC 3339 writes it; None for anything else."""
    try:
        moment = datetime.fromisoformat(time) if isinstance(time, str) else None
        return None if moment is None or moment.tzinfo is None else int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def node_of(labels: Mapping[str, str], node_label: str) -> str | None:
    """The node of an alert: from its label, otherwise from `instance`; None if it has neither."""
    if node := labels.get(node_label):
        return node[1:-1] if node[0] == "[" and node[-1] == "]" else node
    instance = labels.get("instance", "")
    match = _HOST_PORT.fullmatch(instance)
    # More than one colon and no brackets: an IPv6 address without a port.
    return ((match["inner"] or match["host"]) if match else instance) or None


def _fingerprint(alert: AlertBody) -> str:
    """The first half of the fingerprint, which is constant while the alert fires; otherwise a hash of the labels."""
    if _FINGERPRINT.fullmatch(alert.fingerprint):
        return alert.fingerprint[:8]
    labels = "\0".join(f"{name}\0{value}" for name, value in sorted(alert.labels.items()))
    return sha256(labels.encode(errors="surrogatepass")).hexdigest()[:8]
