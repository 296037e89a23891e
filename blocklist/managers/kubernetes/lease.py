"""Lease: of several managers of one cluster only one acts, by a Lease object as Kubernetes' own controllers use it."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

from blocklist.managers.kubernetes.api_server import ApiError, ApiServer
from blocklist.managers.kubernetes.kubernetes_node import Json
from blocklist.managers.plan import ManagerError

log = logging.getLogger("blocklist.managers")

LEASE_SECONDS: Final = 15
"""After this time without a renewal another manager may take over."""
RENEW_SECONDS: Final = 5.0
"""Interval of renewals, and of attempts to take over."""
DEADLINE_SECONDS: Final = 10.0
"""A holder that could not renew for this time stops acting, well before another one may begin."""


class Lease:
    """THREADING: `acquire` and `release` in one thread; `held` from any. Renewals run in a thread of their own.

    The end of another holder's lease is measured with this machine's clock, from when a renewal was seen.
    """

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._holder = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self._seen: tuple[object, object] = (None, None)
        self._seen_at = 0.0
        self._held_until = 0.0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing = False

    @property
    def held(self) -> bool:
        """Whether this manager may act: the last renewal is recent enough."""
        return time.monotonic() < self._held_until

    def try_acquire(self, on_loss: Callable[[], None]) -> bool:
        """Take the lease if it is free; then it is renewed until `release`, or until it is lost (`on_loss`)."""
        if not self._renew():
            return False
        self._released.clear()
        self._thread = threading.Thread(
            target=self._keep, args=(on_loss,), name="blocklist-kubernetes-lease", daemon=True
        )
        self._thread.start()
        return True

    def release(self) -> None:
        """Let another manager take over at once, if this one holds the lease."""
        self._released.set()
        if self._thread is not None:
            self._thread.join(20)
        was_held, self._held_until = self.held, 0.0
        if was_held:
            with suppress(ManagerError):
                lease = self._api.get(f"{self._path}/{self._name}")
                if lease["spec"].get("holderIdentity") == self._holder:
                    lease["spec"] |= {"holderIdentity": "", "renewTime": _now()}
                    self._api.replace(f"{self._path}/{self._name}", lease)

    def _keep(self, on_loss: Callable[[], None]) -> None:
        while not self._released.wait(RENEW_SECONDS):
            if not self._renew() and not self.held:
                log.warning("The lease %s was lost; this manager waits.", self._name)
                on_loss()
                return

    def _renew(self) -> bool:
        """Take or renew it; False if another manager holds it, or nobody can tell."""
        began = time.monotonic()
        try:
            renewed = self._write()
        except ManagerError as error:
            if not self._failing:
                log.warning("The lease %s cannot be renewed: %s", self._name, error)
            self._failing = True
            return False
        except Exception:
            log.exception("The lease %s cannot be renewed.", self._name)
            return False
        self._failing = False
        # Another holder ends this one at once; a failed request does not.
        self._held_until = began + DEADLINE_SECONDS if renewed else 0.0
        return renewed

    def _write(self) -> bool:
        try:
            lease = self._api.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            lease = {"metadata": {"name": self._name}, "spec": {}}
        spec = lease.setdefault("spec", {})
        if not self._is_free(spec):
            return False
        if spec.get("holderIdentity") != self._holder:
            spec |= {"acquireTime": _now(), "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= {"holderIdentity": self._holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": _now()}
        return self._put(lease)

    def _put(self, lease: Json) -> bool:
        try:
            if "resourceVersion" in lease["metadata"]:
                self._api.replace(f"{self._path}/{self._name}", lease)
            else:
                self._api.create(self._path, lease)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:  # Another manager was first.
                return False
            raise
        return True

    def _is_free(self, spec: Json) -> bool:
        holder, renewal = spec.get("holderIdentity"), spec.get("renewTime")
        if not holder or holder == self._holder:
            return True
        if (holder, renewal) != self._seen:
            self._seen, self._seen_at = (holder, renewal), time.monotonic()
        return time.monotonic() - self._seen_at > int(spec.get("leaseDurationSeconds") or LEASE_SECONDS)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
