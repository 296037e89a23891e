"""`python -m blocklist.flink`: the bridge to a Flink cluster."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

from blocklist.client.client import BlocklistClient
from blocklist.client.listener_session import ListenerSession
from blocklist.client.watch_thread import WatchThread
from blocklist.flink.options import build_parser, check_folders, listener_id
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listener import Registration

log = logging.getLogger("blocklist.flink")


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 stopped by a signal; 1 another process has taken over, or py4j is missing; 2 usage error."""
    parser = build_parser()
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        check_folders(args.conf_dir, args.lib)
        with tempfile.TemporaryDirectory(prefix="blocklist-flink-") as folder:
            return _run(args, Path(folder))
    except InvalidError as error:
        parser.error(str(error))
    except ImportError as error:
        log.error("%s. Install it with: pip install 'blocklist[flink]'", error)  # noqa: TRY400 - a sentence
        return 1
    except BlocklistError as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for the operator, no traceback
        return 1


def _run(args: argparse.Namespace, folder: Path) -> int:
    from blocklist.flink.bridge import Bridge, BridgeOptions  # noqa: PLC0415 - needs py4j, which may be missing
    from blocklist.flink.connection import FlinkConnection  # noqa: PLC0415
    from blocklist.flink.inventory_names import InventoryNames  # noqa: PLC0415
    from blocklist.flink.jvm import ChildJvm, find_java  # noqa: PLC0415
    from blocklist.flink.rpc import FlinkRpc  # noqa: PLC0415

    java, lib, conf_dir = find_java(args.java), args.lib.resolve(), args.conf_dir.resolve()
    _link_plugins(lib, folder)

    def start() -> FlinkRpc:
        log.info("Starting a JVM (%s) with the jars in %s, to connect to the cluster of %s.", java, lib, conf_dir)
        child = ChildJvm(lib, java, folder)
        try:
            return FlinkRpc(child, conf_dir, args.bind_address)
        except BaseException:
            child.close()
            raise

    options = BridgeOptions(
        listener_id=listener_id(args.id),
        drop_results=args.drop_results,
        grows=args.grows,
        report_evidence=args.report_evidence,
    )

    def open_session(registration: Registration) -> ListenerSession:
        return ListenerSession(args.url, registration, interval=registration.lease / 3000)

    connection = FlinkConnection(start, with_failures=args.report_evidence, lease=args.lease * 1000)

    def wake() -> None:
        bridge.wake()

    # It looks up each blocked node, so it knows the service's clock before a block is acknowledged.
    client = BlocklistClient(args.url)
    names = InventoryNames(client.known_node, wake)
    bridge = Bridge(connection, open_session, options, names, client.clock.ahead)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: bridge.stop())
    watch = WatchThread(BlocklistClient(args.url).watch, bridge.wake)
    try:
        stopped = bridge.run(watch)
    finally:
        watch.close()
        names.close()
        bridge.close()
    if not stopped:
        log.error(
            "Another process has taken over as listener %s; this one stops. Run one bridge per cluster; if the"
            " other one serves another cluster, give each its own --id.",
            ", ".join(bridge.fenced_listeners()[:3]),
        )
    return 0 if stopped else 1


def _link_plugins(lib: Path, folder: Path) -> None:
    """Flink looks for its plugins in FLINK_PLUGINS_DIR, else in the working directory."""
    plugins = lib.parent / "plugins"
    if "FLINK_PLUGINS_DIR" not in os.environ and plugins.is_dir():
        (folder / "plugins").symlink_to(plugins)


if __name__ == "__main__":
    sys.exit(main())
