"""The command-line options of the Kubernetes manager."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from blocklist.managers.kubernetes.cluster_access import SERVICE_ACCOUNT
from blocklist.managers.kubernetes.plan import DriftPolicy
from blocklist.managers.kubernetes.running import LEASE_NAME, make_manager, run
from blocklist.model.errors import InvalidError
from blocklist.model.selector import check_label_key

DEFAULT_TAINT: Final = "blocklist/blocked"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)


def add_kubernetes(subparser: argparse.ArgumentParser) -> None:
    """Add them; `args.make` and `args.run` are then those of this manager."""
    subparser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="the cluster (default: KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config)",
    )
    subparser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current one)")
    subparser.add_argument(
        "--service-account",
        type=Path,
        default=SERVICE_ACCOUNT,
        metavar="FOLDER",
        help=f"where a pod finds token, ca.crt and namespace (default: {SERVICE_ACCOUNT})",
    )
    subparser.add_argument(
        "--taint",
        type=_taint_key,
        default=DEFAULT_TAINT,
        metavar="KEY",
        help=f"key of the taint and of the annotation of blocked nodes (default: {DEFAULT_TAINT})",
    )
    subparser.add_argument(
        "--on-drift",
        choices=[policy.value for policy in DriftPolicy],
        default=DriftPolicy.RESTORE.value,
        help="what to do when somebody has removed or changed the taint of a blocked node (default: restore)",
    )
    subparser.add_argument(
        "--evict",
        metavar="SELECTOR",
        help="evict the pods with these labels from evacuated nodes, '' for all (default: evict none)",
    )
    subparser.add_argument(
        "--mirror-cordons",
        action="store_true",
        help="claim nodes that somebody has cordoned for the owner kubernetes, until they are uncordoned",
    )
    subparser.add_argument(
        "--lease",
        type=_lease,
        metavar="[NAMESPACE/]NAME",
        help=f"of several managers one acts, by this Lease (default: {LEASE_NAME} in a pod, else none)",
    )
    subparser.set_defaults(make=make_manager, run=run)


def _taint_key(text: str) -> str:
    try:
        return check_label_key(text)
    except InvalidError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _lease(text: str) -> str:
    parts = text.split("/")
    if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
        raise argparse.ArgumentTypeError("give NAME, or NAMESPACE/NAME")
    return text
