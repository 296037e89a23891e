"""New executors' pods keep off blocked nodes, and an application gets its pods whatever happens to the template."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.applications.application import JAR, LISTENER
from tests.applications.conftest import Service
from tests.integration.manager_process import SoonReportingManager
from tests.integration.process import ServiceProcess, wait_until
from tests.kubernetes.cluster import Cluster, Json
from tests.kubernetes.manager import manager_process
from tests.kubernetes.pods import make_pod, pod_phase
from tests.kubernetes.spark.application import ROLE, Application, Spark, template
from tests.kubernetes.spark.conftest import EVACUATE, Pool, StartApplication
from tests.spark_versions import spark_with_jar

pytestmark = pytest.mark.timeout(1800)

_DYNAMIC: Final = {
    "spark__dynamicAllocation__enabled": "true",
    "spark__dynamicAllocation__shuffleTracking__enabled": "true",
    "spark__dynamicAllocation__minExecutors": "0",
    "spark__dynamicAllocation__maxExecutors": "3",
    "spark__dynamicAllocation__executorIdleTimeout": "2s",
    "spark__dynamicAllocation__schedulerBacklogTimeout": "1s",
}


def required(pod: Json) -> list[Json]:
    """The terms that the pod requires of its node."""
    node = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms: list[Json] = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return terms


def test_in_cluster_mode_dynamic_allocation_avoids_a_node_that_was_blocked_before_the_start(
    service: Service,
    service_process: ServiceProcess,
    start: StartApplication,
    pool: Pool,
    spark: Spark,
    cluster: Cluster,
    tmp_path: Path,
) -> None:
    """Also while the service is away. The jar is in the driver's image alone, and no line for it.

    The manager knows the driver's pod.
    """
    a, b, c = (pool.add(cpu="3") for _ in range(3))
    service.put(b)
    with_jar = spark_with_jar(spark.home, JAR, tmp_path / "spark")
    application = start(cluster_mode=True, driver_home=with_jar, spark__driver__extraClassPath=None, **_DYNAMIC)
    assert application.round().hosts <= {a, c}
    service.await_listener()
    assert not application.starts_on(pool.networks[b])
    # All executors are idle and are removed; later ones come anew.
    wait_until(lambda: not application.executors(), seconds=180)
    service.unblock(b)
    service.block(a)
    service.block(c)
    assert application.round().hosts == {b}
    assert {*application.nodes()} <= {b}
    service_process.kill()
    try:
        wait_until(lambda: not application.executors(), seconds=180)
        assert application.round().hosts == {b}, "the last list stays in force"
        assert {*application.nodes()} <= {b}
    finally:
        service_process.start()
    wait_until(lambda: service.is_applied(a) and service.is_applied(c), seconds=180)
    shows_jobs(application, service, service_process, cluster, tmp_path)


def shows_jobs(
    application: Application, service: Service, process: ServiceProcess, cluster: Cluster, folder: Path
) -> None:
    """The manager reports drivers' pods while they run; one without an agent is a job that does not obey."""
    namespace = application.namespace
    with cluster.api() as api:
        [driver] = application.drivers()
        labels = {"spark-role": "driver", "spark-app-selector": "spark-none", "spark-app-name": "none"}
        make_pod(api, namespace, "none", "sleep", "600", labels=labels)
        wait_until(lambda: pod_phase(api, namespace, "none") == "Running", seconds=120)
        own = f"{driver['metadata']['labels']['spark-app-name']}, pod {namespace}/{driver['metadata']['name']}"
        with manager_process(folder, cluster, process, kind=SoonReportingManager):
            other = f"none, pod {namespace}/none"
            wait_until(lambda: service.agents() == {other: "none", own: "live"}, seconds=120)
            api.delete(f"/api/v1/namespaces/{namespace}/pods/none").raise_for_status()
            application.end()
            wait_until(lambda: not service.agents(), seconds=120)


def test_in_client_mode_a_lost_executor_comes_back_elsewhere_with_the_users_template(
    service: Service, start: StartApplication, pool: Pool, cluster: Cluster, tmp_path: Path
) -> None:
    """Block, unblock and evacuate a node of an application with an executor on each of three.

    Then its executor is lost. Each of the user's alternatives excludes the node; the rest stays. Pods that wait are
    replaced.
    """
    a, b, c = (pool.add(cpu="1100m") for _ in range(3))
    alternatives: list[Json] = [
        {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]},
        {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
    ]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": alternatives}}}
    users = template(tmp_path, {"metadata": {"labels": {"team": "red"}}, "spec": {"affinity": affinity}})
    application = start(spark__kubernetes__executor__podTemplateFile=users)
    application.await_use(a, b, c)
    service.await_listener()
    service.block(b)
    begun = len(application.starts_on(pool.networks[b]))
    assert application.round().hosts == {a, c}
    assert len(application.starts_on(pool.networks[b])) == begun
    service.unblock(b)
    application.await_use(b)
    begun = len(application.starts_on(pool.networks[b]))
    application.begin_round(waiting_on=b)
    wait_until(lambda: len(application.starts_on(pool.networks[b])) > begun, seconds=120)
    service.block(b, EVACUATE)
    assert application.result().hosts == {a, c}
    [lost] = [pod["metadata"]["name"] for pod in application.executors() if pod["spec"]["nodeName"] == b]
    with cluster.api() as api:
        api.delete(f"/api/v1/namespaces/{application.namespace}/pods/{lost}").raise_for_status()
    # The nodes have room for one executor each, so the next one waits.
    wait_until(lambda: len(application.pending()) == 1, seconds=120)
    [waiting] = application.pending()
    assert waiting["metadata"]["labels"]["team"] == "red"
    excluding = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [b]}
    assert [term["matchExpressions"] for term in required(waiting)] == [
        [*alternative["matchExpressions"], excluding] for alternative in alternatives
    ]
    assert application.round().hosts == {a, c}
    # Blocked, too: the pod that waits does not keep off it yet.
    service.block(c)
    assert all(c in str(required(pod)) for pod in application.pending())
    service.unblock(b)
    wait_until(lambda: application.nodes() == [a, b, c], seconds=180)
    application.await_use(b)
    assert application.round().hosts <= {a, b}
    application.end()
    wait_until(lambda: not service.listeners())


def test_pods_come_although_all_nodes_are_blocked(service: Service, start: StartApplication, pool: Pool) -> None:
    a, b = pool.add(cpu="3"), pool.add(cpu="3")
    service.put(a, action=EVACUATE)
    service.put(b)
    by_listener = {"spark__plugins__defaultList": None, "spark__extraListeners": LISTENER}
    application = start(spark__executor__instances=2, **by_listener)

    def open_node() -> str:
        """The node of the weakest block. Spark makes the first pods before it loads the agent: both may be on one."""
        return b if b in application.nodes() else a

    # An executor that takes tasks before the other one keeps its node open until then.
    wait_until(lambda: application.round().hosts == {open_node()}, seconds=180)
    wait_until(lambda: service.refused(open_node()) != "")
    service.unblock(a)
    application.end()


@pytest.mark.long
def test_without_the_right_to_delete_pods_a_waiting_one_is_refused(
    service: Service, start: StartApplication, pool: Pool, cluster: Cluster, namespace: str
) -> None:
    rules = [{**rule, "verbs": [verb for verb in rule["verbs"] if not verb.startswith("delete")]} for rule in ROLE]
    token = cluster.make_service_account(namespace, "careful", rules)
    a, b = pool.add(cpu="1100m"), pool.add(cpu="1100m")
    application = start(token=token)
    application.await_use(a, b)
    service.await_listener()
    wait_until(lambda: len(application.pending()) == 1, seconds=120)
    service.put(b)
    wait_until(lambda: "cannot be deleted" in service.refused(b))
    assert application.round().hosts == {a}
    application.end()


@pytest.mark.long
def test_while_the_users_template_cannot_be_read_blocks_are_refused_for_new_pods(
    service: Service, start: StartApplication, pool: Pool, tmp_path: Path
) -> None:
    """Tasks keep off the node; once the template is readable again, new pods do, too."""
    a, b = pool.add(cpu="3"), pool.add(cpu="3")
    users = template(tmp_path, {"spec": {}})
    application = start(spark__kubernetes__executor__podTemplateFile=users, spark__executor__instances=4)
    application.await_use(a, b)
    service.await_listener()
    readable = users.read_text()
    users.write_text("kind: [")
    service.put(b)
    wait_until(lambda: "cannot be read" in service.refused(b), seconds=120)
    assert application.round().hosts == {a}
    users.write_text(readable)
    wait_until(lambda: service.is_applied(b), seconds=120)
    application.end()


@pytest.mark.long
def test_blocks_are_refused_for_new_pods_of_a_stateful_set(
    service: Service, start: StartApplication, pool: Pool, cluster: Cluster, namespace: str
) -> None:
    """The agent does not know how such pods are made; tasks keep off the node. Spark needs cluster mode for them."""
    stateful_sets = {
        "apiGroups": ["apps"],
        "resources": ["statefulsets"],
        "verbs": ["create", "get", "patch", "delete"],
    }
    token = cluster.make_service_account(namespace, "stateful", [*ROLE, stateful_sets])
    driver, a, b = (pool.add(cpu="1100m") for _ in range(3))
    settings = {
        "spark.kubernetes.allocation.pods.allocator": "statefulset",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "stateful",
        "spark.kubernetes.driver.node.selector.kubernetes.io/hostname": driver,
        "spark.executor.instances": 2,
    }
    application = start(cluster_mode=True, token=token, **settings)
    application.await_use(a, b)
    service.await_listener()
    service.put(b)
    wait_until(lambda: "does not know how" in service.refused(b), seconds=120)
    assert application.round().hosts == {a}
    application.end()
