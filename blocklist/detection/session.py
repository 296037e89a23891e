"""The Spark session and the service of a run, and the kinds of machines by its inventory."""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient
from blocklist.detection.log_discovery import JAVA_ERRORS, error_message
from blocklist.detection.options import Groups, RuleSet
from blocklist.detection.proposals import (
    UNBLOCKED,
    History,
    JudgedNodes,
    LogOwners,
    Proposal,
    Release,
    Summaries,
    claimed_at,
    have_two_owners,
    node_id,
    release,
)
from blocklist.detection.slowness import Rules
from blocklist.model.claims import DETECTION_OWNER
from blocklist.model.errors import DismissedError, InvalidError, NotFoundError
from blocklist.model.names import MachineSet, NameSet, normalize_address, normalize_name, same_machine
from blocklist.model.node import is_node_id
from blocklist.model.text import escape_unprintable

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""For a JVM that this process starts: without the C2 compiler, which takes more CPU time than its code saves.

Java would give that one compiler a cache of 48 MB, which the queries of some ten analyses fill: then nothing is
compiled any more. 240 MB is what both compilers have.
"""
_ROOT: Final = Path(__file__).parents[2]


def session() -> SparkSession:
    """Use the session that spark-submit configured, else a local one. Settings of the operator take precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Local Python workers import the package from the same place.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName("blocklist.detection").config("spark.log.level", "ERROR")
    # Spark puts the operator's `spark.driver.extraJavaOptions` behind these.
    builder = builder.config("spark.driver.defaultJavaOptions", JAVA_OPTIONS)
    return builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower()).getOrCreate()


def replace_folders(folder: Path, target: str) -> None:
    """Put the folders in this one into another one, on any Hadoop file system. Raises OSError.

    They replace those of the same names.
    """
    context: Any = session().sparkContext
    # PySpark has no public way.
    path, conf = context._jvm.org.apache.hadoop.fs.Path, context._jsc.hadoopConfiguration()  # noqa: SLF001
    try:
        for each in folder.iterdir():
            place = path(f"{target.rstrip('/')}/{each.name}")
            system = place.getFileSystem(conf)
            system.delete(place, True)
            system.copyFromLocalFile(path(each.as_uri()), place)
    except JAVA_ERRORS as error:
        raise OSError(f"{target} cannot be written: {error_message(error)}") from None


def open_client(args: argparse.Namespace) -> BlocklistClient | nullcontext[None]:
    """The service is used only with --apply, --url or BLOCKLIST_URL."""
    needed = getattr(args, "apply", False) or args.url or os.environ.get("BLOCKLIST_URL")
    return BlocklistClient(args.url) if needed else nullcontext()


def known_nodes(client: BlocklistClient | None) -> dict[str, str]:
    """The node of each address in the service's inventory; nothing without a service."""
    nodes = client.known_nodes().nodes if client is not None else []
    return {address: node.id for node in nodes for address in node.addresses}


class ConfirmedHosts:
    """Counts the hosts that more than one party names: any log may name any host.

    They are those of the service's inventory, each machine once, and those in logs of two file owners. `owners` returns
    the number of file owners whose logs name each host.
    """

    def __init__(self, client: BlocklistClient, owners: Callable[[], Mapping[str, int]]) -> None:
        self._owners = owners
        self._nodes: defaultdict[str, set[str]] = defaultdict(set)
        for node in client.known_nodes().nodes:
            for name in (node.id, *node.names, *node.addresses):
                self._nodes[normalize_name(name)].add(node.id)
        self._names = NameSet(self._nodes)

    def __call__(self, hosts: Sequence[str]) -> int:
        machines, others = set[str](), list[str]()
        for host in hosts:
            nodes = {node for name in self._names.matching(host) for node in self._nodes[name]}
            machines |= nodes
            others += [] if nodes else [host]
        owners = self._owners() if others else {}
        # However a log spells a name, it is one machine.
        return len(machines) + len(MachineSet(host for host in others if owners.get(host, 0) > 1))


def warn(sentence: str) -> None:
    """Write a sentence to standard error."""
    sys.stderr.write(f"{escape_unprintable(sentence)}\n")


# The kind of machine of each host: by the rules' patterns, else by a label of the service's inventory.


def machine_kinds(rules: RuleSet, client: BlocklistClient | None, hosts: Sequence[str]) -> dict[str, str]:
    """Return the kind of each host that has one. Raises BlocklistError."""
    kinds = _by_label(rules.group_label, client, hosts) if rules.group_label is not None else {}
    return kinds | _by_patterns(rules.groups, hosts)


def check_service(rules: RuleSet, client: BlocklistClient | None) -> None:
    """Raise InvalidError if the rules need the inventory of a service, and there is none."""
    if rules.group_label is not None and client is None:
        raise InvalidError(f"The group label {rules.group_label!r} is one of the service's inventory: add --url URL.")


def _by_patterns(groups: Groups, hosts: Sequence[str]) -> dict[str, str]:
    """The first group that names the host counts."""
    found = {
        host: [kind for kind, patterns in groups if any(fnmatchcase(host, pattern) for pattern in patterns)]
        for host in hosts
    }
    return {host: kinds[0] for host, kinds in found.items() if kinds}


def _by_label(label: str, client: BlocklistClient | None, hosts: Sequence[str]) -> dict[str, str]:
    assert client is not None, "check_service() has been called"
    named: Mapping[str, str] = {
        name: node.labels[label]
        for node in client.known_nodes().nodes
        if label in node.labels
        for name in (node.id, *node.names, *node.addresses)
    }
    keys = {host: normalize_address(host) or host for host in hosts}
    return {host: named[key] for host, key in keys.items() if key in named}


# Proposals -> claims at the service. Idempotent: the same logs lead to the same claim.


def history_of(client: BlocklistClient | None) -> History:
    """Return what the service knows about a host; nothing without a service. It raises BlocklistError."""
    return lambda host: client.history(node_id(host)) if client is not None else ()


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Claim the proposed nodes; return the proposals, those that were dismissed meanwhile with that as `skip_reason`.

    Raises BlocklistError; claims made before stay, and a retry is harmless.
    """
    return [it if it.skip_reason is not None else _apply_one(client, it) for it in proposals]


def _apply_one(client: BlocklistClient, proposal: Proposal) -> Proposal:
    verdict = proposal.verdict
    try:
        client.put_claim(
            node_id(verdict.host),
            DETECTION_OWNER,
            verdict.cause,
            action=verdict.action,
            end=verdict.end,
            canary=verdict.canary,
            last_evidence=verdict.last_evidence,
        )
    except DismissedError:
        return replace(proposal, skip_reason=UNBLOCKED)
    return proposal


def find_releases(
    client: BlocklistClient,
    judged: JudgedNodes,
    summaries: Summaries,
    history: History,
    rules: Rules,
    log_owners: LogOwners | None = None,
) -> list[Release]:
    """Return the nodes whose claims are removed early. Raises BlocklistError.

    A node that this run claims again keeps its claim, and so does one that is clean only in logs of one owner.
    """
    claimed = {it.verdict.host for it in judged.proposals if it.skip_reason is None}
    hosts = [node.host for node in judged.summaries if node.host not in claimed]
    hosts = [host for host in hosts if is_node_id(host)]
    nodes = [claim.node for claim in client.all_claims(owner=DETECTION_OWNER)]
    held = [host for host in hosts if any(same_machine(node, host) for node in nodes)]
    since = {host: at for host in held if (at := claimed_at(history(host))) is not None}
    if not since:
        return []
    recent = [node for node in summaries(since) if node.host in since]
    found = [it for node in recent if (it := release(node, rules)) is not None]
    return [it for it in found if have_two_owners(it.applications, log_owners)]


def remove_claims(client: BlocklistClient, releases: Sequence[Release]) -> None:
    """Remove the claims of detection. Raises BlocklistError; a claim that has ended meanwhile is no error."""
    for it in releases:
        with suppress(NotFoundError):
            client.remove_claim(node_id(it.host), DETECTION_OWNER)
