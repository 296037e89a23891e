"""Slow hosts and slow servers are found, whatever makes healthy hosts look slow."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blocklist.detection.heuristics import judge
from blocklist.detection.node_summary import FailureClass, Metric, NodeSummary, tally
from blocklist.detection.slowness import Rules
from tests.detection.analysing import Fact, analyse

FactChange = Callable[[str, int, str, int, random.Random], Fact]
"""What a task of (app, stage, host, number) is like."""
HOSTS = [f"n{number}" for number in range(1, 7)]
APPS = ["app-1", "app-2", "app-3"]


def task(app: str, stage: int, host: str, number: int = 0, **more: Any) -> Fact:
    """The number-th task of a host in a stage, 1 s each, on a warm executor."""
    launched = 1_000_000 + stage * 100_000 + number * 1_000
    fact = {
        "kind": "task", "file": f"/logs/{app}", "app": app, "host": host, "executor": f"{host}-1", "stage": stage,
        "attempt": 0, "launched": launched, "duration": 1_000, "outcome": "Success", "speculative": False,
        "locality": "PROCESS_LOCAL", "run_ms": 1_000, "cpu_ms": 900, "gc_ms": 0, "fetch_wait_ms": 0,
        "deserialize_ms": 5, "input_bytes": 1_000_000, "input_records": 1_000, "shuffle_bytes": 0, "remote_bytes": 0,
        "shuffle_records": 0,
        "spilled_bytes": 0,
    }  # fmt: skip
    return fact | {"time": launched + 900} | more


def warm_up(apps: Iterable[str] = APPS) -> Iterator[Fact]:
    """Every executor's first task, in a stage of its own."""
    for app in apps:
        for host in HOSTS:
            yield task(app, 0, host)


def stages(change: FactChange, apps: Iterable[str] = APPS) -> list[Fact]:
    """Five stages of each application, six tasks of each host, after a warm-up."""
    dice = random.Random(7)
    found = list(warm_up(apps))
    for app in apps:
        for stage in range(1, 6):
            for host in HOSTS:
                found += [
                    task(app, stage, host, number, **change(app, stage, host, number, dice)) for number in range(6)
                ]
    return found


def noise(dice: random.Random) -> float:
    return dice.lognormvariate(0, 0.2)


JudgedScenario = tuple[dict[str, NodeSummary], list[str]]


def unchanged(*_: object) -> Fact:
    return {}


def uneven(_app: str, _stage: int, _host: str, _number: int, dice: random.Random) -> Fact:
    return {"run_ms": int(1000 * noise(dice))}


def half_speed(_app: str, _stage: int, host: str, number: int, dice: random.Random) -> Fact:
    return {"run_ms": int((2000 if host == "n3" else 1000) * noise(dice)), "partition": HOSTS.index(host) * 6 + number}


def slow_partitions_in_one_place(_app: str, stage: int, host: str, number: int, _dice: random.Random) -> Fact:
    """The same four slow partitions run on one host in each stage, because it holds their data."""
    slow = host == "n3" and number < 4
    return {"run_ms": 5000 if slow else 1000, "partition": number if slow else 100 * stage + number}


def gc_and_fetch_wait(_app: str, _stage: int, host: str, *_: object) -> Fact:
    return {"run_ms": 3000, "gc_ms": 1200, "fetch_wait_ms": 800} if host == "n3" else {}


def tasks_of_few_milliseconds(_app: str, _stage: int, host: str, *_: object) -> Fact:
    return {"run_ms": 4 if host == "n3" else 3}


def many_executors_on_one_host(_app: str, _stage: int, host: str, number: int, dice: random.Random) -> Fact:
    """The longest of several times to start is longer."""
    is_first = host == "n3" or number == 0
    executor = f"{host}-{number if host == 'n3' else 1}"
    return {"executor": executor, "deserialize_ms": int(400 * dice.lognormvariate(0, 0.8)) if is_first else 5}


def large_partitions(_app: str, _stage: int, host: str, _number: int, dice: random.Random) -> Fact:
    times = 6 if host == "n3" else dice.choice([1, 1, 1, 2, 6])
    return {"run_ms": int(1000 * times * noise(dice)), "input_bytes": 10**6 * times, "input_records": 1000 * times}


def larger_tasks_in_one_size_class(_app: str, _stage: int, host: str, _number: int, dice: random.Random) -> Fact:
    size = dice.uniform(1.8, 1.9) if host == "n3" else dice.uniform(1.05, 1.15)
    return {"run_ms": int(1000 * size), "input_bytes": int(size * 2**20), "input_records": int(size * 1000)}


def more_records_of_the_same_size(_app: str, _stage: int, host: str, *_: object) -> Fact:
    return {"run_ms": 3000, "input_records": 3000} if host == "n3" else {}


def far_from_the_data(_app: str, _stage: int, host: str, number: int, _dice: random.Random) -> Fact:
    return {"run_ms": 3000, "locality": "ANY"} if host == "n3" or number == 0 else {}


def new_executor_per_stage(app: str, stage: int, host: str, number: int, _dice: random.Random) -> Fact:
    """The first tasks of a new executor load classes and fill caches."""
    if host != "n3":
        return {}
    launched = task(app, stage, host)["launched"]
    cold = {"launched": launched, "run_ms": 5000, "time": launched + 5000}
    warm = {"launched": launched + 6000, "time": launched + 7000}
    return {"executor": f"n3-{stage}"} | (cold if number < 4 else warm)


def one_application(app: str, _stage: int, host: str, *_: object) -> Fact:
    return {"run_ms": 4000} if (app, host) == ("app-2", "n3") else {}


def slow_server(_app: str, _stage: int, host: str, _number: int, dice: random.Random) -> Fact:
    """All other hosts wait for its blocks."""
    wait = 20 if host == "n3" else dice.randint(400, 800)
    return {"run_ms": 500 + wait, "fetch_wait_ms": wait, "remote_bytes": 5000, "shuffle_bytes": 6000}


def mostly_local_data(_app: str, _stage: int, host: str, *_: object) -> Fact:
    """A host that fetches little waits little."""
    wait, remote = (20, 500) if host == "n3" else (400, 5000)
    return {"run_ms": 500 + wait, "fetch_wait_ms": wait, "remote_bytes": remote, "shuffle_bytes": 6000}


def network_slow_both_ways(_app: str, stage: int, host: str, number: int, dice: random.Random) -> Fact:
    """All hosts wait for its blocks, and it waits for theirs; the first task on each executor fetches the code."""
    code = dice.randint(20, 40) * (4 if host == "n3" else 1) if number == 0 else 3
    wait = dice.randint(400, 600) if stage % 2 else 0
    return {"deserialize_ms": code, "run_ms": 500 + wait, "fetch_wait_ms": wait, "remote_bytes": 5000}


def code_that_is_slow_but_costs_nothing(_app: str, _stage: int, host: str, number: int, _dice: random.Random) -> Fact:
    """Less than a tenth of the run time, in stages that fetch nothing."""
    return {"deserialize_ms": (90 if host == "n3" else 20) if number == 0 else 3}


def code_that_one_executor_fetches_late(app: str, stage: int, host: str, number: int, _dice: random.Random) -> Fact:
    """A different host in each stage, as after a restart of an executor."""
    late = number == 0 and HOSTS.index(host) == (stage + APPS.index(app)) % len(HOSTS)
    return {"deserialize_ms": 900 if late else 20, "run_ms": 1_000, "fetch_wait_ms": 300, "remote_bytes": 5000}


CHANGES: dict[str, FactChange] = {
    "network_slow_both_ways": network_slow_both_ways,
    "code_that_is_slow_but_costs_nothing": code_that_is_slow_but_costs_nothing,
    "code_that_one_executor_fetches_late": code_that_one_executor_fetches_late,
    "slow_server": slow_server,
    "mostly_local_data": mostly_local_data,
    "uneven": uneven,
    "half_speed": half_speed,
    "slow_partitions_in_one_place": slow_partitions_in_one_place,
    "gc_and_fetch_wait": gc_and_fetch_wait,
    "tasks_of_few_milliseconds": tasks_of_few_milliseconds,
    "many_executors_on_one_host": many_executors_on_one_host,
    "large_partitions": large_partitions,
    "larger_tasks_in_one_size_class": larger_tasks_in_one_size_class,
    "more_records_of_the_same_size": more_records_of_the_same_size,
    "far_from_the_data": far_from_the_data,
    "new_executor_per_stage": new_executor_per_stage,
    "one_application": one_application,
}
SCENARIOS = {name: stages(change) for name, change in CHANGES.items()}
SCENARIOS["incomplete_stages"] = [
    *stages(half_speed),
    *(
        {"kind": "stage", "app": app, "stage": stage, "attempt": 0, "tasks": 49}
        for app in APPS
        for stage in range(1, 6)
    ),
]
SCENARIOS["few_tasks"] = [
    *warm_up(),
    *(
        task(app, stage, host, run_ms=9000 if host == "n3" else 1000)
        for app in APPS
        for stage in range(1, 9)
        for host in HOSTS
    ),
]


def in_scenario(name: str, fact: Fact) -> Fact:
    fact = {"file": f"/logs/{fact['app']}", **fact}
    return fact | {key: f"{name}: {fact[key]}" for key in ("app", "host", "file", "served_by") if key in fact}


def of_scenario(name: str, summaries: list[NodeSummary]) -> list[NodeSummary]:
    """The hosts of one of several scenarios, as if it had been analysed alone."""
    nodes = [replace(node, host=node.host.split(": ")[1]) for node in summaries if node.host.startswith(f"{name}: ")]
    total = sum(node.tasks for node in nodes)
    charged = {node.host: [it for each in node.failures.values() for it in each.by_application] for node in nodes}
    failures = tally(charged)
    return [replace(node, share=node.tasks / total, failures=failures.get(node.host, {})) for node in nodes]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[NodeSummary]]:
    """All scenarios in one analysis, to save time; each has its own applications and hosts."""
    everything = SCENARIOS | {name: facts + HEALTHY for name, (facts, _) in ENDED.items()}
    everything |= {"charged": charged_failures(), "only there": failures_only_there()}
    facts = [in_scenario(name, fact) for name, some in everything.items() for fact in some]
    summaries = analyse(tmp_path_factory.mktemp("scenarios"), facts).summaries()
    return {name: of_scenario(name, summaries) for name in everything}


@pytest.fixture(scope="module")
def results(scenarios: dict[str, list[NodeSummary]]) -> dict[str, JudgedScenario]:
    return {name: _judge_scenario(scenarios[name]) for name in SCENARIOS}


def _judge_scenario(nodes: list[NodeSummary]) -> JudgedScenario:
    judged = judge(nodes, Rules(min_span_ms=0))
    return {node.host: node for node in nodes}, [verdict.host for verdict in judged.verdicts]


def test_all_stages_are_compared(results: dict[str, JudgedScenario]) -> None:
    summaries, _ = results["uneven"]
    assert {node.stages for node in summaries.values()} == {15}
    assert summaries["n1"].tasks == 3 * 31


def test_a_host_at_half_the_speed_is_found(results: dict[str, JudgedScenario]) -> None:
    summaries, blamed = results["half_speed"]
    assert blamed == ["n3"]
    node = summaries["n3"]
    assert (node.applications, node.stages, node.slow_applications) == (3, 15, 3)
    assert node.slow_stages >= 14
    assert node.slowdown == pytest.approx(2.0, rel=0.1)
    assert node.slow_last > 0


def test_a_slow_shuffle_server_is_found(results: dict[str, JudgedScenario]) -> None:
    summaries, blamed = results["slow_server"]
    assert blamed == ["n3"]
    assert summaries["n3"].failures[FailureClass.SLOW_SERVER].stages == 15


def test_a_host_with_a_network_that_is_slow_both_ways_is_found(results: dict[str, JudgedScenario]) -> None:
    summaries, blamed = results["network_slow_both_ways"]
    assert blamed == ["n3"]
    found = summaries["n3"].comparisons_by(Metric.START)
    assert [(it.stages, it.slow_stages) for it in found] == [(5, 3)] * 3


FAULTY = {"half_speed", "slow_server", "network_slow_both_ways"}


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in FAULTY])
def test_healthy_hosts_are_not_blamed(scenario: str, results: dict[str, JudgedScenario]) -> None:
    assert results[scenario][1] == []


@pytest.mark.parametrize("scenario", ["few_tasks", "incomplete_stages"])
def test_stages_with_few_or_unfinished_tasks_are_not_compared(
    scenario: str, results: dict[str, JudgedScenario]
) -> None:
    assert results[scenario][0]["n3"].stages == 0


def test_many_executors_do_not_make_a_host_slow_to_start(results: dict[str, JudgedScenario]) -> None:
    found = results["many_executors_on_one_host"][0]["n3"].comparisons_by(Metric.START)
    assert len(found) == len(APPS)
    assert max(it.slowdown for it in found) < 2, "the longest of six would be that of another executor"


def test_one_application_is_not_sufficient(results: dict[str, JudgedScenario]) -> None:
    assert results["one_application"][0]["n3"].slow_applications == 1


def failed(app: str, stage: int, host: str, **more: Any) -> Fact:
    unchanged = dict.fromkeys(["run_ms", "cpu_ms", "gc_ms", "fetch_wait_ms", "input_bytes"])
    return task(app, stage, host, 7, **{"outcome": "ExceptionFailure", **unchanged, **more})


MACHINE: dict[str, tuple[FailureClass, Fact]] = {
    "n1": (
        FailureClass.DISK_FULL,
        {"error": "org.apache.spark.SparkException", "message": "… No space left on device"},
    ),
    "n2": (FailureClass.IO_ERROR, {"error": "java.io.IOException", "message": "Input/output error"}),
    "n3": (
        FailureClass.LOST_EXECUTOR,
        {"outcome": "ExecutorLostFailure", "caused_by_app": True, "message": "exited with 137"},
    ),
}
APPLICATION: dict[str, tuple[FailureClass, Fact]] = {
    "n5": (FailureClass.MEMORY, {"error": "java.lang.OutOfMemoryError", "message": "Java heap space"}),
    "n6": (FailureClass.USER, {"error": "PythonException", "message": "ZeroDivisionError: division by zero"}),
}


def charged_failures() -> list[Fact]:
    facts = stages(unchanged)
    for app in APPS:
        for stage in range(1, 4):
            facts += [failed(app, stage, host, **fact) for host, (_, fact) in (MACHINE | APPLICATION).items()]
            facts += [failed(app, stage, host, outcome="TaskKilled") for host in HOSTS]
            facts.append(failed(app, stage, "n1", outcome="FetchFailed", served_by="n4", message="refused"))
        facts.append({"kind": "excluded", "app": app, "host": "n3", "time": 1_000_000})
    return facts


def test_failures_are_charged_to_the_host_that_causes_them(scenarios: dict[str, list[NodeSummary]]) -> None:
    """Machine failures to the machine, fetch failures to the serving host, failures of the application to nobody."""
    summaries = scenarios["charged"]
    found = {node.host: node.failures for node in summaries}
    for host, (kind, _) in (MACHINE | APPLICATION | {"n4": (FailureClass.FETCH, {})}).items():
        assert {kind: (node.stages, node.applications) for kind, node in found[host].items()} == {kind: (9, 3)}
    judged = judge(summaries, Rules(max_share=1, min_span_ms=0))
    assert {verdict.host for verdict in judged.verdicts} == {"n1", "n2", "n3", "n4"}
    assert {node.host: node.exclusions for node in summaries if node.exclusions} == {"n3": 3}


def failures_only_there() -> list[Fact]:
    facts = stages(unchanged)
    error = {"error": "PythonException", "message": "CUDA: no device"}
    for app in APPS:
        for stage in range(1, 4):
            for partition in (100 + stage, 110 + stage):
                facts.append(failed(app, stage, "n2", partition=partition, **error))
                facts.append(task(app, stage, "n4", 8, partition=partition))
            facts += [failed(app, stage, host, partition=200, **error) for host in ("n5", "n6")]
            facts.append(task(app, stage, "n1", 8, partition=200))
            facts.append(failed(app, stage, "n3", partition=300, **error))
    return facts


def test_partitions_that_fail_on_one_host_and_succeed_elsewhere_are_charged_to_it(
    scenarios: dict[str, list[NodeSummary]],
) -> None:
    summaries = scenarios["only there"]
    found = {node.host: node.failures for node in summaries}
    only_there = found["n2"][FailureClass.ONLY_THERE]
    assert (only_there.stages, only_there.tasks, only_there.partitions) == (9, 18, 6)
    assert {host for host, failures in found.items() if FailureClass.ONLY_THERE in failures} == {"n2"}
    assert [verdict.host for verdict in judge(summaries, Rules()).verdicts] == ["n2"]


def ended(
    app: str, failures: Mapping[str, Sequence[int]], hosts: Sequence[str] = HOSTS, partitions: int = 40
) -> list[Fact]:
    """An application that ends in its first stage: these partitions fail on these hosts, twice each."""
    error = {"error": "PythonException", "message": "CUDA: no device"}
    found: list[Fact] = [
        {"kind": "executor", "app": app, "host": host, "executor": f"{host}-1", "time": 900_000} for host in hosts
    ]
    found.append({"kind": "stage", "app": app, "stage": 1, "attempt": 0, "tasks": partitions, "time": 950_000})
    return found + [
        failed(app, 1, host, partition=number, **error)
        for host, numbers in failures.items()
        for number in (*numbers, *numbers)
    ]


HEALTHY = [task("c", 2, host, partition=number) for number, host in enumerate(HOSTS)]
ENDED: dict[str, tuple[list[Fact], list[str]]] = {
    "all that one host began": ([*ended("a", {"n2": [3, 8]}), *ended("b", {"n2": [3, 8]})], ["n2"]),
    "with successes elsewhere": (
        [*ended("a", {"n2": [3, 8]}), *ended("b", {"n2": [1, 3]}), task("b", 1, "n4", partition=5)], ["n2"],
    ),
    "one application": (ended("a", {"n2": [3, 8, 10, 11]}), []),
    "a bug that fails everywhere": ([fact for app in "ab" for fact in ended(app, {"n2": [3, 8], "n4": [5]})], []),
    "one bad partition": ([fact for app in "abcd" for fact in ended(app, {"n2": [3]})], []),
    "another host each time": ([*ended("a", {"n2": [3, 8]}), *ended("b", {"n5": [3, 8]})], []),
    "a task that succeeded there": (
        [*ended("a", {"n2": [3, 8]}), *ended("b", {"n2": [3, 8]}), task("b", 1, "n2", partition=5)], [],
    ),
    "the only host": ([fact for app in "ab" for fact in ended(app, {"n2": [3, 8]}, hosts=["n2", "n3"])], []),
    "too few tasks for all hosts": ([fact for app in "ab" for fact in ended(app, {"n2": [0, 1]}, partitions=2)], []),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_a_host_on_which_every_task_fails_is_found_although_it_ends_the_applications(
    scenarios: dict[str, list[NodeSummary]], name: str
) -> None:
    verdicts = judge(scenarios[name], Rules()).verdicts
    assert [verdict.host for verdict in verdicts] == ENDED[name][1]
    assert all(verdict.cause.startswith("all tasks failed there and none elsewhere") for verdict in verdicts)


def test_a_host_on_which_all_tasks_fail_in_one_application_and_some_in_others_is_found(tmp_path: Path) -> None:
    """Its device is missing now and then: in the last application it was, for both of its tasks."""
    facts = list(warm_up())
    for start, app in zip((0, 10, 20), APPS, strict=True):
        for partition in (start, start + 1):
            facts.append(failed(app, 1, "n2", partition=partition, error="PythonException", message="CUDA: no device"))
            facts.append(task(app, 1, "n4", 8, partition=partition))
        facts += [task(app, 1, host, partition=start + 2 + place) for place, host in enumerate(HOSTS) if host != "n2"]
    facts += [task(app, 1, "n2", 1, partition=40) for app in APPS[:2]]
    (verdict,) = judge(analyse(tmp_path, facts).summaries(), Rules(min_span_ms=0)).verdicts
    assert verdict.host == "n2"
    assert verdict.cause.startswith(f"{FailureClass.ONLY_THERE} in 6 partitions of 3 applications")


def test_evidence_until_a_moment_does_not_count_for_a_host(tmp_path: Path) -> None:
    """Somebody unblocked it then. Its peers are compared as before."""
    facts = stages(half_speed)
    for app in APPS:
        facts.append(failed(app, 2, "n3", error="java.io.IOException", message="Input/output error"))
    third = task("app-1", 3, "n3")["launched"]
    analysis = analyse(tmp_path, facts)
    everything, later = analysis.summaries(), analysis.summaries({"n3": third})
    minute = task("app-1", 1, "n3")["launched"] // 60_000 * 60_000
    times = {it.host: it for it in analysis.task_times() if it.minute == minute}
    for before, after in zip(everything, later, strict=True):
        is_cut = before.host == "n3"
        assert {it.stages for it in before.comparisons} == {5}
        assert {it.stages for it in after.comparisons} == ({3} if is_cut else {5})
        assert bool(before.failures) == is_cut
        assert not after.failures
    # In a minute of six tasks of 1 s in each of three applications, the slow host needs twice as long.
    assert times["n3"].lost_ms == pytest.approx(18_000, rel=0.25)
    assert times["n3"].healthy_ms == 0
    assert times["n1"].lost_ms == 0
    assert times["n1"].healthy_ms == pytest.approx(18_000, rel=0.25)


def test_without_facts_there_are_no_nodes(tmp_path: Path) -> None:
    assert analyse(tmp_path, []).summaries() == []
