"""Which application each log belongs to, and which node each pod ran on. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from blocklist.detection.log_file import log_of
from blocklist.detection.schemas import Omission

FileOwner = Callable[[str], str | None]
"""Returns the owner of a file; None or an empty text if that is not known."""
IgnoredUntil = Mapping[str, int]
"""Hosts of which earlier evidence does not count: until when, in Unix ms."""


# Logs of applications on Kubernetes name pods by their IP addresses: which node each pod ran on.
#
# A log says so where executors have the attribute NODE_NAME (`SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME` in their
# environment); the inventory does for pods that use their node's network. A pod whose node is unknown is left out:
# its address may have belonged to pods on other nodes before.

KnownNodes = Callable[[], Mapping[str, str]]
"""Returns the node of each address in the inventory."""
KUBERNETES_APP_ID: Final = "^spark-[0-9a-f]{32}$"
"""App IDs that only Spark on Kubernetes makes."""
_NODE_NAMES: Final = "Set SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME in the executors' pod template to include them."


@dataclass(frozen=True, kw_only=True, slots=True)
class PodNodes:
    """The node by application and address, and the number of each application's pods on unknown nodes."""

    of_address: Mapping[tuple[str, str], str]
    unknown: Mapping[str, int]


def pod_nodes(
    executors: Iterable[Mapping[str, Any]], used: Iterable[Mapping[str, Any]], known_nodes: KnownNodes
) -> PodNodes:
    """Find the node of each address that tasks ran at. `executors`: app, host, detail (the node); `used`: app, host."""
    reported: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in executors:
        reported[row["app"], row["host"]].add(row["detail"])
    of_address = {pod: next(iter(nodes)) for pod, nodes in reported.items() if len(nodes) == 1}
    pods = [(row["app"], row["host"]) for row in used]
    if unreported := [pod for pod in pods if pod not in reported]:
        known = known_nodes()
        of_address |= {(app, host): known[host] for app, host in unreported if host in known}
    unknown: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        unknown[pod[0]] += pod not in of_address
    return PodNodes(of_address=of_address, unknown=unknown)


def pod_problems(unknown: Mapping[str, int]) -> list[Omission]:
    """Return a problem for each application of which pods are left out."""
    return [
        Omission(
            subject=f"pods of {app}",
            sentence=f"Pods of application {app} on unknown nodes are left out: {count}. {_NODE_NAMES}",
        )
        for app, count in sorted(unknown.items())
        if count
    ]


# Which application each file of an event log belongs to: by its App ID and attempt, wherever the file lies.
#
# All parts of one log belong to one application. Logs of one application that began at the same time are copies: the
# one with most facts counts. Two applications with the same id began at different times.
#
# Whoever can read a log can copy it and add lines. So of copies of several owners only those of the owner count whose
# log was there first; where that is not known, none does.


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What is known of a file: its application's name by its path, by the log itself, when it began (Unix ms).

    `facts`: number of events that were read, without broken lines. `owners`: of its files. `seen`: when its application
    was first known, in batches.
    """

    file: str
    name: str
    app_id: str | None
    began: int | None
    facts: int
    owners: frozenset[str | None] = frozenset()
    seen: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Applications:
    """The application of each file; None for one that is left out. `problems`: one for each log that is."""

    of_file: Mapping[str, str | None]
    problems: Sequence[Omission]


def applications(files: Iterable[FileFacts]) -> Applications:
    logs: defaultdict[str, list[FileFacts]] = defaultdict(list)
    for each in sorted(files, key=lambda file: file.file):
        logs[log_of(each.file)].append(each)
    names = Counter(parts[0].name for parts in logs.values())
    same: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
    anonymous: list[str] = []
    for log, parts in logs.items():
        if identity := _identity(parts):
            same[identity].append(log)
        else:
            anonymous.append(log)
    problems: list[Omission] = []
    began: defaultdict[str, set[int | None]] = defaultdict(set)
    for app_id, at in same:
        began[app_id].add(at)
    of_identity = {(it, at): it if len(began[it]) == 1 else f"{it} ({at})" for it, at in same}
    # Without an App ID, files in different folders may have the same name, or that of an application.
    names.update(of_identity.values())
    of_file: dict[str, str | None] = {}
    for log in anonymous:
        name = logs[log][0].name
        of_file |= {part.file: name if names[name] == 1 else log for part in logs[log]}
    for (app_id, at), copies in same.items():
        name = of_identity[app_id, at]
        of_file |= {part.file: None for log in copies for part in logs[log]}
        own = _of_first_owner({log: logs[log] for log in copies})
        if not own:
            problems.append(_unknown(sorted(copies), name))
            continue
        kept = min(own, key=lambda log: (-sum(part.facts for part in logs[log]), log))
        of_file |= {part.file: name for part in logs[kept]}
        problems += [_copy(log, kept, app_id) for log in sorted(copies) if log != kept]
    return Applications(of_file=of_file, problems=problems)


def _of_first_owner(copies: Mapping[str, Sequence[FileFacts]]) -> Collection[str]:
    """Those of the owner whose log of the application was there first; none if several owners had one by then."""
    if len(copies) == 1:
        return copies
    first = min(parts[0].seen for parts in copies.values())
    owners = {log: frozenset[str | None]().union(*(part.owners for part in parts)) for log, parts in copies.items()}
    were_first = frozenset[str | None]().union(*(owners[log] for log in copies if copies[log][0].seen == first))
    return [log for log in copies if owners[log] == were_first] if len(were_first) <= 1 else ()


def _copy(log: str, kept: str, app_id: str) -> Omission:
    return Omission(
        subject=f"copy {log}", sentence=f"{log} is skipped: a copy of {kept}, the log of application {app_id}."
    )


def _unknown(copies: Sequence[str], name: str) -> Omission:
    logs = f"{copies[0]} and {copies[1]}" + (f" and {len(copies) - 2} more" if len(copies) > 2 else "")
    return Omission(
        subject=f"owner of {name}",
        sentence=f"Application {name} is left out: its logs have several owners, and the original is unknown: {logs}.",
    )


def _identity(parts: Sequence[FileFacts]) -> tuple[str, int | None] | None:
    """App ID with its attempt, and the start, as one part of the log has them."""
    return next(((part.app_id, part.began) for part in parts if part.app_id is not None), None)
