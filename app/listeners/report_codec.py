"""What replicas tell each other of what a listener says, part by part, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

from app.listeners.entry import ListenerEntry, Report
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import Evidence, Finding, FindingKind
from blocklist.wire.listeners import ReportBody


def dump_part(entry: ListenerEntry, part: str) -> str:
    """A part of what it says, but for its evidence."""
    return json.dumps(entry.part(part))


def load_part(part: str, text: str) -> Report:
    """The same there. Raises InvalidError if the other replica has another version, which knows more."""
    return Report.from_body(ReportBody.parse({part: json.loads(text)}))


def dump_evidence(kept: Iterable[Evidence]) -> str:
    """All that is kept of one application."""
    return json.dumps([(e.node, e.finding.kind, e.finding.reason, e.first_seen, e.last_seen) for e in kept])


def load_evidence(application: str, text: str) -> list[Evidence]:
    """The same there. Raises InvalidError if the other replica has another version."""
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
        raise InvalidError(f"The evidence of {application} is of another form: {error}.") from None
