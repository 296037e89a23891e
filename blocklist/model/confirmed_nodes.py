"""ConfirmedNodes: the nodes that listeners name, and which principals name each of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from blocklist.model.host_matching import Aliases, MachineOf, no_aliases, normalize_name, short_name
from blocklist.model.machine_index import MachineIndex


class ConfirmedNodes:
    """A node is confirmed if two principals name it: none can invent any, however many listeners it registers.

    Without authentication everybody is trusted: each listener is its own principal, and one that names a node is
    enough. With it, a listener without a principal does not count. The length is the number of confirmed nodes.

    The short name that one principal uses and a full name that another one uses confirm each other. As the short name
    may mean any of several machines, it confirms one node more, however many full names of it there are: otherwise one
    token could invent those. All names that `machine_of` knows for one machine confirm each other too; call
    `machines_changed` when it knows others.

    `names` are all nodes that listeners name, confirmed or not; `version` changes when other nodes are confirmed, and
    when a name means another machine.
    """

    def __init__(
        self, *, authenticated: bool, aliases: Aliases = no_aliases, machine_of: MachineOf = normalize_name
    ) -> None:
        self.names = MachineIndex(aliases=aliases)
        self.version = 0
        self._authenticated = authenticated
        self._required = 2 if authenticated else 1
        self._principals: dict[str, str | None] = {}
        self._named: dict[str, frozenset[str]] = {}
        self._machine_of = machine_of
        # The machine under which a name is counted, if that is not the name itself.
        self._machines: dict[str, str] = {}
        self._naming = _PrincipalCounts()
        self._confirmed = MachineIndex()

    def __len__(self) -> int:
        return len(self._confirmed)

    def add_listener(self, listener: str, principal: str | None) -> None:
        """Add a listener, or change its principal; it keeps the nodes that it names."""
        witness = principal if self._authenticated else listener
        if self._principals.get(listener) == witness:
            return
        named = self._named.get(listener, frozenset())
        self._withdraw(listener, named)
        self._principals[listener] = witness
        self._add(listener, named)

    def remove_listener(self, listener: str) -> None:
        self.set_nodes(listener, ())
        self._named.pop(listener)
        self._principals.pop(listener, None)

    def set_nodes(self, listener: str, names: Iterable[str]) -> None:
        """Replace the nodes that a listener names."""
        before, after = self._named.get(listener, frozenset()), frozenset(map(normalize_name, names))
        self._named[listener] = after
        self._withdraw(listener, before - after)
        for name in before - after:
            self.names.discard(name)
            self._store_machine(name)
        for name in after - before:
            self.names.add(name)
            self._store_machine(name)
        self._add(listener, after - before)

    def named_by(self, listener: str) -> frozenset[str]:
        """The nodes that a listener names, in normal form."""
        return self._named.get(listener, frozenset())

    def principal_of(self, listener: str) -> str | None:
        """The principal of a listener; None if unknown."""
        return self._principals.get(listener)

    def confirmed_name(self, name: str) -> str | None:
        """The name, in normal form, under which this machine is confirmed, the same for all names of it; else None."""
        return next(self._confirmed.matching(self._machine_of(name)), None)

    def one_name_each(self, names: frozenset[str]) -> frozenset[str]:
        """One of these names for each machine; others once `version` has changed."""
        by_machine = {self._machine_of(name): name for name in sorted(names)}
        return names if len(by_machine) == len(names) else frozenset(by_machine.values())

    def machines_changed(self, names: Iterable[str]) -> None:
        """These names, or short and full ones of them, may mean other machines now."""
        named = {own for name in names for own in self.names.matching(name)}
        for name in named:
            before, after = self._machines.get(name, name), self._machine_of(name)
            if before != after:
                self._move(name, before, after)

    def _move(self, name: str, before: str, after: str) -> None:
        """Count a name for another machine."""
        self.version += 1
        for listener, named in self._named.items():
            principal = self._principals.get(listener)
            if principal is not None and name in named:
                self._count(before, principal, -1)
                self._count(after, principal, 1)
        self._store_machine(name)

    def _store_machine(self, name: str) -> None:
        """Remember under which machine a name is counted, as long as a listener names it."""
        machine = self._machine_of(name)
        if machine == name or name not in self.names:
            self._machines.pop(name, None)
        else:
            self._machines[name] = machine

    def _add(self, listener: str, names: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is not None:
            for name in names:
                self._count(self._machines.get(name, name), principal, 1)

    def _withdraw(self, listener: str, names: Iterable[str]) -> None:
        principal = self._principals.get(listener)
        if principal is not None:
            for name in names:
                self._count(self._machines.get(name, name), principal, -1)

    def _count(self, name: str, principal: str, step: int) -> None:
        label, is_full = short_name(name)
        if self._naming.add(name, principal, step):
            self._update(name, f"{label}." if label and not is_full else None)
        if is_full and label and self._naming.add(f"{label}.", principal, step) and label in self._naming:
            self._update(label, f"{label}.")

    def _update(self, name: str, full_names: str | None) -> None:
        """Confirm a name, or no longer; for a short name, `full_names` is the key of all full names of it."""
        confirmed = self._naming.number(name, full_names) >= self._required
        if confirmed and name not in self._confirmed:
            self._confirmed.add(name)
            self.version += 1
        elif not confirmed and name in self._confirmed:
            self._confirmed.discard(name)
            self.version += 1


class _PrincipalCounts:
    """For each key the principals that use it, and how many times each."""

    def __init__(self) -> None:
        # Almost every key has one principal that uses it once: a dict for each would take three times the memory.
        self._by_key: dict[str, str | dict[str, int]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def add(self, key: str, principal: str, step: int) -> bool:
        """Count `step` uses more; whether the principals of the key are others than before."""
        used = self._by_key.get(key)
        if used is None:
            self._by_key[key] = principal
            return True
        counts = {used: 1} if isinstance(used, str) else used
        before = len(counts)
        counts[principal] = counts.get(principal, 0) + step
        if not counts[principal]:
            del counts[principal]
        if not counts:
            del self._by_key[key]
        elif len(counts) == 1 and sum(counts.values()) == 1:
            self._by_key[key] = next(iter(counts))
        else:
            self._by_key[key] = counts
        return len(counts) != before

    def number(self, key: str, other: str | None) -> int:
        """Number of principals of a key; with those of another one, if the first has any."""
        used = self._by_key.get(key)
        if used is None:
            return 0
        more = None if other is None else self._by_key.get(other)
        if more is None:
            return 1 if isinstance(used, str) else len(used)
        return len(_principals(used) | _principals(more))


def _principals(counts: str | dict[str, int]) -> set[str]:
    return {counts} if isinstance(counts, str) else set(counts)
