"""Puts the parts of the Kubernetes manager together: once, or in a loop while it holds the lease."""

from __future__ import annotations

import argparse
import logging
import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.client.listener_session import ListenerSession
from blocklist.client.watch_thread import WatchThread
from blocklist.managers.kubernetes.access_reader import AccessReader
from blocklist.managers.kubernetes.api_server import ApiServer
from blocklist.managers.kubernetes.cluster_access import ClusterAccess, find_access
from blocklist.managers.kubernetes.cordons import CordonMirror
from blocklist.managers.kubernetes.events import EventRecorder
from blocklist.managers.kubernetes.eviction import Evictor
from blocklist.managers.kubernetes.kubernetes_node import KubernetesNode
from blocklist.managers.kubernetes.lease import RENEW_SECONDS, Lease
from blocklist.managers.kubernetes.manager import KubernetesManager
from blocklist.managers.kubernetes.node_cache import NodeCache, list_nodes
from blocklist.managers.kubernetes.plan import DriftPolicy, KubernetesPlan
from blocklist.managers.kubernetes.taint_patch import OwnTaint
from blocklist.managers.reconcile import ReconcileLoop
from blocklist.managers.stopping import Stopping
from blocklist.model.claims import ANONYMOUS, ClaimsOrAuthor
from blocklist.model.listener import ListenerRole, Registration
from blocklist.model.node import check_node_id
from blocklist.model.node_facts import make_label_value

log = logging.getLogger("blocklist.managers")

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
    return KubernetesManager(
        api,
        _OneList(api, taint),
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
    return check_node_id(args.id or DEFAULT_ID)


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
        # A new session for each start: a second process with this id takes over from the first.
        registration = Registration(
            id=name, role=ListenerRole.RESOURCE_MANAGER, session=str(time.time_ns()), min_nodes=args.min_nodes
        )
        session = ListenerSession(args.url, registration)
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
        loop = ReconcileLoop(manager, session, interval=args.every)
        requests.loop = loop
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

    def __init__(self) -> None:
        self.loop: ReconcileLoop[KubernetesPlan] | None = None

    def send(self) -> None:
        if self.loop is not None:
            self.loop.request()


class _OneList:
    """The nodes as one list has them."""

    def __init__(self, api: ApiServer, taint: OwnTaint) -> None:
        self._api = api
        self._taint = taint
        self._nodes: dict[str, KubernetesNode] | None = None

    def nodes(self) -> Mapping[str, KubernetesNode]:
        if self._nodes is None:
            self._nodes, _ = list_nodes(self._api, self._taint.key)
        return self._nodes

    def outage(self) -> None:
        return None

    def put(self, node: KubernetesNode) -> None:
        if self._nodes is not None:
            self._nodes[node.name] = node.after(self._nodes.get(node.name))


def _authors(client: BlocklistClient) -> Mapping[str, ClaimsOrAuthor]:
    owners = {each.node.id: [owner for owner in each.owners if owner != ANONYMOUS] for each in client.listing().nodes}
    return {node_id: ", ".join(names) or None for node_id, names in owners.items()}
