"""MachineIndex: the machines that a changing set of names means. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from blocklist.model.host_matching import Aliases, no_aliases, normalize_name, short_name
from blocklist.model.multimap import Multimap


class MachineIndex:
    """The names that several sources use for machines, and how many machines they are.

    Names are kept in normal form. A short name is no further machine beside a full name of it. A name that is added
    twice stays until it is discarded twice. No operation takes longer because there are more names; the length is the
    number of machines.
    """

    def __init__(self, names: Iterable[str] = (), aliases: Aliases = no_aliases) -> None:
        self._aliases = aliases
        self._uses: dict[str, int] = {}
        # By first label.
        self._full = Multimap()
        self._machines = 0
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return self._machines

    def __contains__(self, name: object) -> bool:
        """Whether this very name, in normal form, is there."""
        return name in self._uses

    def __iter__(self) -> Iterator[str]:
        """The names, in no order."""
        return iter(self._uses)

    def add(self, name: str) -> None:
        """Add a name for one more source."""
        normal = normalize_name(name)
        uses = self._uses.get(normal, 0)
        self._uses[normal] = uses + 1
        if not uses:
            self._machines += self._machines_by(normal)
            self._add_full(normal)

    def discard(self, name: str) -> None:
        """Remove a name for one of the sources that added it."""
        normal = normalize_name(name)
        uses = self._uses.get(normal, 0)
        if uses > 1:
            self._uses[normal] = uses - 1
        elif uses:
            del self._uses[normal]
            self._discard_full(normal)
            self._machines -= self._machines_by(normal)

    def matching(self, name: str) -> Iterator[str]:
        """The names that mean the same machine as this one, equal names first; lazy, as they may be many.

        Those that `aliases` knows for the machine come last.
        """
        normal = normalize_name(name)
        label, is_full = short_name(normal)
        equal = (normal,) if normal in self._uses else ()
        further = [alias for alias in self._aliases(name) if alias in self._uses]
        if is_full:
            equal = (*equal, label) if label in self._uses else equal
        full_names = () if is_full else self._full_names(label)
        return chain(equal, full_names, (name for name in further if name not in equal and name not in full_names))

    def count_matching(self, names: Iterable[str]) -> int:
        """The number of machines that these names mean."""
        given = set(map(normalize_name, names))
        given |= {alias for name in given for alias in self._aliases(name) if alias in self._uses}
        counted, short_names = 0, set[str]()
        for name in given:
            label, is_full = short_name(name)
            if not is_full:
                counted += len(self._full_names(label)) or name in self._uses
            elif label in given:
                continue  # Counted with its short name.
            elif name in self._uses:
                counted += 1
            elif label in self._uses and label not in self._full:
                short_names.add(label)
        return counted + len(short_names)

    def _full_names(self, label: str) -> Collection[str]:
        return self._full[label] if label else ()

    def _machines_by(self, name: str) -> int:
        """How many machines more there are with this name, 0 or 1; no full name of the index may be this one."""
        label, is_full = short_name(name)
        if not label:
            return 1
        return int(label not in self._uses or label in self._full) if is_full else int(label not in self._full)

    def _add_full(self, name: str) -> None:
        label, is_full = short_name(name)
        if label and is_full:
            self._full.add(label, name)

    def _discard_full(self, name: str) -> None:
        label, is_full = short_name(name)
        if label and is_full:
            self._full.discard(label, name)
