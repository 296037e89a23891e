"""The scenarios. Where a test of Flink has the same rule, it is named."""

from __future__ import annotations

from typing import Final

from tests.conformance.scenario import (
    EVACUATE,
    RM,
    Block,
    Expire,
    Leave,
    Node,
    Notification,
    Register,
    Report,
    Scenario,
    Step,
    Unblock,
    scenario,
)

JOB: Final = Register(party="jm")
MANAGER: Final = Register(party="rm", role=RM)
A: Final = {"a": Node()}
A_FREE: Final = {"a": "unblocked"}

SCENARIOS: Final[list[Scenario]] = [
    scenario(
        "registering on an empty list notifies nobody",
        Step(JOB),
        Step(MANAGER),
    ),
    scenario(
        "registering on a list that became empty notifies nobody",
        Step(Block(A)),
        Step(Unblock("a")),
        Step(JOB),
        Step(MANAGER),
    ),
    scenario(
        "a block notifies every listener",
        Step(JOB),
        Step(Register(party="jm-2")),
        Step(MANAGER),
        Step(Block(A), {party: Notification(blocked=A) for party in ("jm", "jm-2", "rm")}),
    ),
    scenario(
        "one batch is one notification",  # DefaultBlocklistHandlerTest, testRegisterBlocklistListener
        Step(JOB),
        Step(MANAGER),
        Step(
            Block(batch := {"c": Node("x"), "a": Node("y", EVACUATE), "b": Node("z")}),
            {"jm": Notification(blocked=batch), "rm": Notification(blocked=batch)},
        ),
    ),
    scenario(
        "a repeated identical block notifies nobody",  # DefaultBlocklistTrackerTest, do add twice
        Step(JOB),
        Step(Block(A), {"jm": Notification(blocked=A)}),
        Step(Block(A, merge=True)),
        Step(Block(A, merge=True)),
    ),
    scenario(
        "a weaker block with an existing cause notifies nobody",
        Step(Block(strong := {"a": Node("x,y", EVACUATE)})),
        Step(JOB, {"jm": Notification(blocked=strong, snapshot=True)}),
        Step(Block({"a": Node("y", brief=True)}, merge=True)),
    ),
    scenario(
        "of a batch only the changes are notified",
        Step(JOB),
        Step(Block(A), {"jm": Notification(blocked=A)}),
        Step(Block({"a": Node(), "b": Node()}, merge=True), {"jm": Notification(blocked={"b": Node()})}),
    ),
    scenario(
        "a refused block notifies nobody",
        Step(JOB),
        Step(Block(A), {"jm": Notification(blocked=A)}),
        Step(Block({"b": Node(), "a": Node("other")}, refused=True)),
    ),
    scenario(
        "a merge notifies of the merged block only",  # DefaultBlocklistHandlerTest, testMergeBlockedNodes
        Step(JOB),
        Step(MANAGER),
        Step(Block({"a": Node("x")}), {party: Notification(blocked={"a": Node("x")}) for party in ("jm", "rm")}),
        Step(
            Block({"a": Node("y", EVACUATE)}, merge=True),
            {party: Notification(blocked={"a": Node("x,y", EVACUATE)}) for party in ("jm", "rm")},
        ),
    ),
    scenario(
        "a longer block notifies of the merged block",
        Step(JOB),
        Step(Block({"a": Node(brief=True)}), {"jm": Notification(blocked={"a": Node(brief=True)})}),
        Step(Block(A, merge=True), {"jm": Notification(blocked=A)}),
    ),
    scenario(
        "a late listener gets one snapshot of merged blocks",
        Step(Block({"a": Node("x"), "b": Node()})),
        Step(Block({"a": Node("y", EVACUATE)}, merge=True)),
        Step(Unblock("b")),
        Step(Block({"c": Node("z")})),
        Step(JOB, {"jm": Notification(blocked=(late := {"a": Node("x,y", EVACUATE), "c": Node("z")}), snapshot=True)}),
        Step(MANAGER, {"rm": Notification(blocked=late, snapshot=True)}),
        Step(Unblock("c"), {party: Notification(unblocked={"c": "unblocked"}) for party in ("jm", "rm")}),
    ),
    scenario(
        "unblocking a node notifies every listener",
        Step(JOB),
        Step(Block(A), {"jm": Notification(blocked=A)}),
        Step(Unblock("a"), {"jm": Notification(unblocked=A_FREE)}),
        Step(Block(A), {"jm": Notification(blocked=A)}),
    ),
    scenario(
        "an expired block notifies every listener",  # unlike Flink, whose listeners keep the node
        Step(JOB),
        Step(MANAGER),
        Step(
            Block({"a": Node(brief=True), "b": Node()}),
            {party: Notification(blocked={"a": Node(brief=True), "b": Node()}) for party in ("jm", "rm")},
        ),
        Step(Expire(), {party: Notification(unblocked={"a": "expired"}) for party in ("jm", "rm")}),
        Step(Register(party="late"), {"late": Notification(blocked={"b": Node()}, snapshot=True)}),
    ),
    scenario(
        "a deregistered listener is no longer notified",  # testDeregisterBlocklistListener
        Step(JOB),
        Step(Register(party="stays")),
        Step(Block(A), {party: Notification(blocked=A) for party in ("jm", "stays")}),
        Step(Leave("jm")),
        Step(Block({"b": Node()}), {"stays": Notification(blocked={"b": Node()})}),
        Step(Unblock("a"), {"stays": Notification(unblocked=A_FREE)}),
    ),
    scenario(
        "a listener that registers again gets the whole list",
        Step(JOB),
        Step(Leave("jm")),
        Step(Block(A)),
        Step(Register(party="again", listener="jm"), {"again": Notification(blocked=A, snapshot=True)}),
    ),
    scenario(
        "a new session gets the whole list, and the old one nothing more",
        Step(Register(party="old", role=RM, listener="rm")),
        Step(JOB),
        Step(Block(A), {party: Notification(blocked=A) for party in ("old", "jm")}),
        Step(Register(party="new", role=RM, listener="rm"), {"new": Notification(blocked=A, snapshot=True)}),
        Step(Block({"b": Node()}), {party: Notification(blocked={"b": Node()}) for party in ("new", "jm")}),
        Step(Unblock("a"), {party: Notification(unblocked=A_FREE) for party in ("new", "jm")}),
    ),
    scenario(
        "a TaskManager is blocked exactly when its node is",  # testIsBlockedTaskManager
        Step(JOB, blocked={"tm-1": None}),
        Step(Report("jm", {"tm-1": "a", "tm-2": "b"}), blocked={"tm-1": False, "tm-2": False, "tm-3": None}),
        Step(Block(A), {"jm": Notification(blocked=A)}, {"tm-1": True, "tm-2": False}),
        Step(
            Block({"b": Node("x"), "c": Node()}),
            {"jm": Notification(blocked={"b": Node("x"), "c": Node()})},
            {"tm-1": True, "tm-2": True},
        ),
        Step(Unblock("a"), {"jm": Notification(unblocked=A_FREE)}, {"tm-1": False, "tm-2": True}),
        Step(
            Block({"a": Node(brief=True)}),
            {"jm": Notification(blocked={"a": Node(brief=True)})},
            {"tm-1": True, "tm-2": True},
        ),
        Step(Expire(), {"jm": Notification(unblocked={"a": "expired"})}, {"tm-1": False, "tm-2": True}),
        Step(Leave("jm"), blocked={"tm-1": None, "tm-2": None}),
    ),
]
