"""The command line of the bridge."""

from __future__ import annotations

import argparse
import re
import socket
from pathlib import Path

from blocklist.client import DEFAULT_URL
from blocklist.flink.marking import MAX_LEASE, MIN_LEASE
from blocklist.model.errors import InvalidError
from blocklist.model.node import check_node_id


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="blocklist flink",
        description="Makes a Flink cluster follow the blocklist: marks nodes, evacuates tasks, and reports what is in"
        " force. Runs beside the JobManager until it is stopped; it can be restarted at any time.",
        epilog="If the service requires tokens, the bridge needs one with the role listener: it is read from"
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
        "--report-evidence",
        action="store_true",
        help="report to the service nodes that Flink blocked as slow, or on which tasks of a job failed three times"
        " within ten minutes",
    )
    return parser


def _lease(text: str) -> int:
    if not re.fullmatch("[0-9]{1,2}", text, re.ASCII) or not MIN_LEASE <= int(text) * 1000 <= MAX_LEASE:
        raise argparse.ArgumentTypeError("give whole seconds from 10 to 30")
    return int(text)


def listener_id(given: str | None) -> str:
    """The id of the ResourceManager's listener: the given one, else one for this host. Raises InvalidError."""
    try:
        return check_node_id(given or f"flink-{socket.gethostname()}")
    except InvalidError as error:
        raise InvalidError(f"--id: {error}") from error


def check_folders(conf_dir: Path, lib: Path) -> None:
    """Raises InvalidError for a folder without a configuration or without Flink's jars."""
    if not any((conf_dir / name).is_file() for name in ("config.yaml", "flink-conf.yaml")):
        raise InvalidError(f"--conf-dir: {conf_dir} has neither config.yaml nor flink-conf.yaml.")
    if not list(lib.glob("flink-dist*.jar")):
        raise InvalidError(f"--lib: {lib} has no flink-dist jar. Give the folder lib of the cluster's Flink.")
