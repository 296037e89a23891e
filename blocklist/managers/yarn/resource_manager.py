"""The active one of several ResourceManagers, and the calls of its REST API that the manager needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from blocklist.managers.yarn.cluster_state import (
    YarnNode,
    YarnState,
    host_of,
    parse_masters,
    parse_nodes,
    parse_state,
)
from blocklist.managers.yarn.connection import Access, Connection, NoAnswerError, RejectedError
from blocklist.managers.yarn.interruptible import Stop
from blocklist.managers.yarn.mark import Capacity

log = logging.getLogger("blocklist.managers")

_EVERY_STATE: Final = "NEW,RUNNING,UNHEALTHY,DECOMMISSIONING,DECOMMISSIONED,LOST,REBOOTED,SHUTDOWN"
_ACTIVE_APPLICATIONS: Final = "ACCEPTED,RUNNING"
_LABELS_PER_REQUEST: Final = 1000
_QUEUE_SECONDS: Final = 10.0
"""How long to wait for the scheduler to take what it has been told."""
_POLL_SECONDS: Final = 0.05
_SETTLE_SECONDS: Final = 1.0
"""The same wait where the ResourceManager does not show its queue (before Hadoop 3.5)."""
_CAPACITY_SCHEDULER: Final = "capacityScheduler"
_NO_RIGHT: Final = frozenset({401, 403})


class ResourceManager:
    """`urls` are those of all ResourceManagers of one cluster; `seconds` the deadline of a request.

    A call goes to the active one; `find_active` must be called first, and after each error.
    """

    def __init__(self, urls: Sequence[str], access: Access, stop: Stop, seconds: float) -> None:
        self._connections = [Connection(url, access, stop, seconds) for url in urls]
        self._active = self._connections[0]
        self._stop = stop
        self._seconds = seconds
        self._checked: object = None

    @property
    def url(self) -> str:
        """Of the active one."""
        return self._active.url

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def find_active(self) -> None:
        """Find the active one, beginning with the last. Raises NoAnswerError with what each answered.

        Raises RejectedError if node labels are disabled, its scheduler ignores them, or this user may not change them.
        """
        others = [connection for connection in self._connections if connection is not self._active]
        reasons = []
        standby = False
        for connection in [self._active, *others]:
            try:
                info = _fields(connection.get("/info"), "clusterInfo")
            except (NoAnswerError, RejectedError) as error:
                reasons.append(str(error))
                continue
            if info.get("haState") == "ACTIVE" and info.get("state", "STARTED") == "STARTED":
                self._active = connection
                self._check_labels((connection.url, info.get("startedOn")))
                return
            standby = info.get("haState") == "STANDBY"
            reasons.append(f"The ResourceManager {connection.url} is not active ({info.get('haState', 'no haState')}).")
        if standby and not others:
            reasons.append("Is there another one? Give --resource-manager for each.")
        raise NoAnswerError(" ".join(reasons))

    def read(self) -> YarnState:
        """All nodes and labels."""
        # In this order nothing is lost if somebody changes labels meanwhile: the label that is remembered is the one
        # that the node had last, and is known if it is new.
        node_labels = self._active.get("/get-node-to-labels") or {}
        nodes = self._active.get("/nodes", states=_EVERY_STATE)
        labels = self._active.get("/get-node-labels") or {}
        try:
            return parse_state(nodes, labels, node_labels)
        except ValueError as error:
            raise self._unexpected(error) from error

    def read_nodes(self) -> list[YarnNode]:
        try:
            return parse_nodes(self._active.get("/nodes", states=_EVERY_STATE))
        except ValueError as error:
            raise self._unexpected(error) from error

    def read_masters(self) -> dict[str, list[str]]:
        """For each node, by id, the applications whose ApplicationMaster runs there."""
        answer = self._active.get("/apps", states=_ACTIVE_APPLICATIONS, deSelects="resourceRequests")
        try:
            return parse_masters(answer)
        except ValueError as error:
            raise self._unexpected(error) from error

    def add_labels(self, names: Iterable[str]) -> None:
        """Create exclusive labels; those that are there already stay."""
        if entries := [{"name": name, "exclusivity": "true"} for name in names]:
            self._post_labels(entries)

    def set_labels(self, labels: Mapping[str, str], *, seconds: float | None = None) -> None:
        """Replace the labels of hosts (`host:0`) and NodeManagers (`host:port`); an empty one removes it.

        `seconds` is the deadline of each request, and a stop does not end it then.
        """
        rest = iter(sorted(labels.items()))
        while batch := list(islice(rest, _LABELS_PER_REQUEST)):
            entries = [{"nodeId": node, "labels": [label] if label else []} for node, label in batch]
            self._active.post("/replace-node-to-labels", {"nodeToLabels": entries}, seconds=seconds)

    def set_host_labels(self, labels: Mapping[str, str], then_labels: Mapping[str, str]) -> None:
        """Replace `labels`, then `then_labels`: the label of a host replaces those of its NodeManagers.

        Once it has begun with a host it finishes with it, also when the manager is to stop. YARN 3.5 sorts the
        entries of a request, the host first, and applies them at once; for versions that do not,
        the second part is sent again.
        """
        hosts = {host_of(target) for target in then_labels}
        pairs = {target: label for target, label in labels.items() if host_of(target) in hosts}
        self.set_labels({target: label for target, label in labels.items() if target not in pairs})
        if then_labels:
            self.set_labels({**pairs, **then_labels}, seconds=self._seconds)
        if pairs:
            self.set_labels(then_labels, seconds=self._seconds)

    def set_capacity(self, node_id: str, capacity: Capacity, *, seconds: float | None = None) -> None:
        """Change the resources of a NodeManager: containers that no longer fit end at once."""
        further = [{"name": it.name, "units": it.unit, "value": it.value} for it in capacity.further]
        own = [
            {"name": "memory-mb", "units": "Mi", "value": capacity.megabytes},
            {"name": "vcores", "units": "", "value": capacity.vcores},
        ]
        resource: dict[str, Any] = {"memory": capacity.megabytes, "vCores": capacity.vcores}
        if further:
            resource["resourceInformations"] = {"resourceInformation": [*own, *further]}
        # 0: at once. For what only grows the timeout has no effect, and -1 is YARN's default.
        body = {"resource": resource, "overCommitTimeout": 0 if capacity.is_zero else -1}
        self._active.post(f"/nodes/{node_id}/resource", body, seconds=seconds)

    def wait_for_scheduler(self) -> None:
        """Wait until the scheduler has taken all that it was told before.

        Labels are changed at once, but the scheduler learns of it through two queues. Both must be empty twice in a
        row: in between, an event is in neither. Raises NoAnswerError if they are not empty in time.
        """
        deadline = time.monotonic() + _QUEUE_SECONDS
        empty = 0
        while True:
            metrics = _fields(self._active.get("/metrics"), "clusterMetrics")
            waiting = [metrics.get("rmEventQueueSize"), metrics.get("schedulerEventQueueSize")]
            if None in waiting:
                self._stop.sleep(_SETTLE_SECONDS)
                return
            empty = empty + 1 if waiting == [0, 0] else 0
            if empty == 2:
                return
            if time.monotonic() > deadline:
                raise NoAnswerError(
                    f"The scheduler of the ResourceManager {self.url} is behind: {waiting[0]} and {waiting[1]} events"
                    " are queued."
                )
            self._stop.sleep(_POLL_SECONDS)

    def _check_labels(self, start: object) -> None:
        """Once for each start of a ResourceManager, also while nothing is blocked. Raises RejectedError."""
        if start == self._checked:
            return
        answer = _fields(self._active.get("/scheduler"), "scheduler")
        scheduler = str(_fields(answer, "schedulerInfo").get("type", ""))
        if scheduler != _CAPACITY_SCHEDULER:
            raise RejectedError(
                f"The scheduler of the ResourceManager {self.url} ({scheduler}) is not the CapacityScheduler:"
                " it ignores node labels. The exec manager can keep YARN's exclude file instead."
            )
        try:
            # Changes nothing, but is rejected as a change would be.
            self._post_labels([])
        except RejectedError as error:
            # Another version may only want a label in it.
            if error.status not in _NO_RIGHT and not _is_disabled(error):
                log.debug("Whether labels may be set is not known: %s", error)
            else:
                raise
        self._checked = start

    def _post_labels(self, entries: Sequence[Mapping[str, str]]) -> None:
        try:
            self._active.post("/add-node-labels", {"nodeLabelInfo": entries})
        except RejectedError as error:
            if not _is_disabled(error):
                raise
            raise RejectedError(f"{error} Set yarn.node-labels.enabled in yarn-site.xml.", error.status) from error

    def _unexpected(self, error: ValueError) -> NoAnswerError:
        return NoAnswerError(f"The ResourceManager {self.url} gave an unexpected answer: {error}.")


def _is_disabled(error: RejectedError) -> bool:
    return "is disabled" in str(error) or "not enabled" in str(error)


def _fields(body: object, key: str) -> Mapping[str, Any]:
    found = body.get(key) if isinstance(body, dict) else None
    return found if isinstance(found, dict) else {}
