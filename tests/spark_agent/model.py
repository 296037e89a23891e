"""A reference model of the plan: the same rules, the obvious way, without regard to cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from blocklist.model.host_matching import normalize_address, normalize_name, same_machine

HOLD: Final = 2000
JOIN: Final = 5000
NOTICE: Final = 2000
LONG_AGO: Final = -(2**63)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A live host. `names` are its further names and addresses, None while they are not known."""

    name: str
    node: str = ""
    """The machine that it is on; empty: itself."""
    open: bool = True
    names: frozenset[str] | None = frozenset()
    joined: int = LONG_AGO
    required: bool = False
    slots: int = 0
    runs_barrier_tasks: bool = False
    reached_evacuation_limit: bool = False
    busy: bool = False
    """Whether it runs tasks."""
    unannounced: bool = False
    """Whether it gets no tasks at the moment, and its refusal is not reported yet."""

    @property
    def machine(self) -> str:
        return self.node or self.name

    def is_new(self, now: int, millis: int) -> bool:
        return not self.busy and self.joined != LONG_AGO and self.joined <= now < self.joined + millis


@dataclass(frozen=True, kw_only=True)
class Requirements:
    keep_hosts: int = 1
    min_nodes: int = 0
    barrier_slots: int = 0
    continuous: bool = False

    @property
    def min_open_hosts(self) -> int:
        return max(self.keep_hosts, self.min_nodes)


class Row(NamedTuple):
    """A line of the table."""

    rank: int
    id: str
    end: int
    evacuate: bool


@dataclass(kw_only=True)
class ModelPlan:
    """`refused` says why: `required`, `minimum`, `barrier` and `soon`; `continuous`, `tasks` and `limit`."""

    matched: list[str]
    covered: list[str]
    provisional: set[str]
    announced: set[str]
    held: set[str]
    evacuated: set[str]
    refused: dict[str, str]


def plan(rows: Sequence[Row], hosts: Sequence[Host], needs: Requirements, now: int) -> ModelPlan:
    """`rows` are the blocked nodes, the weakest first, with the ids of machines (not the keys of the table)."""
    current = [row for row in rows if now < row.end]
    found = {
        host: [
            row
            for row in current
            if any(means(row.id, other, hosts) for other in hosts if other.machine == host.machine)
        ]
        for host in hosts
    }
    found = {host: matching for host, matching in found.items() if matching}
    order = sorted(found, key=lambda host: (_evacuates(found[host]), max(r.rank for r in found[host]), host.name))
    held = {
        host
        for host in hosts
        if current and host not in found and host.names is None and host.is_new(now, HOLD) and not host.required
    }
    reasons = _left_open(order, hosts, held, needs, now)
    opening = [
        host for host in order if host.name in _left_open_later(order, hosts, held, needs) and host not in reasons
    ]
    provisional = {host.name for host in opening if host.is_new(now, JOIN - NOTICE)}
    closed = [host for host in order if host not in reasons]
    covered = [host for host in order if host not in reasons or host.unannounced]
    announced = {host.name for host in covered if host in reasons or host in opening} - provisional
    evacuated = {host.name for host in closed if _evacuates(found[host]) and not needs.continuous}
    refused = {}
    for host in closed:
        if reason := _not_evacuated(host, needs):
            refused.update({row.id: reason for row in found[host] if row.evacuate})
    for host in order:
        if reason := reasons.get(host) or ("soon" if host in opening and host.name not in provisional else ""):
            refused.update({row.id: reason for row in found[host]})
    return ModelPlan(
        matched=[host.name for host in order],
        covered=[host.name for host in covered],
        provisional=provisional,
        announced=announced,
        held={host.name for host in held},
        evacuated=evacuated,
        refused=refused,
    )


def means(node_id: str, host: Host, hosts: Sequence[Host]) -> bool:
    """Whether the id means this host, by one of its names, or by an address that no other live host has."""
    if same_machine(node_id, host.name):
        return True
    for name in host.names or ():
        address = normalize_address(name)
        if address is None:
            if same_machine(node_id, name):
                return True
        elif normalize_name(node_id) == address and not any(
            address in map(normalize_address, (other.name, *(other.names or ())))
            for other in hosts
            if other.machine != host.machine
        ):
            return True
    return False


def _left_open_later(order: Sequence[Host], hosts: Sequence[Host], held: set[Host], needs: Requirements) -> set[str]:
    """The names of those that stay open once no host is new, unless others join."""

    def aged(some: Iterable[Host]) -> list[Host]:
        return [replace(host, joined=LONG_AGO) for host in some]

    return {
        host.name for host in _left_open(aged(order), aged(hosts), set(aged(held)), replace(needs, barrier_slots=0), 0)
    }


def _left_open(
    order: Sequence[Host], hosts: Sequence[Host], held: set[Host], needs: Requirements, now: int
) -> dict[Host, str]:
    reasons = {host: "required" for host in order if host.open and host.required}
    usable = [host for host in hosts if host.open]
    closed = [host for host in order if host.open and host not in reasons]
    old = [host for host in closed if not host.is_new(now, JOIN)]
    open_nodes = {host.machine for host in usable if host not in closed and host not in held}
    missing = max(0, needs.min_open_hosts - len(open_nodes))
    opened = list(dict.fromkeys(host.machine for host in old if host.machine not in open_nodes))[:missing]
    reasons |= {host: "minimum" for host in old if host.machine in opened and host.machine not in open_nodes}
    for host in order if sum(each.slots for each in usable) >= needs.barrier_slots else ():
        slots = sum(each.slots for each in usable if each not in order or each in reasons)
        if host in closed and host not in reasons and host.slots and slots < needs.barrier_slots:
            reasons[host] = "barrier"
    return reasons


def _evacuates(rows: Sequence[Row]) -> bool:
    return any(row.evacuate for row in rows)


def _not_evacuated(host: Host, needs: Requirements) -> str:
    if needs.continuous:
        return "continuous"
    if host.runs_barrier_tasks:
        return "tasks"
    return "limit" if host.reached_evacuation_limit else ""
