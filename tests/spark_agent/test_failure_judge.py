"""The judge of failures: a host is faulty if what fails there succeeds elsewhere. Jobs that are faulty blame nobody."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.length import longer
from tests.spark_agent.decisions import Decisions

WINDOW, LOSS_WINDOW, SETTLE, LEAVING, LASTING, FRESH = 60_000, 300_000, 10_000, 15_000, 5_000, 10_000
MINUTE, HOUR = 60_000, 3_600_000
RECENT, MAX_STAGES, MAX_FAILED = 16, 100, 200
CRASH = "Command exited with code 134"
Event = tuple[object, ...]


def ok(now: int, partition: int, host: str, stage: int = 0, took: int = 0) -> Event:
    return "ok", now, stage, partition, host, now - took


def fail(
    now: int, partition: int, host: str, stage: int = 0, error: str = "IOException", took: int = 0, executor: str = "1"
) -> Event:
    return "fail", now, stage, partition, executor, host, error, now - took


def findings(now: int) -> Event:
    return "findings", now


def add(now: int, executor: str, host: str) -> Event:
    return "add", now, executor, host


def remove(now: int, executor: str, reason: str = CRASH) -> Event:
    return "remove", now, executor, reason


def lost(now: int, partition: int, executor: str, stage: int = 0) -> Event:
    return "lost", now, stage, partition, executor


def fetch(now: int, executor: str, server: str, reader: str, stage: int = 0, took: int = 0) -> Event:
    return "fetch", now, stage, executor, server, reader, now - took


def judge(decisions: Decisions, *events: Event, now: int, hosts_serve: bool = False) -> dict[str, str]:
    return decisions.judge([*events, findings(now)], hosts_serve=hosts_serve)[0]


def retried(partitions: Iterable[int], bad: str, others: Sequence[str], start: int = 0, stage: int = 0) -> list[Event]:
    """Each partition fails on one host and then succeeds on one of the others in turn: two events in each second."""
    events = []
    for number, partition in enumerate(partitions):
        at = start + 1000 * number
        events += [fail(at, partition, bad, stage), ok(at + 500, partition, others[number % len(others)], stage)]
    return events


class TestTasks:
    def test_a_host_that_swallows_tasks_is_faulty(self, decisions: Decisions) -> None:
        found = judge(decisions, *retried(range(4), "bad", ["a", "b"]), now=LASTING)
        assert found == {
            "bad": "In stages with failures, 4 of 4 recent task attempts failed with IOException and then succeeded"
            " on other hosts."
        }

    def test_a_success_before_the_failures_proves_nothing(self, decisions: Decisions) -> None:
        """As when a stage is tried again, because shuffle data was lost."""
        retried_stage = [fail(0, 7, "a"), *(ok(n, n, "ab"[n % 2]) for n in range(10, 40)), ok(50, 7, "b")]
        failures = [fail(100 + n, 7, "bad") for n in range(3)]
        proof = [ok(300, 7, "a"), fail(400, 7, "bad"), ok(500, 7, "a")]
        script = [*retried_stage, *failures, findings(LASTING + 100), *proof, findings(LASTING + 500)]
        assert [list(found) for found in decisions.judge(script)] == [[], []], (
            "the first three have no proof of their own"
        )
        later = [fail(600 + n, 8, "bad") for n in range(2)]
        again = [*script[:-1], *later, ok(700, 8, "b"), findings(LASTING + 700)]
        assert [list(found) for found in decisions.judge(again)] == [[], ["bad"]]

    def test_three_failures_suffice_and_two_do_not(self, decisions: Decisions) -> None:
        events = [*retried(range(3), "bad", ["a", "b"])]
        assert judge(decisions, *events[:4], now=LASTING) == {}
        assert list(judge(decisions, *events, now=LASTING)) == ["bad"]

    def test_failures_must_last_as_those_of_an_executor_that_is_being_ended_do_not(self, decisions: Decisions) -> None:
        """It fails tasks for a few seconds, and Spark learns only then that it has left."""
        events = retried(range(4), "leaving", ["a", "b"])
        script = [*events, findings(LASTING - 1), findings(LASTING)]
        assert [list(found) for found in decisions.judge(script)] == [[], ["leaving"]]
        gone = [add(0, "1", "leaving"), *events, remove(LASTING - 1, "1", "worker lost")]
        assert judge(decisions, *gone, now=LASTING) == {}

    def test_failures_that_were_all_over_before_another_host_succeeded_blame_nobody(self, decisions: Decisions) -> None:
        """An outage of a server that this host notices first: the tasks of the others take longer."""
        busy = [ok(3000 + n, 10 + n, "ab"[n % 2], took=3000) for n in range(8)]
        outage = [fail(250 * n, n % 4, "first", took=200) for n in range(8)]
        after = [ok(4000 + n, n, "ab"[n % 2], took=500) for n in range(4)]
        events = [*outage, *busy, *after]
        assert judge(decisions, *events, now=LASTING + 1000) == {}
        begun_before = [fail(4500, 20, "first", took=1000), ok(5000, 20, "a", took=200)]
        assert judge(decisions, *events, *begun_before, now=LASTING + 1000) == {}
        goes_on = [fail(4500, 20, "first", took=200), ok(5000, 20, "a", took=200)]
        assert list(judge(decisions, *events, *goes_on, now=LASTING + 1000)) == ["first"]

    @pytest.mark.parametrize(
        ("each", "took", "seconds"), [(250, 500, 6), (13, 500, 6), (50, 3000, 8), (13, 10_000, 22)]
    )
    def test_a_host_that_fails_many_tasks_while_others_run_one_is_found_while_it_fails(
        self, decisions: Decisions, each: int, took: int, seconds: int
    ) -> None:
        """More than it is remembered for: the first of them must last, until they have succeeded elsewhere."""
        end = 1000 * seconds
        events = [fail(at, at, "bad") for at in range(0, end, each)]
        events += [ok(at + took, at, "ab"[at // each % 2], took=took) for at in range(0, end - took, each)]
        events.sort(key=lambda event: int(str(event[1])))
        assert list(judge(decisions, *events, now=end)) == ["bad"]
        repaired = [ok(end + n, n, "bad") for n in range(RECENT)]
        assert judge(decisions, *events, *repaired, now=end + RECENT) == {}

    def test_failures_in_several_stages_count_together(self, decisions: Decisions) -> None:
        events = [it for n in range(3) for it in retried([0], "bad", ["a", "b"][n % 2 :], start=1000 * n, stage=n)]
        assert list(judge(decisions, *events, now=LASTING)) == ["bad"]

    def test_a_host_that_fails_one_stage_alone_is_faulty_although_it_succeeds_in_others(
        self, decisions: Decisions
    ) -> None:
        """That stage needs what the host lacks, such as a library or a second disk."""
        others = [ok(100 * n, n, host, stage=1) for n in range(50) for host in ("bad", "a", "b")]
        assert list(judge(decisions, *others, *retried(range(4), "bad", ["a", "b"]), now=LASTING)) == ["bad"]

    def test_one_failure_in_twenty_small_stages_blames_nobody(self, decisions: Decisions) -> None:
        """Such as the batches of a stream: what succeeds in the other stages counts, too."""

        def batches(failing: int) -> list[Event]:
            events = []
            for stage in range(41):
                events += [ok(1000 * stage, 1, "a", stage), ok(1000 * stage, 2, "b", stage)]
                bad = [fail(1000 * stage, 0, "h", stage), ok(1000 * stage + 500, 0, "ab"[stage % 2], stage)]
                events += bad if stage % failing == 0 else [ok(1000 * stage, 0, "h", stage)]
            return events

        assert judge(decisions, *batches(20), now=41_000) == {}
        assert list(judge(decisions, *batches(1), now=41_000)) == ["h"]

    def test_copies_that_get_in_the_way_of_the_first_attempts_blame_nobody(self, decisions: Decisions) -> None:
        """Speculation where nothing coordinates what is written: the fastest host has most copies."""
        events = [fail(1000 * n, n, "fast") for n in range(4)]
        firsts = [ok(5000, n, "ab"[n % 2], took=5000) for n in range(4)]
        assert judge(decisions, *events, *firsts, now=5001) == {}
        again = [ok(1000 * n + 900, n, "ab"[n % 2], took=500) for n in range(4)]
        assert list(judge(decisions, *events, *again, now=5001)) == ["fast"]

    def test_what_runs_at_one_moment_and_fails_blames_nobody(self, decisions: Decisions) -> None:
        """A pause of a server hits the host with most tasks most; what is started first on a host may lack a jar."""
        others = [ok(1000 + n, 100 + n, f"h{n % 10}") for n in range(150)]
        blip = [fail(3000 + n, n, "big", took=2000) for n in range(16)]
        after = [ok(6000, n, f"h{n % 10}") for n in range(16)]
        assert judge(decisions, *others, *blip, *after, now=9000) == {}

    def test_a_bug_that_fails_everywhere_blames_nobody(self, decisions: Decisions) -> None:
        events = [fail(at, at % 8, "abc"[at % 3]) for at in range(100)]
        assert judge(decisions, *events, now=LASTING) == {}

    def test_a_bug_in_some_data_blames_nobody_although_it_is_read_on_one_host(self, decisions: Decisions) -> None:
        """Its partitions prefer that host, and all others succeed."""
        events = [fail(at, at % 4, "local") for at in range(16)] + [ok(at, 10 + at, "ab"[at % 2]) for at in range(16)]
        assert judge(decisions, *events, now=LASTING) == {}

    def test_a_partition_that_fails_wherever_it_runs_blames_nobody(self, decisions: Decisions) -> None:
        events = [each for at in range(8) for each in (fail(at, 99, "abcd"[at % 4]), ok(at, at, "abcd"[(at + 1) % 4]))]
        assert judge(decisions, *events, now=LASTING) == {}

    def test_a_partition_that_succeeds_on_the_same_host_later_blames_nobody(self, decisions: Decisions) -> None:
        events = [
            each for at in range(4) for each in (fail(at, at, "h"), ok(at, at, "h"), ok(at, 9, "a"), ok(at, 8, "b"))
        ]
        assert judge(decisions, *events, now=LASTING) == {}

    def test_failures_that_are_as_frequent_elsewhere_blame_nobody(self, decisions: Decisions) -> None:
        """A third of all attempts fails, such as at a database with too few connections."""
        chance = random.Random(7)
        for _ in range(200):
            events: list[Event] = []
            for partition in range(30):
                while chance.random() < 1 / 3:
                    events.append(fail(len(events), partition, chance.choice("abcdef")))
                events.append(ok(len(events), partition, chance.choice("abcdef")))
            assert judge(decisions, *events, now=LASTING) == {}

    def test_a_host_with_more_successes_than_failures_is_not_faulty(self, decisions: Decisions) -> None:
        events = retried(range(4), "h", ["a", "b"])
        assert judge(decisions, *events, *(ok(4000, 20 + n, "h") for n in range(5)), now=LASTING) == {}
        assert list(judge(decisions, *events, *(ok(4000, 20 + n, "h") for n in range(4)), now=LASTING)) == ["h"]

    def test_only_the_last_ends_count_so_that_a_host_with_a_past_is_found_as_soon(self, decisions: Decisions) -> None:
        past = [ok(0, 1000 + n, "bad") for n in range(5000)]
        for failures, blamed in ((RECENT // 2 - 1, []), (RECENT // 2, ["bad"])):
            assert list(judge(decisions, *past, *retried(range(failures), "bad", ["a", "b"]), now=8000)) == blamed

    @pytest.mark.parametrize("others", [["a"], []])
    def test_it_takes_two_other_hosts_that_succeed(self, decisions: Decisions, others: list[str]) -> None:
        events = retried(range(6), "bad", others) if others else [fail(n, n, "bad") for n in range(6)]
        assert judge(decisions, *events, now=6000) == {}

    def test_others_of_which_more_than_a_tenth_fails_say_nothing(self, decisions: Decisions) -> None:
        events = [*retried(range(8), "bad", ["a", "b"]), fail(0, 50, "a")]
        assert judge(decisions, *events, now=8000) == {}
        enough = [ok(0, 60 + n, "ab"[n % 2]) for n in range(4)]
        assert list(judge(decisions, *events, *enough, now=8000)) == ["bad"]

    def test_two_faulty_hosts_of_many_are_both_found_although_partitions_fail_on_both(
        self, decisions: Decisions
    ) -> None:
        events: list[Event] = [ok(0, 100 + n, f"good{n % 20}") for n in range(200)]
        for n in range(4):
            events += [fail(n, n, "bad1"), fail(n, n, "bad2"), ok(n, n, f"good{n}")]
        assert list(judge(decisions, *events, now=LASTING)) == ["bad1", "bad2"]

    def test_a_finding_ends_soon_after_the_last_failure(self, decisions: Decisions) -> None:
        events = retried(range(3), "bad", ["a", "b"])  # the last success after a failure: 2500
        script = [*events, findings(2500 + FRESH - 1), findings(2500 + FRESH)]
        assert [list(found) for found in decisions.judge(script)] == [["bad"], []]

    def test_failures_of_more_than_a_minute_ago_do_not_count(self, decisions: Decisions) -> None:
        events = [*retried([0], "bad", ["a"]), *retried([1, 2], "bad", ["a", "b"], start=WINDOW - 2000)]
        script = [*events, findings(WINDOW - 1), findings(WINDOW)]
        assert [list(found) for found in decisions.judge(script)] == [["bad"], []]

    @pytest.mark.parametrize("minutes", [0.5, 2, 14])
    def test_the_longer_the_tasks_of_a_stage_take_the_longer_its_failures_count(
        self, decisions: Decisions, minutes: float
    ) -> None:
        took = int(minutes * MINUTE)
        failures = [fail(n, n, "bad") for n in range(4)]
        first = [*failures, findings(took - 1), *(ok(took, n, "ab"[n % 2], took=took - 9) for n in range(4))]
        again = [fail(took + 10, 5, "bad"), ok(2 * took + 20, 5, "a", took=took)]
        found = decisions.judge([*first, *again, findings(2 * took + 21)])
        assert list(map(list, found)) == [[], ["bad"]], "also if nothing ended in between"
        late = 4 * max(took, 15_000) + 10
        forgotten = [fail(late, 5, "bad"), ok(late + took, 5, "a", took=took - 1)]
        assert decisions.judge([*first, *forgotten, findings(late + took)])[-1] == {}

    def test_failures_that_take_long_count_for_longer_too(self, decisions: Decisions) -> None:
        """One after the other ends with a timeout after three minutes; elsewhere they take a second."""
        events = [
            it
            for n in range(1, 4)
            for it in (fail(3 * MINUTE * n, n, "bad", took=3 * MINUTE - 10), ok(3 * MINUTE * n + 5, n, "ab"[n % 2]))
        ]
        assert list(judge(decisions, *events, now=9 * MINUTE + 6)) == ["bad"]

    def test_nothing_counts_for_longer_than_an_hour(self, decisions: Decisions) -> None:
        events = retried(range(4), "bad", ["a", "b"])
        clock_was_set = ok(LASTING, 100, "a", took=100 * HOUR)
        renewed = [fail(HOUR + 4000, 9, "bad"), ok(HOUR + 4001, 9, "a")]
        assert judge(decisions, *events, clock_was_set, *renewed, now=HOUR + 4002) == {}

    def test_pods_of_one_node_count_together_and_not_as_others(self, decisions: Decisions) -> None:
        pods = [f"10.0.0.{n}@bad" for n in range(3)]
        events = [each for n in range(3) for each in (fail(n, n, pods[n]), ok(n, n, f"10.1.0.{n}@good{n % 2}"))]
        assert list(judge(decisions, *events, now=LASTING)) == ["bad"]
        same = [each for n in range(6) for each in (fail(n, n, pods[0]), ok(n, n, pods[1 + n % 2]))]
        assert judge(decisions, *same, now=LASTING) == {}

    def test_a_pod_whose_node_is_not_known_counts_nowhere(self, decisions: Decisions) -> None:
        unknown = retried(range(4), "bad", ["10.0.0.1@", "10.0.0.2@"])
        assert judge(decisions, *unknown, now=LASTING) == {}
        assert judge(decisions, *retried(range(4), "10.0.0.1@", ["a", "b"]), now=LASTING) == {}

    @pytest.mark.parametrize(
        "reason",
        [
            "Executor decommission: worker decommissioned",
            "worker lost: 127.0.0.3:1234 got disassociated",
            "Remote RPC client disassociated. Likely due to containers exceeding thresholds, or network issues.",
            "Container container_1 on host: h was preempted.",
            "Executor killed by driver.",
            "The executor with id 3 was deleted by a user or the framework.",
            "Command exited with code 143",
        ],
    )
    def test_failures_just_before_an_executor_leaves_blame_nobody(self, decisions: Decisions, reason: str) -> None:
        events = [add(0, "1", "leaving"), *retried(range(4), "leaving", ["a", "b"])]
        script = [*events, remove(LASTING, "1", reason), findings(LASTING)]
        assert decisions.judge(script) == [{}]
        later = [*events, remove(3000 + LEAVING + 1, "1", reason), *retried([9], "leaving", ["a"], start=20_000)]
        assert list(judge(decisions, *later, now=21_000)) == ["leaving"], "earlier ones count"

    @pytest.mark.parametrize(("executor", "found"), [("1", []), ("2", ["bad"])], ids=["that failed", "idle"])
    def test_the_end_of_an_idle_executor_does_not_clear_its_host(
        self, decisions: Decisions, executor: str, found: list[str]
    ) -> None:
        events = [add(0, "1", "bad"), add(0, "2", "bad"), *retried(range(4), "bad", ["a", "b"])]
        end = remove(LASTING, executor, "Executor killed by driver.")
        assert list(judge(decisions, *events, end, now=LASTING)) == found

    def test_a_long_or_unprintable_error_does_no_harm(self, decisions: Decisions) -> None:
        error = "E" * 500 + "\x1b"
        events = [it for n in range(3) for it in (fail(n, n, "bad", error=error), ok(n, n, "ab"[n % 2]))]
        found = judge(decisions, *events, now=LASTING)
        assert len(found["bad"]) < 200
        assert found["bad"].isprintable()


class TestExecutors:
    OTHERS = (add(0, "a1", "a"), add(0, "b1", "b"), add(0, "c1", "c"))

    def crashes(self, reason: str = CRASH, host: str = "bad") -> list[Event]:
        """Two executors of the host in turn."""
        return [
            add(0, f"{host}-1", host),
            remove(5000, f"{host}-1", reason),
            add(6000, f"{host}-2", host),
            remove(9000, f"{host}-2", reason),
        ]

    def test_executors_that_crash_one_after_the_other_on_one_host_make_it_faulty(self, decisions: Decisions) -> None:
        assert judge(decisions, *self.OTHERS, *self.crashes(), now=10_000) == {
            "bad": "2 executors exited one after the other, the last with code 134; those on other hosts live on."
        }
        assert judge(decisions, *self.OTHERS, *self.crashes()[:2], now=6000) == {}

    @pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
    def test_a_task_that_ends_executors_and_succeeds_nowhere_blames_nobody(
        self, decisions: Decisions, before: bool
    ) -> None:
        """Its data is there, so it is tried there again. Spark may report the tasks before or after the executor."""
        first, removed, second, again = self.crashes()
        tasks = [
            [lost(at, partition, executor) for partition in (7, 8)]
            for at, executor in ((5000, "bad-1"), (9000, "bad-2"))
        ]
        ends = [[*tasks[n], end] if before else [end, *tasks[n]] for n, end in enumerate((removed, again))]
        events = [*self.OTHERS, first, *ends[0], second, *ends[1]]
        innocent = [*events, ok(9500, 8, "a")]
        assert judge(decisions, *events, now=10_000) == {}
        assert judge(decisions, *innocent, now=10_000) == {}
        assert judge(decisions, *innocent, ok(9600, 7, "bad"), now=10_000) == {}, "on the same host"
        assert list(judge(decisions, *innocent, ok(9600, 7, "b"), now=10_000)) == ["bad"]

    def test_tasks_that_were_lost_are_proven_late_if_they_take_long(self, decisions: Decisions) -> None:
        first, removed, second, again = self.crashes()
        events = [*self.OTHERS, first, lost(5000, 7, "bad-1"), removed, second, lost(9000, 7, "bad-2"), again]
        late = 9000 + 2 * MINUTE
        script = [
            *events,
            findings(late - 1),
            ok(late, 7, "a", took=2 * MINUTE),
            findings(late),
            findings(late + FRESH),
        ]
        assert [list(found) for found in decisions.judge(script)] == [[], ["bad"], []]

    def test_crashes_elsewhere_clear_the_host_although_their_tasks_succeed_nowhere(self, decisions: Decisions) -> None:
        elsewhere = [lost(5000, 3, "c1"), remove(5000, "c1")]
        assert judge(decisions, *self.OTHERS, *elsewhere, *self.crashes(), now=10_000) == {}

    @pytest.mark.parametrize(
        "reason",
        [
            "Command exited with code 0",
            "Command exited with code 52",
            "Command exited with code 143",
            "The executor with id 3 exited with exit code 137(SIGKILL, possible container OOM).",
            "Container killed by YARN for exceeding physical memory limits. 1.5 GB of 1.5 GB physical memory used.",
            "Container container_1 on host: h was preempted.",
            "Container marked as failed: container_1 on host: h. Exit status: -100. Diagnostics: Container released.",
            "Executor decommission: spot instance ends",
            "Executor killed by driver.",
            "Executor heartbeat timed out after 120000 ms",
            "worker lost",
            "Remote RPC client disassociated.",
            "",
        ],
    )
    def test_an_end_by_somebody_or_for_an_unknown_reason_blames_nobody(self, decisions: Decisions, reason: str) -> None:
        assert judge(decisions, *self.OTHERS, *self.crashes(reason), now=10_000) == {}

    @pytest.mark.parametrize(
        "reason",
        [
            "Command exited with code 1",
            "Container from a bad node: container_1 on host: h. Exit status: 134. Diagnostics: …",
            "The executor with id 3 exited with exit code 139(SIGSEGV).",
            "Unable to create executor due to x: Command exited with code 53",
        ],
    )
    def test_each_cluster_has_its_own_words_for_a_crash(self, decisions: Decisions, reason: str) -> None:
        assert list(judge(decisions, *self.OTHERS, *self.crashes(reason), now=10_000)) == ["bad"]

    def test_executors_that_end_together_count_once(self, decisions: Decisions) -> None:
        events = [add(0, "1", "h"), add(0, "2", "h"), add(0, "3", "h"), *(remove(5000 + n, str(n)) for n in (1, 2, 3))]
        assert judge(decisions, *self.OTHERS, *events, now=6005) == {}

    def test_executors_that_crash_everywhere_blame_nobody(self, decisions: Decisions) -> None:
        events = [each for host in "defghi" for each in self.crashes(host=host)]
        assert judge(decisions, *self.OTHERS, *events, now=10_000) == {}
        assert judge(decisions, *self.OTHERS, *self.crashes(), *self.crashes(host="a")[:2], now=10_000) == {}

    def test_one_crash_elsewhere_of_many_does_not_clear_the_host(self, decisions: Decisions) -> None:
        many = [add(0, f"m{n}", f"m{n}") for n in range(12)]
        assert list(judge(decisions, *many, remove(10, "m3"), *self.crashes(), now=10_000)) == ["bad"]

    def test_one_crash_elsewhere_of_few_clears_the_host_no_longer_than_its_own_are_few(
        self, decisions: Decisions
    ) -> None:
        events = [*self.OTHERS, add(0, "d1", "d"), remove(10, "d1"), *self.crashes()]
        assert judge(decisions, *events, now=10_000) == {}
        more = [it for n in (3, 4) for it in (add(5000 * n, f"{n}", "bad"), remove(5000 * n + 4000, f"{n}"))]
        assert list(judge(decisions, *events, *more, now=25_000)) == ["bad"]

    def test_a_job_that_crashes_executors_twice_blames_no_host_of_many(self, decisions: Decisions) -> None:
        """Four each time, as many as `spark.task.maxFailures`; one host is among them both times."""
        many = [add(0, f"m{n}", f"m{n}") for n in range(100)]
        first = [remove(1000 + n, f"m{n}") for n in range(4)]
        second = [add(9000, "again", "m0"), *(remove(60_000 + n, name) for n, name in enumerate(("again", "m7", "m8")))]
        assert judge(decisions, *many, *first, *second, now=61_000) == {}

    def test_others_must_have_been_there_before(self, decisions: Decisions) -> None:
        late = [add(6000, name, name) for name in "abc"]
        assert judge(decisions, *self.crashes(), *late, now=10_000) == {}

    def test_a_finding_ends_soon_after_the_last_crash(self, decisions: Decisions) -> None:
        script = [
            *self.OTHERS,
            *self.crashes(),
            findings(10_000),
            findings(10_000 + FRESH - 1),
            findings(10_000 + FRESH),
        ]
        assert [list(found) for found in decisions.judge(script)] == [["bad"], ["bad"], []]
        again = [add(LOSS_WINDOW + 4000, "3", "bad"), remove(LOSS_WINDOW + 10_000, "3")]
        assert judge(decisions, *self.OTHERS, *self.crashes(), *again, now=LOSS_WINDOW + 11_000) == {}

    def test_an_executor_that_was_never_seen_blames_nobody(self, decisions: Decisions) -> None:
        assert judge(decisions, *self.OTHERS, remove(1, "x"), remove(2, "y"), now=3) == {}


class TestFetches:
    PRESENT = tuple(add(0, f"{host}1", host) for host in ("bad", "a", "b", "c"))

    def reads(self, *readers: str, executor: str = "bad1", server: str = "bad", start: int = 0) -> list[Event]:
        """Each cannot read, nor in the next attempt, which begins once the first has ended."""
        return [fetch(start + at, executor, server, reader, took=1) for at in (1, 2) for reader in readers]

    def test_the_host_that_served_is_charged_once_two_others_could_not_read_from_it(self, decisions: Decisions) -> None:
        assert judge(decisions, *self.PRESENT, *self.reads("a", "b"), now=SETTLE + 2) == {
            "bad": "Tasks on 2 other hosts could not read shuffle data from the host."
        }
        assert judge(decisions, *self.PRESENT, *self.reads("a"), now=SETTLE + 2) == {}
        assert judge(decisions, *self.PRESENT, *self.reads("a", "bad"), now=SETTLE + 2) == {}

    def test_a_host_with_several_executors_is_charged_among_a_thousand_hosts(self, decisions: Decisions) -> None:
        """Each of their pairs is remembered until the next attempt."""
        servers = [f"bad{n}" for n in range(4)]
        present = [*(add(0, name, "bad") for name in servers), *(add(0, f"m{n}", f"h{n}") for n in range(1000))]
        reads = [it for name in servers for it in self.reads(*(f"h{n}" for n in range(999)), executor=name)]
        reads.sort(key=lambda event: int(str(event[1])))
        assert list(judge(decisions, *present, *reads, now=SETTLE + 2)) == ["bad"]

    def test_it_is_not_charged_before_it_is_known_whether_it_leaves(self, decisions: Decisions) -> None:
        reads = self.reads("a", "b")
        assert judge(decisions, *self.PRESENT, *reads, now=SETTLE - 1) == {}
        for reason in ("worker lost", CRASH, "Executor decommission: spot instance ends"):
            gone = [*self.PRESENT, *reads, remove(5000, "bad1", reason), add(6000, "bad2", "bad")]
            assert judge(decisions, *gone, now=SETTLE + 2) == {}

    def test_a_service_that_is_started_again_blames_nobody(self, decisions: Decisions) -> None:
        """Its clients give up after 15 s; those of the next attempt can read."""
        names = ["bad", "a", "b", "c"]
        for number, server in enumerate(names):
            at = 40_000 * number
            readers = [name for name in names if name != server]
            restart = [
                fetch(at + 15_000 + 1000 * n, f"{server}1", server, r, took=15_000) for n, r in enumerate(readers)
            ]
            events = [*self.PRESENT, *restart]
            assert judge(decisions, *events, now=at + 15_000 + SETTLE, hosts_serve=True) == {}
            longer = [fetch(at + 31_000, f"{server}1", server, readers[0], took=15_000)]
            assert list(judge(decisions, *events, *longer, now=at + 15_000 + SETTLE + 6000, hosts_serve=True)) == [
                server
            ]

    def test_a_rolling_restart_that_takes_long_clears_all_from_the_second_host_on(self, decisions: Decisions) -> None:
        first, second = self.reads("a", "b"), self.reads("bad", "b", executor="a1", server="a", start=2 * MINUTE)
        found = decisions.judge(
            [*self.PRESENT, *first, findings(SETTLE + 2), *second, findings(2 * MINUTE + SETTLE + 2)], hosts_serve=True
        )
        assert list(map(list, found)) == [["bad"], []]

    def test_reads_that_fail_after_the_executor_was_lost_charge_nobody(self, decisions: Decisions) -> None:
        """Its host has another one, or it was started again."""
        for number, reason in ((2, "Command exited with code 137"), (3, "Executor killed by driver.")):
            gone = [*self.PRESENT, remove(1000, "bad1", reason), add(1000 * number, "bad2", "bad")]
            assert judge(decisions, *gone, *self.reads("a", "b", start=16_000), now=16_002 + SETTLE) == {}

    def test_a_service_that_outlives_its_executors_is_charged_while_the_host_is_there(
        self, decisions: Decisions
    ) -> None:
        reads = self.reads("a", "b", executor="bad0")
        assert list(judge(decisions, *self.PRESENT, *reads, now=SETTLE + 2, hosts_serve=True)) == ["bad"]
        gone = remove(5000, "bad1", "worker lost")
        assert judge(decisions, *self.PRESENT, *reads, gone, now=SETTLE + 2, hosts_serve=True) == {}

    def test_a_host_that_cannot_read_from_anybody_charges_nobody(self, decisions: Decisions) -> None:
        reads = [it for host in "abc" for it in self.reads("bad", executor=f"{host}1", server=host)]
        assert judge(decisions, *self.PRESENT, *reads, now=SETTLE + 2) == {}

    def test_two_readers_with_a_bad_network_charge_nobody(self, decisions: Decisions) -> None:
        """Neither if they could not read from several hosts, nor if most others could in the same attempt."""
        many = [add(0, f"m{n}", f"h{n}") for n in range(30)]
        reads = self.reads("h1", "h2", executor="m0", server="h0")
        assert list(judge(decisions, *many, *reads, now=SETTLE + 2)) == ["h0"]
        further = [it for n in (3, 4, 5) for it in self.reads("h1", "h2", executor=f"m{n}", server=f"h{n}")]
        assert judge(decisions, *many, *reads, *further, now=SETTLE + 2) == {}
        others = [ok(5000, n, f"h{n}", took=5000) for n in range(3, 6)]
        assert judge(decisions, *many, *others, *reads, now=SETTLE + 2) == {}
        assert list(judge(decisions, *many, *others[:2], *reads, now=SETTLE + 2)) == ["h0"]
        next_attempt = [ok(5000, n, f"h{n}", took=4998) for n in range(3, 6)]
        assert list(judge(decisions, *many, *next_attempt, *reads, now=SETTLE + 2)) == ["h0"]

    def test_a_reader_with_a_bad_network_does_not_clear_a_host_that_serves_nobody(self, decisions: Decisions) -> None:
        reads = [it for host in "bc" for it in self.reads("a", executor=f"{host}1", server=host)]
        more = [*self.PRESENT, add(0, "d1", "d")]
        assert list(judge(decisions, *more, *self.reads("b", "c"), *reads, now=SETTLE + 2)) == ["bad"]

    def test_a_network_that_fails_everywhere_charges_nobody(self, decisions: Decisions) -> None:
        names = ["bad", "a", "b", "c"]
        reads = [it for host in names for it in self.reads(*(set(names) - {host}), executor=f"{host}1", server=host)]
        assert judge(decisions, *self.PRESENT, *reads, now=SETTLE + 2) == {}

    def test_a_finding_ends_soon_after_the_last_failure(self, decisions: Decisions) -> None:
        end = 2 + SETTLE + FRESH
        script = [*self.PRESENT, *self.reads("a", "b"), findings(end - 1), findings(end)]
        assert [list(found) for found in decisions.judge(script)] == [["bad"], []]


def test_the_memory_is_bounded(decisions: Decisions) -> None:
    """A driver of thousands of hosts and stages, within the 64 MB of the test's JVM; forgotten is what is oldest."""
    script: list[Event] = [*retried(range(3), "bad", ["a", "b"])]
    for n in range(60_000):
        script += [fail(n // 10, n, f"h{n % 5000}", stage=n % 1000 + 1), fetch(n // 10, f"e{n}", f"h{n % 5000}", "x")]
        script += [add(n // 10, f"e{n}", f"h{n % 5000}"), lost(n // 10, n, f"e{n // 100}")]
    assert judge(decisions, *script, now=6000) == {}
    one_stage = [fail(0, n, f"h{n}") for n in range(MAX_FAILED * 5)]
    kept = [ok(1, n, f"h{n + 1}") for n in range(MAX_FAILED * 5)]
    assert judge(decisions, *one_stage, *kept, now=2) == {}


@settings(max_examples=longer(300))
@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 2), st.integers(0, 5), st.sampled_from("abcd"), st.booleans()),
        max_size=60,
    )
)
def test_only_a_host_on_which_partitions_failed_that_succeeded_elsewhere_is_faulty(
    decisions: Decisions, ends: list[tuple[int, int, int, str, bool]]
) -> None:
    now, script = 0, []
    failed: dict[str, set[tuple[int, int]]] = {host: set() for host in "abcd"}
    succeeded: dict[str, set[tuple[int, int]]] = {host: set() for host in "abcd"}
    for step, stage, partition, host, succeeds in ends:
        now += step
        script.append(ok(now, partition, host, stage) if succeeds else fail(now, partition, host, stage))
        (succeeded if succeeds else failed)[host].add((stage, partition))
    for host in judge(decisions, *script, now=now):
        elsewhere = set().union(*(found for other, found in succeeded.items() if other != host))
        assert failed[host] & elsewhere
        assert sum(bool(found) for other, found in succeeded.items() if other != host) >= 2
