"""Flink's RPC without a cluster: what it reports is set by the test, what it receives is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from blocklist.flink.connection import FlinkConnection
from blocklist.flink.marking import NodeLease
from blocklist.flink.rpc import FlinkRpc, Leader, RestRequest, no_check
from blocklist.flink.state import FlinkError, FlinkJob, FlinkTaskManager

LEADER = Leader("pekko.tcp://flink@127.0.0.1:6123/user/rpc/resourcemanager_1", "token")
ENABLED = {"execution.batch.speculative.enabled": "true", "slow-task-detector.check-interval": "15 s"}


class FakeRpc:
    """A cluster with high availability that obeys: a node that was notified is reported as blocked.

    The values of `jobs` are what a JobMaster reports, or the error that reading it raises; `unreachable` are jobs
    without a JobMaster.
    """

    with_ha = True

    @property
    def child(self) -> FakeRpc:
        return self

    def __init__(self) -> None:
        self.task_manager_hosts: dict[str, str] = {}
        self.jobs_found: dict[str, FlinkJob | Exception] = {}
        self.unreachable: set[str] = set()
        self.ended: set[str] = set()
        self.configuration: dict[str, str] | Exception | None = ENABLED
        self.error: Exception | None = None
        self.close_error: Exception | None = None
        self.notified: list[list[NodeLease]] = []
        self.failed_slots: list[str] = []
        self.heartbeat_at = 0
        self.leader = LEADER
        self.check_leader: Callable[[], None] = no_check
        self.on_read: Callable[[], None] = no_check
        self.configuration_done, self.configurations_read = True, 0
        self._blocked: set[str] = set()

    def resource_manager_leader(self) -> Leader:
        return self.leader

    def dispatcher_leader(self) -> Leader:
        return LEADER

    def job_master_leader(self, job_id: str) -> Leader | None:
        return None if job_id in self.unreachable else Leader(job_id, "token")

    def resource_manager(self, leader: Leader) -> str:
        return leader.address

    def dispatcher(self, leader: Leader) -> str:
        return leader.address

    def connect_job_master(self, leader: Leader) -> str:
        """A gateway is the job's id, and so is the future of one."""
        return leader.address

    def forget_job(self, job_id: str) -> None: ...

    def release_objects(self) -> None: ...

    def alive(self) -> bool:
        return True

    def last_output(self) -> str:
        return ""

    def close(self) -> None:
        if self.close_error is not None:
            raise self.close_error

    def task_managers(self, gateway: str) -> dict[str, FlinkTaskManager]:
        """`on_read` is what happens while the answer is awaited."""
        happens, self.on_read = self.on_read, no_check
        happens()
        self.check_leader()
        if self.error is not None:
            raise self.error
        return {
            name: FlinkTaskManager(
                id=name, host=host, slots=2, free_slots=2, blocked=host in self._blocked, heartbeat_at=self.heartbeat_at
            )
            for name, host in self.task_manager_hosts.items()
        }

    def jobs(self, gateway: str) -> dict[str, bool]:
        return {it: it in self.ended for it in {*self.jobs_found, *self.unreachable, *self.ended}}

    def request_job(self, gateway: str) -> str:
        return gateway

    def read_job(self, future: str, deadline: float, *, with_failures: bool = False) -> FlinkJob:
        found = self.jobs_found[future]
        if isinstance(found, Exception):
            raise found
        return found

    def request_configuration(self) -> RestRequest | None:
        return None if self.configuration is None else RestRequest(None, "configuration", "")

    def read_configuration(self, request: RestRequest) -> dict[str, str]:
        assert self.configuration is not None
        self.configurations_read += 1
        if isinstance(self.configuration, Exception):
            raise self.configuration
        return self.configuration

    def blocked_nodes(self, blocks: Iterable[NodeLease]) -> list[NodeLease]:
        return list(blocks)

    def notify(self, gateway: str, nodes: list[NodeLease]) -> str:
        self.notified.append(nodes)
        self._blocked |= {it.node for it in nodes}
        return gateway

    def trigger_checkpoint(self, gateway: str, seconds: float) -> str:
        return "checkpoint"

    def fail_slots(self, gateway: str, slots: dict[str, str], reason: str) -> None:
        self.failed_slots.append(gateway)

    def is_done(self, future: str) -> bool:
        return future != "configuration" or self.configuration_done

    def forget(self) -> None:
        """As at the end of all leases."""
        self._blocked.clear()

    def get(self, sentence: str, future: Any, seconds: float = 0.0) -> Any:
        return future


def connection_to(*rpcs: FakeRpc, lease: int = 30_000) -> FlinkConnection:
    """A connection that starts these, one after another."""
    waiting = list(rpcs)

    def start() -> FlinkRpc:
        if not waiting:
            raise FlinkError("There is no further JVM")
        return cast(FlinkRpc, waiting.pop(0))

    return FlinkConnection(start, lease=lease)
