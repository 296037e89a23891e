"""The fixtures of the integration tests: real services on their own databases."""

from __future__ import annotations

from tests.integration.conftest import databases, listener_client, listener_service, migrated

__all__ = ["databases", "listener_client", "listener_service", "migrated"]
