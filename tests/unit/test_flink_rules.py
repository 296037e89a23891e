"""The rules of the bridge to Flink: leases, effects, acknowledgements, guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from blocklist.flink.effects import (
    IN_FORCE,
    Acknowledged,
    Effect,
    EffectState,
    Observation,
    acknowledged,
    decide,
    job_master_effects,
    pending,
    refused,
    resource_manager_effects,
    slow,
    with_unknown_jobs,
)
from blocklist.flink.guards import UNLIMITED, GuardContext, hindrance, job_evidence, kept_slots, restarts_left
from blocklist.flink.listeners import job_listener_id
from blocklist.flink.marking import MAX_LEASE, Clocks, LeaderClock, NodeLease, is_due, node_leases
from blocklist.flink.node_names import FlinkNodeIds
from blocklist.flink.rpc import missing_ssl
from blocklist.flink.state import (
    LINES_TO_ADD,
    MAX_FAILURES,
    OWN_REASON,
    ClusterState,
    FlinkEdge,
    FlinkError,
    FlinkJob,
    FlinkTask,
    FlinkTaskManager,
    JobFailure,
    JobKind,
    check_configuration,
    duration_seconds,
    parse_configuration,
)
from blocklist.model.evidence import FindingKind
from blocklist.model.listener import MAX_REASON_LENGTH
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

NOW = 1_000_000
SSL = {"security.ssl.internal.enabled": "true"} | {
    f"security.ssl.internal.{name}": __file__
    for name in ("keystore", "truststore", "keystore-password", "key-password", "truststore-password")
}
JOB = "ab12"


def _node(node_id: str, end: int = PERMANENT) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=NOW, end=end, cause="disk")


def _task_manager(name: str, host: str, *, blocked: bool = False, free: int = 0) -> FlinkTaskManager:
    return FlinkTaskManager(id=name, host=host, slots=2, free_slots=free, blocked=blocked)


def _task(
    task_manager: str, state: str = "RUNNING", *, attempt: int = 0, stage: int = 0, node: str = "n1"
) -> FlinkTask:
    slot = f"slot-{task_manager}"
    return FlinkTask(
        name="t", stage=stage, state=state, attempt=attempt, task_manager=task_manager, node=node, allocation=slot
    )


def _job(*tasks: FlinkTask, state: str = "RUNNING", checkpoints: bool = True, strategy: str = "") -> FlinkJob:
    return FlinkJob(
        id=JOB,
        name="count",
        state=state,
        kind=JobKind.STREAMING,
        tasks=tasks,
        checkpoints=checkpoints,
        restart_strategy=strategy,
    )


# Leases.


def test_a_lease_ends_with_the_block_at_the_latest() -> None:
    notified = node_leases({"n1": _node("n1"), "n2": _node("n2", NOW + 5)}, {"n1": {"n1.example.com"}}, NOW)
    assert {(it.node, it.end) for it in notified} == {
        ("n1", NOW + MAX_LEASE),
        ("n1.example.com", NOW + MAX_LEASE),
        ("n2", NOW + 5),
    }


def test_of_two_blocks_of_one_machine_the_later_end_is_told() -> None:
    blocked = {"n1": _node("n1", NOW + 5), "n1.example.com": _node("n1.example.com", NOW + 9)}
    notified = node_leases(blocked, {"n1": {"n1.example.com"}, "n1.example.com": {"n1.example.com"}}, NOW)
    assert {it.node: it.end for it in notified}["n1.example.com"] == NOW + 9


@pytest.mark.parametrize(
    ("notified", "now", "due"),
    [({}, 0, True), ({"n": 30_000}, 4_999, False), ({"n": 30_000}, 5_001, True), ({"n": 99_000}, 60_000, False)],
)
def test_a_lease_is_renewed_when_a_sixth_of_it_has_passed(notified: Mapping[str, int], now: int, due: bool) -> None:
    assert is_due(node_leases({"n": _node("n", 99_000)}, {}, now), notified, now) is due


def test_a_lease_is_by_the_jobmanager_s_clock_and_ends_with_the_block_by_the_service_s() -> None:
    blocked = {"n1": _node("n1"), "n2": _node("n2", NOW + 7_000)}
    leases = node_leases(blocked, {}, NOW, clocks=Clocks(service=6_000, leader=20_000))
    assert {it.node: it.end for it in leases} == {"n1": NOW + MAX_LEASE + 20_000, "n2": NOW + 1_000 + 20_000}


@pytest.mark.parametrize(("heartbeat", "ahead"), [(0, 0), (NOW - 9_000, 0), (NOW + 400, 0), (NOW + 20_000, 20_000)])
def test_the_jobmanager_s_clock_shows_at_least_the_time_of_a_heartbeat(heartbeat: int, ahead: int) -> None:
    clock = LeaderClock()
    clock.observe([heartbeat], NOW, 0.0)
    assert clock.ahead() == ahead


def test_the_jobmanager_s_clock_is_known_between_heartbeats_and_forgotten_after_a_window() -> None:
    clock = LeaderClock()
    for second in range(10):
        clock.observe([NOW + 20_000], NOW + second * 1_000, float(second))
    assert clock.ahead() == 20_000
    clock.observe([], NOW + 70_000, 70.0)
    assert clock.ahead() == 0


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, None),
        (SSL, None),
        ({"security.ssl.internal.enabled": "true"}, "security.ssl.internal.keystore, "),
        (SSL | {"security.ssl.internal.key-password": ""}, "security.ssl.internal.key-password is not set"),
        (SSL | {"security.ssl.internal.truststore": "/gone"}, "/gone cannot be read by this user"),
        ({name.replace("internal.keystore", "keystore"): value for name, value in SSL.items()}, None),
    ],
)
def test_tls_needs_all_of_its_settings(settings: Mapping[str, str], missing: str | None) -> None:
    found = missing_ssl(settings)
    assert (found is None) if missing is None else missing in str(found)


def test_a_block_that_is_extended_shortly_before_its_end_is_told_at_once() -> None:
    assert is_due([NodeLease("n", "x", 5_000)], {"n": 2_000}, 1_900)


# Acknowledging.


@pytest.mark.parametrize(
    ("effects", "before", "acknowledges", "waiting"),
    [
        ({"a": IN_FORCE}, Acknowledged(), True, {}),
        ({"a": pending("wait")}, Acknowledged(), False, {"a": "wait"}),
        # What is slow alone is waited for; with another change that is complete, the list is acknowledged without it.
        ({"a": slow("soon")}, Acknowledged(), False, {"a": "soon"}),
        ({"a": IN_FORCE, "b": slow("soon")}, Acknowledged(), True, {"b": "soon"}),
        ({"a": IN_FORCE, "b": slow("soon")}, Acknowledged(blocked={"a": _node("a")}), False, {"b": "soon"}),
        # Nothing is acknowledged while a block may be confirmed at any moment.
        (
            {"a": IN_FORCE, "b": pending("wait"), "c": slow("soon")},
            Acknowledged(),
            False,
            {"b": "wait", "c": "soon"},
        ),
        # What is no longer in force is withdrawn at once.
        ({"a": pending("gone")}, Acknowledged(blocked={"a": _node("a")}), False, {"a": "gone"}),
        # So is what was acknowledged as pending, until it is in force; and the end of a block that was.
        ({"a": slow("soon")}, Acknowledged(unsettled=frozenset("a")), False, {"a": "soon"}),
    ],
)
def test_what_is_acknowledged(
    effects: Mapping[str, Effect], before: Acknowledged, acknowledges: bool, waiting: Mapping[str, str]
) -> None:
    refusing = {**effects, "r": refused("no")}
    before = replace(before, blocked={**before.blocked, "r": _node("r")})
    decision = decide({node_id: _node(node_id) for node_id in refusing}, refusing, before)
    assert (decision.acknowledge, decision.refused, decision.pending) == (acknowledges, {"r": "no"}, waiting)


def test_the_end_of_a_block_is_acknowledged_when_flink_has_forgotten_it() -> None:
    before = acknowledged({"a": _node("a")}, {"a": IN_FORCE})
    assert not decide({}, {"a": slow("lease")}, before).acknowledge
    assert decide({}, {}, before).acknowledge


# Effects.


def _observation(state: ClusterState, **changes: object) -> Observation:
    found = Observation(
        state=state,
        error=None,
        enabled=True,
        age={"n1": 1.0},
        task_managers={"n1": frozenset({"tm-1"})},
        nameless=frozenset(),
        lingering={},
        end_after=45.0,
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def _state(*task_managers: FlinkTaskManager, jobs: Sequence[FlinkJob] = (), notified: bool = True) -> ClusterState:
    return ClusterState(
        task_managers={it.id: it for it in task_managers},
        jobs={job.id: job for job in jobs},
        notified=frozenset(job.id for job in jobs if notified),
    )


def test_a_block_is_in_force_when_flink_reports_each_task_manager_there_as_blocked() -> None:
    closed, open_one = _task_manager("tm-1", "n1", blocked=True), _task_manager("tm-2", "n1")
    both = {"n1": frozenset({"tm-1", "tm-2"})}
    assert resource_manager_effects(_observation(_state(closed)))["n1"] is IN_FORCE
    missing = _observation(_state(closed, open_one), task_managers=both)
    assert resource_manager_effects(missing)["n1"] == pending("Flink does not report tm-2 on this node as blocked.")
    late = replace(missing, age={"n1": 11.0})
    assert resource_manager_effects(late)["n1"] == slow("Flink does not report tm-2 on this node as blocked.")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<html>busy</html>",
        "[]",
        "{}",
        "null",
        '[{"key": "a"}]',
        "[null]",
        '[{"key": "a", "value": null}]',
        '[{"key":',
    ],
)
def test_an_odd_answer_is_no_configuration(answer: str) -> None:
    with pytest.raises(FlinkError, match="The JobManager's configuration"):
        parse_configuration(answer)
    assert parse_configuration('[{"key": "a", "value": true}, {"key": "b", "value": "15 s"}]') == {
        "a": "True",
        "b": "15 s",
    }


def test_without_speculative_execution_each_block_is_refused_with_all_lines_to_add() -> None:
    check = check_configuration({"execution.batch.speculative.enabled": "false"})
    state = _state(_task_manager("tm-1", "n1", blocked=True))
    effect = resource_manager_effects(_observation(state, error=check.error))["n1"]
    assert all(line in effect.reason for line in LINES_TO_ADD)
    assert len(effect.reason) <= MAX_REASON_LENGTH


@pytest.mark.parametrize("gone", [frozenset[str](), frozenset({"tm-1"})])
def test_a_node_without_registered_task_managers_needs_a_cluster_that_is_known_to_obey(gone: frozenset[str]) -> None:
    empty = _observation(_state(), task_managers={"n1": gone})
    assert resource_manager_effects(empty)["n1"] is IN_FORCE
    assert resource_manager_effects(replace(empty, enabled=False))["n1"] == pending(
        "It is not known yet whether the cluster's configuration lets Flink obey."
    )


def test_a_node_is_not_evacuated_while_a_job_without_a_listener_may_run_there() -> None:
    effects = {"n1": IN_FORCE, "n2": IN_FORCE, "n3": pending("wait")}
    found = with_unknown_jobs(effects, {"n1", "n3"}, ["ab12", "cd34"])
    reason = "The JobMaster of job ab12 does not answer: it is not known whether its tasks run there."
    assert found == {"n1": slow(reason), "n2": IN_FORCE, "n3": pending("wait")}
    assert with_unknown_jobs(effects, {"n1"}, []) == effects


def test_a_job_acknowledges_once_no_task_waits_in_a_slot_on_the_node() -> None:
    job = _job(_task("tm-1", "SCHEDULED"), _task("tm-1", "RUNNING"))
    observation = _observation(_state(_task_manager("tm-1", "n1", blocked=True), jobs=[job]))
    at_manager = resource_manager_effects(observation)
    assert job_master_effects(job, observation, at_manager)["n1"] == slow(
        "1 task of the job got slots on this node before, and will start there."
    )
    running = _job(_task("tm-1", "RUNNING"))
    assert job_master_effects(running, observation, at_manager)["n1"] is IN_FORCE
    untold = _observation(_state(_task_manager("tm-1", "n1", blocked=True), jobs=[running], notified=False))
    assert job_master_effects(running, untold, at_manager)["n1"] == pending("The JobMaster has not been notified yet.")


def _regions_job(*edges: FlinkEdge, parallelism: Mapping[str, int]) -> FlinkJob:
    """A streaming job; the subtasks with the same number share a slot of TaskManager tm-1."""
    tasks = [
        replace(_task("tm-1"), vertex=vertex, subtask=number, allocation=f"slot-{number}")
        for vertex, count in parallelism.items()
        for number in range(count)
    ]
    return replace(_job(*tasks), edges=edges)


@pytest.mark.parametrize(
    ("edges", "parallelism", "kept"),
    [
        pytest.param([("a", "b", False)], {"a": 2, "b": 2}, 0, id="all to all"),
        pytest.param([("a", "b", True)], {"a": 2, "b": 2}, 0, id="pointwise: a region for each slot"),
        pytest.param([("a", "b", True)], {"a": 1, "b": 2}, 1, id="pointwise, and not known which tasks"),
        pytest.param([], {"a": 2, "b": 2}, 2, id="two pipelines"),
        pytest.param([("a", "c", True), ("b", "c", True)], {"a": 2, "b": 2, "c": 2}, 0, id="a common sink"),
        pytest.param([], {"a": 2}, 0, id="one vertex"),
    ],
)
def test_a_slot_with_tasks_that_do_not_restart_together_is_kept(
    edges: list[tuple[str, str, bool]], parallelism: Mapping[str, int], kept: int
) -> None:
    job = _regions_job(*(FlinkEdge(*edge) for edge in edges), parallelism=parallelism)
    assert kept_slots(job, {"tm-1"}, {}) == kept
    assert kept_slots(job, {"tm-2"}, {}) == 0


@pytest.mark.parametrize(
    "configuration",
    [
        {"jobmanager.scheduler": "Adaptive"},
        {"scheduler-mode": "reactive"},
        {"jobmanager.execution.failover-strategy": "full"},
    ],
)
def test_no_slot_is_kept_if_a_failure_restarts_the_whole_job(configuration: Mapping[str, str]) -> None:
    job = _regions_job(parallelism={"a": 1, "b": 1})
    assert kept_slots(job, {"tm-1"}, None) == 1
    assert kept_slots(job, {"tm-1"}, configuration) == 0
    assert kept_slots(replace(job, edges=None), {"tm-1"}, None) == 0


def test_a_node_that_flink_never_forgets_is_refused_with_the_fault() -> None:
    effects = resource_manager_effects(_observation(_state(), lingering={"n9": 20.0, "n8": 120.0}))
    assert effects["n9"] == slow("Flink keeps the node blocked until its lease there has ended, at most 45 s.")
    assert "FLINK-37607" in effects["n8"].reason


# Names.


def test_jobs_of_two_clusters_with_the_id_0_have_listeners_of_their_own() -> None:
    assert job_listener_id("Top 10", "ab12", "flink-a") == "Top-10-ab12"
    assert job_listener_id("Top 10", "0" * 32, "flink-a") == "Top-10-flink-a"
    assert len(job_listener_id("x" * 300, "0" * 32, "y" * 253)) <= 253


def test_a_node_matches_in_any_case_short_full_or_by_address() -> None:
    names = FlinkNodeIds()
    machine = _task_manager("tm-1", "10.0.0.7")
    job = _job(_task("tm-1", node="Worker-7.example.com"))
    names.update(ClusterState(task_managers={"tm-1": machine}, jobs={JOB: job}))
    assert names.node_of("tm-1") == "Worker-7.example.com"
    found = names.matches(["worker-7", "WORKER-7.example.com", "10.0.0.7", "worker-70", "worker-7.other.com"])
    assert [bool(found[name]) for name in found] == [True, True, True, False, False]
    # The node stays known without TaskManagers: a new one there is blocked before it is used.
    names.update(ClusterState(task_managers={}))
    assert names.matches(["worker-7"]) == {"worker-7": {"Worker-7.example.com"}}


def test_a_node_matches_by_the_names_and_addresses_that_the_service_knows() -> None:
    names = FlinkNodeIds()
    names.update(ClusterState(task_managers={"tm-1": _task_manager("tm-1", "10.0.0.7")}))
    found = names.matches(["worker-7", "worker-8"], {"worker-7": {"node7.rack12", "10.0.0.7"}})
    # The other name is blocked in Flink as well, for TaskManagers that register later.
    assert found == {"worker-7": {"10.0.0.7", "node7.rack12"}, "worker-8": set()}


def test_flink_is_notified_of_a_node_as_it_may_write_it() -> None:
    blocked = {it: _node(it) for it in ("Worker-7", "2001:DB8:0:0::1", "10.0.0.7")}
    names = {it.node for it in node_leases(blocked, {}, NOW)}
    assert names == {"Worker-7", "worker-7", "2001:DB8:0:0::1", "[2001:db8::1]", "10.0.0.7"}
    # A task shows the node id of its TaskManager with the brackets.
    node_ids = FlinkNodeIds()
    machine = _task_manager("tm-1", "2001:db8::1")
    task = _task("tm-1", node="[2001:db8::1]")
    node_ids.update(ClusterState(task_managers={"tm-1": machine}, jobs={JOB: _job(task)}))
    assert node_ids.node_of("tm-1") == "2001:db8::1"
    assert node_ids.matches(["2001:DB8:0:0::1"]) == {"2001:DB8:0:0::1": {"2001:db8::1"}}


def test_a_block_waits_until_it_is_known_what_else_the_node_is_called() -> None:
    observation = _observation(_state(), task_managers={}, nameless=frozenset({"n1"}))
    assert resource_manager_effects(observation)["n1"].state is EffectState.PENDING
    late = replace(observation, age={"n1": 11.0})
    assert resource_manager_effects(late)["n1"].state is EffectState.SLOW


def test_a_task_manager_that_starts_again_on_another_host_has_a_new_node() -> None:
    names = FlinkNodeIds()
    ended = _job(_task("tm-1", "FINISHED", node="n1"))
    names.update(ClusterState(task_managers={"tm-1": _task_manager("tm-1", "n1")}, jobs={JOB: ended}))
    names.update(ClusterState(task_managers={"tm-1": _task_manager("tm-1", "n2")}, jobs={JOB: ended}))
    assert names.node_of("tm-1") == "n2"


def test_a_task_that_runs_shows_the_node_and_not_one_that_has_ended() -> None:
    names, running = FlinkNodeIds(), _task("tm-1", node="n2")
    state = ClusterState(task_managers={"tm-1": _task_manager("tm-1", "10.0.0.7")})
    for tasks in ([running, _task("tm-1", "FINISHED", node="n1")], [_task("tm-1", "FAILED", node="n1"), running]):
        names.update(replace(state, jobs={JOB: _job(*tasks)}))
        assert names.node_of("tm-1") == "n2"


def test_the_node_of_a_task_manager_is_known_that_only_a_job_knows() -> None:
    names = FlinkNodeIds()
    names.update(ClusterState(task_managers={}, jobs={JOB: _job(_task("tm-1", node="n1"))}))
    assert names.node_of("tm-1") == "n1"


# Guards.


def _context(*task_managers: FlinkTaskManager, grows: bool = False, **configuration: str) -> GuardContext:
    return GuardContext(
        state=_state(*task_managers),
        blocked={"tm-1"},
        configuration={name.replace("__", "."): value for name, value in configuration.items()},
        grows=grows,
        now=NOW,
    )


ROOM = _task_manager("tm-2", "n2", free=2)


@pytest.mark.parametrize(
    ("job", "context", "reason"),
    [
        (_job(_task("tm-1")), _context(ROOM), None),
        (_job(_task("tm-1"), checkpoints=False), _context(ROOM), "has no checkpoints"),
        (_job(_task("tm-1")), _context(_task_manager("tm-2", "n2")), "the nodes that are not blocked have 0 free"),
        (_job(_task("tm-1")), _context(_task_manager("tm-2", "n2", free=2, blocked=True)), "have 0 free"),
        (_job(_task("tm-1")), _context(grows=True), None),
        (_job(_task("tm-1"), state="RESTARTING"), _context(ROOM), "The job is RESTARTING"),
        (_job(_task("tm-1"), strategy="Restart deactivated."), _context(ROOM), "0 restart attempts left"),
        (
            _job(_task("tm-1"), strategy="Restart with fixed delay (1000 ms). #1 restart attempts."),
            _context(ROOM),
            "1 restart attempt left (0 of 1 are used), and leaving 1 slot",
        ),
        (
            _job(_task("tm-1", attempt=1), strategy="Restart with fixed delay (1000 ms). #3 restart attempts."),
            _context(ROOM),
            None,
        ),
        (_job(_task("tm-1"), strategy="Something new"), _context(ROOM), "is not known how often"),
    ],
)
def test_an_evacuation_that_may_harm_the_job_is_refused(
    job: FlinkJob, context: GuardContext, reason: str | None
) -> None:
    found = hindrance(job, {"tm-1"}, context)
    assert found is None if reason is None else found is not None and reason in found.reason


def test_an_evacuation_waits_until_the_configuration_has_been_read() -> None:
    found = hindrance(_job(_task("tm-1")), {"tm-1"}, replace(_context(ROOM), configuration=None))
    assert found is not None
    assert found.state is EffectState.SLOW
    assert "the cluster's configuration has not been read yet" in found.reason


@pytest.mark.parametrize(
    ("configuration", "left"),
    [
        ({}, UNLIMITED),
        ({"restart-strategy.type": "none"}, 0),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "5"}, 4),
        ({"restart-strategy.type": "exponential-delay"}, UNLIMITED),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": "3",
                "restart-strategy.failure-rate.failure-rate-interval": "2 min",
            },
            2,
        ),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": "3",
                "restart-strategy.failure-rate.failure-rate-interval": "1 hour",
            },
            2,
        ),
        (
            {"restart-strategy.type": "failure-rate", "restart-strategy.failure-rate.failure-rate-interval": "soon"},
            None,
        ),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "many"}, None),
        ({"restart-strategy.type": "fixeddelay", "restart-strategy.fixed-delay.attempts": "5"}, 4),
        ({"restart-strategy.type": "com.example.OurStrategy"}, None),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff": "x",
            },
            None,
        ),
    ],
)
def test_restarts_left_by_the_cluster_s_strategy(configuration: Mapping[str, str], left: int | None) -> None:
    failures = [JobFailure(at=NOW - 60_000, text="x")]
    job = replace(_job(_task("tm-1"), strategy="Cluster level default restart strategy"), failures=failures)
    assert restarts_left(job, configuration, NOW).number == left


@pytest.mark.parametrize(
    ("strategy", "left"),
    [
        ("Restart with fixed delay (PT0.1S). #4 restart attempts.", 3),
        ("Failure rate restart with maximum of 3 failures within interval PT2M and fixed delay PT1S.", 2),
        ("Failure rate restart with maximum of 3 failures within interval PT30S and fixed delay PT1S.", 3),
        ("Failure rate restart with maximum of 3 failures within interval a while and fixed delay PT1S.", None),
        ("Restart with exponential delay: starting at PT1S, increasing by 1.5, with maximum PT1M.", UNLIMITED),
        ("Failure rate restart with maximum of 3 failures within interval P1DT2H and fixed delay PT1S.", 2),
        ("Failure rate restart with maximum of 3 failures within interval PT0S and fixed delay PT1S.", None),
        ("Restart with fixed delay (PT0.1S). #many restart attempts.", None),
        ("Restart deactivated.", 0),
    ],
)
def test_restarts_left_by_the_job_s_own_strategy(strategy: str, left: int | None) -> None:
    job = replace(_job(_task("tm-1"), strategy=strategy), failures=[JobFailure(at=NOW - 60_000, text="x")])
    assert restarts_left(job, {"restart-strategy.type": "none"}, NOW).number == left


def test_a_job_without_checkpoints_and_strategy_has_no_restarts() -> None:
    job = replace(_job(_task("tm-1"), checkpoints=False), kind=JobKind.BATCH)
    assert restarts_left(job, {}, NOW).number == 0


@pytest.mark.parametrize(
    ("failures", "configuration", "limit", "left"),
    [
        (15, {}, 50, 35),
        # Flink keeps 16 failures: there may have been more.
        (16, {}, 50, None),
        (16, {}, 16, 0),
        (16, {"web.exception-history-size": "30"}, 50, 34),
        # No more than these are read.
        (MAX_FAILURES, {"web.exception-history-size": "1000"}, 50, None),
        (1, {"web.exception-history-size": "many"}, 50, None),
    ],
)
def test_restarts_left_are_unknown_if_the_history_of_failures_is_truncated(
    failures: int, configuration: Mapping[str, str], limit: int, left: int | None
) -> None:
    strategy = f"Restart with fixed delay (PT1S). #{limit} restart attempts."
    history = [JobFailure(at=NOW - 60_000, text="x")] * failures
    job = replace(_job(_task("tm-1"), strategy=strategy), failures=history)
    assert restarts_left(job, configuration, NOW).number == left


def test_a_failure_before_the_interval_shows_that_all_within_it_are_known() -> None:
    strategy = "Failure rate restart with maximum of 50 failures within interval PT2M and fixed delay PT1S."
    recent = [JobFailure(at=NOW - 60_000, text="x")] * 16
    job = replace(_job(_task("tm-1"), strategy=strategy), failures=recent)
    assert restarts_left(job, {}, NOW).number is None
    before = [JobFailure(at=NOW - 150_000, text="x"), *recent[1:]]
    assert restarts_left(replace(job, failures=before), {}, NOW).number == 35


# The start.


@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        ("d day days", 86400),
        ("h hour hours", 3600),
        ("m min minute minutes", 60),
        ("s sec secs second seconds", 1),
        ("ms milli millis millisecond milliseconds", 1e-3),
        ("µs micro micros microsecond microseconds", 1e-6),
        ("ns nano nanos nanosecond nanoseconds", 1e-9),
    ],
)
def test_all_of_flink_s_units_are_understood(names: str, seconds: float) -> None:
    for name in names.split():
        assert duration_seconds(f"5 {name}") == duration_seconds(f" 5{name.upper()} ") == 5 * seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250", 0.25),
        ("P1DT2H", 93_600),
        ("P2D", 172_800),
        ("PT48H0.5S", 172_800.5),
        ("PT1M", 60),
        ("PT1.2.3S", 0),
        ("P", 0),
        ("1 fortnight", 0),
        ("-5 s", 0),
        ("", 0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize(
    ("interval", "warns"), [("1 s", True), ("15 s", False), ("1 min", False), ("5000 ms", True), ("PT20S", False)]
)
def test_a_short_check_interval_is_a_warning(interval: str, warns: bool) -> None:
    settings = {"execution.batch.speculative.enabled": "true", "slow-task-detector.check-interval": interval}
    check = check_configuration(settings)
    assert check.error is None
    assert bool(check.warnings) is warns


# Evidence.


def test_evacuations_are_no_evidence_and_repeated_failures_are() -> None:
    failures = [JobFailure(at=NOW, text="java.io.IOException: No space left", task_manager="tm-1") for _ in range(3)]
    job = replace(_job(_task("tm-1")), failures=failures)
    found = job_evidence(job, {"n2"}, lambda _: "n1", NOW)
    assert {node: finding.kind for node, finding in found.items()} == {"n1": FindingKind.EXCLUDED}
    own = [JobFailure(at=NOW, text=f"FlinkException: {OWN_REASON} n1", task_manager="tm-1") for _ in range(9)]
    assert job_evidence(replace(job, failures=own), (), lambda _: "n1", NOW) == {}
    slow_nodes = job_evidence(replace(job, failures=()), {"n1"}, lambda _: "n1", NOW)
    assert slow_nodes["n1"].kind is FindingKind.SLOW


def test_finished_results_on_a_node_count_while_later_tasks_may_read_them() -> None:
    tasks = [_task("tm-1", "FINISHED", stage=0), _task("tm-2", "RUNNING", stage=1)]
    batch = replace(_job(*tasks), kind=JobKind.BATCH)
    assert batch.results_on({"tm-1"}) == 1
    assert replace(batch, tasks=[tasks[0]]).results_on({"tm-1"}) == 0
