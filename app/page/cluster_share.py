"""The share of the cluster that is blocked, for the header: it counts machines as BLOCKLIST_MAX_BLOCKED_SHARE does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastapi import Request

from app.page.shared import shared_of
from app.service import Service, service_of

MAX_AGE_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """How many machines are blocked, of those that listeners report as theirs.

    If none are reported, `known` is 0 and `blocked` counts the whole list: the size of the cluster is unknown.
    """

    blocked: int
    known: int

    @property
    def percent(self) -> str:
        """`3.5 %`; never 0 or 100 unless that is exact."""
        share = 100 * self.blocked / self.known
        if 0 < share < 0.1:
            return "< 0.1 %"
        if 99.9 < share < 100:
            return "> 99.9 %"
        return f"{share:.1f} %"


def share_of_cluster(request: Request) -> ClusterShare:
    """The share of the service that received the request; to count 10,000 blocked nodes takes some 10 ms."""
    return shared_of(request).get_now("share", lambda: _share(service_of(request)), MAX_AGE_MS)


def _share(service: Service) -> ClusterShare:
    blocked = service.view.tracker.blocked(service.clock())
    known = service.usable_nodes.known
    return ClusterShare(known.count_matching(blocked) if len(known) else len(blocked), len(known))
