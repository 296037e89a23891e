"""Rendering the metrics takes milliseconds: many requests of the same moment share one rendering."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.metrics import Metrics


class _Counting(Collector):
    def __init__(self) -> None:
        self.collected = 0
        self.value = 0

    def collect(self) -> Iterator[Metric]:
        self.collected += 1
        yield GaugeMetricFamily("counted", "A value.", self.value)


def test_requests_of_the_same_moment_share_one_rendering_of_the_metrics() -> None:
    async def run() -> list[bytes]:
        return await asyncio.gather(*(metrics.render() for _ in range(20)))

    metrics, counting = Metrics(), _Counting()
    metrics.register(counting)
    before = counting.collected
    counting.value = 7
    assert all(b"counted 7.0" in rendered for rendered in asyncio.run(run()))
    assert counting.collected == before + 1


def test_a_later_request_gets_later_metrics_even_while_others_wait() -> None:
    async def run() -> tuple[bytes, bytes]:
        first = asyncio.create_task(metrics.render())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # rendered, and not returned yet
        counting.value = 2
        return await metrics.render(), await first

    metrics, counting = Metrics(), _Counting()
    metrics.register(counting)
    counting.value = 1
    later, _ = asyncio.run(run())
    assert b"counted 2.0" in later


def test_a_request_that_is_cancelled_does_not_end_the_rendering_for_others() -> None:
    async def run() -> bytes:
        cancelled, other = (asyncio.create_task(metrics.render()) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await other

    metrics = Metrics()
    assert b"blocklist_build_info" in asyncio.run(run())
