"""Which nodes new executors keep off, by name, and how their pods say so."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.names import normalize_address
from blocklist.model.node import PERMANENT
from tests.length import longer
from tests.spark_agent.decisions import Decisions, JavaPlacement, Tree, render, render_blocks
from tests.spark_agent.test_plan import block

NOW = 10_000
MAX_NAMES = 1000
Node = tuple[str, Iterable[str], bool]


def place(
    decisions: Decisions,
    blocks: Iterable[tuple[str, int, str, str]],
    nodes: Iterable[Node] = (),
    *,
    giving_way: int = 0,
    max_names: int = MAX_NAMES,
    now: int = NOW,
) -> JavaPlacement:
    """The placement for these blocks, the weakest first; each has the keys that the service gives it."""
    assert decisions.read_table(render_blocks(blocks)) is None
    return decisions.placement(nodes, giving_way, max_names, now)


def test_nodes_are_excluded_by_the_names_of_their_blocks_whether_or_not_they_are_known(decisions: Decisions) -> None:
    made = place(decisions, [block("Worker-17"), block("worker-18.eu.example")])
    assert made.names == {
        "worker-17": {"Worker-17"},
        "worker-18": {"worker-18.eu.example"},
        "worker-18.eu.example": {"worker-18.eu.example"},
    }
    assert made.refused == {}


def test_a_known_node_is_excluded_by_its_own_name_whatever_it_is_blocked_by(decisions: Decisions) -> None:
    node = ("worker-17", ["192.168.0.17", "10.244.1.5", "worker-17"], False)
    for node_id in ("192.168.0.17", "10.244.1.5"):
        assert place(decisions, [block(node_id)], [node]).names["worker-17"] == {node_id}
    full = ("worker-17.eu.example", ["worker-17.eu.example"], False)
    assert set(place(decisions, [block("worker-17")], [full]).names) == {"worker-17", "worker-17.eu.example"}


def test_an_address_is_a_name_only_if_somebody_says_so(decisions: Decisions) -> None:
    keys = {"worker-17": (PERMANENT, "mark", "worker-17", ""), "192.168.0.17": (PERMANENT, "mark", "worker-17", "")}
    assert decisions.read_table(render(keys)) is None
    assert set(decisions.placement([], 0, MAX_NAMES, NOW).names) == {"worker-17"}
    by_address = [("192.168.0.99", ["192.168.0.99"], False)]
    assert set(decisions.placement(by_address, 0, MAX_NAMES, NOW).names) == {"worker-17", "192.168.0.17"}
    assert set(place(decisions, [block("192.168.0.17")]).names) == {"192.168.0.17"}
    assert place(decisions, [block("fe80::1")]).names == {}


def test_a_node_with_a_canary_block_takes_no_new_executors(decisions: Decisions) -> None:
    """It is the first to give way: before a mark, whatever the order in the table."""
    blocks = [block("a"), block("b", "canary"), block("c", "evacuate")]
    left = [set(place(decisions, blocks, giving_way=count).names) for count in (0, 1, 2)]
    assert left == [{"a", "b", "c"}, {"a", "c"}, {"c"}]


def test_a_blocked_node_that_stays_open_for_tasks_takes_new_executors(decisions: Decisions) -> None:
    blocks = [block("worker-17"), block("worker-18")]
    nodes = [("worker-17", ["worker-17"], True), ("worker-18", ["worker-18"], False)]
    assert set(place(decisions, blocks, nodes).names) == {"worker-18"}


def test_an_ended_block_excludes_nothing(decisions: Decisions) -> None:
    blocks = [block("worker-17", end=NOW), block("worker-18", end=NOW + 500), block("worker-19")]
    made = place(decisions, blocks)
    assert (set(made.names), made.valid_until) == ({"worker-18", "worker-19"}, NOW + 500)


def test_blocks_give_way_those_of_known_nodes_first_then_the_weakest(decisions: Decisions) -> None:
    blocks = [block("a"), block("b"), block("c", "evacuate"), block("d", "evacuate")]
    nodes = [("d", ["d"], False)]
    left = [set(place(decisions, blocks, nodes, giving_way=count).names) for count in (0, 1, 2, 3, 7)]
    assert left == [{"a", "b", "c", "d"}, {"a", "b", "c"}, {"b", "c"}, {"c"}, set()]
    made = place(decisions, blocks, nodes, giving_way=1)
    assert made.refused == {
        "d": "New executors may start there: no other node has taken one for 30 s, and no executor"
        " runs on an open node."
    }


def test_too_many_names_are_refused_the_weakest(decisions: Decisions) -> None:
    made = place(decisions, [block(f"n{i}") for i in range(5)], max_names=3)
    assert set(made.names) == {"n2", "n3", "n4"}
    assert set(made.refused) == {"n0", "n1"}
    assert made.refused["n0"].endswith("a pod can keep off no more than 3 names of nodes.")


DNS = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
IDS = ["n1", "N2", "n3.eu.example", "10.0.0.1", "10.0.0.2", "n_4", "x" * 70, "n1-", "::1"]


@settings(max_examples=longer(300))
@given(
    st.lists(
        st.builds(
            block,
            st.sampled_from(IDS),
            st.sampled_from(["mark", "evacuate"]),
            st.sampled_from([NOW - 1, NOW, NOW + 1, PERMANENT]),
        ),
        max_size=8,
        unique_by=lambda each: each[0].lower(),
    ),
    st.lists(
        st.tuples(
            st.sampled_from(["n1", "n2", "n3.eu.example", "n5"]),
            st.frozensets(st.sampled_from(["10.0.0.1", "10.0.0.2", "n1", "n2"]), max_size=2),
            st.booleans(),
        ),
        max_size=4,
        unique_by=lambda node: node[0],
    ),
    st.integers(0, 4),
    st.integers(1, 6),
)
def test_what_is_excluded_is_blocked_valid_and_not_open(
    decisions: Decisions,
    blocks: list[tuple[str, int, str, str]],
    nodes: list[tuple[str, frozenset[str], bool]],
    giving_way: int,
    max_names: int,
) -> None:
    given_nodes = [(name, {name, *names}, left_open) for name, names, left_open in nodes]
    made = place(decisions, blocks, given_nodes, giving_way=giving_way, max_names=max_names)
    current = {node_id for node_id, end, _, _ in blocks if end > NOW}
    assert len(made.names) <= max_names
    assert all(DNS.fullmatch(name) for name in made.names)
    assert {node_id for ids in made.names.values() for node_id in ids} | set(made.refused) <= current
    assert not {name for name, _, left_open in nodes if left_open} & set(made.names)
    if giving_way == 0 and max_names == 6 and not any(left_open for _, _, left_open in nodes):
        plain = {
            node_id for node_id in current if DNS.fullmatch(node_id.lower()) and normalize_address(node_id) is None
        }
        assert plain <= {node_id for ids in made.names.values() for node_id in ids} | set(made.refused)


def test_blocks_give_way_while_no_executor_is_open_and_pods_wait(decisions: Decisions) -> None:
    waiting = [(False, True, now) for now in range(0, 130_000, 10_000)]
    assert decisions.guard(waiting) == [0, 0, 0, 1, 1, 1, 1, 3, 3, 3, 3, 7, 7]
    assert decisions.guard([(True, True, now) for now in range(0, 90_000, 10_000)]) == [0] * 9
    assert decisions.guard([(False, now != 20_000, now) for now in range(0, 60_000, 10_000)]) == [0, 0, 0, 0, 0, 0]
    assert decisions.guard([*waiting[:4], (True, False, 40_000), (False, True, 50_000)]) == [0, 0, 0, 1, 0, 0]


def pod(*terms: Tree) -> dict[str, Tree]:
    required: Tree = {"nodeSelectorTerms": list(terms)}
    node: Tree = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return {"kind": "Pod", "spec": {"priority": "high", "affinity": {"nodeAffinity": node, "podAffinity": {"a": "b"}}}}


def terms_of(tree: Tree) -> list[Tree]:
    assert isinstance(tree, dict)
    for name in ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        tree = tree[name]
        assert isinstance(tree, dict)
    terms = tree["nodeSelectorTerms"]
    assert isinstance(terms, list)
    return terms


def condition(key: str, operator: str, *values: str) -> Tree:
    return {"key": key, "operator": operator, "values": list(values)}


def label(key: str, operator: str, *values: str) -> Tree:
    return {"matchExpressions": [condition(key, operator, *values)]}


OURS = {
    "matchExpressions": [condition("kubernetes.io/hostname", "NotIn", "n1", "n2")],
    "matchFields": [condition("metadata.name", "NotIn", "n1"), condition("metadata.name", "NotIn", "n2")],
}


@pytest.mark.parametrize("empty", [{"kind": "Pod"}, {"spec": {}}, {"spec": {"affinity": {}}}, pod()], ids=str)
def test_a_pod_without_conditions_gets_one_term(decisions: Decisions, empty: Tree) -> None:
    after, excluded, terms = decisions.exclude(empty, ["n1", "n2"])
    assert (terms_of(after), excluded, terms) == ([OURS], {"n1", "n2"}, 1)


def test_each_alternative_excludes_the_nodes_and_the_rest_stays(decisions: Decisions) -> None:
    fast, big = label("disk", "In", "ssd"), label("size", "Exists")
    after, excluded, terms = decisions.exclude(pod(fast, big), ["n1", "n2"])
    assert (excluded, terms) == ({"n1", "n2"}, 2)
    first, second = terms_of(after)
    ours = OURS["matchExpressions"]
    assert first == {**OURS, "matchExpressions": [condition("disk", "In", "ssd"), *ours]}
    assert second == {**OURS, "matchExpressions": [condition("size", "Exists"), *ours]}
    assert isinstance(after, dict)
    spec = after["spec"]
    assert isinstance(spec, dict)
    assert spec["priority"] == "high"
    assert isinstance(spec["affinity"], dict)
    assert spec["affinity"]["podAffinity"] == {"a": "b"}


def test_an_empty_alternative_selects_no_node_and_stays_so(decisions: Decisions) -> None:
    after, excluded, _ = decisions.exclude(pod({}, label("disk", "In", "ssd")), ["n1"])
    assert terms_of(after)[0] == {}
    assert excluded == {"n1"}
    after, excluded, _ = decisions.exclude(pod({}), ["n1"])
    assert (terms_of(after), excluded) == ([{}], None)


def test_what_one_alternative_alone_excludes_is_not_excluded(decisions: Decisions) -> None:
    both = pod(label("kubernetes.io/hostname", "NotIn", "n1", "n2"), label("kubernetes.io/hostname", "NotIn", "n2"))
    assert decisions.exclude(both, [])[1] == {"n2"}
    other = pod(label("kubernetes.io/hostname", "In", "n1"), label("zone", "NotIn", "n1"))
    assert decisions.exclude(other, [])[1] == set()


def test_a_name_that_is_too_long_for_a_label_is_excluded_as_a_name_alone(decisions: Decisions) -> None:
    long = "n" * 64
    after, excluded, _ = decisions.exclude({}, [long])
    assert terms_of(after) == [{"matchFields": [condition("metadata.name", "NotIn", long)]}]
    assert excluded == {long}


CONDITIONS = st.builds(
    condition,
    st.sampled_from(["kubernetes.io/hostname", "disk"]),
    st.sampled_from(["In", "NotIn", "Exists"]),
    st.sampled_from(["n1", "n2", "ssd"]),
)
TERMS = st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(CONDITIONS, max_size=2)})


def selects(term: Tree, name: str, labels: dict[str, str]) -> bool:
    """As Kubernetes' scheduler."""
    assert isinstance(term, dict)
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    assert isinstance(expressions, list)
    assert isinstance(fields, list)
    facts = [(each, labels) for each in expressions] + [(each, {"metadata.name": name}) for each in fields]
    return bool(facts) and all(_holds(each, values) for each, values in facts)


def _holds(each: Tree, values: dict[str, str]) -> bool:
    assert isinstance(each, dict)
    value = values.get(str(each["key"]))
    match each["operator"]:
        case "In":
            return value in each["values"]
        case "NotIn":
            return value not in each["values"]
        case _:
            return value is not None


@settings(max_examples=longer(300))
@given(st.lists(TERMS, max_size=3), st.frozensets(st.sampled_from(["n1", "n2", "n3"]), max_size=3))
def test_a_node_is_selected_as_before_unless_it_is_excluded(
    decisions: Decisions, terms: list[Tree], names: frozenset[str]
) -> None:
    """`terms`: without any, a pod selects all nodes."""
    after, excluded, _ = decisions.exclude(pod(*terms), sorted(names))
    if not terms and not names:
        return
    for name in ("n1", "n2", "n3"):
        for disk in ("ssd", "n1"):
            for hostname in (name, "n3"):
                labels = {"kubernetes.io/hostname": hostname, "disk": disk}
                before = not terms or any(selects(term, name, labels) for term in terms)
                blocked = name in names or hostname in names
                assert any(selects(term, name, labels) for term in terms_of(after)) == (before and not blocked)
    assert excluded is None or excluded >= names
