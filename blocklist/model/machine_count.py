"""MachineCount: how many machines several sources report, whatever names they use for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from blocklist.model.host_matching import MachineOf, normalize_name
from blocklist.model.machine_index import MachineIndex


class MachineCount:
    """The machines that several sources report. The length is their number.

    All names that `machine_of` knows for one machine count once; call `machines_changed` when it knows others. A name
    that is added twice stays until it is discarded twice.
    """

    def __init__(self, names: Iterable[str] = (), machine_of: MachineOf = normalize_name) -> None:
        self._machine_of = machine_of
        self._names = MachineIndex()
        self._counted = MachineIndex()
        self._uses: dict[str, int] = {}
        # The machine as which a name is counted, if that is not the name itself.
        self._machines: dict[str, str] = {}
        for name in names:
            self.add(name)

    def __len__(self) -> int:
        return len(self._counted)

    def add(self, name: str) -> None:
        """Add a name for one more source."""
        normal = normalize_name(name)
        uses = self._uses.get(normal, 0)
        self._uses[normal] = uses + 1
        if not uses:
            self._names.add(normal)
            self._count(normal)

    def discard(self, name: str) -> None:
        """Remove a name for one of the sources that added it."""
        normal = normalize_name(name)
        uses = self._uses.get(normal, 0)
        if uses > 1:
            self._uses[normal] = uses - 1
        elif uses:
            del self._uses[normal]
            self._names.discard(normal)
            self._counted.discard(self._machines.pop(normal, normal))

    def count_matching(self, names: Iterable[str]) -> int:
        """The number of machines that these names mean."""
        return self._counted.count_matching(map(self._machine_of, names))

    def machines_changed(self, names: Iterable[str]) -> None:
        """These names, or short and full ones of them, may mean other machines now."""
        for own in {own for name in names for own in self._names.matching(name)}:
            self._counted.discard(self._machines.pop(own, own))
            self._count(own)

    def _count(self, name: str) -> None:
        machine = self._machine_of(name)
        self._counted.add(machine)
        if machine != name:
            self._machines[name] = machine
