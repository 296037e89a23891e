"""`python -m blocklist.managers yarn|slurm|kubernetes|exec`: keeps a cluster manager in line with the list."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import time
from typing import Any

from blocklist.client.client import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers.options import build_parser
from blocklist.managers.plan import DesiredState, Manager, ManagerError, NotInForce, Stoppable
from blocklist.managers.reconcile import ReconcileLoop, reconcile
from blocklist.managers.stopping import Stopping
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listener import ListenerRole, Registration
from blocklist.model.node import check_id
from blocklist.model.text import prepare_streams
from blocklist.spark.submit_conf import EXCLUDE_NODES, blocked_names, exclude_nodes

log = logging.getLogger("blocklist.managers")


def main(argv: list[str] | None = None, prog: str = "python -m blocklist.managers") -> int:
    """Exit code: 0 success, or stopped by a signal; 1 failure, or another process has taken over; 2 usage error."""
    prepare_streams()
    command = build_parser(prog)
    args = command.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        if args.once or args.dry_run or args.print:
            return _run_once(args)
        return _run_until_stopped(args)
    except InvalidError as error:
        command.error(str(error))
    except (BlocklistError, ManagerError) as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for the operator, no traceback
        return 1


def _run_once(args: argparse.Namespace) -> int:
    """Reconcile once, or print the plan or the Spark configuration, without registering as a listener."""
    with BlocklistClient(args.url) as client:
        snapshot = client.snapshot()
        if args.print:
            names = blocked_names(snapshot.nodes, client.known_nodes().nodes if snapshot.nodes else ())
            return _print(f"{EXCLUDE_NODES}={exclude_nodes(names)}")
    desired = DesiredState(revision=snapshot.revision, nodes=snapshot.nodes)
    manager: Manager[Any] = args.make(args)
    if isinstance(manager, Stoppable):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: manager.stop())
    if args.dry_run:
        plan = manager.plan(desired)
        lines = [step.reason for step in plan.steps] or ["No changes."]
        return _print(*lines, *_sentences(plan.not_in_force))
    result = reconcile(manager, desired)
    return _print(*result.actions, *_sentences(result.not_in_force))


def _run_until_stopped(args: argparse.Namespace) -> int:
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return 0 if (args.run or _run_loop)(args, stopping) else 1


def _run_loop(args: argparse.Namespace, stopping: Stopping) -> bool:
    """Run until it is stopped (True), or another process has taken over the listener (False)."""
    manager: Manager[Any] = args.make(args)
    name = check_id(args.id or f"{args.manager}-{socket.gethostname()}")
    # A new session for each start: a second process with this id takes over from the first.
    registration = Registration(
        id=name, role=ListenerRole.RESOURCE_MANAGER, session=str(time.time_ns()), min_nodes=args.min_nodes
    )
    session = ListenerSession(args.url, registration)
    loop = ReconcileLoop(manager, session, interval=args.every)
    watch = WatchThread(session.open_watch, loop.wake)
    try:
        with stopping.calls(loop.stop):
            stopped = loop.run(watch)
    finally:
        watch.close()
        session.close()
    if not stopped:
        log.error(
            "Another process has taken over as listener %s; this one stops. Run one manager per cluster;"
            " those of different clusters need different --id.",
            name,
        )
    return stopped


def _sentences(not_in_force: NotInForce) -> list[str]:
    return [*not_in_force.refused.values(), *not_in_force.pending.values()]


def _print(*lines: str) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
