"""Proposals as text: rows for the table and the report, and JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from blocklist.detection.events import MAX_TIME
from blocklist.detection.heuristics import HOUR_MS, HurtApplication
from blocklist.detection.proposals import Proposal, Release

_TITLES = {"node": "NODE", "severity": "SEVERITY", "until": "UNTIL (UTC)", "what": "", "cause": "EVIDENCE"}


def row(proposal: Proposal, *, applied: bool) -> dict[str, str]:
    """Return a proposal as texts."""
    verdict = proposal.verdict
    if proposal.skip_reason is not None:
        what = f"not applied: {proposal.skip_reason}"
    else:
        what = f"{'blocked' if applied else 'would be blocked'}{' (canary)' if verdict.canary else ''}"
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
    """Format Unix ms in UTC; `never` from the year 10000 on, as for the end of a permanent block."""
    return "never" if millis >= MAX_TIME else f"{datetime.fromtimestamp(millis // 1000, UTC):%Y-%m-%d %H:%M:%S}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table for a terminal."""
    if not rows:
        return "No nodes to block.\n"
    return columns(_TITLES, rows)


def columns(titles: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows under titles, as wide as necessary."""
    lines = [titles, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in titles}
    return "".join("  ".join(line[name].ljust(widths[name]) for name in titles).rstrip() + "\n" for line in lines)


def json_line(proposal: Proposal, *, applied: bool) -> str:
    """Return one JSON object; times are Unix ms."""
    verdict = proposal.verdict
    body = {
        "node": verdict.host,
        "severity": verdict.severity.name,
        "action": verdict.action.name,
        "cause": verdict.cause,
        **({"canary": True} if verdict.canary else {}),
        "since": verdict.since.first if verdict.since else None,
        "sinceApplication": verdict.since.app if verdict.since else None,
        "coreHoursLost": core_hours(sum(it.lost_ms for it in verdict.hurt)),
        "applications": [_application(it) for it in verdict.hurt],
        "seen": verdict.last_evidence,
        "end": verdict.end,
        "chance": verdict.p_value,
        "earlierBlocks": proposal.earlier_blocks,
        "applied": applied and proposal.skip_reason is None,
        "whyNot": proposal.skip_reason,
    }
    return json.dumps(body, ensure_ascii=False)


def _application(hurt: HurtApplication) -> dict[str, str | int | float]:
    return {"application": hurt.app, "since": hurt.first, "coreHoursLost": core_hours(hurt.lost_ms)}


def core_hours(millis: float) -> float:
    """Task time as core-hours: a task occupies one core."""
    return round(millis / HOUR_MS, 4)


def release_sentence(release: Release, *, applied: bool) -> str:
    what = "is no longer claimed" if applied else "would no longer be claimed"
    return f"Node {release.host} {what}: {release.reason}."


def release_line(release: Release, *, applied: bool) -> str:
    """Return a release as one JSON object."""
    applications = list(release.applications)
    body = {"node": release.host, "released": True, "cause": release.reason, "cleanApplications": applications}
    return json.dumps(body | {"applied": applied}, ensure_ascii=False)
