"""Spark's drivers on Kubernetes keep tasks and new pods off blocked nodes, which they know by name."""

from __future__ import annotations

import pytest

from tests.applications.conftest import Service
from tests.integration.process import wait_until
from tests.kubernetes.spark.conftest import EVACUATE, Pool, StartApplication

pytestmark = pytest.mark.timeout(1800)


def test_a_life_in_client_mode(service: Service, start: StartApplication, pool: Pool) -> None:
    """Block, unblock and evacuate a node of an application with an executor on each of three."""
    a, b, c = (pool.add(cpu="2") for _ in range(3))
    application = start()
    application.await_use(a, b, c)
    service.await_listener()
    service.block(b)
    begun = len(application.starts_on(pool.networks[b]))
    assert application.round().hosts == {a, c}
    assert len(application.starts_on(pool.networks[b])) == begun
    service.unblock(b)
    application.await_use(b)
    application.begin_round(waiting_on=b)
    wait_until(lambda: len(application.starts_on(pool.networks[b])) > begun, seconds=120)
    service.block(b, EVACUATE)
    assert application.result().hosts == {a, c}
    application.end()
    wait_until(lambda: not service.listeners())
