"""Exclusions and speculations of Spark become evidence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.evidence import Finding, FindingKind
from blocklist.spark.evidence_collector import (
    FINDING_TTL,
    SPECULATION_WINDOW,
    EvidenceCollector,
    Observation,
    ObservationKind,
)

APPLICATION = Observation(kind=ObservationKind.APPLICATION, host="a")
NOW = 100.0


def stage(host: str = "a", stage: str = "3.0") -> Observation:
    return Observation(kind=ObservationKind.STAGE, host=host, stage=stage)


def slow(host: str = "a", stage: str = "3.0", task: int = 0) -> Observation:
    return Observation(kind=ObservationKind.SLOW, host=host, stage=stage, task=str(task))


def excluded(of: str) -> Finding:
    return Finding(kind=FindingKind.EXCLUDED, reason=f"Spark excluded the host for {of}.")


def speculated(tasks: int, stages: str) -> Finding:
    reason = f"Spark speculated {tasks} tasks of {stages} that ran on the host within a minute."
    return Finding(kind=FindingKind.SLOW, reason=reason)


class TestExclusions:
    """Exclusions are evidence while they are observed."""

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [
            ([], {}),
            ([APPLICATION], {"a": excluded("the application")}),
            ([stage()], {"a": excluded("stage 3.0")}),
            ([stage(), APPLICATION], {"a": excluded("the application")}),
            ([APPLICATION, stage()], {"a": excluded("the application")}),
            ([stage("a"), stage("b")], {"a": excluded("stage 3.0"), "b": excluded("stage 3.0")}),
        ],
    )
    def test_each_exclusion_has_its_reason(self, seen: list[Observation], expected: dict[str, Finding]) -> None:
        assert EvidenceCollector().update(seen, NOW) == expected

    def test_the_reason_stays_the_same_across_stages(self) -> None:
        collector = EvidenceCollector()
        assert collector.update([stage(stage="3.0")], NOW) == collector.update([stage(stage="4.0")], NOW + 1)

    def test_a_finding_expires_after_its_ttl(self) -> None:
        collector = EvidenceCollector()
        collector.update([APPLICATION], NOW)
        assert collector.update([], NOW + FINDING_TTL - 0.1) == {"a": excluded("the application")}
        assert collector.update([], NOW + FINDING_TTL) == {}


class TestSlowness:
    """A few speculated tasks are not evidence."""

    @pytest.mark.parametrize(
        ("seen", "expected"),
        [
            ([slow()], {}),
            ([slow(), slow(), slow()], {}),
            ([slow(task=0), slow(task=1)], {}),
            ([slow(task=0), slow(task=1), slow(task=2)], {"a": speculated(3, "1 stage")}),
            ([slow(stage="3.0"), slow(stage="4.0")], {"a": speculated(2, "2 stages")}),
            ([slow("a"), slow("b"), slow("c", "4.0")], {}),
            ([slow("a"), slow("a", "4.0"), slow("b")], {"a": speculated(2, "2 stages")}),
        ],
    )
    def test_two_stages_or_three_tasks_are_slow(self, seen: list[Observation], expected: dict[str, Finding]) -> None:
        assert EvidenceCollector().update(seen, NOW) == expected

    @pytest.mark.parametrize(("passed", "found"), [(SPECULATION_WINDOW - 1, True), (SPECULATION_WINDOW, False)])
    def test_speculations_must_fall_within_the_window(self, passed: float, found: bool) -> None:
        collector = EvidenceCollector()
        collector.update([slow(stage="3.0")], NOW)
        assert bool(collector.update([slow(stage="4.0")], NOW + passed)) is found

    def test_slowness_is_reported_only_while_it_continues(self) -> None:
        collector = EvidenceCollector()
        collector.update([slow(stage="3.0"), slow(stage="4.0")], NOW)
        assert collector.update([], NOW + FINDING_TTL) == {}
        assert collector.update([slow(stage="5.0")], NOW + FINDING_TTL) == {"a": speculated(3, "3 stages")}

    def test_an_exclusion_takes_precedence(self) -> None:
        seen = [slow(stage="3.0"), slow(stage="4.0"), APPLICATION]
        assert EvidenceCollector().update(seen, NOW) == {"a": excluded("the application")}


def test_a_host_that_is_not_a_node_id_is_omitted() -> None:
    assert EvidenceCollector().update([Observation(kind=ObservationKind.APPLICATION, host="a/b")], NOW) == {}


@given(st.lists(st.tuples(st.floats(0, 40), st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 2))))
def test_it_agrees_with_a_simple_model(steps: list[tuple[float, str, int, int]]) -> None:
    collector, now = EvidenceCollector(), NOW
    last: dict[tuple[str, int, int], float] = {}
    for passed, host, at_stage, task in steps:
        now += passed
        last[host, at_stage, task] = now
        found = collector.update([slow(host, str(at_stage), task)], now)
        for each in "ab":
            recent = [key for key, at in last.items() if key[0] == each and now - at < SPECULATION_WINDOW]
            enough = len(recent) >= 3 or len({key[1] for key in recent}) >= 2
            fresh = any(now - last[key] < FINDING_TTL for key in recent)
            assert (each in found) is (enough and fresh)
