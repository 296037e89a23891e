"""Flink's own RPC, by the JVM's classes: one connection to a cluster. Only this module and `jvm` know Py4J.

Calls raise FlinkError. Their timeouts are Flink's: a Duration since 2.0, a Time before.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from blocklist.flink.jvm import ChildJvm, call
from blocklist.flink.marking import NodeLease, serialize_nodes
from blocklist.flink.state import (
    MAX_FAILURES,
    FlinkEdge,
    FlinkError,
    FlinkJob,
    FlinkTask,
    FlinkTaskManager,
    JobFailure,
    JobKind,
    parse_configuration,
)

TIMEOUT: Final = 5.0
"""Seconds for each call."""
LEADER_INTERVAL: Final = 0.2
"""Seconds after which it is noticed that another ResourceManager leads."""
_ENDED_JOBS: Final = frozenset({"FINISHED", "FAILED", "CANCELED"})
_NO_FLINK: Final = (
    "The jars in --lib are not those of a Flink that can block nodes: give the folder lib of the cluster's Flink"
)
CHECK_JOB_MANAGER: Final = (
    "Check that the JobManager runs, and that --conf-dir has its configuration, with its security.ssl settings"
)
_NO_HA: Final = frozenset({"", "NONE"})


class Leader(NamedTuple):
    """The address of a leader's RPC, and its fencing token as text."""

    address: str
    token: str


class RestRequest(NamedTuple):
    """A request to the REST API that is under way."""

    client: Any
    future: Any
    sentence: str


class FlinkRpc:
    """Knows the leaders and makes gateways to them. THREADING: use it from one thread."""

    def __init__(self, child: ChildJvm, conf_dir: Path, bind_address: str) -> None:
        """Start RPC with the configuration in `conf_dir`, its security settings included."""
        self.child = child
        self._jvm: Any = child.jvm
        self._runtime: Any = child.jvm.org.apache.flink.runtime
        self._retrievers: dict[str, tuple[Any, Any]] = {}
        self.check_leader: Callable[[], None] = no_check
        """Called while an answer is awaited: a leader that has ended gives none. It may raise LeaderChangedError."""
        call(_NO_FLINK, lambda: self._class("blocklist.BlockedNode"))
        sentence = f"The configuration in {conf_dir} cannot be read. Correct it, or give another --conf-dir"
        self._configuration = call(sentence, lambda: self._read_configuration(conf_dir))
        self._settings = call(sentence, lambda: dict(self._configuration.toMap()))
        if (missing := missing_ssl(self._settings)) is not None:
            raise FlinkError(f"{missing} in {conf_dir}")
        call(f"Flink's RPC does not start with --bind-address {bind_address}", lambda: self._start(bind_address))

    def _read_configuration(self, conf_dir: Path) -> Any:
        return self._jvm.org.apache.flink.configuration.GlobalConfiguration.loadConfiguration(str(conf_dir))

    def _start(self, bind_address: str) -> None:
        jvm, runtime, core = self._jvm, self._runtime, self._jvm.org.apache.flink.core
        plugins = core.plugin.PluginUtils.createPluginManagerFromRootFolder(self._configuration)
        # Metadata of high availability may be in a file system that is a plugin.
        core.fs.FileSystem.initialize(self._configuration, plugins)
        self._system = runtime.rpc.RpcSystem.load(self._configuration)
        self._service = runtime.rpc.RpcUtils.createRemoteRpcService(
            # Without the second address Flink listens on all addresses of the machine.
            self._system,
            self._configuration,
            bind_address,
            "0",
            bind_address,
            jvm.java.util.Optional.empty(),
        )
        self._executor = jvm.java.util.concurrent.Executors.newCachedThreadPool()
        self._ha = runtime.highavailability.HighAvailabilityServicesUtils.createHighAvailabilityServices(
            self._configuration,
            self._executor,
            runtime.rpc.AddressResolution.NO_ADDRESS_RESOLUTION,
            self._system,
            None,
        )
        self._millis = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        self._timeout = self._flink_time(TIMEOUT)
        self._jobs = JobReader(jvm)
        self._mapper = runtime.rest.util.RestMapperUtils.getStrictObjectMapper()

    @property
    def with_ha(self) -> bool:
        """Whether the cluster has high availability, so that each JobMaster has an address of its own to look up."""
        return self.setting("high-availability.type", self.setting("high-availability", "NONE")).upper() not in _NO_HA

    def setting(self, name: str, default: str) -> str:
        """A value of the configuration in `conf_dir`."""
        return str(self._settings.get(name, default))

    # Leaders.

    def resource_manager_leader(self) -> Leader | None:
        """The present leader; None while there is none."""
        return self._leader("resource manager", self._ha.getResourceManagerLeaderRetriever)

    def dispatcher_leader(self) -> Leader | None:
        """The present leader; None while there is none."""
        return self._leader("dispatcher", self._ha.getDispatcherLeaderRetriever)

    def job_master_leader(self, job_id: str) -> Leader | None:
        """The JobMaster of a job, with high availability; None while there is none."""
        return self._leader(job_id, lambda: self._ha.getJobManagerLeaderRetriever(self.job_id(job_id)))

    def forget_job(self, job_id: str) -> None:
        """Stop following the leader of a job that has ended."""
        found = self._retrievers.pop(job_id, None)
        if found is not None:
            call("A leader retrieval does not stop", found[0].stop)

    def rest_address(self) -> tuple[str, int] | None:
        """Host and port of the REST API; None while there is no leader."""
        leader = self._leader("rest", self._ha.getClusterRestEndpointLeaderRetriever)
        if leader is None:
            return None
        parts = urlsplit(leader.address)
        return str(parts.hostname), int(parts.port or 8081)

    def _leader(self, name: str, service: Any) -> Leader | None:
        return call(f"The leader of the {name} cannot be read", lambda: self._read_leader(name, service))  # type: ignore[no-any-return]

    def _read_leader(self, name: str, service: Any) -> Leader | None:
        if name not in self._retrievers:
            retriever, follower = service(), self._runtime.webmonitor.retriever.LeaderRetriever()
            retriever.start(follower)
            self._retrievers[name] = retriever, follower
        now = self._retrievers[name][1].getLeaderNow()
        if not now.isPresent():
            return None
        leader = now.get()
        return Leader(str(leader.getField(0)), str(leader.getField(1).toString()))

    # Gateways.

    def resource_manager(self, leader: Leader) -> Any:
        """Raises FlinkError if it cannot be reached."""
        token = self._runtime.resourcemanager.ResourceManagerId.fromUuid(self._uuid(leader))
        return self._connect("ResourceManager", leader, token, "resourcemanager.ResourceManagerGateway")

    def dispatcher(self, leader: Leader) -> Any:
        """Raises FlinkError if it cannot be reached."""
        token = self._runtime.dispatcher.DispatcherId.fromUuid(self._uuid(leader))
        return self._connect("Dispatcher", leader, token, "dispatcher.DispatcherGateway")

    def connect_job_master(self, leader: Leader) -> Any:
        """The future of a gateway. The address may have a wildcard: the gateway is then to one that fits."""
        token = self._runtime.jobmaster.JobMasterId(self._uuid(leader))
        gateway = self._class("jobmaster.JobMasterGateway")
        return call("RPC fails", lambda: self._service.connect(leader.address, token, gateway))

    def _connect(self, what: str, leader: Leader, token: Any, gateway: str) -> Any:
        sentence = f"The {what} at {leader.address} cannot be reached. {CHECK_JOB_MANAGER}"
        return self.get(
            sentence, call(sentence, lambda: self._service.connect(leader.address, token, self._class(gateway)))
        )

    def _class(self, name: str) -> Any:
        return self._jvm.java.lang.Class.forName(f"org.apache.flink.runtime.{name}")

    def _uuid(self, leader: Leader) -> Any:
        return self._jvm.java.util.UUID.fromString(leader.token)

    # Questions.

    def task_managers(self, gateway: Any) -> dict[str, FlinkTaskManager]:
        """All TaskManagers that the ResourceManager knows, and whether it reports them as blocked."""
        sentence = "The ResourceManager does not report its TaskManagers"
        infos = self.get(sentence, call(sentence, lambda: gateway.requestTaskManagerInfo(self._timeout)))
        text = call(sentence, lambda: self._mapper.writeValueAsString(infos))
        return {it.id: it for it in map(_task_manager, json.loads(text))}

    def jobs(self, gateway: Any) -> dict[str, bool]:
        """All jobs that the Dispatcher knows: id to whether it has ended."""
        sentence = "The Dispatcher does not report its jobs"
        details = self.get(sentence, call(sentence, lambda: gateway.requestMultipleJobDetails(self._timeout)))
        jobs = json.loads(call(sentence, lambda: self._mapper.writeValueAsString(details)))["jobs"]
        return {str(job["jid"]): job["state"] in _ENDED_JOBS for job in jobs}

    def request_job(self, gateway: Any) -> Any:
        """The future of what `read_job` reads."""
        return call("The JobMaster cannot be asked", lambda: gateway.requestJob(self._timeout))

    def read_job(self, future: Any, deadline: float, *, with_failures: bool = False) -> FlinkJob:
        """The job, once the future is done, at the latest at the monotonic `deadline`."""
        sentence = "The JobMaster does not report its job"
        info = self.get(sentence, future, max(0.0, deadline - time.monotonic()))
        return call(sentence, lambda: self._jobs.read(info, with_failures=with_failures))  # type: ignore[no-any-return]

    def job_id_of(self, future: Any, deadline: float) -> str:
        """The id of a job, from what `request_job` returned; at the latest at the monotonic `deadline`."""
        info = self.get("The JobMaster does not report its job", future, max(0.0, deadline - time.monotonic()))
        return str(call("The job has no id", lambda: info.getJobId().toString()))

    def request_configuration(self) -> RestRequest | None:
        """Ask the REST API for the configuration of the running JobManager; None while it has no leader."""
        address = self.rest_address()
        if address is None:
            return None
        sentence = f"The REST API at {address[0]}:{address[1]} cannot be read"
        return call(sentence, lambda: self._request_configuration(*address, sentence))  # type: ignore[no-any-return]

    def _request_configuration(self, host: str, port: int, sentence: str) -> RestRequest:
        client = self._runtime.rest.RestClient(self._configuration, self._executor)
        headers = self._runtime.rest.messages.ClusterConfigurationInfoHeaders.getInstance()
        try:
            return RestRequest(client, client.sendRequest(host, port, headers), sentence)
        except BaseException:
            client.closeAsync()
            raise

    def read_configuration(self, request: RestRequest) -> dict[str, str]:
        """What it answered; call it once, when it is done or has taken too long."""
        try:
            answer = self.get(request.sentence, request.future, 0.0)
            text = call(request.sentence, lambda: self._mapper.writeValueAsString(answer))
        finally:
            call(request.sentence, request.client.closeAsync)
        return parse_configuration(text)

    # Commands.

    def blocked_nodes(self, blocks: Iterable[NodeLease]) -> Any:
        """The list as Flink's own objects, for `notify`."""
        data = serialize_nodes(list(blocks))
        loader = self._class("blocklist.BlockedNode").getClassLoader()
        deserialize = self._jvm.org.apache.flink.util.InstantiationUtil.deserializeObject
        return call("The list cannot be made", lambda: deserialize(data, loader))

    def notify(self, gateway: Any, nodes: Any) -> Any:
        """Tell a ResourceManager or a JobMaster; the future of its answer, which proves nothing about the effect."""
        return call("Flink cannot be notified of blocked nodes", lambda: gateway.notifyNewBlockedNodes(nodes))

    def trigger_checkpoint(self, gateway: Any, seconds: float) -> Any:
        """The future of a checkpoint, or of the reason why there is none."""
        return call("The checkpoint is not triggered", lambda: gateway.triggerCheckpoint(self._flink_time(seconds)))

    def fail_slots(self, gateway: Any, slots: Mapping[str, str], reason: str) -> None:
        """Fail slots, so that their tasks restart elsewhere: allocation to TaskManager."""
        call("The slots cannot be failed", lambda: self._fail_slots(gateway, slots, reason))

    def _fail_slots(self, gateway: Any, slots: Mapping[str, str], reason: str) -> None:
        types, error = self._runtime.clusterframework.types, self._exception(reason)
        for allocation, task_manager in slots.items():
            gateway.failSlot(types.ResourceID(task_manager), types.AllocationID.fromHexString(allocation), error)

    def disconnect(self, gateway: Any, task_managers: Sequence[str], reason: str) -> None:
        """Disconnect TaskManagers from a JobMaster: their tasks restart elsewhere, their finished results are lost."""
        error = self._exception(reason)
        sentence = "The TaskManager cannot be disconnected"
        for task_manager in task_managers:
            resource = self._runtime.clusterframework.types.ResourceID(task_manager)
            self.get(sentence, call(sentence, lambda r=resource: gateway.disconnectTaskManager(r, error)))  # type: ignore[misc]

    # Values.

    def get(self, sentence: str, future: Any, seconds: float = TIMEOUT) -> Any:
        """The result of a future. Raises FlinkError with the sentence and the reason, or what `check_leader` raises."""
        return call(sentence, lambda: self._get(future, time.monotonic() + seconds))

    def _get(self, future: Any, deadline: float) -> Any:
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return future.get(int(min(left, LEADER_INTERVAL) * 1000), self._millis)
            except Py4JJavaError:
                if left <= LEADER_INTERVAL or future.isDone():
                    raise
            self.check_leader()

    def is_done(self, future: Any) -> bool:
        """Whether a future has a result or an error."""
        return bool(call("A future cannot be read", future.isDone))

    def job_id(self, text: str) -> Any:
        return self._jvm.org.apache.flink.api.common.JobID.fromHexString(text)

    def _exception(self, reason: str) -> Any:
        return call("Flink's exception cannot be made", lambda: self._jvm.org.apache.flink.util.FlinkException(reason))

    def _flink_time(self, seconds: float) -> Any:
        """The type of timeouts in RPC."""
        millis = int(seconds * 1000)
        if str(self._runtime.rpc.RpcUtils.INF_TIMEOUT.getClass().getSimpleName()) == "Time":
            return self._jvm.org.apache.flink.api.common.time.Time.milliseconds(millis)
        return self._jvm.java.time.Duration.ofMillis(millis)


def no_check() -> None:
    """The leader does not matter now."""


def _task_manager(info: Mapping[str, Any]) -> FlinkTaskManager:
    return FlinkTaskManager(
        id=str(info["id"]),
        host=_host_of(str(info["path"])),
        slots=int(info["slotsNumber"]),
        free_slots=int(info["freeSlots"]),
        blocked=bool(info.get("blocked")),
        # In spite of its name this is a moment.
        heartbeat_at=int(info.get("timeSinceLastHeartbeat") or 0),
    )


def _host_of(address: str) -> str:
    """The host of `pekko.tcp://flink@10.0.0.7:41234/user/rpc/taskmanager_0`."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


# Whether the configuration has what Flink's RPC needs for TLS. Flink itself starts without, and reaches nobody.

_ENABLED: Final = "security.ssl.internal.enabled"
_INTERNAL, _COMMON = "security.ssl.internal", "security.ssl"
_FILES: Final = ("keystore", "truststore")
_NEEDED: Final = (*_FILES, "keystore-password", "key-password", "truststore-password")


def missing_ssl(configuration: Mapping[str, str]) -> str | None:
    """What is missing and what to do, as the begin of a sentence; None if nothing is."""
    if str(configuration.get(_ENABLED, "false")).strip().lower() != "true":
        return None
    values = {it: configuration.get(f"{_INTERNAL}.{it}") or configuration.get(f"{_COMMON}.{it}") for it in _NEEDED}
    if unset := [f"{_INTERNAL}.{it}" for it, value in values.items() if not value]:
        return f"{_ENABLED} is true, but {', '.join(unset)} is not set. Copy the JobManager's settings"
    for name in _FILES:
        file = str(values[name])
        if not (Path(file).is_file() and os.access(file, os.R_OK)):
            return f"{file} cannot be read by this user. Copy it from the JobManager, or correct {_INTERNAL}.{name}"
    return None


# Reads a job from Flink's ExecutionGraphInfo, a Java object.
#
# Each question to it is a round trip to the JVM, and a job may have thousands of tasks: their part is written as JSON
# there, by the JSON library that Flink brings, and read here at once.

MAX_FAILURE_TEXT: Final = 500
_RUNTIME: Final = "org.apache.flink.runtime"
_GRAPH: Final = f"{_RUNTIME}.executiongraph"
_TEXTS: Final = ("clusterframework.types.ResourceID", "clusterframework.types.AllocationID", "jobgraph.JobVertexID")
_POINTWISE: Final = frozenset({"FORWARD", "RESCALE"})
"""How an edge distributes records if each task sends to some tasks of the next vertex only."""
# What is not needed, cannot be written, or would ask the name service (the host names).
_IGNORED: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_GRAPH}.ArchivedExecutionJobVertex": (
        "aggregateState", "aggregatedUserAccumulatorsStringified", "maxParallelism", "parallelism",
        "operatorIDs", "resourceProfile", "slotSharingGroup",
    ),
    f"{_GRAPH}.ArchivedExecutionVertex": (
        "currentAssignedResourceLocation", "currentExecutionAttempt", "executionHistory", "executionState",
        "failureInfo", "taskNameWithSubtaskIndex",
    ),
    f"{_GRAPH}.ArchivedExecution": (
        "attemptId", "failureInfo", "iometrics", "stateEndTimestamps", "stateTimestamps", "userAccumulatorsStringified",
    ),
    f"{_RUNTIME}.taskmanager.TaskManagerLocation": ("endpoint", "fqdnhostname", "hostname"),
}  # fmt: skip


class JobReader:
    """THREADING: use it from one thread."""

    def __init__(self, jvm: Any) -> None:
        """Raises Py4J's errors, as all methods."""
        jackson = jvm.org.apache.flink.shaded.jackson2.com.fasterxml.jackson
        ignored, find = jackson.annotation.JsonIgnoreProperties.Value, jvm.java.lang.Class.forName
        self._mapper = jackson.databind.ObjectMapper()
        for name, properties in _IGNORED.items():
            self._mapper.configOverride(find(name)).setIgnorals(ignored.forIgnoredProperties(set(properties)))
        module = jackson.databind.module.SimpleModule()
        for name in _TEXTS:
            module.addSerializer(find(f"{_RUNTIME}.{name}"), jackson.databind.ser.std.ToStringSerializer())
        self._mapper.registerModule(module)
        methods = find(f"{_GRAPH}.ArchivedExecutionGraph").getMethods()
        self._plan_is_text = any(method.getName() == "getJsonPlan" for method in methods)

    def read(self, info: Any, *, with_failures: bool) -> FlinkJob:
        """The job; without its failures, which are a round trip each, unless they are asked for."""
        graph = info.getArchivedExecutionGraph()
        checkpoints, kind = graph.getCheckpointCoordinatorConfiguration(), graph.getJobType()
        vertices = json.loads(self._mapper.writeValueAsString(graph.getVerticesTopologically()))
        return FlinkJob(
            id=str(graph.getJobID().toString()),
            name=str(graph.getJobName()),
            state=str(graph.getState().toString()),
            kind=JobKind.BATCH if kind is not None and kind.toString() == "BATCH" else JobKind.STREAMING,
            tasks=list(_tasks(vertices)),
            checkpoints=checkpoints is not None and bool(checkpoints.isCheckpointingEnabled()),
            completed_checkpoints=_completed_checkpoints(graph),
            restart_strategy=_restart_strategy(graph),
            failures=list(_failures(info)) if with_failures else (),
            edges=_edges(json.loads(self._plan(graph))),
        )

    def _plan(self, graph: Any) -> str:
        """The plan as JSON: a text in Flink 1, an object in Flink 2."""
        return str(graph.getJsonPlan() if self._plan_is_text else self._mapper.writeValueAsString(graph.getPlan()))


def _tasks(vertices: list[dict[str, Any]]) -> Iterator[FlinkTask]:
    for stage, vertex in enumerate(vertices):
        for subtask in vertex["taskVertices"]:
            for execution in subtask["currentExecutions"]:
                location = execution["assignedResourceLocation"] or {}
                yield FlinkTask(
                    name=str(vertex["name"]),
                    stage=stage,
                    state=str(execution["state"]),
                    attempt=int(execution["attemptNumber"]),
                    task_manager=location.get("resourceID"),
                    node=location.get("nodeId"),
                    allocation=execution["assignedAllocationID"],
                    vertex=str(vertex["jobVertexId"]),
                    subtask=int(execution["parallelSubtaskIndex"]),
                )


def _edges(plan: Mapping[str, Any]) -> list[FlinkEdge] | None:
    """Those whose tasks run at the same time; None without a plan."""
    nodes = plan.get("nodes")
    if not nodes:
        return None
    inputs = [(source, str(node["id"])) for node in nodes for source in node.get("inputs") or ()]
    return [
        FlinkEdge(str(source["id"]), target, source.get("ship_strategy") in _POINTWISE)
        for source, target in inputs
        if str(source.get("exchange") or "").startswith("pipelined")
    ]


def _completed_checkpoints(graph: Any) -> int:
    stats = graph.getCheckpointStatsSnapshot()
    if stats is None:
        return 0
    restored = stats.getLatestRestoredCheckpoint()
    return int(stats.getCounts().getNumberOfCompletedCheckpoints()) + (restored is not None)


def _restart_strategy(graph: Any) -> str:
    config = graph.getArchivedExecutionConfig()
    return "" if config is None else str(config.getRestartStrategyDescription() or "")


def _failures(info: Any) -> Iterator[JobFailure]:
    # Py4J iterates over Java's iterators, but not over every Iterable.
    entries = list(info.getExceptionHistory().iterator())
    for entry in entries[-MAX_FAILURES:]:
        location = entry.getTaskManagerLocation()
        yield JobFailure(
            at=int(entry.getTimestamp()),
            text=str(entry.getExceptionAsString())[:MAX_FAILURE_TEXT],
            task_manager=None if location is None else str(location.getResourceID().toString()),
        )
