"""`python -m blocklist.managers yarn|slurm|exec`: keeps a cluster manager in line with the list until it is ended."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import time
from typing import Any

from blocklist.client.client import BlocklistClient
from blocklist.client.listener_session import Membership
from blocklist.client.watch_thread import Feed
from blocklist.managers.options import parser
from blocklist.managers.plan import Manager, ManagerError, Wanted
from blocklist.managers.reconcile import Reconciler, settle
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listener import Registration, Role
from blocklist.model.node import check_node_id
from blocklist.spark.submit_conf import EXCLUDE_NODES, exclude_nodes

log = logging.getLogger("blocklist.managers")


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 ended as asked, 1 it failed or another took over, 2 the operator's mistake."""
    command = parser()
    given = command.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        if given.once or given.dry_run or given.print:
            return _once(given)
        return _serve(given)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, ManagerError) as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for the operator, no traceback
        return 1


def _once(given: argparse.Namespace) -> int:
    """One look at the list, without registering."""
    with BlocklistClient(given.url) as client:
        snapshot = client.snapshot()
    wanted = Wanted(revision=snapshot.revision, nodes=snapshot.nodes)
    if given.print:
        return _say(f"{EXCLUDE_NODES}={exclude_nodes(wanted.nodes)}")
    manager: Manager[Any] = given.make(given)
    if given.dry_run:
        plan = manager.plan(wanted)
        lines = [step.reason for step in plan.steps] or ["Nothing to do."]
        return _say(*lines, *plan.refused.values())
    settled = settle(manager, wanted)
    return _say(*settled.done, *settled.refused.values())


def _serve(given: argparse.Namespace) -> int:
    manager: Manager[Any] = given.make(given)
    name = check_node_id(given.id or f"{given.manager}-{socket.gethostname()}")
    # One session for each start: a second process with this id takes over, and the first one ends.
    session = str(time.time_ns())
    registration = Registration(id=name, role=Role.RESOURCE_MANAGER, session=session, min_nodes=given.min_nodes)
    membership = Membership(given.url, registration)
    reconciler = Reconciler(manager, membership, every=given.every)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reconciler.stop())
    feed = Feed(BlocklistClient(given.url).watch, reconciler.wake)
    try:
        stopped = reconciler.run(feed)
    finally:
        feed.close()
        membership.close()
    if not stopped:
        log.error("Another process has taken over as listener %s; this one ends. Give each an --id of its own.", name)
    return 0 if stopped else 1


def _say(*lines: str) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
