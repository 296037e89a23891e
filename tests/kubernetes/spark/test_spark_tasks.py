"""Spark's drivers on Kubernetes keep tasks and new pods off blocked nodes, which they know by name."""

from __future__ import annotations

from functools import partial

import pytest

from tests.applications.conftest import Service
from tests.integration.process import wait_until
from tests.kubernetes.spark.conftest import EVACUATE, Pool, StartApplication

pytestmark = pytest.mark.timeout(1800)


def test_a_life_in_client_mode(service: Service, start: StartApplication, pool: Pool) -> None:
    live(service, pool, start)


@pytest.mark.long
def test_a_life_in_cluster_mode(service: Service, start: StartApplication, pool: Pool) -> None:
    """The driver has a node of its own, so that each of the executors has one, too."""
    driver = pool.add(cpu="1100m")
    selector = "spark.kubernetes.driver.node.selector.kubernetes.io/hostname"
    live(service, pool, partial(start, cluster_mode=True, **{selector: driver}))


def live(service: Service, pool: Pool, start: StartApplication) -> None:
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
