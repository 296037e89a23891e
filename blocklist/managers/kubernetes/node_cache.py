"""NodeCache: the nodes of the cluster, kept up to date by a watch in a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from blocklist.client.transport import AbortableSocket
from blocklist.managers.kubernetes.api_server import ApiError, ApiServer, GoneError
from blocklist.managers.kubernetes.kubernetes_node import Json, KubernetesNode, parse_node
from blocklist.managers.plan import ManagerError
from blocklist.model.backoff import Backoff

log = logging.getLogger("blocklist.managers")

NODES: Final = "/api/v1/nodes"
_BACKOFF: Final = Backoff(initial=0.2, cap=10.0, floor=0.1)


def read_node(body: Json, annotation: str) -> KubernetesNode:
    """The node in an answer of the API server. Raises ManagerError if it is none."""
    try:
        return parse_node(body, annotation)
    except (KeyError, TypeError, ValueError) as error:
        raise ManagerError(f"The API server answered with what is not a node: {error!r}.") from error


def list_nodes(api: ApiServer, annotation: str) -> tuple[dict[str, KubernetesNode], str]:
    """All nodes by name, and the version from which to watch. Raises ManagerError."""
    nodes: dict[str, KubernetesNode] = {}
    version = ""
    for page in api.pages(NODES):
        version = page["metadata"]["resourceVersion"]
        nodes |= {node.name: node for node in (read_node(body, annotation) for body in page["items"])}
    return nodes, version


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
        self._listed = threading.Event()
        self._lost_at: float | None = time.monotonic()
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

    def outage(self) -> tuple[float, str] | None:
        """Seconds since the connection was lost, and why; None while it is up."""
        lost_at = self._lost_at
        return None if lost_at is None else (time.monotonic() - lost_at, self._error)

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
        return node != known

    def _run(self) -> None:
        while not self._connection.aborted.is_set():
            try:
                if self._version is None:
                    self._list()
                self._watch()
            except GoneError:
                self._version = None
            except ManagerError as error:
                # After an interruption the watch goes on where it was; whatever else is wrong, a list shows.
                if not (isinstance(error, ApiError) and error.status is None):
                    self._version = None
                self._on_error(error)
            except Exception as error:
                log.exception("Reading the nodes failed; retrying.")
                self._version = None
                self._on_error(error)

    def _list(self) -> None:
        nodes, self._version = list_nodes(self._api, self._annotation)
        with self._lock:
            known = self._nodes or {}
            changed = nodes != self._nodes
            self._nodes, self._gone = {name: node.after(known.get(name)) for name, node in nodes.items()}, {}
        self._listed.set()
        self._on_success(changed=changed)

    def _watch(self) -> None:
        assert self._version is not None
        changes = self._api.watch(NODES, self._version, self._connection, lambda: self._on_success(changed=False))
        for change in changes:
            self._version = str(change["object"]["metadata"]["resourceVersion"])
            if self._apply(change):
                self._on_change()

    def _apply(self, change: Json) -> bool:
        """Whether something has changed that matters."""
        kind, body = change["type"], change["object"]
        if kind == "BOOKMARK":
            return False
        node = read_node(body, self._annotation)
        with self._lock:
            if kind != "DELETED":
                return self._put(node)
            assert self._nodes is not None
            self._gone[node.name] = node.version
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
