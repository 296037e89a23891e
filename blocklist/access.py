"""What a credential allows. Pure values."""

from __future__ import annotations

from enum import StrEnum


class Access(StrEnum):
    """Roles of credentials, from the least to the most: each may do what those before it may.

    A reader reads and watches, a listener registers and reports, an operator blocks and unblocks, an admin makes
    tokens and may go beyond limits.
    """

    READER = "reader"
    LISTENER = "listener"
    OPERATOR = "operator"
    ADMIN = "admin"

    def allows(self, needed: Access) -> bool:
        """Whether who has this role may do what needs that one."""
        return _ORDER[self] >= _ORDER[needed]


_ORDER = {access: place for place, access in enumerate(Access)}
