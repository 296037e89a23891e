"""`python -m blocklist.flink`: the bridge to a Flink cluster."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import re
import signal
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blocklist.model.text import exit_on_signals, prepare_streams, report_fault

if __name__ == "__main__":
    exit_on_signals()

from blocklist import __version__
from blocklist.client import DEFAULT_URL
from blocklist.flink.marking import MAX_LEASE, MIN_LEASE
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listener import check_cluster, default_cluster
from blocklist.model.node import check_id

if TYPE_CHECKING:
    from blocklist.client.session import ListenerSession
    from blocklist.model.listener import Registration

log = logging.getLogger("blocklist.flink")


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 stopped by a signal; 1 another process has taken over, or py4j is missing; 2 usage error."""
    prepare_streams()
    try:
        return _main(argv)
    except Exception as error:
        report_fault(error, "the bridge")
        return 1


def _main(argv: list[str] | None) -> int:
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
    # After --help, which needs none of them; and py4j may be missing.
    from blocklist.client.client import BlocklistClient  # noqa: PLC0415
    from blocklist.client.names import InventoryNames  # noqa: PLC0415
    from blocklist.client.session import ListenerSession  # noqa: PLC0415
    from blocklist.client.watch import WatchThread  # noqa: PLC0415
    from blocklist.flink.bridge import Bridge, BridgeOptions  # noqa: PLC0415
    from blocklist.flink.connection import FlinkConnection  # noqa: PLC0415
    from blocklist.flink.jvm import ChildJvm, find_java  # noqa: PLC0415
    from blocklist.flink.rpc import FlinkRpc  # noqa: PLC0415
    from blocklist.model.listener import Mode, Software  # noqa: PLC0415

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

    own_id = listener_id(args.id)
    cluster = args.cluster or default_cluster("flink", own_id)
    mode = Mode.OBSERVE if args.observe else Mode.APPLY
    software = Software("blocklist-flink", __version__, platform_of(lib))
    options = BridgeOptions(
        listener_id=own_id,
        drop_results=args.drop_results,
        grows=args.grows,
        report_evidence=args.report_evidence,
    )

    def open_session(registration: Registration) -> ListenerSession:
        given = replace(registration, cluster=cluster, software=software, mode=mode)
        return ListenerSession(args.url, given, interval=registration.lease / 3000)

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


# The command line of the bridge.


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blocklist flink",
        description="Makes a Flink cluster follow the blocklist: marks nodes, evacuates tasks, and reports what is in"
        " force. Runs beside the JobManager until it is stopped; it can be restarted at any time.",
        epilog="If the service requires tokens, the bridge needs one with the role manager: it is read from"
        " BLOCKLIST_TOKEN, else from the file that BLOCKLIST_TOKEN_FILE names.",
    )
    parser.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")
    parser.add_argument(
        "--conf-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="the JobManager's configuration, such as /opt/flink/conf",
    )
    parser.add_argument("--lib", type=Path, required=True, metavar="DIR", help="its jars, such as /opt/flink/lib")
    parser.add_argument("--java", type=Path, metavar="FILE", help="the Java to use (default: JAVA_HOME's, else PATH's)")
    parser.add_argument("--id", help="id of the ResourceManager's listener (default: flink- and this host's name)")
    parser.add_argument(
        "--cluster",
        type=_cluster,
        metavar="NAME",
        help="what the service calls this cluster (default: flink and the id)",
    )
    parser.add_argument(
        "--lease",
        type=_lease,
        default=MAX_LEASE // 1000,
        metavar="SECONDS",
        help="10 to 30: how long a node stays blocked in Flink after it was freed or the bridge ended (default: 30)",
    )
    parser.add_argument(
        "--bind-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where the bridge listens for the answers of Flink's RPC; if a JobManager runs on another host, give an"
        " address of this host that it reaches (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--drop-results",
        action="store_true",
        help="evacuate by disconnecting TaskManagers: their finished results are computed again; for lost disks",
    )
    parser.add_argument(
        "--grows",
        action="store_true",
        help="the cluster starts TaskManagers when it needs slots (Kubernetes, YARN): evacuate without free slots",
    )
    parser.add_argument(
        "--observe",
        action="store_true",
        help="register and report what would be done, but change nothing, whatever mode the service wants",
    )
    parser.add_argument(
        "--report-evidence",
        action="store_true",
        help="report to the service nodes that Flink blocked as slow, or on which tasks of a job failed three times"
        " within ten minutes",
    )
    return parser


def _cluster(text: str) -> str:
    try:
        return check_cluster(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _lease(text: str) -> int:
    if not re.fullmatch("[0-9]{1,2}", text, re.ASCII) or not MIN_LEASE <= int(text) * 1000 <= MAX_LEASE:
        raise argparse.ArgumentTypeError("give whole seconds from 10 to 30")
    return int(text)


def listener_id(given: str | None) -> str:
    """The id of the ResourceManager's listener: the given one, else one for this host. Raises InvalidError."""
    try:
        return check_id(given or f"flink-{socket.gethostname()}")
    except InvalidError as error:
        raise InvalidError(f"--id: {error}") from error


def platform_of(lib: Path) -> str:
    """Flink and Python with their versions; Flink's is in the name of its jar."""
    names = (re.fullmatch(r"flink-dist[^-]*-([0-9][\w.-]{0,49})\.jar", path.name) for path in sorted(lib.iterdir()))
    version = next((found[1] for found in names if found), "")
    return f"{f'Flink {version}'.strip()}, Python {platform.python_version()}"


def check_folders(conf_dir: Path, lib: Path) -> None:
    """Raises InvalidError for a folder without a configuration or without Flink's jars."""
    if not any((conf_dir / name).is_file() for name in ("config.yaml", "flink-conf.yaml")):
        raise InvalidError(f"--conf-dir: {conf_dir} has neither config.yaml nor flink-conf.yaml.")
    if not list(lib.glob("flink-dist*.jar")):
        raise InvalidError(f"--lib: {lib} has no flink-dist jar. Give the folder lib of the cluster's Flink.")


if __name__ == "__main__":
    sys.exit(main())
