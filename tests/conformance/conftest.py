"""The fixtures of the integration tests: real services on their own databases."""

from __future__ import annotations

from tests.integration.conftest import desk, listened, migrated

__all__ = ["desk", "listened", "migrated"]
