"""Posts for tests."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

Body = dict[str, Any]

_REAL: Final = Path(__file__).with_name("posts.jsonl")


def real_posts() -> list[Body]:
    """Posts recorded from Alertmanager 0.25, in order. None of their alerts has the label `blocklist`.

    Two alerts fire; one of another group fires, without a node; one resolves; one more fires; the group is repeated;
    all resolve.
    """
    return [json.loads(line) for line in _REAL.read_text().splitlines()]


def with_action(post: Body, action: str = "mark") -> Body:
    """The post with the label `blocklist` on each alert."""
    changed = deepcopy(post)
    for own in changed["alerts"]:
        own["labels"]["blocklist"] = action
    return changed


def alert(name: str = "DiskFull", *, resolved: bool = False, summary: str = "", **labels: str) -> Body:
    """An alert with `blocklist: mark` about node n1, unless changed by `labels`; empty labels are omitted."""
    named = {"alertname": name, "node": "n1", "blocklist": "mark", **labels}
    return {
        "status": "resolved" if resolved else "firing",
        "labels": {key: value for key, value in named.items() if value},
        "annotations": {"summary": summary} if summary else {},
    }


def post(*alerts: object, **fields: object) -> Body:
    """A post of these alerts."""
    return {"version": "4", "receiver": "blocklist", "status": "firing", "alerts": list(alerts), **fields}
