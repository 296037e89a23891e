"""The body of GET /drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from blocklist.wire.body import Body, Doc, Millis, with_example
from blocklist.wire.json import Json

if TYPE_CHECKING:
    from blocklist.model.listener import Drift, DriftReport

DriftKindName = Literal["tasks-running", "tasks-started", "schedulable", "unschedulable"]


@dataclass(kw_only=True)
class DriftBody(Body):
    """One difference between the list and what a listener reports."""

    node: str
    blocked: Annotated[bool, Doc("Whether the node is blocked on the list.")]
    kind: Annotated[
        DriftKindName,
        Doc(
            "Blocked here: evacuated, but tasks still run there; tasks started after the listener had"
            " applied the block; the manager still gives out the node. Free here: the manager does not give it out."
        ),
    ]
    listener: Annotated[str, Doc("The listener that reports it.")]
    since: Annotated[Millis, Doc("Observed since then without a gap.")]
    begin_observed: Annotated[
        bool,
        Doc(
            "Whether it began then. If false, it may be older: it was there when the service, or the listener, started."
        ),
    ] = False
    reason: str


@dataclass(kw_only=True)
class UnknownTasksBody(Body):
    """A listener with TaskManagers on an evacuated node whose running tasks it does not report."""

    node: str
    listener: str


@dataclass(kw_only=True)
class DriftListBody(Body):
    """All differences, by node, and where it is unknown whether tasks run."""

    __pydantic_config__ = with_example(
        observedAt="1652313630000",
        drift=[
            {
                "node": "worker-17",
                "blocked": False,
                "kind": "unschedulable",
                "listener": "slurm-ctl1",
                "since": "1652313600000",
                "beginObserved": True,
                "reason": "DRAIN+IDLE, not by this manager (new disk)",
            }
        ],
        unknown=[],
    )

    observed_at: Annotated[Millis | None, Doc("The time of the observation; null before the first one.")]
    drift: list[DriftBody]
    unknown: list[UnknownTasksBody]


def drift_list_body(report: DriftReport | None) -> Json:
    """The response of GET /drift."""
    if report is None:
        return {"observedAt": None, "drift": [], "unknown": []}
    return {
        "observedAt": str(report.observed_at),
        "drift": [_drift_body(drift) for drift in report.drift],
        "unknown": [{"node": each.node, "listener": each.listener} for each in report.unknown],
    }


def _drift_body(drift: Drift) -> Json:
    return {
        "node": drift.node,
        "blocked": drift.kind.blocked_here,
        "kind": drift.kind.value,
        "listener": drift.listener,
        "since": str(drift.since),
        "beginObserved": drift.begin_observed,
        "reason": drift.reason,
    }
