"""The fixtures of the integration tests: real services on their own databases."""

from __future__ import annotations

from tests.integration.conftest import databases, desk, listened, migrated

__all__ = ["databases", "desk", "listened", "migrated"]
