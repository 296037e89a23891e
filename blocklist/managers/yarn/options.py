"""The command line of the YARN manager."""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path
from typing import Any, Final

from blocklist.client.transport import service_url
from blocklist.client.url_credentials import without_credentials
from blocklist.managers.arguments import count
from blocklist.managers.yarn.address_names import AddressNames
from blocklist.managers.yarn.connection import REQUEST_SECONDS, Access, kerberos_auth
from blocklist.managers.yarn.interruptible import Stop
from blocklist.managers.yarn.label_manager import LabelManager
from blocklist.managers.yarn.mark import DEFAULT_LABEL, MarkLabels
from blocklist.managers.yarn.resource_manager import ResourceManager
from blocklist.model.errors import InvalidError

YARN_INTERVAL: Final = 5.0
"""Seconds between reconciliations: YARN does not notify of a node that has come back, or of a label that others set."""


def add_yarn_options(subparser: argparse.ArgumentParser) -> None:
    """All options but those that every manager has."""
    subparser.add_argument(
        "--min-nodes",
        type=count,
        default=0,
        metavar="NODES",
        help="minimum number of nodes in service: neither the service nor the manager goes below it (default: 0)",
    )
    _add_resource_manager(subparser.add_argument_group("the ResourceManager"))
    subparser.add_argument("--print", action="store_true", help="print spark.yarn.exclude.nodes=… and exit")
    subparser.set_defaults(make=_make)


def _add_resource_manager(group: Any) -> None:
    group.add_argument(
        "--resource-manager",
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


def _make(args: argparse.Namespace) -> LabelManager:
    stop = Stop()
    resource_manager = _resource_manager(args, stop)
    try:
        marks = MarkLabels(args.label)
    except ValueError as error:
        raise InvalidError(str(error)) from error
    return LabelManager(resource_manager, marks, stop, AddressNames(stop), min_nodes=args.min_nodes)


def _resource_manager(args: argparse.Namespace, stop: Stop) -> ResourceManager:
    if args.kerberos and args.user is not None:
        raise InvalidError("Give --user or --kerberos, not both: a ticket names its user.")
    if args.ca is not None and not args.ca.is_file():
        raise InvalidError(f"There is no file {args.ca} (--ca).")
    if not args.resource_manager:
        raise InvalidError("Name the ResourceManager: --resource-manager http://rm:8088, once for each that there is.")
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
