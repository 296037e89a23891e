"""The kind of machine of each host: by the options, else by a label of the service's inventory."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from blocklist.client.client import BlocklistClient
from blocklist.model.host_matching import normalize_address


def machine_kinds(args: argparse.Namespace, client: BlocklistClient | None, hosts: Sequence[str]) -> dict[str, str]:
    """Return the kind of each host that has one. Raises BlocklistError."""
    kinds = _by_label(args.group_label, client, hosts) if args.group_label and client is not None else {}
    return kinds | _by_patterns(args.group, hosts)


def _by_patterns(groups: Sequence[tuple[str, Sequence[str]]], hosts: Sequence[str]) -> dict[str, str]:
    """The first group that names the host counts."""
    found = {
        host: [kind for kind, patterns in groups if any(fnmatchcase(host, pattern) for pattern in patterns)]
        for host in hosts
    }
    return {host: kinds[0] for host, kinds in found.items() if kinds}


def _by_label(label: str, client: BlocklistClient, hosts: Sequence[str]) -> dict[str, str]:
    named: Mapping[str, str] = {
        name: node.labels[label]
        for node in client.known_nodes().nodes
        if label in node.labels
        for name in (node.id, *node.names, *node.addresses)
    }
    keys = {host: normalize_address(host) or host for host in hosts}
    return {host: named[key] for host, key in keys.items() if key in named}
