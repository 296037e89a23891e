"""The table that drivers match their hosts against, by the rules of blocklist.model.names."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.driver_table import MAX_CAUSE, DriverTable
from blocklist.model.errors import InvalidError
from blocklist.model.inventory import Inventory
from blocklist.model.names import (
    Aliases,
    normalize_address,
    normalize_name,
    same_machine,
    short_name,
)
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.model.reported_node import NodeSource, ReportedNode, SourceKind, make_reported_node

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def node(
    node_id: str,
    action: BlockAction = MARK,
    start: int = 0,
    end: int = PERMANENT,
    cause: str = "x",
    *,
    canary: bool = False,
) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=end, cause=cause, canary=canary)


def lines(table: DriverTable) -> list[list[str]]:
    """The fields of each line; checks the head."""
    text = table.text(7)
    head, *rest = text.split("\n")[:-1]
    assert text.endswith("\n")
    assert head == f"blocklist-table 1 7 {len(rest)}"
    return [line.split("\t") for line in rest]


def keys(table: DriverTable) -> set[str]:
    return {fields[0] for fields in lines(table)}


def covering(table: DriverTable, host: str) -> set[str]:
    """The keys under which a driver finds a host: its name, its address, and the prefix of its first label."""
    label, is_full = short_name(normalize_name(host))
    return keys(table) & {normalize_name(host), *([f"{label}."] if label and is_full else [])}


def test_an_empty_table_has_only_its_head() -> None:
    assert DriverTable().text(3) == "blocklist-table 1 3 0\n"


@pytest.mark.parametrize(
    ("node_id", "expected"),
    [
        ("n7", {"n7", "n7."}),
        ("N7.Example.COM", {"n7.example.com", "n7"}),
        ("10.0.0.7", {"10.0.0.7"}),
        ("2001:DB8:0::7", {"2001:db8::7"}),
        ("::ffff:10.0.0.7", {"10.0.0.7"}),
        ("n7.example.com.", {"n7.example.com", "n7"}),
        ("N7.", {"n7", "n7."}),
        ("17", {"17"}),
        ("...", {"..."}),
    ],
)
def test_the_keys_of_a_node_are_in_normal_form(node_id: str, expected: set[str]) -> None:
    assert keys(DriverTable([node(node_id)])) == expected


def test_the_weakest_block_comes_first() -> None:
    nodes = [node("a", EVACUATE, 1), node("b", MARK, 9), node("c", MARK, 3), node("d", EVACUATE, 0)]
    assert [fields[3] for fields in lines(DriverTable(nodes))] == ["c", "c", "b", "b", "d", "d", "a", "a"]


def test_ids_of_one_machine_are_joined_in_the_line_of_their_key() -> None:
    table = DriverTable([node("n7", MARK, 5, cause="disk"), node("N7.example.com", EVACUATE, 9, 99, cause="heat")])
    assert {fields[0]: fields[1:] for fields in lines(table)} == {
        "n7": [str(PERMANENT), "evacuate", "N7.example.com", "heat,disk"],
        "n7.": [str(PERMANENT), "mark", "n7", "disk"],
        "n7.example.com": ["99", "evacuate", "N7.example.com", "heat"],
    }


def test_canaries_come_first() -> None:
    nodes = [node("10.0.0.1", MARK, 1), node("10.0.0.2", MARK, 2, canary=True), node("10.0.0.3", EVACUATE, 0)]
    assert DriverTable(nodes).text(5).splitlines() == [
        "blocklist-table 1 5 3",
        f"10.0.0.2\t{PERMANENT}\tcanary\t10.0.0.2\tx",
        f"10.0.0.1\t{PERMANENT}\tmark\t10.0.0.1\tx",
        f"10.0.0.3\t{PERMANENT}\tevacuate\t10.0.0.3\tx",
    ]


def test_a_key_of_several_ids_has_a_canary_only_if_all_are() -> None:
    table = DriverTable([node("n7", canary=True), node("N7.example.com", canary=True)])
    assert {fields[2] for fields in lines(table)} == {"canary"}
    table.set(node("N7.example.com"))
    actions = {fields[0]: fields[2] for fields in lines(table)}
    assert actions == {"n7": "mark", "n7.": "canary", "n7.example.com": "mark"}


def test_of_a_mark_and_a_longer_canary_the_mark_names_the_line() -> None:
    nodes = [node("n7", canary=True, cause="slow"), node("N7", end=5, cause="disk")]
    by_key = {fields[0]: fields for fields in lines(DriverTable(nodes))}
    assert by_key["n7"] == ["n7", str(PERMANENT), "mark", "N7", "disk,slow"]


def test_a_cause_is_one_line_of_limited_length() -> None:
    [fields, *_] = lines(DriverTable([node("n7", cause="a\u2028b" + "x" * 500)]))
    assert fields[4] == ("a b" + "x" * 500)[:MAX_CAUSE]


def test_a_removed_node_leaves_what_others_say_of_its_keys() -> None:
    table = DriverTable([node("n7"), node("n7.a", EVACUATE)])
    table.discard("n7.a")
    table.discard("n7.a")
    assert table.text(1) == DriverTable([node("n7")]).text(1)


# Few labels and addresses, so that they often mean the same machine, or several.
labels = st.sampled_from(["n7", "n8", "w7", "N7", "17"])
hosts = st.one_of(
    labels,
    st.builds("{}.{}".format, labels, st.sampled_from(["a", "b", "A.x"])),
    st.sampled_from(["10.0.0.7", "10.0.0.8", "::ffff:10.0.0.7", "2001:db8::7", "2001:DB8:0::7", "::1"]),
)
sources = st.sampled_from(
    [NodeSource(SourceKind.FILE, "file"), NodeSource(SourceKind.MANAGER, "m"), NodeSource(SourceKind.MANAGER, "k")]
)
reported = st.builds(
    lambda node_id, others: make_reported_node(
        node_id,
        [other for other in others if normalize_address(other) is None],
        [other for other in others if normalize_address(other) is not None],
        {},
    ),
    hosts,
    st.lists(hosts, max_size=3),
)
reports = st.lists(
    st.tuples(sources, st.lists(reported, max_size=3, unique_by=lambda it: normalize_name(it.id))), max_size=4
)
Reports = list[tuple[NodeSource, list[ReportedNode]]]


def inventory_of(known: Reports) -> Inventory:
    inventory = Inventory()
    for source, nodes in known:
        inventory.stage_nodes(source, nodes)
        inventory.apply_staged()
    return inventory


def is_same(node_id: str, host: str, aliases: Aliases) -> bool:
    """By host_matching: the same name, or another name of the machine, or the first label of one that means only it."""
    if same_machine(node_id, host, aliases):
        return True
    label = normalize_name(host)
    further = [alias for alias in aliases(node_id) if short_name(alias) == (label, ".")]
    return any(alias in aliases(label) for alias in further)


@given(st.lists(hosts, max_size=4, unique=True), hosts, reports)
def test_a_host_is_covered_exactly_if_an_id_is_the_same_machine(ids: list[str], host: str, known: Reports) -> None:
    aliases = inventory_of(known).aliases
    table = DriverTable(map(node, ids), aliases)
    expected = any(is_same(node_id, host, aliases) for node_id in ids)
    assert bool(covering(table, host)) is expected


def test_the_first_label_of_a_further_name_is_a_key_if_it_means_only_this_machine() -> None:
    known = make_reported_node("10.0.0.7", ["w7.a"], [], {})
    other = make_reported_node("10.0.0.8", ["w7.b"], [], {})
    source = NodeSource(SourceKind.MANAGER, "m")
    table = DriverTable([node("10.0.0.7")], inventory_of([(source, [known])]).aliases)
    assert keys(table) == {"10.0.0.7", "w7.a", "w7"}
    table = DriverTable([node("10.0.0.7")], inventory_of([(source, [known, other])]).aliases)
    assert keys(table) == {"10.0.0.7", "w7.a"}


@given(st.lists(hosts, max_size=5, unique=True), reports, reports, st.randoms(use_true_random=False))
def test_a_table_that_is_updated_is_the_one_made_anew(
    ids: list[str], known: Reports, later: Reports, rng: random.Random
) -> None:
    inventory = inventory_of(known)
    table = DriverTable(map(node, ids), inventory.aliases, inventory.identifiers)
    for source, nodes in later:
        inventory.stage_nodes(source, nodes)
        while inventory.has_staged:
            before = table.text(1)
            changed = table.names_changed(inventory.apply_staged(1))
            assert table.text(1) == _anew(ids, inventory)
            assert changed or table.text(1) == before
    rng.shuffle(ids)
    for node_id in ids:
        table.discard(node_id)
    assert table.text(1) == "blocklist-table 1 1 0\n"


def _anew(ids: Iterable[str], inventory: Inventory) -> str:
    return DriverTable(map(node, ids), inventory.aliases).text(1)


@pytest.mark.parametrize("zone", ["a\tb\nc", "a b", "", "12345678901234567", "\N{GRINNING FACE}"])
def test_an_address_whose_zone_is_no_interface_is_refused(zone: str) -> None:
    """Otherwise one listener could break the lines of the table of all drivers."""
    with pytest.raises(InvalidError, match="is not an IP address"):
        make_reported_node("n1", (), [f"fe80::1%{zone}"])
