"""The command line of the YARN manager."""

from __future__ import annotations

import argparse
import getpass
import re
import shlex
from pathlib import Path
from typing import Any, Final

from blocklist.client.transport import service_url
from blocklist.client.url_credentials import without_credentials
from blocklist.managers.arguments import count, require_command, require_folder
from blocklist.managers.plan import Manager
from blocklist.managers.yarn.address_names import AddressNames
from blocklist.managers.yarn.connection import REQUEST_SECONDS, Access
from blocklist.managers.yarn.exclude_manager import (
    NO_TIMEOUT,
    DecommissionTimeouts,
    ExcludeManager,
    refresh_command,
)
from blocklist.managers.yarn.interruptible import Stop
from blocklist.managers.yarn.kerberos import kerberos_auth
from blocklist.managers.yarn.label_manager import LabelManager
from blocklist.managers.yarn.mark import DEFAULT_LABEL, MarkLabels
from blocklist.managers.yarn.resource_manager import ResourceManager
from blocklist.model.errors import InvalidError

YARN_INTERVAL: Final = 5.0
"""Seconds between reconciliations: YARN does not notify of a node that has come back, or of a label that others set."""
_BY_LABEL: Final = "label"
_BY_EXCLUDE_FILE: Final = "exclude-file"


def add_yarn_options(subparser: argparse.ArgumentParser) -> None:
    """All options but those that every manager has."""
    subparser.add_argument(
        "--by",
        choices=[_BY_LABEL, _BY_EXCLUDE_FILE],
        help="label (default): a node label by the REST API; the NodeManager lives on. exclude-file (default with"
        " --exclude-file): YARN decommissions the node, and its NodeManager exits",
    )
    subparser.add_argument(
        "--min-nodes",
        type=count,
        default=0,
        metavar="NODES",
        help="minimum number of nodes in service: neither the service nor the manager goes below it (default: 0)",
    )
    _add_resource_manager(subparser.add_argument_group("the ResourceManager"))
    _add_exclude_file(subparser.add_argument_group("with --by exclude-file"))
    subparser.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… and exit")
    subparser.set_defaults(make=_make)


def _add_resource_manager(group: Any) -> None:
    group.add_argument(
        "--resource-manager",
        "--resourcemanager",
        action="append",
        type=_url,
        default=[],
        metavar="URL",
        help="such as http://rm:8088; repeat it for each ResourceManager of a cluster with high availability",
    )
    group.add_argument(
        "--user",
        metavar="NAME",
        help="user.name for the REST API (default: the user of this process; not with --kerberos)",
    )
    group.add_argument("--kerberos", action="store_true", help="log in by SPNEGO with the ticket of kinit, or a keytab")
    group.add_argument(
        "--ca", type=Path, metavar="FILE", help="certificates of trusted authorities (default: the system's)"
    )
    group.add_argument(
        "--label",
        default=DEFAULT_LABEL,
        metavar="NAME",
        help=f"how the names of the manager's labels begin (default: {DEFAULT_LABEL})",
    )


def _add_exclude_file(group: Any) -> None:
    group.add_argument("--exclude-file", type=Path, metavar="FILE", help="yarn.resourcemanager.nodes.exclude-path")
    group.add_argument(
        "--accept-exits",
        action="store_true",
        help="also block nodes whose NodeManager would exit: something else, such as systemd, starts it again",
    )
    group.add_argument(
        "--format", choices=["plain", "xml"], help="format of the file (default: xml if its name ends in .xml)"
    )
    group.add_argument(
        "--evacuate-after",
        type=_seconds_or_block_end,
        default=0,
        metavar="SECONDS|end",
        help="XML: timeout of running containers on an evacuated node; 'end': when the block ends (default: 0)",
    )
    group.add_argument(
        "--graceful",
        type=_seconds_or_unlimited,
        default=NO_TIMEOUT,
        metavar="SECONDS",
        help="timeout of running containers on all other excluded nodes; -1 for none (default: -1)",
    )
    group.add_argument(
        "--command",
        default="yarn rmadmin -refreshNodes",
        metavar="COMMAND",
        help="makes YARN read the file (default: 'yarn rmadmin -refreshNodes'); '-g [SECONDS] -server' is appended",
    )


def _make(args: argparse.Namespace) -> Manager[Any]:
    by = args.by or (_BY_EXCLUDE_FILE if args.exclude_file is not None else _BY_LABEL)
    return _make_by_label(args) if by == _BY_LABEL else _make_by_exclude_file(args)


def _make_by_label(args: argparse.Namespace) -> LabelManager:
    stop = Stop()
    if (resource_manager := _resource_manager(args, stop)) is None:
        raise InvalidError("Name the ResourceManager: --resource-manager http://rm:8088, once for each that there is.")
    if args.exclude_file is not None:
        raise InvalidError("--exclude-file is only for --by exclude-file.")
    try:
        marks = MarkLabels(args.label)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    return LabelManager(resource_manager, marks, stop, AddressNames(stop), min_nodes=args.min_nodes)


def _make_by_exclude_file(args: argparse.Namespace) -> ExcludeManager:
    if args.exclude_file is None:
        raise InvalidError("Name YARN's exclude file: --exclude-file FILE.")
    path = require_folder(args.exclude_file)
    xml = args.format == "xml" if args.format else path.name.lower().endswith(".xml")
    stop = Stop()
    return ExcludeManager(
        path,
        xml=xml,
        timeouts=DecommissionTimeouts(per_node=xml, evacuate=args.evacuate_after, default=args.graceful),
        command=refresh_command(require_command(shlex.split(args.command)), args.graceful),
        timeout=args.timeout,
        resource_manager=_resource_manager(args, stop),
        names=AddressNames(stop),
        stop=stop,
        accept_exits=args.accept_exits,
        min_nodes=args.min_nodes,
    )


def _resource_manager(args: argparse.Namespace, stop: Stop) -> ResourceManager | None:
    """None if none is named."""
    if args.kerberos and args.user is not None:
        raise InvalidError("Give --user or --kerberos, not both: a ticket names its user.")
    if args.ca is not None and not args.ca.is_file():
        raise InvalidError(f"There is no file {args.ca} (--ca).")
    if not args.resource_manager:
        return None
    user = None if args.kerberos else args.user or getpass.getuser()
    access = Access(user=user, auth=kerberos_auth() if args.kerberos else None, ca=args.ca)
    return ResourceManager(args.resource_manager, access, stop, min(args.timeout, REQUEST_SECONDS))


def _url(text: str) -> str:
    try:
        return service_url(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(
            f"{without_credentials(text)[:64]!a} is not a URL such as http://rm:8088"
        ) from error


def _seconds_or_unlimited(text: str) -> int:
    if not re.fullmatch("-1|[0-9]{1,9}", text, re.ASCII):
        raise argparse.ArgumentTypeError("give whole seconds, or -1 for no timeout")
    return int(text)


def _seconds_or_block_end(text: str) -> int | None:
    return None if text == "end" else _seconds_or_unlimited(text)
