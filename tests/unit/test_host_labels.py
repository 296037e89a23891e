"""Which blocks show the TaskManagers of which hosts."""

from __future__ import annotations

from app.engine.list_view import ShownHosts


def test_a_block_that_no_longer_shows_a_host_leaves_the_host_to_the_others() -> None:
    labels = ShownHosts()
    labels.record("n1", ["n1.example"])
    labels.record("10.0.0.1", ["n1.example"])
    labels.record("n1", [])
    assert labels.shown_by(["n1"]) == {"10.0.0.1"}


def test_a_block_shows_the_hosts_that_were_recorded_last() -> None:
    labels = ShownHosts()
    labels.record("n1", ["n1.example", "n2"])
    labels.record("n1", ["n2", "n3"])
    assert labels.shown_by(["n1"]) == set()
    assert labels.shown_by(["n2"]) == labels.shown_by(["N3.example"]) == {"n1"}
