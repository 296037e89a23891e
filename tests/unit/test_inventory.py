"""The inventory: which reported ids are one node, who is believed, and that updates equal a rebuild."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.changes import Snapshot
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import InvalidError
from blocklist.model.inventory import Inventory
from blocklist.model.names import Aliases, NameSet
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.model.reported_node import (
    FILE_SOURCE,
    MAX_LABELS,
    MAX_NAMES,
    NodeSource,
    ReportedNode,
    SourceKind,
    make_reported_node,
)
from tests.unit.counting import count_calls

YARN = NodeSource(SourceKind.MANAGER, "yarn")
SLURM = NodeSource(SourceKind.MANAGER, "slurm")
JOB = NodeSource(SourceKind.AGENT, "job")
OTHER_JOB = NodeSource(SourceKind.AGENT, "other-job")

Nodes = list[str | ReportedNode]


def described(node_id: str, *aliases: str, **labels: str) -> ReportedNode:
    """A node with these other names and addresses."""
    addresses = [alias for alias in aliases if ":" in alias or alias[0].isdigit()]
    return make_reported_node(node_id, [alias for alias in aliases if alias not in addresses], addresses, labels)


def inventory(**reports: Nodes) -> Inventory:
    """Of the sources `file`, `yarn`, `slurm`, `job`, `other_job`; jobs run on all that they report."""
    sources = {"file": FILE_SOURCE, "yarn": YARN, "slurm": SLURM, "job": JOB, "other_job": OTHER_JOB}
    made = Inventory()
    for name, nodes in reports.items():
        made.stage_nodes(sources[name], nodes)
        if sources[name].kind is SourceKind.AGENT:
            made.stage_running(sources[name], [node if isinstance(node, str) else node.id for node in nodes])
    made.apply_staged()
    return made


class TestNames:
    def test_a_node_is_found_by_each_of_its_names_and_addresses(self) -> None:
        nodes = inventory(file=[described("worker-7", "ip-10-0-0-7.internal", "10.0.0.7", "fd00::7")])
        names = ["worker-7", "WORKER-7.", "worker-7.example.com", "ip-10-0-0-7", "10.0.0.7", "[FD00:0::7]"]
        assert {name: nodes.find(name) for name in names} == dict.fromkeys(names, "worker-7")
        assert nodes.find("10.0.0.8") is None

    def test_the_other_names_of_a_machine_are_its_aliases(self) -> None:
        nodes = inventory(file=[described("worker-7", "ip-7", "10.0.0.7")], job=["worker-7.example.com"])
        assert list(nodes) == ["worker-7.example.com"]
        assert nodes.aliases("10.0.0.7") == ("ip-7", "worker-7", "worker-7.example.com")
        assert nodes.aliases("unknown") == ()

    def test_a_short_name_of_several_full_names_is_a_node_of_its_own(self) -> None:
        nodes = inventory(yarn=["n7.a", "n7.b"], job=["n7"])
        assert list(nodes) == ["n7", "n7.a", "n7.b"]

    def test_a_short_name_that_nobody_reports_means_all_full_names(self) -> None:
        nodes = inventory(yarn=["n7.a", "n7.b"])
        assert (nodes.find("n7"), set(nodes.known_as("n7"))) == (None, {"n7.a", "n7.b"})

    def test_another_full_name_is_another_machine(self) -> None:
        assert inventory(yarn=["n7.a"], job=["n7"]).find("n7.b") is None

    def test_an_id_that_is_an_address_is_the_node_that_claims_it(self) -> None:
        nodes = inventory(file=[described("worker-7", "10.0.0.7")], yarn=["10.0.0.7"], job=["10.0.0.7"])
        assert list(nodes) == ["worker-7"]
        assert nodes.get("worker-7").sources == [FILE_SOURCE, YARN, JOB]


class TestAmbiguousAddresses:
    def test_an_address_that_two_nodes_claim_means_neither(self) -> None:
        nodes = inventory(slurm=[described("n1", "10.0.0.1")], yarn=[described("n2", "10.0.0.1")])
        assert (nodes.find("10.0.0.1"), set(nodes.known_as("10.0.0.1"))) == (None, set())
        assert (nodes.sharing("10.0.0.1"), nodes.sharing("n1")) == ({"n1", "n2"}, ())
        assert nodes.get("n1").conflicts == {"10.0.0.1": ["n2"]}
        assert nodes.get("n2").conflicts == {"10.0.0.1": ["n1"]}
        assert nodes.aliases("n1") == ()

    def test_two_names_of_one_machine_do_not_make_its_address_ambiguous(self) -> None:
        nodes = inventory(file=[described("n1", "10.0.0.1")], yarn=[described("n1.example.com", "10.0.0.1")])
        assert (nodes.find("10.0.0.1"), nodes.get("n1.example.com").conflicts) == ("n1.example.com", {})

    def test_it_means_a_node_again_once_the_other_no_longer_claims_it(self) -> None:
        nodes = inventory(slurm=[described("n1", "10.0.0.1")], yarn=[described("n2", "10.0.0.1")])
        nodes.stage_nodes(YARN, ["n2"])
        nodes.apply_staged()
        assert nodes.find("10.0.0.1") == "n1"

    def test_the_claims_of_thousands_are_ambiguous_without_a_comparison_of_each(self) -> None:
        nodes = inventory(yarn=[described(f"n{number}", "10.0.0.1") for number in range(1000)])
        assert nodes.find("10.0.0.1") is None


class TestTrust:
    def test_an_agent_is_believed_only_for_nodes_on_which_it_runs(self) -> None:
        nodes = Inventory()
        nodes.stage_nodes(JOB, [described("n1", "10.0.0.1", rack="r1")])
        nodes.apply_staged()
        assert (nodes.find("10.0.0.1"), nodes.labels_of("n1")) == (None, {})
        nodes.stage_running(JOB, ["n1.example.com"])
        nodes.apply_staged()
        assert (nodes.find("10.0.0.1"), nodes.labels_of("n1")) == ("n1.example.com", {"rack": "r1"})
        nodes.stage_running(JOB, ["n2"])
        nodes.apply_staged()
        assert (nodes.find("10.0.0.1"), nodes.labels_of("n1")) == (None, {})

    def test_an_agent_cannot_claim_what_a_manager_or_the_file_claims(self) -> None:
        nodes = inventory(yarn=[described("n1", "10.0.0.1")], job=[described("n2", "10.0.0.1")])
        assert nodes.find("10.0.0.1") == "n1"
        assert nodes.get("n2").conflicts == {"10.0.0.1": ["n1"]}

    @pytest.mark.parametrize("rival", ["n2", "n3"])
    def test_a_manager_cannot_contest_what_the_file_claims(self, rival: str) -> None:
        """Otherwise drivers that know the machine by its address only would use it again, while it is blocked."""
        nodes = inventory(
            file=[described("n1", "10.0.0.1", "n1.example.com"), "n2"],
            yarn=[described(rival, "10.0.0.1", "n1.example.com")],
        )
        assert (nodes.find("10.0.0.1"), nodes.find("n1.example.com")) == ("n1", "n1")
        assert nodes.aliases("n1") == ("10.0.0.1", "n1.example.com")
        assert nodes.get("n1").conflicts == {"10.0.0.1": [rival], "n1.example.com": [rival]}

    @pytest.mark.parametrize("source", ["yarn", "other_job"])
    @pytest.mark.parametrize("name", ["n2", "10.0.0.2"])
    def test_an_agent_cannot_take_over_an_id_that_another_source_reports(self, source: str, name: str) -> None:
        reports: dict[str, Nodes] = {source: [name], "job": [described("n1", name)]}
        nodes = inventory(**reports)
        assert (nodes.find(name), nodes.find("n1")) == (name, "n1")

    def test_a_manager_names_the_ids_that_agents_report(self) -> None:
        nodes = inventory(yarn=[described("n1", "ip-1", "10.0.0.1")], job=["ip-1"], other_job=["10.0.0.1"])
        assert (list(nodes), len(nodes.get("n1").sources)) == (["n1"], 3)

    def test_nobody_relabels_what_a_source_reports_that_counts_more(self) -> None:
        nodes = inventory(
            job=[described("n1", rack="r3", zone="z3", pool="p3")],
            yarn=[described("n1", rack="r2", zone="z2")],
            file=[described("n1", rack="r1")],
        )
        assert nodes.labels_of("n1") == {"rack": "r1", "zone": "z2"}

    @pytest.mark.parametrize("kind", ["file", "yarn"])
    @pytest.mark.parametrize("id_of_agent", ["n1.a", "N1.A", "n1", "ip-1", "ip-1.a", "10.0.0.1"])
    def test_an_agent_does_not_describe_the_machine_of_another_source_under_any_name(
        self, kind: str, id_of_agent: str
    ) -> None:
        machine = described("n1.a", "ip-1", "10.0.0.1", rack="r1")
        forged = described(id_of_agent, "n2", "10.0.0.2", rack="r9", pool="p9")
        reports: dict[str, Nodes] = {kind: [machine], "job": [forged]}
        for order in (reports, dict(reversed(reports.items()))):
            nodes = inventory(**order)
            assert list(nodes) == ["n1.a"]
            assert {"n2", "10.0.0.2"}.isdisjoint(nodes.identifiers("n1.a"))
            assert (nodes.find("n2"), nodes.find("10.0.0.2"), nodes.labels_of("n1.a")) == (None, None, {"rack": "r1"})

    def test_an_agent_describes_a_machine_that_nobody_else_does(self) -> None:
        nodes = inventory(yarn=["n1"], job=[described("n1", "10.0.0.1", rack="r1"), described("n2", rack="r2")])
        assert (nodes.find("10.0.0.1"), nodes.labels_of("n1"), nodes.labels_of("n2")) == ("n1", {}, {"rack": "r2"})

    def test_of_two_managers_the_first_by_name_counts(self) -> None:
        nodes = inventory(yarn=[described("n1", rack="r2")], slurm=[described("n1", rack="r1")])
        assert nodes.labels_of("n1") == {"rack": "r1"}

    def test_managers_that_name_each_others_nodes_are_not_followed_in_circles(self) -> None:
        nodes = inventory(yarn=[described("n1", "k1.x"), described("k1", "n1.x")], job=["n1.x", "k1.x"])
        assert list(nodes) == ["k1", "n1"]


class TestPages:
    def test_pages_are_in_order_of_the_id(self) -> None:
        nodes = inventory(yarn=["n3", "N1", "n2"])
        assert [node.id for node in nodes.page(None, 2)] == ["N1", "n2"]
        assert [node.id for node in nodes.page("n2", 2)] == ["n3"]
        assert [node.id for node in nodes.page("n2x", 2)] == ["n3"]

    def test_a_source_that_leaves_takes_its_nodes_along(self) -> None:
        nodes = inventory(yarn=["n1"], job=["n1", "n2"])
        nodes.stage_removal(JOB)
        nodes.apply_staged()
        assert list(nodes) == ["n1"]

    def test_labels_are_counted_once_for_each_node(self) -> None:
        nodes = inventory(
            yarn=[described("n1", rack="r1"), described("n2", rack="r1")], job=[described("n1.a", rack="r1")]
        )
        assert (len(nodes.with_label("rack", "r1")), nodes.label_keys()) == (2, {"rack"})
        nodes.stage_nodes(YARN, [])
        nodes.apply_staged()
        assert len(nodes.with_label("rack", "r1")) == 1


class TestReportedNodes:
    @pytest.mark.parametrize(
        "faulty",
        [
            {"names": ["a b"]},
            {"addresses": ["worker-7"]},
            {"labels": {"rack": "r 1"}},
            {"labels": {"a/b/c": "r1"}},
            {"names": [f"k{number}" for number in range(MAX_NAMES + 1)]},
            {"labels": {f"k{number}": "v" for number in range(MAX_LABELS + 1)}},
        ],
    )
    def test_invalid_ones_are_refused(self, faulty: dict[str, object]) -> None:
        with pytest.raises(InvalidError):
            make_reported_node("n1", **faulty)  # type: ignore[arg-type]

    def test_a_name_that_is_an_address_counts_as_one(self) -> None:
        assert make_reported_node("n1", ["10.0.0.1", "N1", "n1.a."]) == described("n1", "n1.a", "10.0.0.1")


IDS = ["n1", "n1.a", "n1.b", "n2", "n2.a", "10.0.0.1", "10.0.0.2", "fd00::1"]
REPORTED = st.builds(
    lambda node_id, aliases, labels: described(node_id, *aliases, **labels),
    st.sampled_from(IDS),
    st.lists(st.sampled_from(IDS), max_size=3),
    st.dictionaries(st.sampled_from(["rack", "zone"]), st.sampled_from(["1", "2"])),
)
REPORTS = st.lists(st.one_of(st.sampled_from(IDS), REPORTED), max_size=4)
STEPS = st.lists(
    st.tuples(st.sampled_from([FILE_SOURCE, YARN, SLURM, JOB, OTHER_JOB]), REPORTS, st.lists(st.sampled_from(IDS))),
    max_size=10,
)
Step = tuple[NodeSource, Nodes, list[str]]


def stage(nodes: Inventory, step: Step) -> None:
    source, reported, running = step
    nodes.stage_nodes(source, reported)
    if source.kind is SourceKind.AGENT:
        nodes.stage_running(source, running)


def state(nodes: Inventory) -> object:
    counts = {(key, value): set(nodes.with_label(key, value)) for key in ("rack", "zone") for value in ("1", "2")}
    names = {name: (nodes.find(name), nodes.aliases(name), nodes.labels_of(name)) for name in [*IDS, "n1.c"]}
    return nodes.page(None, 100), len(nodes), counts, names


@settings(deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_updates_in_any_order_and_any_slices_equal_a_rebuild(steps: list[Step], random: Random) -> None:
    updated = Inventory()
    for step in steps:
        stage(updated, step)
        updated.apply_staged(random.randrange(4))
    updated.apply_staged()
    last = list({source: (source, reported, running) for source, reported, running in steps}.values())
    random.shuffle(last)
    rebuilt = Inventory()
    for step in last:
        stage(rebuilt, step)
    rebuilt.apply_staged()
    assert state(updated) == state(rebuilt)
    for source, *_ in steps:
        updated.stage_removal(source)
        updated.apply_staged(random.randrange(4))
    updated.apply_staged()
    assert state(updated) == state(Inventory())


@settings(deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_every_name_that_means_another_machine_is_among_the_changed_ones(steps: list[Step], random: Random) -> None:
    nodes = Inventory()
    names = [*IDS, "n1.c"]
    for step in steps:
        before = {name: nodes.machine_of(name) for name in names}
        stage(nodes, step)
        changed = NameSet(nodes.apply_staged(random.choice([1, 2, None])))
        for name in names:
            after = nodes.machine_of(name)
            assert after == (nodes.find(name) or name)
            assert after == before[name] or any(changed.matching(name)), (name, before[name], after)


@settings(deadline=None)
@given(STEPS)
def test_every_reported_id_belongs_to_exactly_one_node(steps: list[Step]) -> None:
    nodes = Inventory()
    for step in steps:
        stage(nodes, step)
    nodes.apply_staged()
    reported = {
        node if isinstance(node, str) else node.id
        for _, given_nodes, _ in {step[0]: step for step in steps}.values()
        for node in given_nodes
    }
    assert {nodes.find(name) for name in reported} <= set(nodes)
    assert all(nodes.find(node_id) == node_id for node_id in nodes)
    members = [member for node_id in nodes for member in nodes._members(node_id)]
    assert len(members) == len(set(members))
    for node_id in nodes:
        for alias in nodes.aliases(node_id):
            assert nodes.find(alias) == node_id


def test_while_nothing_is_reported_a_block_costs_hardly_more_than_without_an_inventory() -> None:
    def cost(*aliases: Aliases) -> int:
        draft = Draft(BlocklistTracker(Snapshot(revision=0, history="00c0ffee"), *aliases), 1)
        block = BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=1, end=9, cause="disk")
        return count_calls(lambda: draft.block(block, allow_merge=False))

    cost()  # Fills the caches of names.
    assert cost(Inventory().aliases) <= cost() + 10
