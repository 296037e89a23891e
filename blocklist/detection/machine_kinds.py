"""The kind of machine of each host: by the rules' patterns, else by a label of the service's inventory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from blocklist.client.client import BlocklistClient
from blocklist.detection.rule_set import Groups, RuleSet
from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address


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
