"""The bodies of evidence: in heartbeats and in GET /evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from blocklist.model.evidence import MAX_REASON_LENGTH, AssessedEvidence, Evidence, Finding, FindingKind
from blocklist.model.node import check_text
from blocklist.wire.body import TEXT_PATTERN, Body, MillisOut
from blocklist.wire.json import Json

KindName = Literal["excluded", "slow"]


class FindingBody(Body):
    """What an application reports about a node."""

    model_config = ConfigDict(extra="forbid")

    kind: Annotated[
        KindName,
        Field(description="Spark excluded the host, or its tasks were so slow that Spark started speculative copies."),
    ]
    reason: Annotated[
        str,
        Field(min_length=1, max_length=MAX_REASON_LENGTH, json_schema_extra={"pattern": TEXT_PATTERN}),
        AfterValidator(check_text),
    ]

    def value(self) -> Finding:
        return Finding(kind=FindingKind(self.kind), reason=self.reason)


class EvidenceBody(Body):
    """What one application reports about one node, and whether it counts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "node": "worker-17",
                    "application": "app-1",
                    "kind": "excluded",
                    "reason": "Spark excluded the host.",
                    "firstSeen": "1652313600000",
                    "lastSeen": "1652313630000",
                    "believed": True,
                    "doubt": None,
                }
            ]
        }
    )

    node: str
    application: str
    kind: KindName
    reason: str
    first_seen: Annotated[MillisOut, Field(description="Reported since then without a gap.")]
    last_seen: MillisOut
    believed: Annotated[bool, Field(description="Whether the evidence counts.")]
    doubt: Annotated[
        str | None,
        Field(
            description="Why it does not count, such as another application of the same token that reports the node."
        ),
    ]


class EvidenceListBody(Body):
    """All evidence, by node and application."""

    evidence: list[EvidenceBody]


def findings(bodies: Mapping[str, FindingBody] | None) -> dict[str, Finding] | None:
    """The findings of a heartbeat, by node id; None if it has none."""
    return None if bodies is None else {node: body.value() for node, body in bodies.items()}


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
