"""An application of every kind, unchanged: what blocks, evacuations and a dead service do to its tasks."""

from __future__ import annotations

import pytest

from tests.applications.application import TASKS, Kind, Round
from tests.applications.conftest import EVACUATE, HOSTS, A, B, C, Service, StartApplication
from tests.applications.kinds import CLUSTER_MODE, JAVA, KINDS, PYSPARK
from tests.integration.process import free_port, wait_until

pytestmark = pytest.mark.timeout(600)


def kinds(*on_each_change: Kind) -> pytest.MarkDecorator:
    """A test of each kind; of these on each change, of all others in the long form."""
    parameters = [
        pytest.param(kind, id=kind.name, marks=() if kind in on_each_change else pytest.mark.long) for kind in KINDS
    ]
    return pytest.mark.parametrize("kind", parameters)


@kinds(PYSPARK, CLUSTER_MODE)
def test_it_obeys_by_configuration_alone(kind: Kind, service: Service, start: StartApplication) -> None:
    service.put(B)
    application = start(kind)
    assert application.round().hosts <= {A, C}, "blocked before the start"
    service.await_listener()
    service.unblock(B)
    application.await_use(*HOSTS)

    started = len(application.starts_on(B))
    application.begin_round(waiting_on=B)
    wait_until(lambda: len(application.starts_on(B)) > started)
    service.block(B, EVACUATE)
    result = application.result()
    assert result == Round(number=TASKS, hosts=frozenset({A, C})), "evacuated"
    service.unblock(B)
    application.await_use(*HOSTS)

    service.block(B)
    started = len(application.starts_on(B))
    assert application.round().hosts <= {A, C}, "blocked while it runs"
    service.process.kill()
    try:
        assert application.round().hosts <= {A, C}, "the last list stays in force"
        assert len(application.starts_on(B)) == started
        application.end()
    finally:
        service.process.start()


@kinds(JAVA)
def test_without_service_it_runs_as_usual(kind: Kind, start: StartApplication) -> None:
    application = start(kind, url=f"http://127.0.0.1:{free_port()}")
    assert application.round().number == TASKS
    application.await_use(*HOSTS)
    application.end()
