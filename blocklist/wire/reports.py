"""Reports of listeners, as they are in heartbeats and in answers to pushes."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from blocklist.model.listener import Report
from blocklist.model.reported_node import ReportedNode
from blocklist.wire.body import camel
from blocklist.wire.evidence import findings_body
from blocklist.wire.json import Json

REPORT_FIELDS: Final = {field.name: camel(field.name) for field in fields(Report)}
"""Names of the fields of a Report: in Python, and in the API."""


def report_fields(report: Report) -> Json:
    """What a report contains, as JSON values under their names in the API."""
    values = {REPORT_FIELDS[name]: value for name, value in report.given().items()}
    if report.evidence is not None:
        values[REPORT_FIELDS["evidence"]] = findings_body(report.evidence)
    if report.nodes is not None:
        values[REPORT_FIELDS["nodes"]] = list(map(_node_json, report.nodes))
    return values


def _node_json(node: str | ReportedNode) -> str | Json:
    if isinstance(node, str):
        return node
    parts = {"names": list(node.names), "addresses": list(node.addresses), "labels": dict(node.labels)}
    return {"id": node.id, **{name: part for name, part in parts.items() if part}}
