"""The plan of the YARN manager, against a model of YARN's labels: it leads to the list, and back to what was there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist import PERMANENT, BlockAction, BlockedNode
from blocklist.managers.plan import StepAction
from blocklist.managers.yarn.manager import describe
from blocklist.managers.yarn.node_names import Blocks, resolve
from blocklist.managers.yarn.plan import (
    Capacity,
    Further,
    LabelPlan,
    MarkLabels,
    NodeMark,
    YarnNode,
    YarnState,
    make_plan,
    parse_masters,
    parse_nodes,
    parse_state,
)

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
MARKS = MarkLabels()
CAPACITY = Capacity(megabytes=8192, vcores=4, further=(Further("yarn.io/gpu", "", 2),))
OWN_LABELS = ["", "gpu", "ssd--fast"]


def block(node_id: str, action: BlockAction = MARK, start: int = 1) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=PERMANENT, cause="disk")


def no_names(_: str) -> Collection[str]:
    return ()


def blocks_of(nodes: Iterable[BlockedNode], hosts: Iterable[str]) -> Blocks:
    return resolve({node.id: node for node in nodes}, hosts, no_names)


@dataclass
class Yarn:
    """YARN's labels: those of a host replace those of its NodeManagers, which may get others afterwards."""

    hosts: dict[str, str] = field(default_factory=dict)
    managers: dict[str, str | None] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    containers: dict[str, int] = field(default_factory=dict)
    labels: set[str] = field(default_factory=lambda: {"gpu", "ssd--fast"})

    def state(self) -> YarnState:
        nodes = [
            YarnNode(
                id=node_id,
                host=(host := node_id.partition(":")[0]),
                state="RUNNING",
                label=self.hosts.get(host, "") if label is None else label,
                containers=self.containers.get(node_id, 0),
                capacity=self.capacities.get(node_id, CAPACITY),
            )
            for node_id, label in self.managers.items()
        ]
        host_labels = {host: label for host, label in self.hosts.items() if label}
        return YarnState(nodes=nodes, host_labels=host_labels, labels=dict.fromkeys(self.labels, True))

    def effective(self) -> dict[str, str]:
        return {node.id: node.label for node in self.state().nodes}

    def set_labels(self, labels: dict[str, str]) -> None:
        for target, label in sorted(labels.items()):
            host, _, port = target.rpartition(":")
            if port == "0":
                self.hosts[host] = label
                self.managers |= {node_id: None for node_id in self.managers if node_id.startswith(f"{host}:")}
            else:
                self.managers[target] = label
            self.labels |= {label} - {""}

    def apply(self, plan: LabelPlan, *, crash_after: int = 3) -> None:
        """`crash_after`: how many of the three parts of a plan are carried out. All labels are set at once."""
        if crash_after > 0:
            self.capacities |= plan.restore
        if crash_after > 1:
            self.set_labels({**plan.labels, **plan.then_labels})
        if crash_after > 2:
            self.containers |= dict.fromkeys(plan.evacuate, 0)

    def plan(self, *nodes: BlockedNode, min_nodes: int = 0) -> LabelPlan:
        state = self.state()
        return make_plan(blocks_of(nodes, {node.host for node in state.nodes}), state, MARKS, min_nodes=min_nodes)

    def begin_evacuation(self, node_id: str) -> None:
        """As far as one that is interrupted at the worst moment."""
        mark = MARKS.mark(self.effective()[node_id])
        assert mark is not None
        label = MARKS.name(NodeMark(own=mark.own, capacity=CAPACITY))
        assert label is not None
        self.set_labels({node_id: label})
        self.capacities[node_id] = Capacity(megabytes=0, vcores=0)


own_labels = st.sampled_from(OWN_LABELS)
clusters = st.builds(
    Yarn,
    st.fixed_dictionaries({"w1": own_labels, "w2": own_labels}),
    st.fixed_dictionaries({"w1:1": st.none() | own_labels, "w1:2": st.none() | own_labels, "w2:1": st.none()}),
    containers=st.fixed_dictionaries({"w1:1": st.integers(0, 3), "w2:1": st.integers(0, 3)}),
)
lists = st.lists(st.builds(block, st.sampled_from(["w1", "W2", "w9"]), st.sampled_from(BlockAction)), max_size=3)


class TestPlan:
    @given(clusters, st.lists(st.tuples(lists, st.integers(0, 3)), max_size=4), st.booleans())
    def test_whatever_was_blocked_and_interrupted_the_end_gives_all_labels_back(
        self, yarn: Yarn, rounds: list[tuple[list[BlockedNode], int]], interrupted: bool
    ) -> None:
        before = yarn.effective()
        for nodes, crash_after in rounds:
            yarn.apply(yarn.plan(*nodes), crash_after=crash_after)
            if interrupted and MARKS.mark(yarn.effective()["w1:1"]) is not None:
                yarn.begin_evacuation("w1:1")
        yarn.apply(yarn.plan())
        assert yarn.effective() == before
        assert set(yarn.capacities.values()) <= {CAPACITY}
        assert not yarn.plan().steps

    @given(clusters, lists)
    def test_an_applied_plan_marks_what_is_blocked_and_nothing_else(self, yarn: Yarn, nodes: list[BlockedNode]) -> None:
        yarn.apply(yarn.plan(*nodes))
        blocked = {node.id.lower() for node in nodes}
        for node_id, label in yarn.effective().items():
            assert (MARKS.mark(label) is not None) == (node_id.partition(":")[0] in blocked)
        again = yarn.plan(*nodes)
        assert not again.steps
        assert not again.labels
        assert not again.evacuate

    def test_a_node_manager_that_comes_back_on_another_port_is_marked_already(self) -> None:
        yarn = Yarn(managers={"w1:1": None})
        yarn.apply(yarn.plan(block("w1")))
        yarn.managers["w1:7"] = None
        assert yarn.effective()["w1:7"] == "blocklist"

    def test_a_label_that_somebody_sets_meanwhile_is_what_the_node_gets_back(self) -> None:
        yarn = Yarn(managers={"w1:1": None})
        yarn.apply(yarn.plan(block("w1")))
        yarn.set_labels({"w1:0": "gpu"})
        yarn.apply(yarn.plan(block("w1")))
        assert yarn.effective() == {"w1:1": "blocklist--gpu"}
        yarn.apply(yarn.plan())
        assert yarn.effective() == {"w1:1": "gpu"}

    def test_a_label_that_no_longer_exists_is_not_given_back(self) -> None:
        yarn = Yarn(hosts={"w1": "gpu"}, managers={"w1:1": None})
        yarn.apply(yarn.plan(block("w1")))
        yarn.labels.remove("gpu")
        yarn.apply(yarn.plan())
        assert yarn.effective() == {"w1:1": ""}

    def test_a_minimum_of_nodes_stays_in_service_and_what_is_marked_stays_marked(self) -> None:
        yarn = Yarn(managers={"w1:1": None, "w2:1": None, "w3:1": None})
        yarn.apply(yarn.plan(block("w3", start=9)))
        plan = yarn.plan(block("w1", start=2), block("w2", start=1), block("w3", start=9), min_nodes=1)
        assert plan.labels == {"w2:0": "blocklist"}
        assert list(plan.not_in_force.refused) == ["w1"]
        assert "fewer than 1 nodes (--min-nodes)" in plan.not_in_force.refused["w1"]

    def test_what_is_marked_stays_marked_also_if_fewer_nodes_than_the_minimum_are_left(self) -> None:
        yarn = Yarn(managers={"w1:1": None, "w2:1": None, "w3:1": None})
        yarn.apply(yarn.plan(block("w1"), block("w2")))
        plan = yarn.plan(block("w1"), block("w2"), block("w3", start=0), min_nodes=3)
        assert not plan.labels
        assert list(plan.not_in_force.refused) == ["w3"]

    def test_a_label_too_long_to_be_remembered_is_left_and_that_block_alone_refused(self) -> None:
        yarn = Yarn(hosts={"w1": "x" * 250}, managers={"w1:1": None, "w2:1": None})
        plan = yarn.plan(block("w1"), block("w2"))
        assert plan.labels == {"w2:0": "blocklist"}
        assert list(plan.not_in_force.refused) == ["w1"]
        assert "too long" in plan.not_in_force.refused["w1"]
        assert plan.ids.keys() == {"w2"}, "the others need not be marked"

    def test_nothing_is_freed_while_an_address_may_mean_it_but_interrupted_evacuations_are_finished(self) -> None:
        yarn = Yarn(managers={"w1:1": None, "w2:1": None, "w3:1": None})
        yarn.apply(yarn.plan(block("w1"), block("w2")))
        yarn.begin_evacuation("w2:1")
        state = yarn.state()
        plan = make_plan(Blocks(unresolved=["10.0.0.1"]), state, MARKS)
        assert plan.withheld == ("w1", "w2")
        again = make_plan(replace(blocks_of([block("w3")], ["w3"]), unresolved=["10.0.0.1"]), state, MARKS, min_nodes=1)
        assert list(again.not_in_force.refused) == ["w3"], "what stays marked is not in service"
        assert plan.labels == {}
        assert plan.restore == {"w2:1": CAPACITY}
        assert plan.then_labels == {"w2:1": "blocklist"}

    def test_each_step_says_how_many_containers_remain_and_which_masters_end(self) -> None:
        yarn = Yarn(managers={"w1:1": None, "w2:1": None}, containers={"w1:1": 3, "w2:1": 2})
        blocks = blocks_of([block("w1"), block("w2", EVACUATE)], ["w1", "w2"])
        plan = make_plan(blocks, yarn.state(), MARKS, masters={"w2:1": ["application_1_0007"]})
        mark, evacuate = plan.steps
        assert mark.reason.endswith("(disk): it gets no new containers; 3 remain and may finish.")
        assert "2 are stopped. Among them are ApplicationMasters (application_1_0007)" in evacuate.reason
        assert [mark.action, evacuate.action] == [StepAction.BLOCK, StepAction.EVACUATE]
        assert plan.evacuate == ("w2:1",)


class TestMarks:
    resources = st.builds(
        Capacity,
        megabytes=st.integers(0, 10**6),
        vcores=st.integers(0, 999),
        further=st.lists(
            st.builds(Further, st.text(min_size=1, max_size=9), st.sampled_from(["", "G"]), st.integers(0, 9)),
            max_size=2,
        ).map(tuple),
    )

    @given(own_labels, st.none() | resources)
    def test_a_label_remembers_what_was_found(self, own: str, capacity: Capacity | None) -> None:
        mark = NodeMark(own=own, capacity=capacity)
        name = MARKS.name(mark)
        assert name is None or MARKS.mark(name) == mark

    @pytest.mark.parametrize(
        "label", ["", "gpu", "blocklisted", "blocklist-x", "blocklist--", "blocklist-restore-x--gpu"]
    )
    def test_a_label_of_others_is_recognized(self, label: str) -> None:
        assert MARKS.mark(label) is None

    @pytest.mark.parametrize("prefix", ["", "-x", "x-", "a--b", "a b", "x" * 65])
    def test_an_invalid_prefix_is_rejected(self, prefix: str) -> None:
        with pytest.raises(ValueError, match="not the name of a node label"):
            MarkLabels(prefix)


NODE = {
    "id": "w1:8041",
    "nodeHostName": "w1",
    "state": "RUNNING",
    "rack": "/dc1/r2",
    "nodeLabels": ["gpu"],
    "numContainers": 3,
    "totalResource": {"memory": 8192, "vCores": 4},
}


class TestAnswers:
    def test_one_entry_without_a_list_around_it_is_read_as_older_versions_write_it(self) -> None:
        labels = {"nodeLabelInfo": {"name": "gpu", "exclusivity": "false"}}
        node_labels = {"nodeToLabels": {"entry": {"key": "w1:0", "value": {"nodeLabelInfo": {"name": "gpu"}}}}}
        state = parse_state({"nodes": {"node": NODE}}, labels, node_labels)
        assert state.labels == {"gpu": False}
        assert state.host_labels == {"w1": "gpu"}
        assert describe(state.nodes, MARKS)[0].labels[:2] == [("rack", "dc1.r2"), ("label.yarn/gpu", "")]

    def test_numbers_as_text_are_numbers(self) -> None:
        resources = [{"name": "yarn.io/gpu", "value": "2", "units": ""}]
        total = {"memory": "8192", "vCores": 4.0, "resourceInformations": {"resourceInformation": resources}}
        (found,) = parse_nodes({"nodes": {"node": NODE | {"numContainers": "3", "totalResource": total}}})
        assert found.containers == 3
        assert found.capacity == Capacity(megabytes=8192, vcores=4, further=(Further("yarn.io/gpu", "", 2),))
        former = {"usedMemoryMB": "1", "availMemoryMB": "2", "usedVirtualCores": 1, "availableVirtualCores": 0}
        (found,) = parse_nodes({"nodes": {"node": NODE | {"totalResource": None} | former}})
        assert found.capacity == Capacity(megabytes=3, vcores=1)

    @pytest.mark.parametrize(
        "odd",
        [
            {"numContainers": None},
            {"numContainers": True},
            {"numContainers": "many"},
            {"numContainers": -1.5},
            {"totalResource": {}},
            {"totalResource": {"memory": None, "vCores": 4}},
            {"totalResource": {"memory": 8192}},
            {"totalResource": "8192"},
            {"totalResource": None},
            {"state": None, "numContainers": None},
            {"state": "TRANSCENDING", "numContainers": None},
        ],
    )
    def test_a_node_whose_numbers_are_not_known_has_not_none(self, odd: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"w1:8041 .*(is not a number|is no object)"):
            parse_nodes({"nodes": {"node": [NODE | odd]}})
        (gone,) = parse_nodes({"nodes": {"node": [NODE | odd | {"state": "LOST"}]}})
        assert gone.containers == 0

    def test_a_state_that_is_new_to_the_manager_may_have_containers(self) -> None:
        (found,) = parse_nodes({"nodes": {"node": [NODE | {"state": "TRANSCENDING"}]}})
        assert found.live
        assert found.containers == 3

    def test_a_cluster_without_nodes_and_labels_is_read(self) -> None:
        assert parse_state({"nodes": None}, {}, {}) == YarnState(nodes=[])
        assert parse_masters({"apps": {}}) == {}

    @pytest.mark.parametrize("body", [None, [], {}, {"nodes": 7}, {"nodes": {"node": [7]}}, {"nodes": {"node": [{}]}}])
    def test_another_answer_is_an_error(self, body: object) -> None:
        with pytest.raises(ValueError, match=r"the answer|nodeHostName"):
            parse_state(body, {}, {})

    def test_a_marked_node_keeps_its_own_label_and_resources_in_the_inventory(self) -> None:
        label = MARKS.name(NodeMark(own="gpu", capacity=replace(CAPACITY, further=())))
        assert label is not None
        node = YarnNode(id="w1:1", host="w1", state="RUNNING", label=label)
        assert dict(describe([node], MARKS)[0].labels)["capacity.yarn/memory-mb"] == "8192"
        assert ("label.yarn/gpu", "") in describe([node], MARKS)[0].labels
