"""PushOwnership: which replica pushes to which listener.

Each listener with a callback has an owner: the replica that pushes to it. A replica is live while it renews its lease,
by the database's clock; by its own clock it stops pushing MARGIN_SECONDS before others may take over. So two replicas
never push to one listener, whatever fails or is cut off, and clocks are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from app.store.listeners import ListenerStore

LEASE_SECONDS: Final = 5.0
"""A replica that has not renewed its lease for this long is gone."""
MARGIN_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 1.0


class PushOwnership:
    """Belongs to the event loop.

    `shared` is whether there may be other replicas, `others` are those that were live at the last renewal.
    """

    def __init__(self, database: ListenerStore, replica_id: str, *, shared: bool) -> None:
        self.id = replica_id
        self.shared = shared
        self.others: set[str] = set()
        self._database = database
        self._valid_until = 0.0
        self._renewed_at = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether this replica's lease is certainly valid, so that no other one has taken over."""
        return not self.shared or time.monotonic() < self._valid_until

    @property
    def is_first(self) -> bool | None:
        """Whether this is the first of the live replicas, the one that does what must be done once; None: uncertain."""
        if not self.is_valid:
            return None
        return not self.shared or all(self.id < other for other in self.others)

    def owns(self, owner: str | None) -> bool:
        """Whether this replica pushes to a listener with this owner."""
        return not self.shared or (owner == self.id and self.is_valid)

    def is_orphan(self, owner: str | None) -> bool:
        """Whether no live replica pushes to a listener with this owner."""
        return self.shared and owner != self.id and owner not in self.others

    def owner_for(self, owner: str | None) -> str | None:
        """The owner of a listener that registers here: its current owner if that is live, else this replica."""
        if not self.shared:
            return None
        return self.id if owner is None or self.is_orphan(owner) else owner

    async def is_alone(self) -> bool:
        """Whether no other replica is live. Raises UnavailableError."""
        return not await self._database.live_replicas() - {self.id}

    async def renew(self) -> None:
        """Renew this replica's lease and read the others; call `confirm` afterwards. Raises UnavailableError."""
        started_at = time.monotonic()
        self.others = await self._database.renew_replica_lease(LEASE_SECONDS) - {self.id}
        self._renewed_at = started_at

    def confirm(self) -> None:
        """Extend the ownership to the renewed lease: the directory is up to date with the last renewal."""
        self._valid_until = self._renewed_at + LEASE_SECONDS - MARGIN_SECONDS

    async def claim(self, orphans: Collection[str]) -> None:
        """Become the owner of a fair share of these listeners. Raises UnavailableError."""
        share = -(-len(orphans) // (1 + len(self.others)))
        await self._database.claim_listeners(sorted(orphans)[:share])

    async def release(self) -> None:
        """Give up all pushes; the other replicas take over at once. Raises UnavailableError."""
        self._valid_until = 0.0
        if self.shared:
            await self._database.remove_replica()
