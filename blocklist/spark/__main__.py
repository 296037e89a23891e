"""`python -m blocklist.spark conf`: the current list as Spark properties and a pod template, for spark-submit."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from blocklist.client import DEFAULT_URL
from blocklist.client.client import BlocklistClient
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.text import prepare_streams
from blocklist.spark.submit_conf import blocked_names, confs, not_node_names, pod_template


def main(argv: list[str] | None = None) -> int:
    """Return the exit code: 0 success, 1 the service failed or is unreachable, 2 usage error."""
    prepare_streams()
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        with BlocklistClient(args.url) as client:
            ids = client.snapshot().nodes
            names = blocked_names(ids, client.known_nodes().nodes if ids else ())
        if args.pod_template is not None:
            args.pod_template.write_text(pod_template(names), encoding="utf-8")
    except InvalidError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write {args.pod_template}: {error.strerror}.")
    except BlocklistError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    template = None if args.pod_template is None else str(args.pod_template.absolute())
    if template is not None and (omitted := not_node_names(ids)):
        sys.stderr.write(f"Not valid as Kubernetes node names, omitted from the template: {', '.join(omitted)}.\n")
    sys.stdout.write(_format(confs(names, template), args.form))
    return 0


def _format(properties: dict[str, str], form: str) -> str:
    if form == "arguments":
        return shlex.join(part for name, value in properties.items() for part in ("--conf", f"{name}={value}")) + "\n"
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m blocklist.spark", description="Blocklist tools for Spark.")
    commands = parser.add_subparsers(required=True, metavar="conf")
    about = "Print the Spark properties that keep a new application off the nodes that are blocked now."
    conf = commands.add_parser("conf", help=about, description=about)
    conf.add_argument("--url", help=f"URL of the service (default: BLOCKLIST_URL, else {DEFAULT_URL})")
    conf.add_argument(
        "--pod-template",
        type=Path,
        metavar="FILE",
        help="for Kubernetes: write a pod template with a node affinity to FILE, and print the properties that name it",
    )
    conf.add_argument(
        "--form",
        choices=["properties", "arguments"],
        default="properties",
        help="print name=value lines as in spark-defaults.conf (default), or --conf arguments for a shell",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
