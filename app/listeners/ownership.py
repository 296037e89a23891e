"""Replica: this process among the others that serve the same database, and to which listeners it pushes.

Each listener with a callback has an owner, the replica that pushes to it. A replica owns for as long as it has told the
database in time that it lives, by the database's clock; and stops by itself, by its own, a moment before the others may
take over. So nobody is pushed to by two, whatever stops or is cut off, and no clocks are compared.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final, Protocol

LEASE_SECONDS: Final = 5.0
"""A replica that has not said for so long that it lives is gone."""
MARGIN_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 1.0


class ReplicaStore(Protocol):
    """Where replicas know one another from."""

    async def live_replicas(self) -> set[str]: ...
    async def renew_replica_lease(self, seconds: float) -> set[str]: ...
    async def claim_listeners(self, orphans: Collection[str]) -> None: ...
    async def remove_replica(self) -> None: ...


class PushOwnership:
    """Belongs to the event loop. `others` are the ones that live beside this one, as of the last beat.

    `shared` says whether there may be any.
    """

    def __init__(self, database: ReplicaStore, replica_id: str, *, shared: bool) -> None:
        self.id = replica_id
        self.shared = shared
        self.others: set[str] = set()
        self._database = database
        self._valid_until = 0.0
        self._renewed_at = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether what it owns is still its own."""
        return not self.shared or time.monotonic() < self._valid_until

    def owns(self, owner: str | None) -> bool:
        """Whether it is this replica that pushes to a listener with this owner."""
        return not self.shared or (owner == self.id and self.is_valid)

    def is_orphan(self, owner: str | None) -> bool:
        """Whether nobody pushes to a listener with this owner."""
        return self.shared and owner != self.id and owner not in self.others

    def owner_for(self, owner: str | None) -> str | None:
        """Who pushes to a listener that registers here: its owner, if that lives."""
        if not self.shared:
            return None
        return self.id if owner is None or self.is_orphan(owner) else owner

    async def is_alone(self) -> bool:
        """Whether no other replica lives at present. Raises UnavailableError."""
        return not await self._database.live_replicas() - {self.id}

    async def renew(self) -> None:
        """Say that this replica lives, and hear who else does; `hold` must follow. Raises UnavailableError."""
        began = time.monotonic()
        self.others = await self._database.renew_replica_lease(LEASE_SECONDS) - {self.id}
        self._renewed_at = began

    def confirm(self) -> None:
        """What it owned at the last beat is its own, and stays so: nobody took over meanwhile."""
        self._valid_until = self._renewed_at + LEASE_SECONDS - MARGIN_SECONDS

    async def claim(self, orphans: Collection[str]) -> None:
        """Push to a fair share of these listeners from now on. Raises UnavailableError."""
        share = -(-len(orphans) // (1 + len(self.others)))
        await self._database.claim_listeners(sorted(orphans)[:share])

    async def release(self) -> None:
        """Push to nobody any more; the others take over at once. Raises UnavailableError."""
        self._valid_until = 0.0
        if self.shared:
            await self._database.remove_replica()
