"""Requester: what the halves of BlocklistClient have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from blocklist.client.response import ApiResponse
from blocklist.wire.nodes import Json

Params = Mapping[str, str | Sequence[str]]


class Requester(ABC):
    """Something that sends requests to the service."""

    @abstractmethod
    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Json | None = None,
        wait: int | None = None,
    ) -> ApiResponse:
        """The answer of 2xx; any other is raised. `wait` are the seconds of `Prefer: wait`."""
