"""An address is one node in every spelling: all that enters is brought into one form by one function."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alertmanager import Alert, read_alert
from app.api.parameters import parse_by_node
from app.requests import HeartbeatBody
from blocklist.client.client import node_path
from blocklist.model.errors import InvalidError
from blocklist.model.evidence import FindingKind
from blocklist.model.names import normalize_address, same_machine
from blocklist.model.node import check_id, check_node_id, expand_nodes, is_node_id
from blocklist.model.reported_node import NodeFacts, ReportedNode, make_reported_node, report_nodes

ADDRESS = "2600:1f14::3"
SPELLINGS = [
    ADDRESS,
    "2600:1F14::3",
    "[2600:1F14::3]",
    "[2600:1f14::3]:7077",
    "2600:1f14:0:0:0:0:0:3",
    "2600:1F14:0000:0000:0000:0000:0000:0003",
    "2600:1f14::3%eth0",
    "[2600:1f14::3%2]:8042",
    "2600:1f14::0.0.0.3",
]
V4_SPELLINGS = ["10.1.2.3", "10.1.2.3:7077", "::ffff:10.1.2.3", "[::FFFF:a01:203]", "[::ffff:10.1.2.3]:80"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_of_an_address_is_one_node(spelling: str) -> None:
    assert check_node_id(spelling) == ADDRESS
    assert is_node_id(spelling)
    assert same_machine(spelling, ADDRESS)
    assert node_path(spelling) == f"/blocklist/nodes/{ADDRESS}"
    assert expand_nodes([spelling, ADDRESS]) == [ADDRESS]
    assert make_reported_node(spelling) == ReportedNode(id=ADDRESS)
    assert make_reported_node("n1", names=[spelling], addresses=[spelling]).addresses == (ADDRESS,)
    assert report_nodes([NodeFacts(id=spelling)]) == [ADDRESS]
    assert parse_by_node({spelling: 7}, lambda node_id, value: (node_id, value)) == {ADDRESS: (ADDRESS, 7)}


@pytest.mark.parametrize("spelling", V4_SPELLINGS)
def test_an_ipv4_address_mapped_into_ipv6_is_the_ipv4_address(spelling: str) -> None:
    assert check_node_id(spelling) == "10.1.2.3"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_field_of_a_heartbeat_takes_it(spelling: str) -> None:
    """One odd spelling must not cost the whole heartbeat."""
    body = HeartbeatBody.parse(
        {
            "sessionId": "s",
            "taskManagers": {"10.1.2.3:7077": spelling},
            "runningTasks": {"10.1.2.3:7077": 2},
            "refused": {spelling: "its last host"},
            "nodes": [spelling],
            "evidence": {spelling: {"kind": "excluded", "reason": "Spark excluded it."}},
            "schedulable": {spelling: "RUNNING"},
            "unschedulable": {spelling: "LOST"},
        }
    )
    report = body.value()
    assert report.task_managers == {"10.1.2.3:7077": ADDRESS}
    assert report.running_tasks == {"10.1.2.3:7077": 2}
    assert report.refused == {ADDRESS: "its last host"}
    assert report.nodes == [ADDRESS]
    assert report.evidence is not None
    assert report.evidence[ADDRESS].kind is FindingKind.EXCLUDED
    assert report.schedulable == {ADDRESS: "RUNNING"}
    assert report.unschedulable == {ADDRESS: "LOST"}
    described = HeartbeatBody.parse({"sessionId": "s", "nodes": [{"id": spelling, "labels": {"rack": "r1"}}]}).value()
    assert described.nodes == [ReportedNode(id=ADDRESS, labels={"rack": "r1"})]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_alert_takes_it(spelling: str) -> None:
    labels = {"blocklist": "mark", "alertname": "Disk", "node": spelling}
    alert = {"status": "firing", "labels": labels, "annotations": {}, "startsAt": "2026-11-21T18:00:00Z"}
    read = read_alert(alert | {"fingerprint": "00c0ffee00c0ffee"}, "node")
    assert isinstance(read, Alert), read
    assert read.node == ADDRESS


def test_two_spellings_in_one_request_are_given_twice() -> None:
    with pytest.raises(InvalidError, match="2600:1f14::3 is given twice"):
        parse_by_node({ADDRESS: 1, "[2600:1F14::3]": 2}, lambda _, value: value)


@pytest.mark.parametrize(
    "text", ["n1", "N1", "n1.example.com", "n1:7077", "010.1.2.3", "1", "1.2.3", "10.1.2.3.4", "a::b::c"]
)
def test_a_name_is_kept_as_it_is_given(text: str) -> None:
    assert check_node_id(text) == text
    assert normalize_address(text) is None


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a b", "[n1]", "[]", "[::1", "::1]", "[::1]:x", "[::1]:123456", "::1%\n", "n1%eth0", "é"]
)
def test_anything_else_is_no_node(text: str) -> None:
    assert not is_node_id(text)
    with pytest.raises(InvalidError):
        check_node_id(text)


def test_the_ids_of_listeners_and_task_managers_are_kept_as_they_are() -> None:
    assert check_id("10.1.2.3:7077") == "10.1.2.3:7077"
    with pytest.raises(InvalidError):
        check_id("[2600:1f14::3]")


@given(st.ip_addresses(), st.sampled_from(["", ":7077"]))
def test_the_form_of_a_form_is_itself(address: object, port: str) -> None:
    form = check_node_id(f"[{address}]{port}" if ":" in str(address) else f"{address}{port}")
    assert check_node_id(form) == form
