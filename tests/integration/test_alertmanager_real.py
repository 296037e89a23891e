"""A real Prometheus and Alertmanager: retries while the service is down, and silences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from blocklist.model.claims import Role
from tests.alertmanager.monitoring import Monitoring, monitoring
from tests.integration.bodies import all_changes
from tests.integration.databases import Databases
from tests.integration.process import wait_until
from tests.integration.secured import SecuredService, secured_service
from tests.integration.test_problems import database_locked


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredService]:
    with secured_service(tmp_path_factory.mktemp("service"), databases) as service:
        yield service


@pytest.fixture
def monitored(tmp_path: Path, service: SecuredService) -> Iterator[Monitoring]:
    """Alertmanager has an operator's token."""
    with monitoring(tmp_path, service.process.url, "n1", "n2", token=service.tokens[Role.OPERATOR]) as running:
        yield running


@pytest.fixture
def client(service: SecuredService) -> Iterator[httpx.Client]:
    with service.client(service.tokens[Role.READER]) as client:
        yield client


def blocked(client: httpx.Client) -> set[str]:
    return set(client.get("/blocklist").raise_for_status().json())


@pytest.mark.long
def test_a_failed_post_is_retried(monitored: Monitoring, service: SecuredService, client: httpx.Client) -> None:
    with database_locked(service.process.database):
        monitored.bad.add("n1")
        wait_until(lambda: monitored.failed() > 0, seconds=120)
        assert blocked(client) == set()
    wait_until(lambda: blocked(client) == {"n1"}, seconds=90)


def test_a_resolved_alert_is_retried_while_the_service_is_down(
    monitored: Monitoring, service: SecuredService, client: httpx.Client
) -> None:
    monitored.bad.add("n1")
    wait_until(lambda: blocked(client) == {"n1"}, seconds=90)
    service.process.kill()
    monitored.bad.clear()
    failed = monitored.failed()
    # Twice: the first may be of the time when the alert still fired.
    wait_until(lambda: monitored.failed() > failed + 1, seconds=120)
    service.process.start()
    wait_until(lambda: blocked(client) == set(), seconds=90)
    assert [change["createdBy"] for change in all_changes(client)] == ["some-operator", "some-operator"]


def test_a_silenced_alert_is_not_posted(monitored: Monitoring, client: httpx.Client) -> None:
    monitored.bad.add("n1")
    wait_until(lambda: blocked(client) == {"n1"}, seconds=90)
    monitored.silence("n1")
    monitored.bad.clear()
    # The other one fires and resolves after it.
    monitored.bad.add("n2")
    wait_until(lambda: blocked(client) == {"n1", "n2"}, seconds=90)
    monitored.bad.clear()
    wait_until(lambda: blocked(client) == {"n1"}, seconds=90)
