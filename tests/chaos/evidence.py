"""When evidence may claim a node: rules about what applications have reported. Times are Unix milliseconds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

_TTL_MS: Final = 60_000
_BLOCK_MS: Final = 3_600_000
_APPLICATIONS: Final = 2


@dataclass
class Report:
    """Evidence in a heartbeat: when it was sent and answered, and whether it certainly counted."""

    invoked: int
    returned: int = 2**63
    counted: bool = False


class EvidenceReports:
    """What applications report, by node and application."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, list[Report]]] = defaultdict(lambda: defaultdict(list))

    def begin(self, node: str, application: str, invoked: int) -> Report:
        """A report that is about to be sent."""
        report = Report(invoked)
        self._reports[node][application].append(report)
        return report

    def may_claim(self, node: str, at: int, unblocked_at: int) -> bool:
        """Whether enough applications report the node, for the first time after it was unblocked by hand."""
        reports = list(self._reports[node].values())
        return sum(_is_new(list(own), at, unblocked_at) for own in reports) >= _APPLICATIONS

    def latest_end(self, node: str, at: int) -> int:
        """The latest end of a claim at this time."""
        sent = (
            min(it.returned, at) for own in list(self._reports[node].values()) for it in list(own) if it.invoked <= at
        )
        return max(sent, default=0) + _BLOCK_MS


def _is_new(reports: list[Report], at: int, unblocked_at: int) -> bool:
    current = [it for it in reports if at - _TTL_MS <= it.returned and it.invoked <= at]
    return any(it.returned > unblocked_at and _may_be_first(it, reports) for it in current)


def _may_be_first(report: Report, reports: list[Report]) -> bool:
    """Whether the service may have seen this one first. It may have lost one in a replica that was killed."""
    earlier = [it for it in reports if it.counted and report.invoked - _TTL_MS < it.returned <= report.invoked]
    return len(earlier) <= 1
