"""Evictor: evicts pods from evacuated nodes through the Eviction API, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from blocklist.managers.kubernetes.api_server import ApiError, ApiServer, Json
from blocklist.managers.plan import ManagerError, NotDone

log = logging.getLogger("blocklist.managers")

# Which pods of an evacuated node are evicted, and what keeps others there. Pure.

_MIRROR: Final = "kubernetes.io/config.mirror"
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_SPARK_ROLE: Final = "spark-role"
_FLINK: Final = ("type", "flink-native-kubernetes")
_FLINK_ROLE: Final = "component"
_MAX_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class PodToEvict:
    """A pod by its name and uid; `ending` is whether it is being deleted. `stays` is why it must not be evicted."""

    namespace: str
    name: str
    uid: str
    ending: bool
    stays: str | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pods_to_evict(pods: Sequence[Json]) -> list[PodToEvict]:
    """Those that an evacuation moves: not the pods of a DaemonSet, which tolerate taints and would return; not mirror
    pods, which the API server cannot delete; not executors of Spark and TaskManagers of Flink, which their own
    listeners evacuate; not what has ended. A driver and a JobManager are among them with why they stay.
    """
    return [_pod(pod) for pod in pods if _moves(pod)]


def not_evacuated(node: str, remaining: Mapping[str, NotDone]) -> NotDone | None:
    """Why an evacuation is not complete: pod to why it remains. None if there is none.

    It goes on as long as one of them is leaving or may be evicted; these are named first.
    """
    if not remaining:
        return None
    in_order = sorted(remaining.items(), key=lambda item: (item[1].for_good, item[0]))
    named = [f"{pod} ({left.why})" for pod, left in in_order[:_MAX_NAMED]]
    more = f" and {len(remaining) - _MAX_NAMED} more" if len(remaining) > _MAX_NAMED else ""
    pods = "1 pod remains" if len(remaining) == 1 else f"{len(remaining)} pods remain"
    for_good = all(left.for_good for left in remaining.values())
    return NotDone(f"Node {node} gets no new pods; {pods}: {', '.join(named)}{more}.", for_good=for_good)


def budget_reason(body: Mapping[str, Any]) -> str:
    """Why an eviction was refused, from the response with the status 429."""
    causes = (body.get("details") or {}).get("causes") or ()
    messages = [str(each["message"]).rstrip(".") for each in causes if each.get("message")]
    return (
        messages[0] if messages else str(body.get("message") or "a PodDisruptionBudget does not allow it").rstrip(".")
    )


def _pod(pod: Json) -> PodToEvict:
    meta = pod["metadata"]
    return PodToEvict(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        ending="deletionTimestamp" in meta,
        stays=_stays(meta.get("labels") or {}),
    )


def _stays(labels: Mapping[str, str]) -> str | None:
    """Why a pod is not evicted although nothing else moves it: with it, its whole application would end."""
    if labels.get(_SPARK_ROLE) == "driver":
        return "a Spark driver, which leaves when its application ends"
    if _is_flink(labels) and labels.get(_FLINK_ROLE) == "jobmanager":
        return "a Flink JobManager, which leaves when its cluster ends"
    return None


def _is_flink(labels: Mapping[str, str]) -> bool:
    return labels.get(_FLINK[0]) == _FLINK[1]


def _moves(pod: Json) -> bool:
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    owners = meta.get("ownerReferences") or ()
    return not (
        _MIRROR in (meta.get("annotations") or {})
        or any(owner.get("kind") == "DaemonSet" and owner.get("controller") for owner in owners)
        or (pod.get("status") or {}).get("phase") in _ENDED
        or ((_SPARK_ROLE in labels or _is_flink(labels)) and _stays(labels) is None)
    )


INTERVAL: Final = 5.0
"""Seconds between two attempts while pods remain."""


@dataclass(slots=True)
class _NodeEvacuation:
    """Of one node, since it was asked for. `left` is why it is not complete, None if nothing remains."""

    left: NotDone | None


class Evictor:
    """PodDisruptionBudgets are honoured: the API server refuses what they do not allow, and it is tried again.

    `selector` selects the pods by their labels, as the API server reads it; empty for all. `may_act` is asked before
    each eviction. `on_change` is called in the thread when what remains on a node has changed.
    """

    def __init__(
        self, api: ApiServer, selector: str, on_change: Callable[[], None], may_act: Callable[[], bool] = lambda: True
    ) -> None:
        self._api = api
        self._selector = selector
        self._on_change = on_change
        self._may_act = may_act
        self._changed = threading.Condition()
        self._evacuations: dict[str, _NodeEvacuation] = {}
        self._added = self._closed = False
        self._thread = threading.Thread(target=self._run, name="blocklist-kubernetes-evictions", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(20)

    def stop_others(self, nodes: Collection[str]) -> None:
        """Evict nothing more from any node but these."""
        with self._changed:
            self._evacuations = {node: each for node, each in self._evacuations.items() if node in nodes}

    def evacuate(self, nodes: Collection[str]) -> Mapping[str, NotDone]:
        """Evict the pods of exactly these nodes from now on; why the evacuation of some is not complete."""
        self.stop_others(nodes)
        with self._changed:
            for node in nodes:
                if node not in self._evacuations:
                    begun = NotDone(f"Node {node} gets no new pods; its pods are being evicted.")
                    self._evacuations[node] = _NodeEvacuation(begun)
                    self._added = True
                    self._changed.notify()
            return {node: each.left for node, each in self._evacuations.items() if each.left is not None}

    def _run(self) -> None:
        while True:
            with self._changed:
                if not (self._added or self._closed):
                    # A pod that tolerates the taint may still start here: the nodes are read again and again.
                    self._changed.wait(INTERVAL if self._evacuations else None)
                if self._closed:
                    return
                self._added = False
                evacuations = dict(self._evacuations)
            changed = False
            for node, evacuation in sorted(evacuations.items()):
                left = self._evict_all(node)
                changed |= left != evacuation.left
                evacuation.left = left
            if changed:
                self._on_change()

    def _may_evict(self, node: str) -> bool:
        with self._changed:
            return node in self._evacuations and not self._closed and self._may_act()

    def _evict_all(self, node: str) -> NotDone | None:
        """Why pods remain on the node; None if none does."""
        unknown = f"Node {node} gets no new pods; it is unknown which pods remain"
        try:
            return not_evacuated(node, self._evict_pods(node))
        except ManagerError as error:
            return NotDone(f"{unknown}: {error}", for_good=isinstance(error, ApiError) and error.for_good)
        except Exception:
            log.exception("The pods of node %s could not be evicted; retrying.", node)
            return NotDone(f"{unknown}.")

    def _evict_pods(self, node: str) -> dict[str, NotDone]:
        params = {"fieldSelector": f"spec.nodeName={node}"}
        if self._selector:
            params["labelSelector"] = self._selector
        pods = [pod for page in self._api.pages("/api/v1/pods", **params) for pod in pods_to_evict(page["items"])]
        remaining = ((pod, self._evict(node, pod)) for pod in pods)
        return {str(pod): left for pod, left in remaining if left is not None}

    def _evict(self, node: str, pod: PodToEvict) -> NotDone | None:
        """Why it remains; None if it was gone."""
        if pod.ending:
            return NotDone("it is ending")
        if pod.stays is not None:
            return NotDone(pod.stays, for_good=True)
        if not self._may_evict(node):
            return NotDone("it is not evicted any more")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # Not another pod with this name.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            self._api.create(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        except ApiError as error:
            match error.status:
                case HTTPStatus.NOT_FOUND:
                    return None
                case HTTPStatus.CONFLICT:
                    return NotDone("another pod has its name by now")
                case HTTPStatus.TOO_MANY_REQUESTS:
                    return NotDone(budget_reason(error.body))
                case _:
                    return NotDone(str(error).rstrip("."), for_good=error.for_good)
        log.info("Evicted pod %s from node %s.", pod, node)
        return NotDone("it is ending")
