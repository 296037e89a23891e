"""Posts for tests."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

Body = dict[str, Any]

_REAL: Final = Path(__file__).with_name("posts.jsonl")


def real_posts() -> list[Body]:
    """As Alertmanager 0.25 sent them, in order. None of their alerts has the label `blocklist`.

    Two alerts fire; another group's, without node; one resolves; one more fires; the group is sent again; all resolve.
    """
    return [json.loads(line) for line in _REAL.read_text().splitlines()]


def with_action(post: Body, action: str = "mark") -> Body:
    """The post as it would be if its alerts asked for a block."""
    changed = deepcopy(post)
    for own in changed["alerts"]:
        own["labels"]["blocklist"] = action
    return changed


def alert(name: str = "DiskFull", *, resolved: bool = False, summary: str = "", **labels: str) -> Body:
    """An alert that asks for a block of node n1, unless its labels say otherwise; an empty label is left out."""
    named = {"alertname": name, "node": "n1", "blocklist": "mark", **labels}
    return {
        "status": "resolved" if resolved else "firing",
        "labels": {key: value for key, value in named.items() if value},
        "annotations": {"summary": summary} if summary else {},
    }


def post(*alerts: object, **fields: object) -> Body:
    """A post of these alerts."""
    return {"version": "4", "receiver": "blocklist", "status": "firing", "alerts": list(alerts), **fields}
