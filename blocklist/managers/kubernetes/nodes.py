"""A node of Kubernetes: what of its object matters here. Pure."""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from blocklist.client.transport import AbortableSocket
from blocklist.managers.kubernetes.api_server import ApiError, ApiServer, GoneError, Json
from blocklist.managers.plan import NOT_LISTED_SECONDS, ManagerError
from blocklist.model.node import Backoff
from blocklist.model.reported_node import NodeFacts, make_label_value

log = logging.getLogger("blocklist.managers")

Cordon = tuple[str, int]
"""One cordon of a node: its uid, and a version that no other cordon of it has."""

NO_SCHEDULE: Final = "NoSchedule"
MANAGER: Final = "manager"
"""The field of an annotation that says which manager it is of."""
_LABELS: Final = {
    "zone": ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"),
    "region": ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"),
    "instance-type": ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    "pool": (
        "karpenter.sh/nodepool",
        "eks.amazonaws.com/nodegroup",
        "cloud.google.com/gke-nodepool",
        "kubernetes.azure.com/agentpool",
        "agentpool",
    ),
}
"""Label in the inventory to the labels in Kubernetes from which it comes; the first one counts."""
_ALLOCATABLE: Final = ("cpu", "memory")
_HOSTNAME: Final = "kubernetes.io/hostname"


@dataclass(frozen=True, kw_only=True, slots=True)
class Taint:
    """One entry of the list of taints; `fields` is the entry as it is."""

    key: str
    value: str
    effect: str
    fields: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesNode:
    """A node as the API server has it at a version.

    `mark` is the annotation with the key of the taint, as text. `not_ready` says why it is not ready, None if it is.
    `taints_writer` and `cordon_writer` say who wrote the taints and the cordon last and when, None if unknown.
    `cordoned_at` is when, in Unix milliseconds: the end of the second, as Kubernetes drops the rest.
    `cordon_version` is the version with which the cordon was first seen. `created_at` is when this life of the node
    began (Unix milliseconds), `machine` what its machine is called by the provider, or its own id; empty if unknown.
    `other_marks` are annotations of managers under other keys than that of the taint, with their texts.
    """

    name: str
    uid: str
    version: int = field(compare=False)
    taints: Sequence[Taint] = ()
    mark: str | None = None
    has_annotations: bool = True
    cordoned: bool = False
    not_ready: str | None = None
    taints_writer: str | None = None
    cordon_writer: str | None = None
    cordoned_at: int | None = None
    cordon_version: int = field(default=0, compare=False)
    created_at: int | None = None
    machine: str = ""
    other_marks: tuple[tuple[str, str], ...] = ()
    facts: NodeFacts

    @property
    def unschedulable(self) -> str | None:
        """Why it gets no work, apart from taints; None if it does."""
        if self.cordoned:
            return f"cordoned by {self.cordon_writer or 'an unknown client'}"
        return self.not_ready

    @property
    def cordon(self) -> Cordon:
        return self.uid, self.cordon_version

    def after(self, before: KubernetesNode | None) -> KubernetesNode:
        """The node, if it was `before` and no other version came between: then the same cordon may go on."""
        if before is None or before.uid != self.uid or not (before.cordoned and self.cordoned):
            return self
        return replace(self, cordon_version=before.cordon_version)

    def with_uncordon(self, older: KubernetesNode) -> KubernetesNode:
        """The node when an older version of it becomes known: it may have been cordoned again since."""
        if older.uid != self.uid or older.cordoned or older.version < self.cordon_version:
            return self
        return replace(self, cordon_version=older.version + 1)

    def taint_index(self, key: str) -> int | None:
        """The place in the list of the taint with this key that keeps new pods off; there is one at most."""
        return next((i for i, t in enumerate(self.taints) if t.key == key and t.effect == NO_SCHEDULE), None)


def parse_node(body: Json, annotation: str) -> KubernetesNode:
    """The node of an object. Raises KeyError, TypeError or ValueError if it is none."""
    meta, spec = body["metadata"], body.get("spec") or {}
    annotations, managed = meta.get("annotations") or {}, meta.get("managedFields") or ()
    text = str(meta.get("resourceVersion", ""))
    version = int(text) if text.isdecimal() else 0
    cordon = _last_write(managed, "f:unschedulable")
    return KubernetesNode(
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        version=version,
        taints=tuple(map(_parse_taint, spec.get("taints") or ())),
        mark=annotations.get(annotation),
        has_annotations=bool(annotations),
        cordoned=bool(spec.get("unschedulable")),
        not_ready=_not_ready(body),
        taints_writer=_writer(_last_write(managed, "f:taints")),
        cordon_writer=_writer(cordon),
        cordoned_at=_end_of_second(cordon),
        cordon_version=version,
        created_at=_milliseconds(meta.get("creationTimestamp")),
        machine=_machine(body),
        other_marks=tuple(sorted(_other_marks(annotations, annotation))),
        facts=_facts(body),
    )


def parse_mark(text: str | None) -> Json:
    """The annotation as an object; empty if there is none, or somebody has changed it to something else."""
    try:
        body = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _milliseconds(time: object) -> int | None:
    try:
        return round(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return None


def _machine(body: Json) -> str:
    info = (body.get("status") or {}).get("nodeInfo") or {}
    return str((body.get("spec") or {}).get("providerID") or info.get("systemUUID") or info.get("machineID") or "")


def _other_marks(annotations: Mapping[str, Any], key: str) -> Iterator[tuple[str, str]]:
    for name, text in annotations.items():
        if name != key and isinstance(text, str) and MANAGER in parse_mark(text):
            yield name, text


def _parse_taint(body: Mapping[str, Any]) -> Taint:
    return Taint(key=body["key"], value=body.get("value") or "", effect=body.get("effect") or "", fields=dict(body))


def _not_ready(body: Json) -> str | None:
    conditions = (body.get("status") or {}).get("conditions") or ()
    ready = next((each for each in conditions if each.get("type") == "Ready"), None)
    if ready is None:
        return "not ready: the kubelet has not reported yet"
    return None if ready.get("status") == "True" else f"not ready: {ready.get('reason') or 'unknown reason'}"


def _last_write(managed: Sequence[Json], name: str) -> Json | None:
    """The last write of this field of the spec, as far as managedFields tell: a removed list has no entry."""
    entries = [each for each in managed if name in ((each.get("fieldsV1") or {}).get("f:spec") or {})]
    return max(entries, key=lambda each: str(each.get("time") or ""), default=None)


def _writer(write: Json | None) -> str | None:
    if write is None:
        return None
    at = f" at {write['time']}" if write.get("time") else ""
    return f"{write.get('manager') or 'an unknown client'}{at}"


def _end_of_second(write: Json | None) -> int | None:
    try:
        return round(datetime.fromisoformat(str((write or {})["time"])).timestamp()) * 1000 + 999
    except (KeyError, ValueError):
        return None


def _facts(body: Json) -> NodeFacts:
    meta, status = body["metadata"], body.get("status") or {}
    labels = meta.get("labels") or {}
    provider_id = str((body.get("spec") or {}).get("providerID") or "")
    names = [str(each["address"]) for each in status.get("addresses") or () if each.get("address")]
    # People and alerts of a cloud name a machine by the last part, such as i-0abc of aws:///eu-1a/i-0abc.
    instance = provider_id.rpartition("/")[2]
    names += [name for name in (labels.get(_HOSTNAME), instance) if name and name not in names]
    return NodeFacts(id=meta["name"], names=tuple(names), labels=tuple(_labels(labels, provider_id, status)))


def _labels(labels: Mapping[str, str], provider_id: str, status: Json) -> Iterator[tuple[str, str]]:
    """The most useful first: a long report leaves out the last ones."""
    for name, keys in _LABELS.items():
        if found := next((labels[key] for key in keys if labels.get(key)), None):
            yield name, found
    amounts = status.get("allocatable") or {}
    yield from ((f"allocatable-{name}", str(amounts[name])) for name in _ALLOCATABLE if amounts.get(name))
    # A longer value is no label.
    if provider_id and len(value := make_label_value(provider_id)) <= 63:
        yield "provider-id", value


# NodeCache: the nodes of the cluster, kept up to date by a watch in a thread of its own.

NODES: Final = "/api/v1/nodes"
_BACKOFF: Final = Backoff(initial=0.2, cap=10.0, floor=0.1)
_MIN_WATCH_SECONDS: Final = 0.5
_MAX_LIST_SECONDS: Final = 15.0
"""After which what is known of the nodes counts as outdated: while they are listed, no watch tells of changes."""


def read_node(body: Json, annotation: str) -> KubernetesNode:
    """The node in an answer of the API server. Raises ManagerError if it is none."""
    try:
        return parse_node(body, annotation)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ManagerError(f"The API server answered with what is not a node: {error!r}.") from error


def list_nodes(api: ApiServer, annotation: str) -> tuple[dict[str, KubernetesNode], str]:
    """All nodes by name, and the version from which to watch. Raises ManagerError."""
    nodes: dict[str, KubernetesNode] = {}
    version: object = ""
    for page in api.pages(NODES):
        version = page["metadata"].get("resourceVersion")
        nodes |= {node.name: node for node in (read_node(body, annotation) for body in page["items"])}
    if not isinstance(version, str):
        raise ManagerError("The API server's list of nodes has no version.")
    return nodes, version


def _version_of(change: Json) -> str:
    version = (change["object"].get("metadata") or {}).get("resourceVersion")
    if not isinstance(version, str):
        raise ManagerError("The API server answered with a change without a version.")
    return version


class NodeCache:
    """Lists the nodes, then watches: resumes after an interruption, and lists again if the version is too old.

    `on_change` is called in the thread when a node is new, gone, or has changed in what matters here, and when the
    connection is lost or restored. Memory: what KubernetesNode keeps of each node, not its object.
    """

    def __init__(self, api: ApiServer, annotation: str, on_change: Callable[[], None]) -> None:
        self._api = api
        self._annotation = annotation
        self._on_change = on_change
        self._lock = threading.Lock()
        self._nodes: dict[str, KubernetesNode] | None = None
        self._gone: dict[str, int] = {}
        self._missing: dict[str, tuple[KubernetesNode, float]] = {}
        self._listed = threading.Event()
        self._lost_at: float | None = time.monotonic()
        self._listing_since: float | None = None
        self._error = "not read yet"
        self._failures = 0
        self._version: str | None = None
        self._connection = AbortableSocket()
        self._thread = threading.Thread(target=self._run, name="blocklist-kubernetes-nodes", daemon=True)

    def start(self, seconds: float = 0.0) -> None:
        """Begin to read, and wait for the first list at most this time."""
        self._thread.start()
        self._listed.wait(seconds)

    def close(self) -> None:
        self._connection.abort()
        self._thread.join(10)

    def nodes(self) -> Mapping[str, KubernetesNode]:
        """The nodes by name. Raises ManagerError before they have been read."""
        with self._lock:
            if self._nodes is None:
                raise ManagerError(f"The nodes cannot be read: {self._error}.")
            return dict(self._nodes)

    def missing(self) -> Mapping[str, KubernetesNode]:
        """Nodes that were there, by name, and that the last list did not have although nobody reported their end."""
        with self._lock:
            now = time.monotonic()
            return {name: node for name, (node, since) in self._missing.items() if now - since < NOT_LISTED_SECONDS}

    def outage(self) -> tuple[float, str] | None:
        """Seconds since the connection was lost, and why; None while it is up."""
        if (lost_at := self._lost_at) is not None:
            return time.monotonic() - lost_at, self._error
        since = self._listing_since
        if since is not None and (seconds := time.monotonic() - since) > _MAX_LIST_SECONDS:
            return seconds, "the API server has not finished its list of nodes"
        return None

    def put(self, node: KubernetesNode) -> None:
        """A node as the API server has just answered it: older news of it do not count."""
        with self._lock:
            if self._nodes is not None:
                self._put(node)

    def _put(self, node: KubernetesNode) -> bool:
        assert self._nodes is not None
        known = self._nodes.get(node.name)
        newest = self._gone.get(node.name, 0) if known is None else known.version
        if node.version and node.version < newest:
            if known is None:
                return False
            self._nodes[node.name] = known.with_uncordon(node)
            return self._nodes[node.name].cordon != known.cordon
        self._nodes[node.name] = node.after(known)
        self._missing.pop(node.name, None)
        return node != known

    def _run(self) -> None:
        while not self._connection.aborted.is_set():
            began = time.monotonic()
            try:
                if self._version is None:
                    self.read_list()
                self._watch()
                self._pace(began)
            except GoneError:
                self._version = None
                self._pace(began)
            except ManagerError as error:
                # After an interruption the watch goes on where it was; whatever else is wrong, a list shows.
                if not (isinstance(error, ApiError) and error.status is None):
                    self._version = None
                self._on_error(error)
            except Exception as error:
                log.exception("Reading the nodes failed; retrying.")
                self._version = None
                self._on_error(error)

    def _pace(self, began: float) -> None:
        """A watch that ends at once, as behind some proxies, must not be asked for again and again without a pause."""
        if time.monotonic() - began < _MIN_WATCH_SECONDS:
            self._connection.aborted.wait(_MIN_WATCH_SECONDS)

    def read_list(self) -> None:
        """List the nodes once; the thread does it, where there is one. Raises ManagerError."""
        self._listing_since = time.monotonic()
        try:
            nodes, self._version = list_nodes(self._api, self._annotation)
        finally:
            self._listing_since = None
        with self._lock:
            known, now = self._nodes or {}, time.monotonic()
            missing = {name: (node, now) for name, node in known.items() if name not in nodes}
            self._missing = {name: each for name, each in self._missing.items() if name not in nodes} | missing
            changed = nodes != self._nodes
            self._nodes, self._gone = {name: node.after(known.get(name)) for name, node in nodes.items()}, {}
        self._listed.set()
        self._on_success(changed=changed)

    def _watch(self) -> None:
        assert self._version is not None
        changes = self._api.watch(NODES, self._version, self._connection, lambda: self._on_success(changed=False))
        for change in changes:
            self._version = _version_of(change)
            if self._apply(change):
                self._on_change()

    def _apply(self, change: Json) -> bool:
        """Whether something has changed that matters."""
        kind, body = change.get("type"), change["object"]
        if kind == "BOOKMARK":
            return False
        if kind not in {"ADDED", "MODIFIED", "DELETED"}:
            raise ManagerError(f"The API server answered with an unknown type of change: {kind!r:.50}.")
        node = read_node(body, self._annotation)
        with self._lock:
            if kind != "DELETED":
                return self._put(node)
            assert self._nodes is not None
            self._gone[node.name] = node.version
            self._missing.pop(node.name, None)
            return self._nodes.pop(node.name, None) is not None

    def _on_success(self, *, changed: bool) -> None:
        if self._failures:
            log.info("The nodes of the cluster are read again.")
        restored = self._lost_at is not None
        self._lost_at, self._failures = None, 0
        if changed or restored:
            self._on_change()

    def _on_error(self, error: Exception) -> None:
        if self._connection.aborted.is_set():
            return
        self._error = (str(error) or type(error).__name__).rstrip(".")
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._on_change()
        self._failures += 1
        if self._failures == 2:  # One alone may be a restart of the API server, or of a proxy.
            log.warning("%s. Retrying.", self._error)
        self._connection.aborted.wait(_BACKOFF.delay(self._failures, random.random()))  # noqa: S311
