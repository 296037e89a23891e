"""The bodies of evidence: in heartbeats and in GET /evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from blocklist.wire.body import Body, Doc, Millis, with_example
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.model.evidence import AssessedEvidence, Evidence, Finding

KindName = Literal["excluded", "slow"]


@dataclass(kw_only=True)
class EvidenceBody(Body):
    """What one application reports about one node, and whether it counts."""

    __pydantic_config__ = with_example(
        node="worker-17",
        application="app-1",
        kind="excluded",
        reason="Spark excluded the host.",
        firstSeen="1652313600000",
        lastSeen="1652313630000",
        believed=True,
        doubt=None,
    )

    node: str
    application: str
    kind: KindName
    reason: str
    first_seen: Annotated[Millis, Doc("Reported since then without a gap.")]
    last_seen: Millis
    believed: Annotated[bool, Doc("Whether the evidence counts.")]
    doubt: Annotated[
        str | None,
        Doc("Why it does not count, such as another application of the same token that reports the node."),
    ]


@dataclass(kw_only=True)
class EvidenceListBody(Body):
    """All evidence, by node and application."""

    evidence: list[EvidenceBody]


def findings_body(findings: Mapping[str, Finding]) -> Json:
    """The `evidence` of a heartbeat."""
    return {node: {"kind": finding.kind.value, "reason": finding.reason} for node, finding in findings.items()}


def evidence_list_body(assessed: Iterable[AssessedEvidence]) -> Json:
    """The response of GET /evidence."""
    return {"evidence": [{**_evidence_fields(piece.evidence), **_assessment_fields(piece)} for piece in assessed]}


def _evidence_fields(evidence: Evidence) -> Json:
    return {
        "node": evidence.node,
        "application": evidence.application,
        "kind": evidence.finding.kind.value,
        "reason": evidence.finding.reason,
        "firstSeen": str(evidence.first_seen),
        "lastSeen": str(evidence.last_seen),
    }


def _assessment_fields(assessed: AssessedEvidence) -> Json:
    return {"believed": assessed.ignored_reason is None, "doubt": assessed.ignored_reason}
