"""A task, or a host, that is evacuated again and again is left alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.length import longer
from tests.spark_agent.decisions import Decisions

PER_TASK, PER_HOST, MINUTE, MAX_TASKS = 3, 3, 60_000, 50_000


def test_a_task_is_evacuated_three_times_wherever_it_runs(decisions: Decisions) -> None:
    script = [
        "update 0 n1 n2 n3 n4",
        *(f"take 1.7 n{i}" for i in (1, 2, 3, 4)),
        "reached n3",
        "reached n4",
        "take 1.8 n4",
    ]
    assert decisions.limit(script) == [True, True, True, False, False, True, True]


def test_a_host_is_evacuated_three_times_in_a_minute_and_again_when_it_is_over(decisions: Decisions) -> None:
    flaps = [line for i in range(4) for line in (f"update {i} n1", f"take 1.{i} n1", f"update {i}")]
    assert decisions.limit([*flaps, "reached n1"]) == [True, True, True, False, False]
    later = [*flaps[:-1], f"update {MINUTE - 1} n1", "take 2.0 n1", "reached n1", f"update {MINUTE} n1", "take 2.0 n1"]
    assert decisions.limit([*later, "reached n1"]) == [True, True, True, False, False, True, True, False]


def test_a_host_that_stays_evacuated_is_so_once(decisions: Decisions) -> None:
    script = [line for i in range(20) for line in (f"update {i} n1", f"take 1.{i} n1")]
    assert all(decisions.limit(script))


def test_the_memory_is_bounded(decisions: Decisions) -> None:
    """Forgotten is the task that was evacuated longest ago."""
    many = [f"take 1.{i} n1" for i in range(MAX_TASKS)]
    script = ["update 0 n1", *["take 0.0 n1"] * 3, *many[:-1], "take 0.0 n1", many[-1], "take 0.0 n1"]
    replies = decisions.limit(script)
    assert (replies[-3], replies[-1]) == (False, True)


steps_ = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(0, 40_000), st.sets(st.sampled_from(["n1", "n2"]))),
        st.tuples(st.just("take"), st.sampled_from(["1.1", "1.2", "2.1"]), st.sampled_from(["n1", "n2"])),
    ),
    max_size=40,
)


@settings(max_examples=longer(500))
@given(steps_)
def test_the_limits_are_those_of_the_reference_model(
    decisions: Decisions, steps: list[tuple[str, int, set[str]] | tuple[str, str, str]]
) -> None:
    now, script, expected = 0, [], []
    begun: dict[str, list[int]] = {"n1": [], "n2": []}
    taken: dict[str, int] = {}
    admitted: set[str] = set()
    for word, value, where in steps:
        if isinstance(value, int):
            now += value
            script.append(" ".join((word, str(now), *sorted(where))))
            for host in set(where) - admitted:
                if sum(now - time < MINUTE for time in begun[host]) < PER_HOST:
                    begun[host].append(now)
                    admitted.add(host)
            admitted &= set(where)
        else:
            script.append(f"{word} {value} {where}")
            allowed = where in admitted and taken.get(value, 0) < PER_TASK
            taken[value] = taken.get(value, 0) + allowed
            expected.append(allowed)
    assert decisions.limit(script) == expected if script else not expected
