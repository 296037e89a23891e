"""Applications one after another on six hosts, some of which they show slow."""

from __future__ import annotations

from collections.abc import Mapping

from blocklist.detection.node_summary import Comparison, HostInApplication, Metric

HOSTS = [f"n{number}" for number in range(1, 7)]
MINUTE = 60_000
APPLICATION = 10 * MINUTE


def application(number: int, slow: Mapping[str, float], began: int | None = None) -> list[HostInApplication]:
    """The number-th of applications that begin every ten minutes and last nine, with these slowdowns."""
    first = APPLICATION * number if began is None else began
    last = first + APPLICATION - MINUTE
    return [
        HostInApplication(
            app=f"app-{number:03d}",
            host=host,
            tasks=100,
            first=first,
            last=last,
            comparisons=[
                Comparison(
                    app=f"app-{number:03d}",
                    metric=Metric.COMPUTE,
                    stages=6,
                    slow_stages=6 if host in slow else 0,
                    slowdown=slow.get(host, 1 + 0.01 * (index % 3)),
                    lost_ms=MINUTE if host in slow else 0,
                    first=first,
                    last=last,
                )
            ],
        )
        for index, host in enumerate(HOSTS)
    ]


def applications(*slow: Mapping[str, float]) -> list[HostInApplication]:
    return [each for number, own in enumerate(slow) for each in application(number, own)]
