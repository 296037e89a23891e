"""Which pods of an evacuated node are evicted, and what keeps others there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blocklist.managers.kubernetes.kubernetes_node import Json

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


def remaining_sentence(node: str, remaining: Mapping[str, str]) -> str | None:
    """Why an evacuation is not complete: pod to the reason why it remains. None if there is none."""
    if not remaining:
        return None
    named = [f"{pod} ({why})" for pod, why in sorted(remaining.items())[:_MAX_NAMED]]
    more = f" and {len(remaining) - _MAX_NAMED} more" if len(remaining) > _MAX_NAMED else ""
    pods = "1 pod remains" if len(remaining) == 1 else f"{len(remaining)} pods remain"
    return f"Node {node} gets no new pods; {pods}: {', '.join(named)}{more}."


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
