"""Reads a job from Flink's ExecutionGraphInfo, a Java object.

Each question to it is a round trip to the JVM, and a job may have thousands of tasks: their part is written as JSON
there, by the JSON library that Flink brings, and read here at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from blocklist.flink.state import MAX_FAILURES, FlinkEdge, FlinkJob, FlinkTask, JobFailure, JobKind

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
