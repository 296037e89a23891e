"""A reference model of the plan: the same rules, the obvious way, without regard to cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from blocklist.model.names import normalize_address, normalize_name, same_machine

HOLD: Final = 2000
JOIN: Final = 5000
NOTICE: Final = 2000
LONG_AGO: Final = -(2**63)
ACTIONS: Final = ("canary", "mark", "evacuate")
"""The weakest first."""


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
    executors: tuple[str, ...] = ()
    usable: tuple[str, ...] = ()
    """Those of its executors on which Spark would start tasks."""
    profiles: tuple[tuple[str, int], ...] = ()
    """Executors with another resource profile than 0."""
    unannounced: bool = False
    """Whether it gets no tasks at the moment, and its refusal is not reported yet."""

    @property
    def slots_of_one(self) -> int:
        return self.slots // max(1, len(self.executors))

    def profile(self, executor: str) -> int:
        return dict(self.profiles).get(executor, 0)

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
    action: str


@dataclass(kw_only=True)
class ModelPlan:
    """`refused` says why: `required`, `minimum`, `barrier` and `soon`; `continuous`, `tasks` and `limit`."""

    matched: list[str]
    covered: list[str]
    canaries: dict[str, set[str]]
    closed_executors: set[str]
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
    order = sorted(found, key=lambda host: (_strength(found[host]), max(r.rank for r in found[host]), host.name))
    marked = {host for host in found if _strength(found[host]) > ACTIONS.index("canary")}
    held = {
        host
        for host in hosts
        if current and host not in marked and host.names is None and host.is_new(now, HOLD) and not host.required
    }
    canaries = _canaries([host for host in order if host not in marked], hosts)
    reasons = _left_open(order, canaries, hosts, held, needs, now)
    later = _left_open_later(order, canaries, hosts, held, needs)
    opening = [host for host in order if host.name in later and host not in reasons]
    provisional = {host.name for host in opening if host.is_new(now, JOIN - NOTICE)}
    closed = [host for host in order if host not in reasons]
    covered = [host for host in order if host not in reasons or host.unannounced]
    announced = {host.name for host in covered if host in reasons or host in opening} - provisional
    evacuated = {host.name for host in closed if _evacuates(found[host]) and not needs.continuous}
    in_force = {host: canaries[host.name] for host in covered if host.name in canaries}
    refused = {}
    for host in closed:
        if reason := _not_evacuated(host, needs):
            refused.update({row.id: reason for row in found[host] if row.action == "evacuate"})
    for host in order:
        if reason := reasons.get(host) or ("soon" if host in opening and host.name not in provisional else ""):
            refused.update({row.id: reason for row in found[host]})
    return ModelPlan(
        matched=[host.name for host in order],
        covered=[host.name for host in covered],
        canaries={host.name: found for host, found in in_force.items() if found},
        closed_executors={each for host, found in in_force.items() for each in host.executors if each not in found},
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


def _canaries(found: Sequence[Host], hosts: Sequence[Host]) -> dict[str, set[str]]:
    """The names of hosts with a canary block, with those of their executors that still get tasks."""
    usable = [(host.machine, host.profile(each), int(each)) for host in hosts for each in host.usable]
    lowest = {
        (machine, profile): min(n for m, p, n in usable if (m, p) == (machine, profile))
        for machine, profile, _ in usable
    }
    return {
        host.name: {each for each in host.usable if int(each) == lowest[host.machine, host.profile(each)]}
        for host in found
    }


def _left_open_later(
    order: Sequence[Host], canaries: Mapping[str, set[str]], hosts: Sequence[Host], held: set[Host], needs: Requirements
) -> set[str]:
    """The names of those that stay open once no host is new, unless others join."""

    def aged(some: Iterable[Host]) -> list[Host]:
        return [replace(host, joined=LONG_AGO) for host in some]

    needs = replace(needs, barrier_slots=0)
    return {host.name for host in _left_open(aged(order), canaries, aged(hosts), set(aged(held)), needs, 0)}


def _left_open(
    order: Sequence[Host],
    canaries: Mapping[str, set[str]],
    hosts: Sequence[Host],
    held: set[Host],
    needs: Requirements,
    now: int,
) -> dict[Host, str]:
    reasons = {host: "required" for host in order if host.open and host.required}
    usable = [host for host in hosts if host.open]
    closed = [host for host in order if host.open and host not in reasons]
    old = [host for host in closed if host.name not in canaries and not host.is_new(now, JOIN)]
    open_nodes = {host.machine for host in usable if host not in closed and host not in held}
    missing = max(0, needs.min_open_hosts - len(open_nodes))
    opened = list(dict.fromkeys(host.machine for host in old if host.machine not in open_nodes))[:missing]
    reasons |= {host: "minimum" for host in old if host.machine in opened and host.machine not in open_nodes}
    for host in order if sum(each.slots for each in usable) >= needs.barrier_slots else ():
        slots = sum(each.slots for each in usable if each not in order or each in reasons)
        slots += sum(each.slots_of_one * len(canaries.get(each.name, ())) for each in closed if each not in reasons)
        more = host.slots - host.slots_of_one * len(canaries.get(host.name, ()))
        if host in closed and host not in reasons and more and slots < needs.barrier_slots:
            reasons[host] = "barrier"
    return reasons


def _strength(rows: Sequence[Row]) -> int:
    return max(ACTIONS.index(row.action) for row in rows)


def _evacuates(rows: Sequence[Row]) -> bool:
    return any(row.action == "evacuate" for row in rows)


def _not_evacuated(host: Host, needs: Requirements) -> str:
    if needs.continuous:
        return "continuous"
    if host.runs_barrier_tasks:
        return "tasks"
    return "limit" if host.reached_evacuation_limit else ""
