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
    Register,
    Report,
    Scenario,
    Step,
    Told,
    Unblock,
    scenario,
)

JOB: Final = Register(party="jm")
MANAGER: Final = Register(party="rm", role=RM)
A: Final = {"a": Node()}
A_FREE: Final = {"a": "unblocked"}

SCENARIOS: Final[list[Scenario]] = [
    scenario(
        "registering on an empty list tells nothing",
        Step(JOB),
        Step(MANAGER),
    ),
    scenario(
        "registering on a list that became empty tells nothing",
        Step(Block(A)),
        Step(Unblock("a")),
        Step(JOB),
        Step(MANAGER),
    ),
    scenario(
        "a block is told to every listener",
        Step(JOB),
        Step(Register(party="jm-2")),
        Step(MANAGER),
        Step(Block(A), {party: Told(blocked=A) for party in ("jm", "jm-2", "rm")}),
    ),
    scenario(
        "one batch is one call",  # DefaultBlocklistHandlerTest, testRegisterBlocklistListener: at most once a batch
        Step(JOB),
        Step(MANAGER),
        Step(
            Block(batch := {"c": Node("x"), "a": Node("y", EVACUATE), "b": Node("z")}),
            {"jm": Told(blocked=batch), "rm": Told(blocked=batch)},
        ),
    ),
    scenario(
        "an identical block again is silent, and a third time too",  # DefaultBlocklistTrackerTest, do add twice
        Step(JOB),
        Step(Block(A), {"jm": Told(blocked=A)}),
        Step(Block(A, merge=True)),
        Step(Block(A, merge=True)),
    ),
    scenario(
        "a weaker block with a known cause is silent",
        Step(Block(strong := {"a": Node("x,y", EVACUATE)})),
        Step(JOB, {"jm": Told(blocked=strong, snapshot=True)}),
        Step(Block({"a": Node("y", brief=True)}, merge=True)),
    ),
    scenario(
        "of a batch only what changed is told",
        Step(JOB),
        Step(Block(A), {"jm": Told(blocked=A)}),
        Step(Block({"a": Node(), "b": Node()}, merge=True), {"jm": Told(blocked={"b": Node()})}),
    ),
    scenario(
        "a block that is refused tells nothing, not even of its free nodes",
        Step(JOB),
        Step(Block(A), {"jm": Told(blocked=A)}),
        Step(Block({"b": Node(), "a": Node("other")}, refused=True)),
    ),
    scenario(
        "a merge tells the merged record alone",  # DefaultBlocklistHandlerTest, testMergeBlockedNodes
        Step(JOB),
        Step(MANAGER),
        Step(Block({"a": Node("x")}), {party: Told(blocked={"a": Node("x")}) for party in ("jm", "rm")}),
        Step(
            Block({"a": Node("y", EVACUATE)}, merge=True),
            {party: Told(blocked={"a": Node("x,y", EVACUATE)}) for party in ("jm", "rm")},
        ),
    ),
    scenario(
        "a longer block tells the merged record",
        Step(JOB),
        Step(Block({"a": Node(brief=True)}), {"jm": Told(blocked={"a": Node(brief=True)})}),
        Step(Block(A, merge=True), {"jm": Told(blocked=A)}),
    ),
    scenario(
        "a late listener is told once, in merged form",
        Step(Block({"a": Node("x"), "b": Node()})),
        Step(Block({"a": Node("y", EVACUATE)}, merge=True)),
        Step(Unblock("b")),
        Step(Block({"c": Node("z")})),
        Step(JOB, {"jm": Told(blocked=(late := {"a": Node("x,y", EVACUATE), "c": Node("z")}), snapshot=True)}),
        Step(MANAGER, {"rm": Told(blocked=late, snapshot=True)}),
        Step(Unblock("c"), {party: Told(unblocked={"c": "unblocked"}) for party in ("jm", "rm")}),
    ),
    scenario(
        "freeing a node is told",
        Step(JOB),
        Step(Block(A), {"jm": Told(blocked=A)}),
        Step(Unblock("a"), {"jm": Told(unblocked=A_FREE)}),
        Step(Block(A), {"jm": Told(blocked=A)}),
    ),
    scenario(
        "an end that passes is told",  # unlike Flink, whose listeners keep the node
        Step(JOB),
        Step(MANAGER),
        Step(
            Block({"a": Node(brief=True), "b": Node()}),
            {party: Told(blocked={"a": Node(brief=True), "b": Node()}) for party in ("jm", "rm")},
        ),
        Step(Expire(), {party: Told(unblocked={"a": "expired"}) for party in ("jm", "rm")}),
        Step(Register(party="late"), {"late": Told(blocked={"b": Node()}, snapshot=True)}),
    ),
    scenario(
        "one that left hears no more",  # testDeregisterBlocklistListener
        Step(JOB),
        Step(Register(party="stays")),
        Step(Block(A), {party: Told(blocked=A) for party in ("jm", "stays")}),
        Step(Leave("jm")),
        Step(Block({"b": Node()}), {"stays": Told(blocked={"b": Node()})}),
        Step(Unblock("a"), {"stays": Told(unblocked=A_FREE)}),
    ),
    scenario(
        "one that comes back is told the whole list",
        Step(JOB),
        Step(Leave("jm")),
        Step(Block(A)),
        Step(Register(party="again", listener="jm"), {"again": Told(blocked=A, snapshot=True)}),
    ),
    scenario(
        "a new leader gets the earlier records, and the old one nothing more",
        Step(Register(party="old", role=RM, listener="rm")),
        Step(JOB),
        Step(Block(A), {party: Told(blocked=A) for party in ("old", "jm")}),
        Step(Register(party="new", role=RM, listener="rm"), {"new": Told(blocked=A, snapshot=True)}),
        Step(Block({"b": Node()}), {party: Told(blocked={"b": Node()}) for party in ("new", "jm")}),
        Step(Unblock("a"), {party: Told(unblocked=A_FREE) for party in ("new", "jm")}),
    ),
    scenario(
        "a TaskManager is blocked exactly when its node is",  # testIsBlockedTaskManager
        Step(JOB, blocked={"tm-1": None}),
        Step(Report("jm", {"tm-1": "a", "tm-2": "b"}), blocked={"tm-1": False, "tm-2": False, "tm-3": None}),
        Step(Block(A), {"jm": Told(blocked=A)}, {"tm-1": True, "tm-2": False}),
        Step(
            Block({"b": Node("x"), "c": Node()}),
            {"jm": Told(blocked={"b": Node("x"), "c": Node()})},
            {"tm-1": True, "tm-2": True},
        ),
        Step(Unblock("a"), {"jm": Told(unblocked=A_FREE)}, {"tm-1": False, "tm-2": True}),
        Step(
            Block({"a": Node(brief=True)}),
            {"jm": Told(blocked={"a": Node(brief=True)})},
            {"tm-1": True, "tm-2": True},
        ),
        Step(Expire(), {"jm": Told(unblocked={"a": "expired"})}, {"tm-1": False, "tm-2": True}),
        Step(Leave("jm"), blocked={"tm-1": None, "tm-2": None}),
    ),
]
