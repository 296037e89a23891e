"""BodyQuota: how much of the unfinished bodies of one client is kept in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from blocklist.model.errors import UnavailableError

MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the large bodies that one client sends at the same time: 32 of the largest ones."""


class BodyQuota:
    """The large bodies that clients are sending: each is kept until it is complete. Belongs to the event loop.

    A client is a principal; without authentication everybody is the same one. Without a limit, one listener's token
    could fill the memory: 2 MiB for each of 20,000 connections.
    """

    def __init__(self, max_bytes: int = MAX_UNFINISHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._sizes: Counter[str | None] = Counter()

    @contextmanager
    def receiving(self, client: str | None) -> Iterator[Callable[[int], None]]:
        """While the client sends a body: a function to call with the size of what is kept of it so far, in bytes.

        The function raises UnavailableError if that is too much, together with the client's other bodies.
        """
        kept = 0

        def keep(size: int) -> None:
            nonlocal kept
            if self._sizes[client] - kept + size > self._max_bytes:
                raise UnavailableError(
                    f"This client sends more than {self._max_bytes // 1024**2} MiB of large bodies at the same time:"
                    " send fewer at once.",
                    retry_after=1,
                )
            self._sizes[client] += size - kept
            kept = size

        try:
            yield keep
        finally:
            self._sizes[client] -= kept
            if not self._sizes[client]:
                del self._sizes[client]
