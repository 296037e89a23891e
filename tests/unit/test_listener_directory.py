"""ListenerDirectory: everything that is kept of a listener is counted."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.engine.list_view import ListView
from app.listeners.replication import ListenerReader
from app.listeners.reports import KnownNodes, ListenerQuota
from app.listeners.state import ListenerDirectory, ListenerEntry, UsableNodes
from app.requests import HeartbeatBody
from app.store.listeners import ListenerUpdates, ReportPart, Secret, StoredListener
from blocklist.model.changes import Change, ChangeType, Snapshot
from blocklist.model.draft import BlocklistTracker
from blocklist.model.evidence import TTL_MS, EvidenceStore, Finding, FindingKind
from blocklist.model.inventory import Inventory
from blocklist.model.listener import Listener, ListenerRole, Report
from blocklist.model.names import ConfirmedNodes
from blocklist.model.node import PERMANENT, AppliedBy, BlockAction, BlockedNode, BlockState
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind
from blocklist.wire.body import dump_json, parse_json
from tests.length import longer
from tests.unit.counting import count_calls

pytestmark = pytest.mark.anyio

SLOW = Finding(kind=FindingKind.SLOW, reason="Slow.")


async def test_evidence_is_kept_only_where_it_is_counted_and_expires() -> None:
    """A copy of it in the report would stay, uncounted."""
    _, evidence, directory, _ = new_directory()
    entry = job_master()
    directory.add(entry)
    directory.apply_report(entry, Report(evidence={"a": SLOW}, running_tasks={"tm": 1}), 0)
    assert len(evidence) == 1
    evidence.prune(TTL_MS)
    assert len(evidence) == 0
    assert entry.report == Report(running_tasks={"tm": 1})


async def test_a_changed_report_costs_what_changed_in_it_whatever_all_listeners_report() -> None:
    """Otherwise one caller with many nodes stops all others at each dry run."""
    _, _, directory, usable = new_directory()
    for number in range(20):
        directory.add(entry := resource_manager(f"rm-{number}"))
        directory.apply_report(entry, Report(nodes=[f"n{number}-{i}.example.com" for i in range(500)]), 0)
    directory.inventory_updater.apply_all()
    unknown = "a-name-too-long-for-a-suggestion-of-another"
    changed = [*(f"n19-{i}.example.com" for i in range(1, 500)), "new"]

    def report_and_look_up() -> None:
        directory.apply_report(entry, Report(nodes=changed), 1)
        known = KnownNodes(directory.inventory)
        assert known.unknown(["n7-7", "N7-8", "new", unknown]) == {unknown: None}

    assert count_calls(report_and_look_up) < 20_000
    assert len(usable.known) == 10_000
    directory.remove(entry.id)
    assert len(usable.known) == 9_500


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("worker-01O", "worker-010"),
        ("worker-O1O", "worker-010"),
        ("worker-l9", "worker-19"),
        ("worker-01q", "worker-019"),
    ],
)
async def test_a_letter_that_looks_like_a_digit_is_meant_to_be_one(typed: str, meant: str) -> None:
    _, _, directory, _ = new_directory()
    directory.add(entry := job_master())
    nodes = [*(f"worker-{number:03}" for number in range(10, 20)), "worker-19"]
    directory.apply_report(entry, Report(nodes=nodes), 0)
    directory.inventory_updater.apply_all()
    assert KnownNodes(directory.inventory).suggestion(typed) == meant


NAMES = {
    "short": [f"N{number:05}" for number in range(min(5500, longer(700)))],
    "full": [f"N{number:05}.Rack1.example.com" for number in range(min(5500, longer(700)))],
    "long": [f"n{number:05}{'n' * 200}" for number in range(min(2800, longer(300)))],
}
REPORTS: dict[str, Callable[[list[str]], dict[str, object]]] = {
    "a TaskManager on each node": lambda names: {"taskManagers": {f"app-1:{name}": name for name in names}},
    "all TaskManagers on one node": lambda names: {"taskManagers": dict.fromkeys(names, "n1")},
    "nodes": lambda names: {"nodes": names},
    "running tasks": lambda names: {"runningTasks": dict.fromkeys(names, 10**9)},
    "refused": lambda names: {"refused": {name: f"\N{GRINNING FACE}{name[:200]}" for name in names}},
    "evidence": lambda names: {
        "evidence": {name: {"kind": "slow", "reason": f"Slow: {name}"} for name in names[:2000]}
    },
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("report", REPORTS)
def test_what_counts_against_the_limit_of_a_token_is_no_less_than_the_memory_it_takes(report: str, names: str) -> None:
    text = dump_json({"sessionId": "s1", **REPORTS[report](NAMES[names])})

    def kept() -> tuple[ListenerDirectory, ListenerEntry, UsableNodes]:
        _, _, directory, usable = new_directory()
        directory.add(entry := job_master())
        directory.apply_report(entry, HeartbeatBody.parse(parse_json(text)).value(), 0)
        entry.refusal_of("unknown")
        usable.nodes_of(entry)
        return directory, entry, usable

    async def scenario() -> None:
        kept()  # fills the caches of names, which are limited by themselves and shared by all tokens
        # So all garbage is of the youngest generation: to look through whatever other tests have left takes seconds.
        gc.disable()
        try:
            tracemalloc.start()
            directory, entry, _usable = kept()
            gc.collect(0)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        counted = directory.counted_size(entry)
        assert taken <= counted <= 6 * taken

    asyncio.run(scenario())


async def test_a_machine_is_one_usable_node_whatever_a_listener_calls_it() -> None:
    inventory = Inventory()
    confirmed = ConfirmedNodes(authenticated=False, aliases=inventory.aliases, machine_of=inventory.machine_of)
    tracker = BlocklistTracker(Snapshot(revision=0, history="0000000a", nodes={}), inventory.aliases)
    view = ListView(tracker, lambda: 0, lambda: None)
    evidence = EvidenceStore(2, confirmed.principal_of)
    quota = ListenerQuota(max_listeners=9, max_bytes=10_000)
    directory = ListenerDirectory(view, evidence, confirmed, inventory, quota, lambda: 0)
    usable = UsableNodes(directory, view, confirmed)
    for name, report in (
        ("jm", Report(nodes=["n1", "10.0.0.1", "n2"])),
        ("running", Report(task_managers={"tm-1": "n1", "tm-2": "10.0.0.1", "tm-3": "n2"})),
    ):
        directory.add(entry := job_master(name))
        directory.apply_report(entry, report, 0)
        assert usable.counter()(entry) == 3, "nobody has said that they are one"
    directory.add(manager := resource_manager("manager"))
    directory.apply_report(manager, Report(nodes=[ReportedNode(id="n1", addresses=("10.0.0.1",))]), 0)
    jm, running = directory.get("jm"), directory.get("running")
    assert jm is not None
    assert running is not None
    assert [usable.counter()(jm), usable.counter()(running)] == [2, 2]
    end = PERMANENT
    blocked = BlockedNode(id="10.0.0.1", action=BlockAction.MARK_BLOCKED, start=0, end=end, cause="disk")
    tracker.apply(Change(revision=1, type=ChangeType.BLOCKED, at=0, node=blocked))
    assert [usable.counter()(jm), usable.counter()(running)] == [1, 1]


@pytest.mark.parametrize(
    ("blocked", "name"),
    [("n1", "N1.Example.com"), ("N1.Example.com", "n1"), ("n1", "10.0.0.1"), ("10.0.0.1", "n1"), ("n1", "n1")],
)
@pytest.mark.parametrize("state", ["refused", "pending"])
async def test_what_is_reported_under_any_name_of_the_machine_is_not_applied(
    blocked: str, name: str, state: str
) -> None:
    _, _, directory, _ = new_directory()
    directory.add(entry := job_master())
    manager = NodeSource(kind=SourceKind.MANAGER, name="yarn")
    directory.inventory.stage_nodes(manager, [ReportedNode(id="n1", addresses=("10.0.0.1",))])
    directory.inventory.apply_staged()
    reasons = {name: "its last host"}
    directory.apply_report(entry, Report(refused=reasons) if state == "refused" else Report(pending=reasons), 0)
    assert (entry.refusal_of(blocked) or entry.pending_reason_of(blocked)) == "its last host"
    assert entry.state_of(0, blocked) is (BlockState.REFUSED if state == "refused" else BlockState.PENDING)
    assert entry.refusal_of("n2") is None is entry.pending_reason_of("n2")


async def test_a_wait_ends_with_what_is_refused_and_goes_on_for_what_is_pending() -> None:
    _, _, directory, _ = new_directory()
    directory.add(entry := job_master())
    for report, refused, pending in (
        (Report(pending={"n1": "a pod is ending"}), [], ["jm"]),
        (Report(refused={"n1": "its last host"}), ["jm"], []),  # Both: nothing will happen.
        (Report(refused={}, pending={"n2": "a pod is ending"}), [], []),
    ):
        directory.apply_report(entry, report, 0)
        assert directory.any_pending(0, ["n1"]) is bool(pending)
        progress = directory.progress(0, ["n1"])
        assert (progress.refused, progress.pending) == (refused, pending)


async def test_an_acknowledgement_asks_each_listener_once_for_all_who_wait() -> None:
    """500 requests that waited for 300 listeners delayed the acknowledgements of these by 15 s."""
    _, _, directory, _ = new_directory()
    for number in range(300):
        directory.add(job_master(f"jm-{number}"))

    def ask(times: int) -> None:
        assert all(directory.any_pending(revision, ["n1"]) for revision in range(1, times + 1))

    once = count_calls(lambda: ask(1))
    await asyncio.sleep(0)
    assert once > 300
    assert count_calls(lambda: ask(500)) < once + 500 * 5


@pytest.mark.parametrize("by", [AppliedBy(percent=95), AppliedBy(managers=True)], ids=str)
async def test_so_does_one_for_those_who_wait_for_some_listeners(by: AppliedBy) -> None:
    _, _, directory, _ = new_directory()
    for number in range(300):
        directory.add(resource_manager(f"rm-{number}"))

    def ask(times: int) -> None:
        assert not any(directory.is_applied(revision, ["n1"], by) for revision in range(1, times + 1))

    once = count_calls(lambda: ask(1))
    await asyncio.sleep(0)
    assert once > 300
    assert count_calls(lambda: ask(500)) < once + 500 * 10


@pytest.mark.parametrize("percent", [1, 50, 95, 100])
async def test_a_wait_for_a_share_ends_when_it_is_reached_or_cannot_be_any_more(percent: int) -> None:
    """What the numbers of all listeners tell at once agrees with what each of them has reported of the nodes."""
    by, dice = AppliedBy(percent=percent), random.Random(percent)

    for _ in range(200):
        _, _, directory, _ = new_directory()
        for number in range(dice.randint(0, 8)):
            entry = resource_manager(f"l-{number}")
            entry.listener = replace(entry.listener, acked=dice.randint(0, 1))
            directory.add(entry)
            refused, pending, not_here = ({"n1": "why"} if dice.random() < 0.3 else {} for _ in range(3))
            report = Report(refused=refused, pending=pending, not_here=frozenset(not_here))
            directory.apply_report(entry, report, 0)
        progress = directory.progress(1, ["n1"], by)
        reached = by.is_met(progress.applied, progress.total)
        possible = by.is_met(progress.applied + len(progress.pending), progress.total)
        if percent < 100:
            assert directory.is_applied(1, ["n1"], by) is (reached or not possible)
        else:
            assert directory.is_applied(1, ["n1"], by) is not bool(progress.pending)


async def test_the_nodes_of_a_manager_count_for_shares_and_those_of_a_job_do_not() -> None:
    _, _, directory, usable = new_directory()
    nodes = [f"n{number}" for number in range(10)]
    directory.add(job := job_master())
    directory.apply_report(job, Report(nodes=nodes), 0)
    assert len(usable.known) == 0
    directory.add(manager := resource_manager("yarn"))
    directory.apply_report(manager, Report(nodes=nodes), 0)
    assert len(usable.known) == 10
    manager.listener = replace(manager.listener, role=ListenerRole.JOB_MASTER)
    directory.index(manager)
    assert len(usable.known) == 0, "it has registered in another role"
    manager.listener = replace(manager.listener, role=ListenerRole.RESOURCE_MANAGER)
    directory.index(manager)
    directory.expire(manager)
    assert len(usable.known) == 0


def new_directory() -> tuple[ListView, EvidenceStore, ListenerDirectory, UsableNodes]:
    view = ListView(BlocklistTracker(Snapshot(revision=0, history="0000000a", nodes={})), lambda: 0, lambda: None)
    confirmed = ConfirmedNodes(authenticated=True)
    evidence = EvidenceStore(2, confirmed.principal_of)
    quota = ListenerQuota(max_listeners=1, max_bytes=10_000)
    directory = ListenerDirectory(view, evidence, confirmed, Inventory(), quota, lambda: 0)
    return view, evidence, directory, UsableNodes(directory, view, confirmed)


def resource_manager(listener_id: str) -> ListenerEntry:
    entry = job_master(listener_id)
    entry.listener = replace(entry.listener, role=ListenerRole.RESOURCE_MANAGER)
    return entry


def job_master(listener_id: str = "jm") -> ListenerEntry:
    listener = Listener(
        id=listener_id,
        role=ListenerRole.JOB_MASTER,
        session="s1",
        callback_url=None,
        lease=1,
        lease_end=1,
        acked=0,
        principal="some-token",
    )
    return ListenerEntry(listener=listener, secret=Secret(current="whsec_"))


class _Stored:
    """A database in which another replica has stored a listener and its report."""

    def __init__(self, acked: int, parts: dict[str, Any], history: str) -> None:
        entry = resource_manager("rm")
        stored = StoredListener(listener=replace(entry.listener, acked=acked), secret=entry.secret)
        reports = [ReportPart("rm", "s1", 0, part, acked, json.dumps(value)) for part, value in parts.items()]
        self._updates = ListenerUpdates(acked, history, 1, [stored], reports, (history, 0), [])

    async def updates_since(self, *_: int) -> ListenerUpdates:
        return self._updates


async def test_the_stored_evidence_of_a_listener_that_has_become_a_manager_is_not_read() -> None:
    view, evidence, directory, _ = new_directory()
    directory.add(entry := job_master())
    directory.apply_report(entry, Report(evidence={"a": SLOW}), 0)
    text = directory.export_part(entry, "evidence")
    directory.remove(entry.id)
    database: Any = _Stored(1, {"evidence": json.loads(text)}, view.tracker.history)
    reader = ListenerReader(
        database, directory, view.tracker, on_registered=lambda _: None, clock=lambda: 0, replicated=True
    )
    await reader.sync()
    assert directory.ids == {"rm"}
    assert len(evidence) == 0


async def test_what_is_not_in_force_is_known_with_the_acknowledgement_that_another_replica_received() -> None:
    """Otherwise a wait here ends, and a page says that a block is in force, while it is not."""
    view, _, directory, _ = new_directory()
    parts = {"taskManagers": {}, "pending": {"c": "Not yet."}, "refused": {"b": "No."}, "notHere": ["a"]}
    joins = {"notHere": [], "pending": {"a": "Not yet.", "c": "Not yet."}}
    for acked, stored, state_of_a in ((1, parts, BlockState.NOT_HERE), (2, joins, BlockState.PENDING)):
        database: Any = _Stored(acked, stored, view.tracker.history)
        reader = ListenerReader(
            database,
            directory,
            view.tracker,
            on_registered=lambda _: None,
            clock=lambda: 0,
            replicated=True,
        )
        reading = asyncio.create_task(reader.sync())
        while not reading.done():
            await asyncio.sleep(0)
            entry = directory.get("rm")
            if entry is not None and entry.has_acked(acked):
                states = [entry.state_of(acked, node_id) for node_id in "abc"]
                assert states == [state_of_a, BlockState.REFUSED, BlockState.PENDING]
