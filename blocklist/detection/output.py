"""What was found, as text: rows that a table, the report and JSON lines share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from blocklist.detection.apply import Proposal

_TITLES = {"node": "NODE", "severity": "SEVERITY", "until": "UNTIL (UTC)", "what": "", "cause": "EVIDENCE"}


def row(proposal: Proposal, *, applied: bool) -> dict[str, str]:
    """A proposal as texts."""
    own = proposal.verdict
    if proposal.why_not is not None:
        what = f"not applied: {proposal.why_not}"
    else:
        what = "blocked" if applied else "would be blocked"
    return {
        "node": own.host,
        "severity": own.severity.name.lower(),
        "action": own.action.name,
        "cause": own.cause,
        "until": moment(own.end),
        "chance": f"{own.chance:.0e}",
        "what": what,
    }


def moment(millis: int) -> str:
    """Unix ms as people read it, in UTC."""
    return f"{datetime.fromtimestamp(millis // 1000, UTC):%Y-%m-%d %H:%M:%S}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """For a terminal."""
    if not rows:
        return "No node is to be blocked.\n"
    lines = [_TITLES, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in _TITLES}
    return "".join("  ".join(line[name].ljust(widths[name]) for name in _TITLES).rstrip() + "\n" for line in lines)


def json_line(proposal: Proposal, *, applied: bool) -> str:
    """One JSON object, as numbers and not as texts; times are Unix milliseconds."""
    own = proposal.verdict
    body = {
        "node": own.host,
        "severity": own.severity.name,
        "action": own.action.name,
        "cause": own.cause,
        "seen": own.seen,
        "end": own.end,
        "chance": own.chance,
        "earlierBlocks": proposal.earlier,
        "applied": applied and proposal.why_not is None,
        "whyNot": proposal.why_not,
    }
    return json.dumps(body, ensure_ascii=False)
