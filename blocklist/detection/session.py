"""The Spark session and the service of a run, and the kinds of machines by its inventory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient
from blocklist.detection.rule_set import Groups, RuleSet
from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that this process starts: without the C2 compiler, which takes more CPU time than its code saves."""
_ROOT: Final = Path(__file__).parents[2]


def session() -> SparkSession:
    """Use the session that spark-submit configured, else a local one. Settings of the operator take precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Local Python workers import the package from the same place.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName("blocklist.detection").config("spark.log.level", "ERROR")
    # Spark puts the operator's `spark.driver.extraJavaOptions` behind these.
    builder = builder.config("spark.driver.defaultJavaOptions", JAVA_OPTIONS)
    spark = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower()).getOrCreate()
    context = spark.sparkContext
    if context.getConf().get("spark.sql.shuffle.partitions") is None:
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * context.defaultParallelism))
    return spark


def open_client(args: argparse.Namespace) -> BlocklistClient | nullcontext[None]:
    """The service is used only with --apply, --url or BLOCKLIST_URL."""
    needed = getattr(args, "apply", False) or args.url or os.environ.get("BLOCKLIST_URL")
    return BlocklistClient(args.url) if needed else nullcontext()


def known_nodes(client: BlocklistClient | None) -> dict[str, str]:
    """The node of each address in the service's inventory; nothing without a service."""
    nodes = client.known_nodes().nodes if client is not None else []
    return {address: node.id for node in nodes for address in node.addresses}


def warn(sentence: str) -> None:
    """Write a sentence to standard error."""
    sys.stderr.write(f"{sentence}\n")


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
