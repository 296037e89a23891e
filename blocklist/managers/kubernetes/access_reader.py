"""AccessReader: how to reach a cluster, read again after a failure, as files of certificates and credentials change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from blocklist.managers.kubernetes.cluster_access import ClusterAccess
from blocklist.model.errors import InvalidError

log = logging.getLogger("blocklist.managers")

_INTERVAL_SECONDS: Final = 1.0
"""Minimum time between two attempts."""


class AccessReader:
    """`read` reads it: with the given context, or with the current one. Raises InvalidError if that cannot be used.

    Only certificates and credentials are replaced. Another server could be another cluster, whose nodes are not on the
    list: that needs a new start. Not thread-safe.
    """

    def __init__(self, read: Callable[[str | None], ClusterAccess]) -> None:
        self._read = read
        self.access = read(None)
        self._next_read = 0.0
        self._problem = ""

    def replaced(self) -> ClusterAccess | None:
        """The access with other certificates or credentials than the last; None if they have not changed."""
        if time.monotonic() < self._next_read:
            return None
        self._next_read = time.monotonic() + _INTERVAL_SECONDS
        try:
            access = self._read(self.access.context)
        except InvalidError as error:
            self._warn(f"{error} The former credentials are used.")
            return None
        if access.url != self.access.url:
            self._warn(f"The server of the cluster is {access.url} now: restart this manager to use it.")
            return None
        self._problem = ""
        if access.digest == self.access.digest:
            return None
        log.info("The certificates or credentials for %s have been replaced.", access.url)
        self.access = access
        return access

    def _warn(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem
