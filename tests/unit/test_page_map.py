"""The map of hosts: states, rows and the lines of the timeline."""

from __future__ import annotations

import pytest

from app.page.map import (
    BY_NAME,
    LEGENDS,
    MAX_ROW,
    UNREPORTED,
    BlockedHost,
    Group,
    HostMap,
    MapState,
    group_of,
    map_rows,
    natural_order,
    state_of_blocked,
    timeline_lines,
)
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, BlockState, TaskCount

NOW = 1_795_276_800_000
NONE = TaskCount(0, 0, 0)


def node(name: str = "n1", *, evacuate: bool = True, cause: str = "disk") -> BlockedNode:
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    return BlockedNode(id=name, action=action, start=NOW, end=PERMANENT, cause=cause)


class TestStates:
    def test_only_what_is_known_to_be_empty_is_evacuated(self) -> None:
        states = {state: state_of_blocked(node(), state) for state in BlockState}
        assert states == {
            BlockState.REFUSED: MapState.REFUSED,
            BlockState.PENDING: MapState.PENDING,
            BlockState.RUNNING: MapState.EVACUATING,
            BlockState.UNKNOWN: MapState.UNKNOWN,
            BlockState.EMPTY: MapState.EVACUATED,
            BlockState.NOT_HERE: MapState.UNKNOWN,
        }

    @pytest.mark.parametrize("state", [BlockState.RUNNING, BlockState.UNKNOWN, BlockState.EMPTY])
    def test_tasks_may_run_where_no_new_ones_start(self, state: BlockState) -> None:
        assert state_of_blocked(node(evacuate=False), state) is MapState.MARKED

    def test_each_state_has_a_word(self) -> None:
        assert set(LEGENDS) == set(MapState)
        assert len({legend.word for legend in LEGENDS.values()}) == len(MapState)


class TestRows:
    @pytest.mark.parametrize(
        ("host", "labels", "group"),
        [
            ("n1", {"rack": "r1", "pool": "gpu"}, Group("rack", "r1")),
            ("n1", {"pool": "gpu", "zone": "z"}, Group("pool", "gpu")),
            ("n1", {"topology.kubernetes.io/zone": "z1"}, Group("zone", "z1")),
            ("n1", {"rack": ""}, Group(BY_NAME, "n")),
            ("worker-017.example.com", {}, Group(BY_NAME, "worker")),
            ("17", {}, Group(BY_NAME, "17")),
            ("10.0.3.17", {}, Group(BY_NAME, "10.0.3.")),
        ],
    )
    def test_the_group_is_the_first_that_is_known(self, host: str, labels: dict[str, str], group: Group) -> None:
        assert group_of(host, labels) == group

    def test_racks_come_first_and_numbers_count(self) -> None:
        hosts = [("n10", Group("rack", "r10")), ("n9", Group("rack", "r2")), ("x", Group(UNREPORTED, ""))]
        hosts += [("n2", Group("rack", "r2")), ("w", Group(BY_NAME, "w"))]
        assert [(row.group.name, list(row.hosts)) for row in map_rows(hosts)] == [
            ("r2", ["n2", "n9"]),
            ("r10", ["n10"]),
            ("w", ["w"]),
            ("", ["x"]),
        ]
        assert sorted(["n01", "n1", "N0", "n"], key=natural_order) == ["n", "N0", "n01", "n1"]

    def test_a_group_of_any_size_is_in_rows_of_limited_length(self) -> None:
        rows = map_rows((f"n{number}", Group(BY_NAME, "n")) for number in range(2 * MAX_ROW + 1))
        assert [(len(row.hosts), row.part, row.parts) for row in rows] == [
            (MAX_ROW, 1, 3),
            (MAX_ROW, 2, 3),
            (1, 3, 3),
        ]


def hosts_of(names: list[str], blocked: dict[str, MapState]) -> HostMap:
    return HostMap(
        revision=1,
        rows=map_rows((name, Group("rack", "r1")) for name in names),
        blocked={name: BlockedHost(state, node(name), NONE) for name, state in blocked.items()},
        not_ready=frozenset(),
    )


class TestMap:
    def test_states_are_in_the_order_of_the_layout(self) -> None:
        names = ["n1", "n2", "n3"]
        first = hosts_of(names, {})
        second = hosts_of(names, {"n2": MapState.EVACUATING})
        assert (first.states, second.states) == ("fff", "fef")
        assert first.layout == second.layout
        assert dict(second.counts)[MapState.FREE] == 2
        assert (first.settled, second.settled) == (True, False)

    def test_other_hosts_or_racks_are_another_layout(self) -> None:
        layouts = {hosts_of(names, {}).layout for names in (["n1"], ["n1", "n2"], ["n2", "n3"])}
        moved = HostMap(revision=1, rows=map_rows([("n1", Group("rack", "r2"))]), blocked={}, not_ready=frozenset())
        assert len(layouts | {moved.layout}) == 4

    def test_a_large_map_may_be_older(self) -> None:
        small, large = (hosts_of([f"n{place}" for place in range(count)], {}) for count in (1, 10_000))
        assert (round(small.max_age()), round(large.max_age())) == (1000, 2000)


def change(revision: int, name: str, at: int = 0, kind: ChangeType = ChangeType.BLOCKED, by: str = "anna") -> Change:
    return Change(revision=revision, type=kind, node=node(name, cause="DiskFull: 9 %"), at=NOW + at, created_by=by)


class TestTimeline:
    def test_a_storm_is_one_line(self) -> None:
        changes = [change(9 - place, f"n{9 - place}", -place) for place in range(5)]
        (line,) = timeline_lines(changes)
        assert (list(line.named), line.more) == (["n5", "n6"], 3)

    def test_a_storm_of_two_kinds_is_two_lines(self) -> None:
        by = ("anna", "ben")
        changes = [change(9 - place, f"n{9 - place}", -place, by=by[place % 2]) for place in range(9)]
        assert [(list(line.named), line.more) for line in timeline_lines(changes)] == [
            (["n1", "n3"], 3),
            (["n2", "n4"], 2),
        ]

    def test_others_and_later_ones_are_lines_of_their_own(self) -> None:
        changes = [
            change(5, "n5", 300_000),
            change(4, "n4", 100_000),
            change(3, "n3", 90_000, by="ben"),
            change(2, "n2", 10, ChangeType.UNBLOCKED),
            change(1, "n1"),
        ]
        assert [list(line.named) for line in timeline_lines(changes)] == [["n5"], ["n4"], ["n3"], ["n2"], ["n1"]]
