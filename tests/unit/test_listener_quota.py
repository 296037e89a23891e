"""How many listeners a principal may have, and how much of their reports is kept."""

from __future__ import annotations

import pytest

from app.listeners.reports import ListenerQuota, ReportsTooLargeError


def test_a_listener_that_another_principal_registers_no_longer_counts_for_the_first() -> None:
    quota = ListenerQuota(max_listeners=1, max_bytes=100)
    quota.add("jm", "first")
    quota.record("jm", 60)
    quota.add("jm", "second")
    assert not quota.is_full("first", "rm")
    quota.add("rm", "first")
    quota.check("rm", 100)
    assert quota.is_full("second", "rm")


def test_a_listener_that_its_principal_registers_again_keeps_what_it_reported() -> None:
    quota = ListenerQuota(max_listeners=2, max_bytes=100)
    quota.add("jm", "first")
    quota.record("jm", 60)
    quota.add("jm", "first")
    quota.add("rm", "first")
    with pytest.raises(ReportsTooLargeError):
        quota.check("rm", 41)
