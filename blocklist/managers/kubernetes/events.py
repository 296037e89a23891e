"""EventRecorder: an Event of Kubernetes for each change of a node, so that `kubectl describe node` shows it."""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from datetime import UTC, datetime
from typing import Final

from blocklist.managers.kubernetes.api_server import FIELD_MANAGER, ApiServer
from blocklist.managers.kubernetes.kubernetes_node import Json, KubernetesNode
from blocklist.managers.plan import ManagerError

log = logging.getLogger("blocklist.managers")

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
