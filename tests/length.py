"""How long tests last that are random or run for a time: `make test-nightly` runs them ten times as long."""

from __future__ import annotations

import os
from typing import Final, TypeVar

LENGTH: Final = int(os.environ.get("TEST_LENGTH", "1"))
Amount = TypeVar("Amount", int, float)


def longer(amount: Amount) -> Amount:
    """Seconds, examples, requests or rounds of `make test`, times the length of this run."""
    return amount * LENGTH
