"""What `BlocklistAgent.start` refuses before it looks at Spark."""

from __future__ import annotations

from typing import Any

import pytest

from blocklist.spark import BlocklistAgent


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"keep_hosts": 0}, ValueError, "keep_hosts must be at least 1"),
        ({"min_nodes": -1}, ValueError, "min_nodes must be at least 0"),
        ({}, TypeError, "where the driver runs"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], error: type[Exception], words: str) -> None:
    session: Any = object()
    with pytest.raises(error, match=words):
        BlocklistAgent.start(session, **options)
