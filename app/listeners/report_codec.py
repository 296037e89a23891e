"""How replicas exchange reports: each part of one listener's report as JSON, under its name in the API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from app.listeners.entry import ListenerEntry
from app.requests import ReportBody
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import Evidence, Finding, FindingKind
from blocklist.model.report import Report
from blocklist.wire.reports import REPORT_FIELDS, report_fields

ERROR: Final = "error"
"""The part that the pusher reports, not the listener: the outcome of the last push."""
EVIDENCE: Final = REPORT_FIELDS["evidence"]
TASK_MANAGERS: Final = REPORT_FIELDS["task_managers"]


def part_names(fields: Iterable[str]) -> set[str]:
    """The parts of these fields of a Report."""
    return {REPORT_FIELDS[field] for field in fields}


def dump_part(entry: ListenerEntry, part: str) -> str:
    """Any part but the evidence."""
    return json.dumps(entry.error if part == ERROR else report_fields(entry.report)[part])


def load_part(part: str, text: str) -> Report:
    """The reverse, for a field of a Report. Raises InvalidError if a newer version wrote it in another form."""
    return ReportBody.parse({part: json.loads(text)}).value()


def dump_evidence(evidence: Iterable[Evidence]) -> str:
    """All evidence from one application."""
    return json.dumps([(e.node, e.finding.kind, e.finding.reason, e.first_seen, e.last_seen) for e in evidence])


def load_evidence(application: str, text: str) -> list[Evidence]:
    """The reverse. Raises InvalidError if a newer version wrote it in another form."""
    try:
        return [
            Evidence(
                application=application,
                node=node,
                finding=Finding(kind=FindingKind(kind), reason=reason),
                first_seen=first,
                last_seen=last,
            )
            for node, kind, reason, first, last in json.loads(text)
        ]
    except (TypeError, ValueError) as error:
        raise InvalidError(f"Cannot read the evidence from {application}: {error}.") from None
