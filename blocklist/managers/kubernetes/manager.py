"""KubernetesManager: plans from the nodes that are known, and patches those that are not as they should be."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from blocklist.managers.applications import Application, as_items, parse_driver_pod
from blocklist.managers.kubernetes.api_server import FIELD_MANAGER, ApiError, ApiServer, Json
from blocklist.managers.kubernetes.cordon_mirror import CordonMirror
from blocklist.managers.kubernetes.eviction import Evictor
from blocklist.managers.kubernetes.nodes import NODES, KubernetesNode, NodeCache, read_node
from blocklist.managers.kubernetes.plan import (
    Assessment,
    Condition,
    DriftPolicy,
    KubernetesPlan,
    NodeChange,
    OwnTaint,
    assess,
    is_tainted,
    make_plan,
    reason_of,
)
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    NodeNames,
    NotDone,
    NotInForce,
    PlanStep,
    TransientError,
)
from blocklist.model.claims import Claims
from blocklist.model.errors import BlocklistError

log = logging.getLogger("blocklist.managers")

# EventRecorder: an Event of Kubernetes for each change of a node, so that `kubectl describe node` shows it.

PATH: Final = "/api/v1/namespaces/default/events"
"""Events about what has no namespace are in `default`."""
MAX_WAITING: Final = 20_000
_MAX_MESSAGE: Final = 1000


class EventRecorder:
    """Writes events in a thread of its own: neither the taint nor the acknowledgement waits for them.

    An event that cannot be written is lost; the first failure is logged. At most MAX_WAITING wait; the oldest are lost.
    """

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._waiting: deque[Json] = deque(maxlen=MAX_WAITING)
        self._changed = threading.Condition()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="blocklist-kubernetes-events", daemon=True)
        self._thread.start()

    def record(self, node: KubernetesNode, reason: str, message: str, *, warning: bool = False) -> None:
        """`reason` is one word, such as Blocked; `message` is a sentence."""
        with self._changed:
            self._waiting.append(event_body(node, reason, message, datetime.now(UTC), warning=warning))
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for at most a few seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(5)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._closed):
                    self._changed.wait()
                if not self._waiting:
                    return
                body = self._waiting.popleft()
            self._write(body)

    def _write(self, body: Json) -> None:
        try:
            self._api.create(PATH, body)
            self._failing = False
        except ManagerError as error:
            if not self._failing:
                log.warning("Events cannot be written: %s", error)
            self._failing = True
        except Exception:
            log.exception("An event was lost.")


def event_body(node: KubernetesNode, reason: str, message: str, at: datetime, *, warning: bool) -> Json:
    """The object of an event about a node."""
    time = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"generateName": f"{node.name}.", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
        "reason": reason,
        "message": message[:_MAX_MESSAGE],
        "type": "Warning" if warning else "Normal",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": socket.gethostname(),
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


PARALLEL: Final = 8
"""Patches at the same time."""
UNKNOWN_AFTER: Final = 10.0
"""Seconds without the API server after which it is unknown whether blocks are in force."""
DRIFT_SHOWN: Final = 15.0
"""Seconds for which a taint that was restored is reported: the service looks every 5 s."""
_RETRY_SECONDS: Final = 10.0
_EVENTS: Final = {
    Condition.MISSING: "Blocked",
    Condition.OUTDATED: "BlockChanged",
    Condition.DRIFTED: "TaintRestored",
    Condition.LEFT_OVER: "Unblocked",
}


class KubernetesManager:
    """`is_active` is whether this manager may act; `authors` reads who blocked the nodes, as far as that is known.

    `events`, `evictor` and `cordons` are None if they are off. `plans_cordons` is whether their steps are in the plan.
    `request` asks for another reconciliation soon.
    """

    def __init__(
        self,
        api: ApiServer,
        source: NodeCache,
        taint: OwnTaint,
        *,
        on_drift: DriftPolicy = DriftPolicy.RESTORE,
        events: EventRecorder | None = None,
        evictor: Evictor | None = None,
        cordons: CordonMirror | None = None,
        plans_cordons: bool = False,
        is_active: Callable[[], bool] = lambda: True,
        authors: Callable[[], Mapping[str, Claims]] = dict,
        request: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._platform: str | None = None
        self._source = source
        self._taint = taint
        self._on_drift = on_drift
        self._events = events
        self._evictor = evictor
        self._cordons = cordons
        self._plans_cordons = plans_cordons
        restores = on_drift is DriftPolicy.RESTORE
        self._patcher = NodePatcher(api, taint, source.put, is_active, restores=restores)
        self._read_authors = authors
        self._request = request
        self._names = NodeNames()
        self._authors: Mapping[str, Claims] | None = None
        self._tainted: set[str] = set()
        self._machines: Mapping[str, str] = {}
        self._drift: dict[str, tuple[float, str]] = {}
        self._not_freed: dict[str, str] = {}
        self._timer: threading.Timer | None = None
        self._due = 0.0

    def plan(self, desired: DesiredState) -> KubernetesPlan:
        nodes, missing = self._source.nodes(), self._source.missing()
        self._names.update(node.facts for node in [*nodes.values(), *missing.values()])
        self._names.others = desired.others
        self._require_connection(desired)
        desired = replace(desired, claims={**self._known_authors(), **desired.claims})
        plan = make_plan(
            desired,
            nodes,
            self._names,
            self._taint,
            on_drift=self._on_drift,
            tainted=self._note_tainted(nodes),
            missing=missing,
            machines=self._machines,
        )
        self._machines = plan.machines
        steps = (*plan.steps, *self._plan_cordons(plan)) if self._plans_cordons else plan.steps
        not_freed = {name: why for name, why in self._not_freed.items() if name in nodes}
        return replace(
            plan,
            platform=self._read_platform(),
            verb="taint",
            steps=steps,
            schedulable=self._shown_drift(plan),
            unschedulable={**(plan.unschedulable or {}), **not_freed},
        )

    def apply(self, plan: KubernetesPlan) -> NotInForce:
        if self._on_drift is DriftPolicy.REPORT:
            self._record_drift(plan)
        if self._evictor is not None:
            self._evictor.stop_others(plan.evacuated)
        found = self._change_all(plan)
        if self._evictor is not None:
            # Without the taint, a pod that is evicted may start there again.
            without = found.refused.keys() | found.pending.keys()
            remaining = self._evictor.evacuate([name for name, ids in plan.evacuated.items() if not without & {*ids}])
            for name, left in remaining.items():
                found |= left.for_ids(plan.evacuated[name])
        if self._cordons is not None:
            self._mirror_cordons(self._cordons, plan)
        return found

    def applications(self) -> Sequence[Application]:
        """The Spark applications in cluster mode: their drivers' pods. Raises ManagerError."""
        pages = self._api.pages("/api/v1/pods", labelSelector="spark-role=driver", fieldSelector="status.phase=Running")
        return [parse_driver_pod(pod, time.time()) for page in pages for pod in as_items(page["items"])]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # The plan.

    def _read_platform(self) -> str | None:
        """The API server's version, read once; None as long as it does not tell."""
        if self._platform is None:
            with suppress(ManagerError):
                self._platform = f"Kubernetes {self._api.get('/version').get('gitVersion', '')}"[:100].strip()
        return self._platform

    def _require_connection(self, desired: DesiredState) -> None:
        """Raises ManagerError while the nodes cannot be read: what is known of them may be outdated."""
        if (outage := self._source.outage()) is None:
            return
        seconds, why = outage
        if seconds < UNKNOWN_AFTER:
            self._request_in(UNKNOWN_AFTER - seconds + 0.1)
            raise TransientError(f"{why}.")
        unknown = f"It is unknown whether the taint is in place: the nodes cannot be read ({why})."
        known = NotInForce(pending=dict.fromkeys(desired.nodes, unknown))
        raise ManagerError(f"The nodes could not be read for {seconds:.0f} s: {why}.", known=known)

    def _known_authors(self) -> Mapping[str, Claims]:
        """Who blocked what was on the list at the start: later changes name their authors."""
        if self._authors is None:
            try:
                self._authors = self._read_authors()
            except BlocklistError as error:
                log.info("Who blocked the nodes is not known: %s", error)
                self._authors = {}
        return self._authors

    def _note_tainted(self, nodes: Mapping[str, KubernetesNode]) -> set[str]:
        """The uids of the nodes that carry, or have carried, the taint in this life of theirs."""
        self._tainted &= {node.uid for node in nodes.values()}
        self._tainted |= {node.uid for node in nodes.values() if is_tainted(node, self._taint)}
        return self._tainted

    def _shown_drift(self, plan: KubernetesPlan) -> dict[str, str]:
        """The drift there is, and what was restored a moment ago, as the service looks at intervals only."""
        now = time.monotonic()
        if self._on_drift is DriftPolicy.REPORT:
            return dict(plan.drifted)
        self._drift |= {name: (now + DRIFT_SHOWN, f"{why} It was restored.") for name, why in plan.drifted.items()}
        self._drift = {name: drift for name, drift in self._drift.items() if drift[0] > now}
        if self._drift:
            self._request_in(DRIFT_SHOWN)
        return {name: why for name, (_, why) in self._drift.items()}

    def _record_drift(self, plan: KubernetesPlan) -> None:
        """An event for each taint that was removed, once."""
        nodes = self._source.nodes()
        for name, why in plan.drifted.items():
            if name not in self._drift and self._events is not None and name in nodes:
                self._events.record(nodes[name], "TaintRemoved", why, warning=True)
        self._drift = {name: (0.0, why) for name, why in plan.drifted.items()}

    def _plan_cordons(self, plan: KubernetesPlan) -> list[PlanStep]:
        if self._cordons is None:
            return []
        return self._cordons.plan(self._seen(plan), self._names.meant_by, plan.history).steps()

    def _seen(self, plan: KubernetesPlan) -> Mapping[str, KubernetesNode]:
        """With those that are not listed now: that they are uncordoned is not known."""
        return {**self._source.missing(), **plan.nodes}

    # Carrying it out.

    def _mirror_cordons(self, cordons: CordonMirror, plan: KubernetesPlan) -> None:
        wait = cordons.reconcile(self._seen(plan), self._names.meant_by, plan.history)
        if wait == 0:
            self._request()
        elif wait is not None:
            self._request_in(wait)

    def _change_all(self, plan: KubernetesPlan) -> NotInForce:
        """Patch all nodes that need it; what is not in force then: of a node that is not freed by its name.

        Raises ManagerError if the API server did not answer, with what is known not to be in force.
        """
        if not plan.changes:
            self._not_freed = {}
            return NotInForce()
        with ThreadPoolExecutor(min(PARALLEL, len(plan.changes)), thread_name_prefix="blocklist-kubernetes") as pool:
            results = list(pool.map(self._change_or_error, plan.changes))
        found = NotInForce()
        self._not_freed = {}
        failed: ManagerError | None = None
        for change, result in zip(plan.changes, results, strict=True):
            if isinstance(result, ManagerError):
                failed = result
                if change.assessment.condition is Condition.DRIFTED:
                    why = f"{change.reason} It could not be restored: {result}"
                    found |= NotInForce(pending=dict.fromkeys(change.ids, why))
            elif result is not None:
                self._request_in(_RETRY_SECONDS)
                if change.wanted is None:
                    self._not_freed[change.node.name] = f"tainted although its block has ended: {result.why}"
                found |= result.for_ids(change.ids or (change.node.name,))
        if failed is not None:
            raise ManagerError(str(failed), known=plan.not_in_force | found if found else None)
        return found

    def _change_or_error(self, change: NodeChange) -> NotDone | ManagerError | None:
        was_tainted = change.node.uid in self._tainted
        try:
            after = self._patcher.change(change, was_tainted=was_tainted)
        except ApiError as error:
            # A response, such as that of a failing admission webhook, says nothing about other nodes.
            if error.status is None:
                return error
            return NotDone(f"Node {change.node.name} cannot be changed: {error}", for_good=error.for_good)
        except ManagerError as error:
            return error
        if isinstance(after, NotDone):
            return after
        self._note_changed(change, after)
        return None

    def _note_changed(self, change: NodeChange, node: KubernetesNode) -> None:
        if change.wanted is None:
            self._tainted.discard(node.uid)
        else:
            self._tainted.add(node.uid)
        if self._events is not None:
            drifted = change.assessment.condition is Condition.DRIFTED
            message = f"{change.reason} It was restored." if drifted and change.wanted is not None else change.reason
            self._events.record(node, _EVENTS[change.assessment.condition], message, warning=drifted)

    def _request_in(self, seconds: float) -> None:
        """Reconcile again then; the earliest of several requests counts, as that makes the others again."""
        due = time.monotonic() + seconds
        if self._timer is not None and self._timer.is_alive():
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = threading.Timer(seconds, self._request)
        self._timer.daemon = True
        self._timer.start()


# NodePatcher: patches one node until it is as wanted, while others write the same node.

ATTEMPTS: Final = 10
"""Of one patch, while others write the same node."""
_CHANGED_MEANWHILE: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})


class NodePatcher:
    """`on_read` receives each node as the API server answers it; `is_active` is whether this process may act.

    `restores` is whether a taint that somebody removes meanwhile is put back.
    """

    def __init__(
        self,
        api: ApiServer,
        taint: OwnTaint,
        on_read: Callable[[KubernetesNode], None],
        is_active: Callable[[], bool],
        *,
        restores: bool,
    ) -> None:
        self._api = api
        self._restores = restores
        self._taint = taint
        self._on_read = on_read
        self._is_active = is_active

    def change(self, change: NodeChange, *, was_tainted: bool) -> KubernetesNode | NotDone:
        """The node as the API server has stored it, as wanted; or why it is not. Raises ManagerError."""
        try:
            return self._change(change, was_tainted)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return NotDone(f"Kubernetes has no node {change.node.name} any more.")
            raise

    def _change(self, change: NodeChange, was_tainted: bool) -> KubernetesNode | NotDone:
        node, found = change.node, change.assessment
        for attempt in range(ATTEMPTS):
            if (after := self._patch(node.name, found)) is not None and self._is_as_wanted(after, change):
                return after
            # Others write the same node: read what is there, and decide again.
            time.sleep(random.uniform(0, 0.02) * attempt)  # noqa: S311
            node = self._parse(self._api.get(f"{NODES}/{node.name}"))
            found = assess(node, change.wanted, self._taint, was_tainted=was_tainted)
            if found.condition is Condition.AS_WANTED:
                return node
            left_so = found.condition is Condition.DRIFTED and not self._restores
            if left_so or not found.patch:
                return NotDone(reason_of(node, found, change.wanted, self._taint), for_good=True)
        return NotDone(f"The taints of node {node.name} keep changing: {ATTEMPTS} attempts failed.")

    def _patch(self, name: str, found: Assessment) -> KubernetesNode | None:
        """The node after the patch; None if the node was changed meanwhile."""
        if not self._is_active():
            raise ManagerError("This manager does not hold the lease: nothing is changed.")
        try:
            return self._parse(self._api.patch(f"{NODES}/{name}", found.patch))
        except ApiError as error:
            if error.status in _CHANGED_MEANWHILE:
                return None
            raise

    def _is_as_wanted(self, node: KubernetesNode, change: NodeChange) -> bool:
        return is_tainted(node, self._taint) == (change.wanted is not None)

    def _parse(self, body: Json) -> KubernetesNode:
        node = read_node(body, self._taint.key)
        self._on_read(node)
        return node
