"""A standalone master of Spark: which nodes and applications it has. It cannot keep executors off a worker.

So this manager only observes. The agents of the jobs keep tasks off blocked nodes; the service shows the jobs without.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from blocklist.client.transport import service_url
from blocklist.managers.applications import Application, as_items, as_object
from blocklist.managers.command import Stopping
from blocklist.managers.options import checked
from blocklist.managers.plan import DesiredState, ListedNodes, ManagerError, ManagerPlan, NodeNames, NotInForce, absent
from blocklist.managers.yarn.resource_manager import REQUEST_SECONDS, Access, Connection
from blocklist.model.node import is_node_id
from blocklist.model.reported_node import NodeFacts

_ACCESS: Final = Access(system="master", path="")


class StandaloneManager:
    """`urls` are those of the web interfaces of all masters of one cluster, of which one is active."""

    def __init__(self, urls: Sequence[str], stop: Stopping, seconds: float) -> None:
        self._urls = urls
        self._stop = stop
        self._seconds = seconds
        self._names = NodeNames()
        self._listed = ListedNodes[NodeFacts]("The master")

    def stop(self) -> None:
        """End a request that is under way. Call it from any thread or signal handler."""
        self._stop.set()

    def applications(self) -> Sequence[Application]:
        """Those that run. Raises ManagerError."""
        return parse_applications(self._read())

    def plan(self, desired: DesiredState) -> ManagerPlan:
        """Nothing to do; which of the blocked nodes are none of its workers. Raises ManagerError."""
        body = self._read()
        nodes = parse_workers(body)
        missing = self._listed.not_listed({it.id: it for it in nodes}, time.monotonic())
        self._names.update([*nodes, *missing.values()])
        self._names.others = desired.others
        unmatched = [it for it in desired.nodes if not self._names.meant_by(it)]
        return ManagerPlan(
            all_nodes=[*nodes, *missing.values()],
            not_in_force=absent("The master", unmatched, [it.id for it in nodes], missing),
            unmatched=unmatched,
            platform="Spark standalone",
        )

    def apply(self, _plan: ManagerPlan) -> NotInForce:
        """It changes nothing."""
        return NotInForce()

    def _read(self) -> dict[str, Any]:
        """The answer of the active master. Raises ManagerError with what each answered."""
        reasons = []
        for url in self._urls:
            connection = Connection(url, _ACCESS, self._stop, self._seconds)
            try:
                body = as_object(connection.get("/json/"))
                if body.get("status") == "ALIVE":
                    return body
                reasons.append(f"The master {url} is not active ({body.get('status', 'no status')}).")
            except ManagerError as error:
                reasons.append(str(error))
            finally:
                connection.close()
        raise ManagerError(" ".join(reasons))


# What a master answers to GET /json/. Pure.


def parse_applications(body: dict[str, Any]) -> list[Application]:
    """The applications that run. Raises ManagerError."""
    return [
        Application(
            id=str(it.get("id", "")),
            name=str(it.get("name", "")),
            user=str(it.get("user", "")),
            seconds=it["duration"] / 1000 if isinstance(it.get("duration"), int) else None,
        )
        for it in as_items(body.get("activeapps"))
        if it.get("state") == "RUNNING"
    ]


def parse_workers(body: dict[str, Any]) -> list[NodeFacts]:
    """The hosts of the live workers. Raises ManagerError."""
    return [NodeFacts(id=host) for host in _hosts(as_items(body.get("workers")))]


def _hosts(workers: Iterable[dict[str, Any]]) -> list[str]:
    hosts = {str(it.get("host", "")) for it in workers if it.get("state") == "ALIVE"}
    return sorted(filter(is_node_id, hosts))


# The command line.


def add_standalone_options(subparser: argparse.ArgumentParser) -> None:
    """All options but those that every manager has. It always observes."""
    subparser.add_argument(
        "--master",
        action="append",
        type=checked(service_url, "is not a URL such as http://master:8080"),
        required=True,
        metavar="URL",
        help="web interface of the master, such as http://master:8080; repeat it for each master of a cluster",
    )
    subparser.set_defaults(make=_make, observe=True)


def _make(args: argparse.Namespace) -> StandaloneManager:
    return StandaloneManager(args.master, Stopping(), min(args.timeout, REQUEST_SECONDS))
