"""The share of the cluster in the header of the page."""

from __future__ import annotations

import pytest

from app.page.shared import ClusterShare


@pytest.mark.parametrize(
    ("blocked", "known", "text"),
    [
        (12, 340, "3.5 %"),
        (0, 340, "0.0 %"),
        (1, 10_000, "< 0.1 %"),
        (9_999, 10_000, "> 99.9 %"),
        (340, 340, "100.0 %"),
    ],
)
def test_none_and_all_are_shown_only_if_that_is_exact(blocked: int, known: int, text: str) -> None:
    assert ClusterShare(blocked, known).percent == text
