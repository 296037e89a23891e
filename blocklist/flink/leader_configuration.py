"""The configuration of the running JobManager, as far as it is known."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from blocklist.flink.connection import FlinkConnection
from blocklist.flink.rpc import TIMEOUT, RestRequest
from blocklist.flink.start_checks import ConfigurationCheck, advice, check_configuration
from blocklist.flink.state import FlinkError

log = logging.getLogger("blocklist.flink")

_RETRY: Final = 5.0
"""Seconds between two attempts to read it."""


class LeaderConfiguration:
    """Read again from each leader: what a former leader ran with says nothing about the present one.

    `values` and `check` are None until the present leader's configuration has been read. THREADING: use it from one
    thread.
    """

    def __init__(self, connection: FlinkConnection) -> None:
        self._connection = connection
        self._generation = -1
        self._next_at = 0.0
        self._request: tuple[RestRequest, float] | None = None
        self.values: Mapping[str, str] | None = None
        self.check: ConfigurationCheck | None = None

    def update(self) -> None:
        """Read it if it is not known. This waits for nothing, as leases must be renewed: see it in a later call."""
        now, generation = time.monotonic(), self._connection.generation
        if generation != self._generation:
            self._generation, self._next_at = generation, 0.0
            self._drop_request()
            self.values = self.check = None
        if self.values is not None or (self._request is None and now < self._next_at):
            return
        try:
            self.values = self._read(now)
        except FlinkError as error:
            log.warning("%s. Until then only blocks that Flink reports itself are acknowledged.", error)
            return
        except Exception:
            log.exception("The cluster's configuration cannot be read; retrying.")
            return
        if self.values is not None:
            self._check(self.values)

    def _read(self, now: float) -> Mapping[str, str] | None:
        asked, self._request = self._request, None
        if asked is None:
            self._next_at = now + _RETRY
            request = self._connection.request_configuration()
            if request is None:
                return None
            asked = request, now + TIMEOUT
        values = self._connection.read_configuration(asked[0], wait=now < asked[1])
        if values is None:
            self._request = asked
        return values

    def _drop_request(self) -> None:
        """Reading it ends it; the answer of a former leader says nothing."""
        if self._request is not None:
            (request, _), self._request = self._request, None
            with suppress(FlinkError):
                self._connection.read_configuration(request, wait=False)

    def _check(self, values: Mapping[str, str]) -> None:
        self.check = check_configuration(values)
        if self.check.error is not None:
            log.error(
                "Flink ignores blocked nodes. Add these lines to the JobManager's configuration, and restart the"
                " JobManager:\n%s",
                advice(),
            )
        for warning in self.check.warnings:
            log.warning("%s", warning)
