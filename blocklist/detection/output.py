"""Proposals as text: rows for the table and the report, and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from blocklist.detection.apply import Proposal

_TITLES = {"node": "NODE", "severity": "SEVERITY", "until": "UNTIL (UTC)", "what": "", "cause": "EVIDENCE"}


def row(proposal: Proposal, *, applied: bool) -> dict[str, str]:
    """Return a proposal as texts."""
    verdict = proposal.verdict
    if proposal.skip_reason is not None:
        what = f"not applied: {proposal.skip_reason}"
    else:
        what = "blocked" if applied else "would be blocked"
    return {
        "node": verdict.host,
        "severity": verdict.severity.name.lower(),
        "action": verdict.action.name,
        "cause": verdict.cause,
        "until": format_time(verdict.end),
        "chance": f"{verdict.p_value:.0e}",
        "what": what,
    }


def format_time(millis: int) -> str:
    """Format Unix ms in UTC."""
    return f"{datetime.fromtimestamp(millis // 1000, UTC):%Y-%m-%d %H:%M:%S}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table for a terminal."""
    if not rows:
        return "No nodes to block.\n"
    lines = [_TITLES, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in _TITLES}
    return "".join("  ".join(line[name].ljust(widths[name]) for name in _TITLES).rstrip() + "\n" for line in lines)


def json_line(proposal: Proposal, *, applied: bool) -> str:
    """Return one JSON object; times are Unix ms."""
    verdict = proposal.verdict
    body = {
        "node": verdict.host,
        "severity": verdict.severity.name,
        "action": verdict.action.name,
        "cause": verdict.cause,
        "seen": verdict.last_evidence,
        "end": verdict.end,
        "chance": verdict.p_value,
        "earlierBlocks": proposal.earlier_blocks,
        "applied": applied and proposal.skip_reason is None,
        "whyNot": proposal.skip_reason,
    }
    return json.dumps(body, ensure_ascii=False)
