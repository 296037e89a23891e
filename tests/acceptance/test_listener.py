"""The agent as a listener: the service reports who has applied a block, and what still runs there."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from blocklist.model.errors import LimitError
from blocklist.model.listener import Mode
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, executor_hosts, wait_until
from tests.acceptance.conftest import EVACUATE, A, B, BlockNode, C, ListenerApi, StartAgent, await_registration
from tests.acceptance.jobs import Job, await_use, used_hosts
from tests.acceptance.test_service_failures import forwarding
from tests.integration.process import ServiceProcess, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_block_that_would_leave_too_few_hosts_is_refused(
    spark: SparkSession, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    application = spark.sparkContext.applicationId
    start_agent(spark, min_nodes=2)
    wait_until(lambda: listeners.by_id().get(application, {}).get("usableNodes") == 3, 90, "the hosts")
    assert listeners.by_id()[application]["minNodes"] == 2
    service.block(A, "test")
    with pytest.raises(LimitError, match=f"Listener {application} would be left with 1 usable node and needs 2"):
        service.block(C.upper().partition(".")[0], "test")
    wait_until(lambda: listeners.by_id()[application]["usableNodes"] == 2, 90, "the block")


def test_an_agent_that_observes_says_what_it_would_do_and_one_that_is_off_frees_all_hosts(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, agent: BlocklistAgent, listeners: ListenerApi
) -> None:
    """The mode reaches the running agent; a job with all hosts in use goes on through each change."""
    application = spark.sparkContext.applicationId
    service.block(B, "test", action=EVACUATE)
    wait_until(lambda: listeners.status(B)["applied"], 90, "the block")
    for mode in (Mode.OBSERVE, Mode.OFF, Mode.OBSERVE):
        service.set_mode(application, mode)
        wait_until(lambda: listeners.status(B)["mode"] == mode.value, 90, f"the mode {mode}")  # noqa: B023
        assert (agent.status().mode, agent.status().blocked) == (mode.value, {})
        assert B in used_hosts(spark, cluster)
        body = listeners.get(f"/blocklist/nodes/{B}/status")
        assert (body["applied"], body["of"], body["listeners"][0]["applied"]) == (0, 0, False)
        if mode is Mode.OBSERVE:
            wait_until(lambda: listeners.status(B)["would"] is not None, 90, "what it would do")
            assert listeners.status(B)["would"].startswith(f"would close host {B} and kill its ")
    service.block(A, "test")
    service.block(C, "test")
    wait_until(lambda: "would refuse" in str(listeners.status(A)["would"]), 90, "the refusal")
    for node in (A, C):
        service.unblock(node)
    service.remove_mode(application)
    wait_until(lambda: listeners.status(B)["applied"], 90, "the block again")
    assert used_hosts(spark, cluster) == {A, C}


def test_an_agent_that_is_off_or_observes_from_its_start_has_never_closed_a_host(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    service.block(B, "test")
    for mode in (Mode.OFF, Mode.OBSERVE):
        service.set_mode("*", mode)
        agent = start_agent(spark)
        assert agent.status().blocked == {}
        assert B in used_hosts(spark, cluster)
        await_registration(agent)
        wait_until(lambda: listeners.status(B)["mode"] == mode.value, 90, f"the mode {mode}")  # noqa: B023
        agent.stop()
    service.remove_mode("*")


def test_the_application_is_a_job_master_until_the_agent_stops(
    spark: SparkSession,
    service: BlocklistClient,
    agent: BlocklistAgent,
    start_agent: StartAgent,
    listeners: ListenerApi,
) -> None:
    service.block(B, "test")
    application = spark.sparkContext.applicationId
    wait_until(lambda: listeners.by_id()[application]["ackedRevision"] == service.snapshot().revision, 90, "the ack")
    assert agent.status().registered
    listener = listeners.by_id()[application]
    assert (listener["role"], listener["state"], listener["callbackUrl"]) == ("JOB_MASTER", "live", None)
    session = listener["sessionId"]
    assert re.fullmatch(r"0-[0-9]{13}", session)
    wait_until(lambda: bool(listeners.task_managers(B)), 90, "the executors")
    agent.stop()
    assert not agent.status().registered
    assert (listeners.by_id(), listeners.task_managers(B)) == ({}, [])
    await_registration(start_agent(spark))
    assert session < listeners.by_id()[application]["sessionId"]


def test_an_agent_that_stops_during_a_slow_heartbeat_deregisters(
    spark: SparkSession, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    """The heartbeat outlasts `stop`; the agent deregisters behind it, even so."""
    held, free = threading.Event(), threading.Event()

    def hold(data: bytes) -> None:
        if b"/heartbeat" in data and service.snapshot().nodes:
            held.set()
            free.wait(30)

    with forwarding(port := free_port(), service.url, on_data=hold):
        agent = start_agent(spark, url=f"http://127.0.0.1:{port}")
        await_registration(agent)
        service.block(B, "test")
        assert held.wait(30)
        agent.stop()
        assert spark.sparkContext.applicationId in listeners.by_id()
        free.set()
        wait_until(lambda: not listeners.by_id(), 90, "the end of the registration")


def test_an_agent_deregisters_although_its_heartbeats_fail(
    spark: SparkSession, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    failed = threading.Event()

    def fail(data: bytes) -> None:
        if b"/heartbeat" in data:
            failed.set()
            raise ConnectionError

    with forwarding(port := free_port(), service.url, on_data=fail):
        agent = start_agent(spark, url=f"http://127.0.0.1:{port}")
        assert failed.wait(30)
        wait_until(lambda: not agent.status().registered, 90, "the failure to be noticed")
        agent.stop()
        wait_until(lambda: not listeners.by_id(), 90, "the end of the registration")


def test_a_blocked_node_shows_the_executors_on_it(
    spark: SparkSession, block: BlockNode, listeners: ListenerApi, cluster: Cluster
) -> None:
    """Listed under the blocked id, which may differ from the host's name, until they end."""
    block("Worker-C")
    block(B)
    wait_until(
        lambda: len(listeners.task_managers("Worker-C")) == len(listeners.task_managers(B)) == 1,
        90,
        "the executors",
    )
    (executor,) = listeners.task_managers("Worker-C")
    assert re.fullmatch(rf"{spark.sparkContext.applicationId}:[0-9]+", executor)
    where = listeners.get(f"/taskmanagers/{executor}")
    assert (where["nodeId"], where["blocked"], where["blockedNode"]["id"]) == ("Worker-C", True, "Worker-C")
    cluster.kill_worker(C)
    try:
        wait_until(lambda: listeners.task_managers("Worker-C") == [], 90, "the executor to be gone")
    finally:
        cluster.start_worker(C)
    wait_until(lambda: listeners.task_managers("Worker-C") not in ([], [executor]), 60, "the next executor")
    wait_until(lambda: executor_hosts(spark) == {A, B, C}, 60, "all hosts")


def test_the_status_shows_that_a_block_is_applied_and_what_still_runs(
    spark: SparkSession, cluster: Cluster, block: BlockNode, listeners: ListenerApi
) -> None:
    job = Job(spark, cluster, 6, hold_on=[B])
    job.await_running(B)
    block(B)
    wait_until(lambda: listeners.status(B)["applied"] and any(listeners.running(B)), 90, "status")
    status = listeners.status(B)
    assert (status["id"], status["refused"]) == (spark.sparkContext.applicationId, None)
    assert status["lateMs"] is not None
    assert int(status["appliedAt"]) >= int(listeners.get(f"/blocklist/nodes/{B}/status")["at"])
    wait_until(lambda: listeners.running(B) == [job.running_on(B)], 90, "the tasks that run there")
    job.release()
    job.hosts()
    wait_until(lambda: listeners.running(B) == [0], 90, "nothing to run there")


def test_evacuated_tasks_restart_on_other_hosts_and_none_runs_there(
    spark: SparkSession, cluster: Cluster, block: BlockNode, listeners: ListenerApi
) -> None:
    """The executor stays: its shuffle files may still be needed."""
    executors = executor_ids(spark)
    job = Job(spark, cluster, 6, hold_on=[B])
    job.await_running(B)
    block(B, EVACUATE)
    wait_until(lambda: listeners.status(B)["applied"] and listeners.running(B) == [0], 60, "the tasks to leave")
    assert B not in job.hosts()
    assert executor_hosts(spark) == {A, B, C}
    assert executor_ids(spark) == executors


def test_what_a_lost_executor_ran_is_unknown_because_its_processes_may_still_write(
    spark: SparkSession, cluster: Cluster, block: BlockNode, service: BlocklistClient, listeners: ListenerApi
) -> None:
    job = Job(spark, cluster, 6, hold_on=[B])
    job.await_running(B)
    block(B)
    wait_until(lambda: any(listeners.running(B)), 90, "the running tasks")
    cluster.kill_worker(B)
    try:
        wait_until(lambda: listeners.running(B) == [None], 60, "unknown tasks")
        # The host has no executor now.
        service.block(B, "test", action=EVACUATE, allow_merge=True)
        wait_until(lambda: bool(listeners.status(B)["refused"]), 90, "the refusal")
        assert not listeners.status(B)["applied"]
        reason = listeners.status(B)["refused"]
        assert re.search(rf"^Unknown since .* on host {B} was lost with \d+ running tasks, .* may still write", reason)
    finally:
        cluster.start_worker(B)
        job.release()
    assert B not in job.hosts()
    wait_until(lambda: executor_hosts(spark) == {A, B, C}, 60, "all hosts")


def test_what_a_lost_executor_ran_is_unknown_even_if_it_began_while_the_service_hung(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    """Reports are prepared one at a time: what has come and gone during a slow heartbeat is in none of them."""
    held, free = threading.Event(), threading.Event()

    def hold(data: bytes) -> None:
        if b"/heartbeat" in data and service.snapshot().nodes and not free.is_set():
            held.set()
            free.wait(120)

    with forwarding(port := free_port(), service.url, on_data=hold):
        agent = start_agent(spark, url=f"http://127.0.0.1:{port}")
        await_registration(agent)
        service.block("other-node", "test")
        assert held.wait(30)
        await_use(spark, cluster, B)
        job = Job(spark, cluster, 6, hold_on=[B])
        job.await_running(B)
        cluster.kill_worker(B)
        try:
            wait_until(lambda: executor_hosts(spark) == {A, C}, 60, "the loss")
            service.block(B, "test", action=EVACUATE)
            free.set()
            wait_until(lambda: bool(listeners.status(B)["refused"]), 60, "the refusal")
            assert "was lost with" in listeners.status(B)["refused"]
            assert not listeners.status(B)["applied"]
        finally:
            free.set()
            cluster.start_worker(B)
            job.release()
        job.hosts()
        wait_until(lambda: executor_hosts(spark) == {A, B, C}, 60, "all hosts")


def test_with_all_hosts_blocked_the_weakest_block_is_refused_with_a_reason(
    spark: SparkSession, cluster: Cluster, block: BlockNode, agent: BlocklistAgent, listeners: ListenerApi
) -> None:
    for node_id in (A, C):
        block(node_id, EVACUATE)
    block(B, refused=True)
    # Of a host that has just joined, it is first that it will be opened.
    wait_until(lambda: "stays open" in (listeners.status(B)["refused"] or ""), 90, "the refusal")
    sentence = (
        f"Host {B} stays open although {B} is blocked (test): the job must keep a host with a live executor, and this"
        " is the weakest block."
    )
    assert listeners.status(B)["refused"] == sentence
    assert (agent.status().blocked, agent.status().refused) == ({A: A, C: C}, {B: sentence})
    assert used_hosts(spark, cluster) == {B}
    assert not listeners.status(B)["applied"]
    assert len(listeners.task_managers(B)) == 1
    assert listeners.status(A)["refused"] is None


def test_a_canary_claim_counts_as_applied_and_a_mark_closes_its_canary(
    spark: SparkSession, cluster: Cluster, agent: BlocklistAgent, listeners: ListenerApi
) -> None:
    """The host's only executor is the canary. Of several, tests/applications shows which."""
    body = {"action": "MARK_BLOCKED", "cause": "test"}
    path, wait = f"/blocklist/nodes/{B}", {"Prefer": "wait=30"}
    answer = listeners.http.put(f"{path}/claims/detection", json={**body, "canary": True}, headers=wait)
    assert answer.headers["Blocklist-Applied"] == "1/1"
    assert listeners.status(B)["refused"] is None
    assert used_hosts(spark, cluster) == {A, B, C}
    answer = listeners.http.put(path, json={**body, "allowMerge": True}, headers=wait)
    assert answer.headers["Blocklist-Applied"] == "1/1"
    assert used_hosts(spark, cluster) == {A, C}
    assert listeners.http.delete(path, headers=wait).headers["Blocklist-Applied"] == "1/1"
    await_use(spark, cluster, B)


def test_a_restarted_service_receives_all_reports_again(
    block: BlockNode, listeners: ListenerApi, service_process: ServiceProcess
) -> None:
    block(B)
    wait_until(lambda: len(listeners.task_managers(B)) == 1, 90, "the executors")
    service_process.kill()
    service_process.start()
    wait_until(
        lambda: listeners.status(B)["applied"] and len(listeners.task_managers(B)) == 1,
        60,
        "the executors again",
    )


def test_a_service_without_listeners_does_no_harm(
    spark: SparkSession, cluster: Cluster, service: BlocklistClient, start_agent: StartAgent, listeners: ListenerApi
) -> None:
    port = free_port()
    with forwarding(port, service.url, refuse=b"/listeners"):
        agent = start_agent(spark, url=f"http://127.0.0.1:{port}")
        service.block(B, "test")
        wait_until(lambda: agent.status().blocked == {B: B}, 90, "the block")
        assert used_hosts(spark, cluster) == {A, C}
        status = agent.status()
        assert (status.running, status.connected, status.registered, status.last_error) == (True, True, False, None)
        assert listeners.by_id() == {}
        agent.stop()


def executor_ids(spark: SparkSession) -> set[str]:
    backend = spark.sparkContext._jsc.sc().schedulerBackend()
    return set(str(backend.getExecutorIds().mkString(",")).split(","))
