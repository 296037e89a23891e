"""An internal error of the agent harms no job, is reported, and heals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import A, B, BlockNode, C, ListenerApi, StartAgent, await_registration
from tests.acceptance.jobs import used_hosts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_tracker_that_is_replaced_comes_back(
    spark: SparkSession, cluster: Cluster, block: BlockNode, agent: BlocklistAgent
) -> None:
    block(B)
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    set_field(spark, scheduler, "healthTrackerOpt", spark.sparkContext._jvm.scala.Option.empty())  # type: ignore[union-attr]
    wait_until(lambda: scheduler.healthTrackerOpt().isDefined(), 90, "the tracker")
    wait_until(lambda: agent.status().blocked == {B: B}, 90, "the block")
    assert used_hosts(spark, cluster) == {A, C}


def test_an_internal_error_withdraws_the_acknowledgement_until_the_agent_works_again(
    spark: SparkSession,
    cluster: Cluster,
    block: BlockNode,
    service: BlocklistClient,
    agent: BlocklistAgent,
    listeners: ListenerApi,
) -> None:
    await_registration(agent)
    block(B)
    wait_until(lambda: bool(listeners.status(B)["applied"]), 90, "the acknowledgement")
    exclusions = field(spark, control(spark), "exclusions")
    canaries = field(spark, exclusions, "canaries")
    set_field(spark, exclusions, "canaries", None)
    try:
        wait_until(lambda: listeners.status(B)["refused"] is not None, 90, "the withdrawal")
        assert not listeners.status(B)["applied"]
        assert listeners.status(B)["refused"].startswith("The agent failed and tries again: ")
        assert agent.status().last_error is not None
        assert (agent.status().revision, agent.status().blocked) == (None, {})
        # Spark's own tracker, which is none, is in place, and no host is blocked.
        assert not spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().isDefined()
        assert used_hosts(spark, cluster) == {A, B, C}
        # Nothing that comes meanwhile is acknowledged.
        service.block(A, "test")
        wait_until(lambda: listeners.status(A)["refused"] is not None, 90, "the refusal")
        assert not listeners.status(A)["applied"]
    finally:
        set_field(spark, exclusions, "canaries", canaries)
    wait_until(lambda: bool(listeners.status(B)["applied"] and listeners.status(A)["applied"]), 60, "the recovery")
    assert agent.status().blocked == {A: A, B: B}
    assert used_hosts(spark, cluster) == {C}


def test_an_unknown_scheduler_is_reported_and_nothing_is_acknowledged(
    spark: SparkSession,
    service: BlocklistClient,
    listeners: ListenerApi,
    start_agent: StartAgent,
) -> None:
    """Of a platform with a Spark of its own: here, no scheduler is known."""
    start_agent(spark).stop()
    schedulers = static_field(spark, "BlocklistAgent", "SCHEDULERS")
    known = list(schedulers)
    try:
        for index in range(len(known)):
            schedulers[index] = "none"
        agent = start_agent(spark)
        await_registration(agent)
        service.block(B, "test")
        wait_until(
            lambda: B in listeners.get("/blocklist") and listeners.status(B)["refused"] is not None, 90, "the refusal"
        )
        scheduler = "org.apache.spark.scheduler.TaskSchedulerImpl"
        assert listeners.status(B)["refused"] == f"The agent does not know the task scheduler {scheduler}."
        assert not listeners.status(B)["applied"]
        assert agent.status().blocked == {}
    finally:
        for index, name in enumerate(known):
            schedulers[index] = name


def control(spark: SparkSession) -> Any:
    tracker = spark.sparkContext._jsc.sc().taskScheduler().healthTrackerOpt().get()
    return field(spark, tracker.agent(), "control")


def field(spark: SparkSession, target: Any, name: str) -> Any:
    return accessible(spark, target.getClass(), name).get(target)


def set_field(spark: SparkSession, target: Any, name: str, value: Any) -> None:
    accessible(spark, target.getClass(), name).set(target, value)


def static_field(spark: SparkSession, kind: str, name: str) -> Any:
    from blocklist.spark.agent import _constructors

    loader = _constructors[spark.sparkContext._gateway].getDeclaringClass().getClassLoader()
    return accessible(spark, loader.loadClass(f"blocklist.spark.{kind}"), name).get(None)


def accessible(spark: SparkSession, kind: Any, name: str) -> Any:
    found = kind.getDeclaredField(name)
    found.setAccessible(True)
    return found
