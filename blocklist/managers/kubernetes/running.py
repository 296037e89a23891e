"""Puts the parts of the Kubernetes manager together: once, or in a loop while it holds the lease."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers.command import Stopping
from blocklist.managers.kubernetes.api_server import ApiError, ApiServer, Json
from blocklist.managers.kubernetes.cluster_access import SERVICE_ACCOUNT, ClusterAccess, find_access
from blocklist.managers.kubernetes.cordon_mirror import CordonMirror
from blocklist.managers.kubernetes.eviction import Evictor
from blocklist.managers.kubernetes.manager import EventRecorder, KubernetesManager
from blocklist.managers.kubernetes.nodes import NodeCache
from blocklist.managers.kubernetes.plan import DriftPolicy, KubernetesPlan, OwnTaint
from blocklist.managers.options import checked
from blocklist.managers.plan import ManagerError
from blocklist.managers.reconcile import ReconcileLoop, registration_of
from blocklist.model.claims import Claim, Claims
from blocklist.model.errors import InvalidError
from blocklist.model.node import check_id
from blocklist.model.reported_node import make_label_value
from blocklist.model.selector import check_label_key

log = logging.getLogger("blocklist.managers")

# Lease: of several managers of one cluster only one acts, by a Lease object as Kubernetes' own controllers use it.

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
        spec = lease["spec"] = dict(lease.get("spec") or {})
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


# AccessReader: how to reach a cluster, read again after a failure, as files of certificates and credentials change.

_INTERVAL_SECONDS: Final = 1.0
"""Minimum time between two attempts."""


class AccessReader:
    """`read` reads it: with the given context, or with the current one. Raises InvalidError if that cannot be used.

    Only certificates and credentials are replaced. Another server could be another cluster, whose nodes are not on the
    list: that needs a new start. Not thread-safe.
    """

    def __init__(self, read: Callable[[str | None], ClusterAccess]) -> None:
        self._read = read
        self.access = read(None)
        self._next_read = 0.0
        self._problem = ""

    def replaced(self) -> ClusterAccess | None:
        """The access with other certificates or credentials than the last; None if they have not changed."""
        if time.monotonic() < self._next_read:
            return None
        self._next_read = time.monotonic() + _INTERVAL_SECONDS
        try:
            access = self._read(self.access.context)
        except InvalidError as error:
            self._warn(f"{error} The former credentials are used.")
            return None
        if access.url != self.access.url:
            self._warn(f"The server of the cluster is {access.url} now: restart this manager to use it.")
            return None
        self._problem = ""
        if access.digest == self.access.digest:
            return None
        log.info("The certificates or credentials for %s have been replaced.", access.url)
        self.access = access
        return access

    def _warn(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem


DEFAULT_ID: Final = "kubernetes"
LEASE_NAME: Final = "blocklist-manager"
_FIRST_LIST_SECONDS: Final = 10.0
"""After which the loop begins, and logs why the nodes are not there."""


def make_manager(args: argparse.Namespace) -> KubernetesManager:
    """A manager that plans and applies once: from one list of the nodes, without threads."""
    api = ApiServer(_find_access(args))
    taint = own_taint(args)
    cordons = None
    if args.mirror_cordons:
        cordons = CordonMirror(BlocklistClient(args.url), listener_id(args), seconds=math.inf)
    nodes = NodeCache(api, taint.key, lambda: None)
    nodes.read_list()
    return KubernetesManager(
        api,
        nodes,
        taint,
        on_drift=DriftPolicy(args.on_drift),
        cordons=cordons,
        plans_cordons=args.dry_run,
    )


def run(args: argparse.Namespace, stopping: Stopping) -> bool:
    """Run until it is stopped (True), or another process has taken over the listener (False)."""
    reader = AccessReader(lambda context: _find_access(args, context))
    with ApiServer(reader.access, reader.replaced) as api:
        if args.lease is None and not reader.access.in_cluster:
            return _lead(args, api, None, stopping)
        namespace, name = lease_name(args.lease, reader.access.namespace)
        lease = Lease(api, namespace, name)
        try:
            while not stopping.is_set():
                if lease.try_acquire(stopping.interrupt):
                    log.info("This manager holds the lease %s/%s.", namespace, name)
                    _lead(args, api, lease, stopping)
                    lease.release()
                stopping.wait(RENEW_SECONDS)
        finally:
            lease.release()
    return True


def own_taint(args: argparse.Namespace) -> OwnTaint:
    """Its value is the listener's id: another manager with the same key keeps its taints."""
    return OwnTaint(key=args.taint, value=make_label_value(listener_id(args))[:63].strip("_.-"))


def listener_id(args: argparse.Namespace) -> str:
    """The same for all managers of one cluster. Raises InvalidError."""
    return check_id(args.id or DEFAULT_ID)


def lease_name(given: str | None, namespace: str) -> tuple[str, str]:
    """Namespace and name of the lease: `NAMESPACE/NAME`, `NAME`, or the default."""
    parts = (given or LEASE_NAME).split("/")
    return (parts[0], parts[1]) if len(parts) > 1 else (namespace, parts[0])


def _find_access(args: argparse.Namespace, context: str | None = None) -> ClusterAccess:
    return find_access(args.kubeconfig, context or args.context, args.service_account, os.environ)


def _lead(args: argparse.Namespace, api: ApiServer, lease: Lease | None, stopping: Stopping) -> bool:
    """Act until this process is stopped or the lease is lost (True), or another one has taken over (False)."""
    taint, name = own_taint(args), listener_id(args)
    with ExitStack() as stack:
        session = ListenerSession(args.url, registration_of(args, name))
        stack.callback(session.close)
        client = stack.enter_context(BlocklistClient(args.url))
        requests = _Requests()
        cache = NodeCache(api, taint.key, requests.send)
        events = EventRecorder(api)

        def is_active() -> bool:
            return lease is None or lease.held

        evictor = None
        if args.evict is not None:
            # While the nodes cannot be read, whether their blocks' taints are there is not known.
            evictor = Evictor(api, args.evict, requests.send, lambda: is_active() and cache.outage() is None)
        cordons = None
        if args.mirror_cordons:
            cordons = CordonMirror(client, name, is_active=lambda: is_active() and not session.fenced)
        manager = KubernetesManager(
            api,
            cache,
            taint,
            on_drift=DriftPolicy(args.on_drift),
            events=events,
            evictor=evictor,
            cordons=cordons,
            is_active=is_active,
            authors=lambda: _authors(client),
            request=requests.send,
        )
        requests.loop = loop = ReconcileLoop(manager, session, interval=args.every)
        for close in (events.close, cache.close, manager.close, *([evictor.close] if evictor else [])):
            stack.callback(close)
        cache.start(_FIRST_LIST_SECONDS)
        if evictor is not None:
            evictor.start()
        watch = WatchThread(session.open_watch, loop.wake)
        stack.callback(watch.close)
        with stopping.calls(loop.stop):
            if lease is not None and not lease.held:  # Lost before the loop could be told.
                return True
            stopped = loop.run(watch)
    if not stopped:
        log.error("Another process has taken over as listener %s. Give each cluster its own --id.", name)
    return stopped


class _Requests:
    """Hands requests of the parts to the loop, which is made after them."""

    loop: ReconcileLoop[KubernetesPlan] | None = None

    def send(self) -> None:
        if self.loop is not None:
            self.loop.request()


def _authors(client: BlocklistClient) -> Mapping[str, Claims]:
    listed = client.listing().nodes
    return {
        each.node.id: tuple(Claim(owner=owner, author=None, block=each.node) for owner in each.owners)
        for each in listed
    }


# The command-line options of the Kubernetes manager.

DEFAULT_TAINT: Final = "blocklist/blocked"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def add_kubernetes(subparser: argparse.ArgumentParser) -> None:
    """Add them; `args.make` and `args.run` are then those of this manager."""
    subparser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the cluster (default: KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config)",
    )
    subparser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    subparser.add_argument(
        "--service-account",
        type=Path,
        default=SERVICE_ACCOUNT,
        metavar="FOLDER",
        help=f"where a pod finds token, ca.crt and namespace (default: {SERVICE_ACCOUNT})",
    )
    subparser.add_argument(
        "--taint",
        type=checked(check_label_key),
        default=DEFAULT_TAINT,
        metavar="KEY",
        help=f"key of the taint and of the annotation of blocked nodes (default: {DEFAULT_TAINT})",
    )
    subparser.add_argument(
        "--on-drift",
        choices=[policy.value for policy in DriftPolicy],
        default=DriftPolicy.RESTORE.value,
        help="what to do when somebody has removed or changed the taint of a blocked node (default: restore)",
    )
    subparser.add_argument(
        "--evict",
        metavar="SELECTOR",
        help="evict the pods with these labels from evacuated nodes, '' for all (default: evict none)",
    )
    subparser.add_argument(
        "--mirror-cordons",
        action="store_true",
        help="claim nodes that somebody has cordoned for the owner kubernetes, until they are uncordoned",
    )
    subparser.add_argument(
        "--lease",
        type=_lease,
        metavar="[NAMESPACE/]NAME",
        help=f"of several managers one acts, by this Lease (default: {LEASE_NAME} in a pod, else none)",
    )
    subparser.set_defaults(make=make_manager, run=run)


def _lease(text: str) -> str:
    parts = text.split("/")
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
        raise argparse.ArgumentTypeError("give NAME, or NAMESPACE/NAME")
    return text
