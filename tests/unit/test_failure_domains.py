"""Failure domains: how many nodes with the same label may be blocked, and what a refusal says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.changes import Author, Snapshot
from blocklist.model.claims import Role, author_claim
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.errors import LimitError
from blocklist.model.inventory import Inventory
from blocklist.model.limits import DomainLimit, LimitContext, Limits, check_limits, parse_domain_limits
from blocklist.model.names import ReportedMachines
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.unit.labelled_nodes import labelled_nodes

NOW: Final = 1000


def node(node_id: str, *, end: int = PERMANENT) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=500, end=end, cause="disk")


def refusals(
    limits: str, known: Inventory, blocked: Mapping[str, str | None], *new: str, ended: Collection[str] = ()
) -> list[str]:
    """The sentences with which blocking the new nodes is refused; `blocked` are blocked nodes with their authors."""
    nodes = {name: node(name, end=NOW if name in ended else PERMANENT) for name in blocked}
    claims = {name: author_claim(author, nodes[name]) for name, author in blocked.items()}
    snapshot = Snapshot(revision=7, history="00c0ffee", nodes=nodes, claims=claims)
    draft = Draft(BlocklistTracker(snapshot), NOW)
    proposed = draft.fork()
    for name in new:
        proposed.block(node(name), allow_merge=True)
    context = LimitContext(draft=draft, labelled=known, known=ReportedMachines(known, known.machine_of))
    try:
        check_limits(Limits(max_per_domain=parse_domain_limits(limits)), context, proposed, Role.OPERATOR)
    except LimitError as error:
        return list(error.lines)
    return []


RACKS: Final = labelled_nodes(
    {
        **{f"a{n}": {"rack": "r1", "zone": "a"} for n in range(6)},
        **{f"b{n}": {"rack": "r2", "zone": "a"} for n in range(6)},
        "c0.example.com": {"rack": "r1", "zone": "b"},
        "bare": {},
    }
)


def test_a_refusal_names_the_domain_the_limit_and_who_blocked_the_others() -> None:
    assert refusals("rack=2", RACKS, {"a0": "ada", "a1": "evidence", "b0": "ada"}, "a2") == [
        (
            "This would block 3 of the 7 nodes with rack=r1; at most 2 may be blocked at once"
            " (BLOCKLIST_MAX_BLOCKED_PER has rack=2): no more is possible. Blocked there: a0 by ada, a1 by evidence."
        )
    ]
    assert refusals("rack=2", RACKS, {"a0": None}, "a1", "a2", "b0") == [
        (
            "This would block 3 of the 7 nodes with rack=r1; at most 2 may be blocked at once"
            " (BLOCKLIST_MAX_BLOCKED_PER has rack=2): 1 more is possible. Blocked there: a0."
        )
    ]
    assert refusals("rack=2", RACKS, {}, "a0", "a1", "a2") == [
        (
            "This would block 3 of the 7 nodes with rack=r1; at most 2 may be blocked at once"
            " (BLOCKLIST_MAX_BLOCKED_PER has rack=2): 2 more are possible."
        )
    ]


def test_each_domain_that_is_exceeded_has_a_sentence() -> None:
    lines = refusals("rack=1,zone=1", RACKS, {"a0": "x", "b0": "x"}, "a1", "b1")
    assert [line.partition(";")[0] for line in lines] == [
        "This would block 2 of the 7 nodes with rack=r1",
        "This would block 2 of the 6 nodes with rack=r2",
        "This would block 4 of the 12 nodes with zone=a",
    ]


def test_a_node_without_the_label_and_an_unknown_node_are_in_no_domain() -> None:
    assert refusals("rack=1", RACKS, {"bare": "x", "elsewhere": "x"}, "gone", "a0") == []


def test_the_names_of_one_node_count_once() -> None:
    assert refusals("rack=1", RACKS, {"C0": "x"}, "c0.example.com") == []
    assert len(refusals("rack=1", RACKS, {"C0": "x"}, "a0")) == 1


def test_an_expired_block_does_not_count() -> None:
    assert refusals("rack=1", RACKS, {"a0": "x"}, "a1", ended=["a0"]) == []


def test_an_exceeded_domain_may_stay_but_not_grow() -> None:
    blocked = {"a0": "x", "a1": "x", "a2": "x"}
    assert refusals("rack=1", RACKS, blocked, "a0", "b0") == []
    assert len(refusals("rack=1", RACKS, blocked, "a3")) == 1


def test_at_most_twenty_blocked_nodes_are_named() -> None:
    known = labelled_nodes({f"n{number:02}": {"rack": "r1"} for number in range(30)})
    (line,) = refusals("rack=22", known, {f"n{number:02}": "x" for number in range(22)}, "n22")
    assert line.endswith("n19 by x and 2 more.")


@pytest.mark.parametrize(("members", "maximum"), [(1, 1), (9, 1), (10, 1), (19, 2), (20, 2), (100, 10), (0, 1)])
def test_percent_is_rounded_up(members: int, maximum: int) -> None:
    assert DomainLimit(key="zone", amount=10, percent=True).max_nodes(members) == maximum
    assert DomainLimit(key="zone", amount=2).max_nodes(members) == 2


def test_the_setting_is_a_list_of_labels_with_a_number_or_percent() -> None:
    assert parse_domain_limits(" rack = 2 , example.com/zone=10% ") == (
        DomainLimit(key="rack", amount=2),
        DomainLimit(key="example.com/zone", amount=10, percent=True),
    )
    assert parse_domain_limits("") == ()


@pytest.mark.parametrize(
    "text", ["rack", "rack=", "rack=0", "rack=0%", "rack=101%", "rack=-1", "rack=2,", "=2", "-r=2"]
)
def test_an_invalid_setting_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"give a label and a number|label key"):
        parse_domain_limits(text)


def test_a_label_is_given_once() -> None:
    with pytest.raises(ValueError, match="the label rack is given more than once"):
        parse_domain_limits("rack=1,zone=2,rack=10%")


NAMES: Final = [f"n{number}" for number in range(8)]


@given(
    st.fixed_dictionaries({name: st.dictionaries(st.just("rack"), st.sampled_from("ab")) for name in NAMES}),
    st.lists(st.sets(st.sampled_from(NAMES), min_size=1), max_size=6),
    st.sampled_from(["rack=1", "rack=2", "rack=50%"]),
)
def test_no_sequence_of_requests_exceeds_a_domain(
    labels: dict[str, dict[str, str]], requests: list[set[str]], limit: str
) -> None:
    known, (domain_limit,) = labelled_nodes(labels), parse_domain_limits(limit)
    draft = Draft(BlocklistTracker(Snapshot(revision=0, history="00c0ffee", nodes={})), NOW)
    for names in requests:
        fork = draft.fork()
        fork.author = Author("ada")
        for name in names:
            fork.block(node(name), allow_merge=True)
        context = LimitContext(draft=draft, labelled=known, known=ReportedMachines(known, known.machine_of))
        if passes(limit, context, fork):
            draft.adopt(fork)
        for value in "ab":
            blocked = [each.id for each in draft if labels[each.id].get("rack") == value]
            assert len(blocked) <= domain_limit.max_nodes(len(known.with_label("rack", value)))


def test_nodes_that_do_not_count_make_no_domain_larger() -> None:
    """As those that one job has invented, with the label of a rack."""
    invented = {f"x{n}": {"rack": "r1"} for n in range(90)}
    nodes = labelled_nodes({**{f"a{n}": {"rack": "r1"} for n in range(10)}, **invented})
    draft = Draft(BlocklistTracker(Snapshot(revision=0, history="00c0ffee", nodes={})), NOW)
    fork = draft.fork()
    for name in ("a0", "a1"):
        fork.block(node(name), allow_merge=True)
    for counted, allowed in ([f"a{n}" for n in range(10)], False), (list(nodes), True):
        assert (
            passes("rack=10%", LimitContext(draft=draft, labelled=nodes, known=ReportedMachines(counted)), fork)
            is allowed
        )


def passes(limit: str, context: LimitContext, proposed: Any) -> bool:
    try:
        check_limits(Limits(max_per_domain=parse_domain_limits(limit)), context, proposed, Role.OPERATOR)
    except LimitError:
        return False
    return True
