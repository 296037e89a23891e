"""The managers' plans: an applied plan leads to the state of the list, and the next plan is empty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.requests import ReportBody
from blocklist import PERMANENT, BlockAction, BlockedNode
from blocklist.managers import exec as exec_manager
from blocklist.managers import slurm
from blocklist.managers.command import CommandOutput
from blocklist.managers.exec import ExecState
from blocklist.managers.options import build_parser
from blocklist.managers.plan import (
    DesiredState,
    ManagerError,
    NodeNames,
    NotInForce,
    OtherNames,
    StepAction,
    absent,
    format_end,
)
from blocklist.managers.reconcile import registration_of
from blocklist.managers.slurm import SlurmManager, SlurmNode
from blocklist.model.listener import Mode, Report
from blocklist.model.reported_node import NodeFacts, make_label_value, make_reported_node, report_nodes
from blocklist.model.selector import check_label_value
from blocklist.wire.body import dump_json
from blocklist.wire.listeners import report_fields

BLOCK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
IDLE, DRAINED = frozenset({"IDLE"}), frozenset({"IDLE", "DRAIN"})


def node(node_id: str, action: BlockAction = BLOCK, end: int = PERMANENT, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=1, end=end, cause=cause)


def by_id(*nodes: BlockedNode) -> dict[str, BlockedNode]:
    return {node.id: node for node in nodes}


def slurm_plan(
    blocked: dict[str, BlockedNode],
    current: Iterable[SlurmNode],
    missing: Iterable[SlurmNode] = (),
    names: NodeNames | None = None,
) -> slurm.SlurmPlan:
    return slurm.make_plan(blocked, current, {node.name: node for node in missing}, names or NodeNames())


ids = st.sampled_from(["n1", "n2", "N3", "n4.example", "n5", "10.0.0.7"])
blocks = st.builds(
    node,
    ids,
    st.sampled_from(BlockAction),
    st.integers(1, PERMANENT),
    st.sampled_from(["disk", '"hot" [x@y]', "ä\\ b"]),
)
lists = st.lists(blocks, max_size=5).map(lambda nodes: by_id(*nodes))


def test_the_help_shows_the_interval_of_each_manager(capsys: pytest.CaptureFixture[str]) -> None:
    for manager, seconds in (("yarn", 5), ("slurm", 60), ("kubernetes", 60)):
        with pytest.raises(SystemExit):
            build_parser("blocklist manager", [manager]).parse_args([manager, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert f"while the list does not change (default: {seconds})" in shown


def test_a_manager_reports_its_cluster() -> None:
    for words, cluster in (
        (["slurm", "--id", "c1"], "slurm-c1"),
        (["slurm", "--id", "slurm-c1.example"], "slurm-c1.example"),
        (["slurm", "--id", "c1", "--cluster", "hpc"], "hpc"),
        (["slurm", "--id", "x" * 80], f"slurm-{'x' * 57}"),
    ):
        args = build_parser("blocklist manager", words).parse_args(words)
        assert registration_of(args, args.id).cluster == cluster
    with pytest.raises(SystemExit):
        build_parser("blocklist manager", ["slurm"]).parse_args(["slurm", "--cluster", "two words"])


def test_a_manager_may_be_started_to_observe_but_not_once() -> None:
    for words, mode in ((["slurm"], Mode.APPLY), (["slurm", "--observe"], Mode.OBSERVE)):
        assert registration_of(build_parser("blocklist manager", words).parse_args(words), "c1").mode is mode
    with pytest.raises(SystemExit):
        build_parser("blocklist manager", ["slurm"]).parse_args(["slurm", "--observe", "--once"])


def test_the_taint_may_have_the_prefix_that_the_cluster_autoscaler_leaves_out() -> None:
    words = ["kubernetes", "--taint", "status-taint.cluster-autoscaler.kubernetes.io/blocklist"]
    assert build_parser("blocklist manager", words).parse_args(words).taint == words[2]


@pytest.mark.parametrize(
    ("listed", "missing", "here"),
    [("ab", "", True), ("ab", "c", True), ("a", "b", True), ("ab", "cd", False), ("", "", False), ("", "a", False)],
)
def test_only_a_whole_inventory_tells_that_a_node_is_not_here(listed: str, missing: str, here: bool) -> None:
    found = absent("Slurm", ["n9"], listed, missing)
    assert ({*found.not_here}, {*found.pending}) == (({"n9"}, set()) if here else (set(), {"n9"}))


@pytest.mark.parametrize(
    ("others", "nodes", "ambiguous"),
    [
        (["i-7", "W7"], ["w7"], False),
        (["10.0.0.8"], ["w8"], False),
        (["10.0.0.7", "w7"], ["w7"], False),
        (["10.0.0.7"], [], True),
        (["w9"], [], True),
        (["w5"], [], False),
    ],
)
def test_an_id_that_no_node_has_means_the_node_of_another_name(
    others: list[str], nodes: list[str], ambiguous: bool
) -> None:
    shared = ["10.0.0.7"]
    names = NodeNames(
        [
            NodeFacts(id="w7", names=shared),
            NodeFacts(id="w8", names=[*shared, "10.0.0.8"]),
            NodeFacts(id="w9.a"),
            NodeFacts(id="w9.b"),
        ]
    )
    names.others = OtherNames(known={"rack1-u7": others, "w8": ["w7"]})
    assert names.meant_by("rack1-u7") == nodes
    assert (names.ambiguity("rack1-u7") is not None) is ambiguous
    assert names.meant_by("w8") == ["w8"], "a node with this very name"


class TestSlurm:
    def test_no_node_is_freed_after_a_start_until_the_names_of_the_list_are_known(self) -> None:
        current = [SlurmNode(name=it, states=DRAINED, reason=slurm.MARK) for it in ("w7", "w8")]
        blocked = by_id(node("rack1-u7"))
        names = NodeNames()
        names.others = OtherNames(known={}, since_start=blocked)
        plan = slurm_plan(blocked, current, names=names)
        assert (plan.undrain, plan.withheld, plan.unresolved) == ((), ["w7", "w8"], ["rack1-u7"])
        names.others = OtherNames(known={"rack1-u7": ["w7"]}, since_start=blocked)
        assert slurm_plan(blocked, current, names=names).undrain == ("w8",)
        names.others = OtherNames(known={})
        assert slurm_plan(blocked, current, names=names).undrain == ("w7", "w8"), "no former process had the block"

    def test_a_name_or_an_address_that_nodes_share_is_not_said_to_be_elsewhere(self) -> None:
        current = [SlurmNode(name=it, states=IDLE, names=["10.0.0.7", f"host-{it}"]) for it in ("n1", "n2")]
        plan = slurm_plan(by_id(node("10.0.0.7"), node("HOST-n2.a"), node("n3")), current)
        assert list(plan.drain) == ["n2"]
        assert "means 2 nodes: n1, n2" in plan.not_in_force.refused["10.0.0.7"]
        assert plan.not_in_force.not_here == {"n3"}

    states = st.sampled_from([IDLE, DRAINED, frozenset({"DOWN"}), frozenset({"ALLOCATED", "DRAIN"})])
    current = st.lists(
        st.builds(
            SlurmNode,
            name=st.sampled_from(["n1", "n2", "n3", "n4", "m1"]),
            states=states,
            reason=st.sampled_from(["", "broken PSU", "blocklist: without end, old", "Not responding"]),
            names=st.sampled_from([[], ["10.0.0.7"]]),
        ),
        unique_by=lambda node: node.name,
    )

    @given(lists, current)
    def test_an_applied_plan_matches_the_list_and_leaves_other_nodes_unchanged(
        self, blocked: dict[str, BlockedNode], current: list[SlurmNode]
    ) -> None:
        plan = slurm_plan(blocked, current)
        after = [self.applied(plan, node) for node in current]
        again = slurm_plan(blocked, after)
        assert again.steps == ()
        assert (again.drain, again.undrain, again.not_in_force) == ({}, (), plan.not_in_force)
        assert not slurm.not_done(plan, {it.name: it for it in after})
        for before, now in zip(current, after, strict=True):
            assert before == now or not before.out_of_service
        freed = slurm_plan({}, after)
        assert not any(node.drained_by_us and node.drained for node in (self.applied(freed, node) for node in after))

    @staticmethod
    def applied(plan: slurm.SlurmPlan, node: SlurmNode) -> SlurmNode:
        """What slurmctld does with the plan; tests/integration has the round trip with a real one."""
        if node.name in plan.drain:
            return replace(node, states=node.states | {"DRAIN"}, reason=plan.drain[node.name])
        if node.name in plan.undrain:
            down = node.name in plan.down
            return replace(
                node, states=node.states - {"DRAIN"}, reason="down since before its block ended" if down else ""
            )
        return node

    def test_a_block_that_slurm_cannot_carry_out_is_refused_with_a_reason(self) -> None:
        current = [
            SlurmNode(name="n1", states=DRAINED, reason="broken PSU"),
            SlurmNode(name="n2", states=frozenset({"DOWN"}), reason="Not responding"),
            SlurmNode(name="n3", states=IDLE),
        ]
        blocked = by_id(node("n1"), node("n2"), node("n3", EVACUATE), node("n4"))
        plan = slurm_plan(blocked, current)
        assert plan.not_in_force.refused == {
            "n1": "Node n1 is DRAIN+IDLE, not by this manager (broken PSU): left unchanged.",
            "n2": "Node n2 is DOWN, not by this manager (Not responding): left unchanged.",
        }
        assert plan.not_in_force.not_here == {"n4"}
        assert not plan.not_in_force.pending
        assert plan.drain == {"n3": "blocklist: evacuate, without end, disk"}
        assert plan.unschedulable == {
            "n1": "DRAIN+IDLE, not by this manager (broken PSU)",
            "n2": "DOWN, not by this manager (Not responding)",
        }

    def test_two_ids_of_one_node_are_merged_and_the_last_one_frees_it(self) -> None:
        current = [SlurmNode(name="n1", states=IDLE, names=["10.0.0.7"])]
        both = by_id(node("N1.example.com", end=2000, cause="disk"), node("10.0.0.7", end=3000, cause="heat"))
        first = slurm_plan(both, current)
        assert first.drain == {"n1": "blocklist: until 1970-01-01T00:00:03Z, heat,disk"}
        drained = [self.applied(first, current[0])]
        one = slurm_plan(by_id(both["N1.example.com"]), drained)
        assert one.drain == {"n1": "blocklist: until 1970-01-01T00:00:02Z, disk"}
        assert slurm_plan({}, drained).undrain == ("n1",)

    def test_a_node_that_went_down_while_it_was_blocked_stays_down(self) -> None:
        down = SlurmNode(name="n1", states=frozenset({"DOWN", "DRAIN"}), reason="blocklist: without end, disk")
        plan = slurm_plan({}, [down])
        assert (plan.undrain, plan.down) == (("n1",), frozenset({"n1"}))
        assert slurm_plan({}, [self.applied(plan, down)]).unschedulable == {
            "n1": "DOWN, not by this manager (down since before its block ended)"
        }

    @pytest.mark.parametrize(
        ("states", "cpus", "empty"),
        [
            ({"IDLE", "DRAIN"}, 0, True),
            ({"IDLE", "DRAIN"}, None, True),
            ({"IDLE", "DRAIN"}, 4, False),
            ({"ALLOCATED", "DRAIN"}, 4, False),
            ({"MIXED", "DRAIN"}, None, False),
            ({"IDLE", "COMPLETING", "DRAIN"}, 0, False),
            ({"DOWN", "DRAIN"}, 0, True),
            ({"DOWN", "DRAIN", "NOT_RESPONDING"}, 0, False),
            ({"QUANTUM", "DRAIN"}, 0, False),
        ],
    )
    def test_an_evacuation_is_pending_until_no_job_runs_there(
        self, states: set[str], cpus: int | None, empty: bool
    ) -> None:
        reason = "blocklist: evacuate, without end, disk"
        there = SlurmNode(name="n1", states=frozenset(states), reason=reason, cpus=cpus)
        plan = slurm_plan(by_id(node("n1", EVACUATE)), [there])
        assert not plan.not_in_force.refused
        assert (plan.not_in_force.pending == {}) is empty
        assert plan.containers == ({} if empty else {"n1": ("n1", None)})
        assert not slurm_plan(by_id(node("n1")), [there]).not_in_force, "a mark lets jobs finish"

    @pytest.mark.parametrize(
        "state", ["IDLE+DRAIN+POWERED_DOWN", "IDLE~+DRAIN", "DOWN+POWERING_DOWN", "IDLE+CLOUD+POWERED_DOWN"]
    )
    def test_a_node_that_saves_power_is_no_drift(self, state: str) -> None:
        nodes = slurm.parse_nodes(self.LINE.format(state=state, rest="") + "\n")
        assert slurm_plan({}, nodes).unschedulable == {}

    def test_a_node_that_slurm_does_not_list_any_more_stays_known_and_its_block_is_pending(self) -> None:
        n1, n2 = SlurmNode(name="n1", states=IDLE), SlurmNode(name="n2", states=IDLE)
        why = "Not known to be in force: Slurm does not list node n2 now, but did before."
        plan = slurm_plan(by_id(node("n1"), node("N2"), node("n3")), [n1], [n2])
        assert plan.not_in_force == NotInForce(not_here=frozenset({"n3"}), pending={"N2": why})
        assert list(plan.drain) == ["n1"]
        assert [each.id for each in plan.all_nodes or ()] == ["n1", "n2"]
        assert plan.unschedulable == {"n2": "not listed by Slurm now"}
        drained = replace(n2, states=DRAINED, reason="blocklist: without end, disk")
        freed = slurm_plan({}, [n1], [drained])
        assert freed.not_in_force.pending == {"n2": f"Not known to be free again. {why}"}

    def test_what_scontrol_has_done_counts_when_slurm_shows_it(self) -> None:
        plan = slurm_plan(by_id(node("N1")), [SlurmNode(name="n1", states=IDLE)])
        for after in ({}, {"n1": SlurmNode(name="n1", states=IDLE)}):
            assert list(slurm.not_done(plan, after).pending) == ["N1"]
        freed = slurm_plan({}, [SlurmNode(name="n1", states=DRAINED, reason="blocklist: x")])
        with pytest.raises(ManagerError, match="Node n1 is not freed"):
            slurm.not_done(freed, {"n1": SlurmNode(name="n1", states=DRAINED, reason="blocklist: x")})

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("true", "Slurm lists no nodes at all."),
            (
                "echo 'slurm_load_node error: Unable to contact slurm controller' >&2",
                "show nodes: slurm_load_node error",
            ),
            ("echo NodeName=n1 Port=1 State=IDLE; echo 'slurm error: timed out'", "show nodes: slurm error"),
            ("echo NodeName=n1 Port=1 State=IDLE; echo 'error: too slow' >&2", "show nodes: error: too slow"),
            ("printf 'NodeName=n1 Port=1 State=IDLE\\nNodeName=n2 Port=1 State=IDLE+DRAIN'", "ends within a line"),
            ("echo '<html>NodeName=n1</html>'", "Slurm lists no nodes at all."),
            ("sleep 60", "did not end within 0.5 s"),
        ],
    )
    def test_an_odd_answer_of_scontrol_says_nothing_about_nodes(self, tmp_path: Path, script: str, words: str) -> None:
        command = tmp_path / "scontrol"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        with pytest.raises(ManagerError) as raised:
            SlurmManager([str(command)], 0.5 if "sleep" in script else 60).plan(
                DesiredState(revision=1, nodes=by_id(node("n1")))
            )
        assert words in str(raised.value)
        assert raised.value.known is None

    LINE = (
        "NodeName=n1 Arch=x86_64 CoresPerSocket=1 NodeAddr=10.0.0.7 NodeHostName=h1 Port=17001 Version=22.05.8"
        " OS=Linux 6.1.0 #1 SMP  State={state} ThreadsPerCore=1 Owner=N/A ExtSensorsTemp=n/s{rest}"
    )

    @pytest.mark.parametrize(
        ("state", "rest", "states", "reason"),
        [
            ("IDLE", "", {"IDLE"}, ""),
            (
                "IDLE*+DRAIN",
                " Reason=gone (x) [root@2026-11-21T15:57:50]",
                {"IDLE", "NOT_RESPONDING", "DRAIN"},
                "gone (x)",
            ),
            ("DOWN*", " Reason=Not responding [slurm@Unknown]", {"DOWN", "NOT_RESPONDING"}, "Not responding"),
            ("MIXED+DRAIN", " Reason=no time", {"MIXED", "DRAIN"}, "no time"),
            ("IDLE", " Reason=a b [u@t] Comment=State=x Reason=y", {"IDLE"}, "a b"),
            ("IDLE+DRAIN", " Reason= State=DOWN Reason=b [u@t]", {"IDLE", "DRAIN"}, "State=DOWN Reason=b"),
        ],
    )
    def test_a_node_line_is_parsed(self, state: str, rest: str, states: set[str], reason: str) -> None:
        (found,) = slurm.parse_nodes(self.LINE.format(state=state, rest=rest) + "\n")
        assert (found.name, set(found.states), found.names) == ("n1", states, ["10.0.0.7", "h1"])
        assert found.reason.strip() == reason

    def test_the_names_partitions_and_features_of_a_node_are_reported(self) -> None:
        lines = """\
NodeName=n1 A=1 AvailableFeatures=nvme,gpu:a100 NodeAddr=10.0.0.1 NodeHostName=h1 State=IDLE Partitions=batch,debug \
Reason=x Partitions=none [u@t]
NodeName=n2 A=1 AvailableFeatures=(null) NodeAddr=n2.b NodeHostName=shared State=IDLE Partitions=batch
NodeName=n3 A=1 NodeAddr=127.0.0.1 NodeHostName=shared State=IDLE
"""
        plan = slurm_plan({}, slurm.parse_nodes(lines))
        features = {"feature.slurm/nvme": "", "feature.slurm/gpu_a100": ""}
        assert report_nodes(plan.all_nodes or ()) == [
            make_reported_node(
                "n1", ["h1"], ["10.0.0.1"], features | {"partition.slurm/batch": "", "partition.slurm/debug": ""}
            ),
            make_reported_node("n2", ["n2.b"], (), {"partition": "batch", "partition.slurm/batch": ""}),
            "n3",
        ]

    def test_a_malformed_node_line_is_an_error(self) -> None:
        assert slurm.parse_nodes("No nodes in the system\n") == []
        with pytest.raises(ManagerError, match="unexpected line: NodeName=n1 Condition=fine"):
            slurm.parse_nodes("NodeName=n1 Condition=fine\n")

    @given(blocks, st.text(max_size=1000))
    @example(node("n1"), " ")
    def test_a_reason_is_one_line_without_quotes_and_brackets(self, block: BlockedNode, text: str) -> None:
        printable = "".join(letter for letter in text if letter.isprintable())
        reason = slurm.drain_reason(replace(block, cause=printable or "x"))
        assert reason.startswith(slurm.MARK)
        assert reason == " ".join(reason.split())
        assert not {'"', "[", "]"} & set(reason)
        assert len(reason) < 300


class TestExec:
    @given(lists, lists)
    def test_an_applied_plan_matches_the_list(
        self, first: dict[str, BlockedNode], second: dict[str, BlockedNode]
    ) -> None:
        plan = exec_manager.make_plan(DesiredState(revision=2, nodes=second), ExecState(nodes=first))
        known = dict(first)
        for step in plan.steps:
            if step.action is StepAction.FREE:
                assert known.pop(step.name) == plan.nodes[step.name]
            else:
                known[step.name] = plan.nodes[step.name]
        assert known == second
        assert exec_manager.make_plan(DesiredState(revision=3, nodes=second), ExecState(nodes=known)).steps == ()

    def test_a_refusal_stays_until_the_block_changes_or_ends(self) -> None:
        done = ExecState(
            nodes=by_id(node("n1"), node("n2"), node("n3")),
            not_in_force=NotInForce(refused={"n1": "No.", "n2": "No.", "n3": "No."}),
        )
        plan = exec_manager.make_plan(DesiredState(revision=1, nodes=by_id(node("n1"), node("n2", EVACUATE))), done)
        assert plan.not_in_force == NotInForce(refused={"n1": "No."})

    def test_what_is_pending_or_not_here_is_tried_again(self) -> None:
        blocked = by_id(node("n1"), node("n2"), node("n3"))
        found = NotInForce(pending={"n1": "Jobs finish."}, not_here=frozenset({"n2"}))
        plan = exec_manager.make_plan(
            DesiredState(revision=1, nodes=blocked), ExecState(nodes=blocked, not_in_force=found)
        )
        assert ([step.name for step in plan.steps], plan.not_in_force) == (["n1", "n2"], NotInForce())

    @pytest.mark.parametrize(
        ("stdout", "found"),
        [
            ("", NotInForce()),
            ("done\n", NotInForce()),
            ('{"level": "info"}\n{"level": "info"}\n', NotInForce()),
            ('{"refused": {}}', NotInForce()),
            ('{"refused": {"N1": "No.", "n9": "No."}}', NotInForce(refused={"n1": "No."})),
            ('{"pending": {"n1": "Soon."}}', NotInForce(pending={"n1": "Soon."})),
            ('{"pending": {"n1": "Soon."}, "refused": {"n1": "No."}}', NotInForce(refused={"n1": "No."})),
            ('{"notHere": ["N1", "n9"]}', NotInForce(not_here=frozenset({"n1"}))),
            ('{"notHere": ["n1"], "pending": {"n1": "Soon."}}', NotInForce(pending={"n1": "Soon."})),
            ('{"notHere": {"n1": "No."}}', None),
            ('{"notHere": [1]}', None),
            ('{"refused": {"n1": "N', None),
            ('{"refused": {"n1": null}}', None),
            ('{"refused": null}', None),
            ('{"refused": ["n1"]}', None),
            ("{", None),
        ],
    )
    def test_what_a_command_refuses_is_read_or_an_error(self, stdout: str, found: NotInForce | None) -> None:
        output = CommandOutput(stdout=stdout, stderr="error: no such host", complete=True)
        if found is not None:
            assert exec_manager.parse_output(output, {"n1"}) == found
            return
        with pytest.raises(ManagerError, match="is not JSON such as"):
            exec_manager.parse_output(output, {"n1"})

    @given(lists, st.dictionaries(ids, st.text()))
    def test_the_state_file_round_trips(self, nodes: dict[str, BlockedNode], refused: dict[str, str]) -> None:
        printable = {name: why for name, why in refused.items() if why.isprintable()}
        pending = dict(list(printable.items())[:1])
        not_here = frozenset(list(printable)[1:2])
        done = ExecState(nodes=nodes, not_in_force=NotInForce(refused=printable, pending=pending, not_here=not_here))
        data = dump_json(exec_manager.state_body(done))
        assert exec_manager.parse_state(data, Path("done.json")) == done

    @pytest.mark.parametrize(
        "data", [b"{", b"[]", b"{}", b'{"blocked": [{}], "refused": {}}', b'{"blocked":[],"refused":[]}']
    )
    def test_a_malformed_state_file_is_an_error(self, data: bytes) -> None:
        with pytest.raises(ManagerError, match=r"done\.json is not a state file of the exec manager"):
            exec_manager.parse_state(data, Path("done.json"))

    def test_the_plan_is_passed_as_json(self) -> None:
        plan = exec_manager.make_plan(
            DesiredState(revision=7, nodes=by_id(node("n2", EVACUATE))), ExecState(nodes=by_id(node("n1")))
        )
        fields = {"startTimestamp": "1", "endTimestamp": str(PERMANENT), "cause": "disk"}
        two = {"id": "n2", "action": "MARK_BLOCKED_AND_EVACUATE_TASKS", **fields}
        one = {"id": "n1", "action": "MARK_BLOCKED", **fields}
        assert exec_manager.plan_body(plan) == {
            "revision": 7,
            "steps": [
                {"do": "evacuate", "id": "n2", "reason": "Node n2 is blocked without end (disk).", "node": two},
                {"do": "free", "id": "n1", "reason": "Node n1 is no longer blocked.", "node": one},
            ],
            "blocked": [two],
        }

    def test_the_command_reads_what_else_a_node_is_called_and_is_not_run_before(self, tmp_path: Path) -> None:
        state = tmp_path / "state"
        manager = exec_manager.ExecManager(["tee", str(tmp_path / "plan")], state, 60)
        desired = DesiredState(revision=7, nodes=by_id(node("rack1-u7")))
        unknown = OtherNames(known={}, since_start=desired.nodes)
        with pytest.raises(ManagerError, match=r"is not run yet: .* node rack1-u7"):
            manager.apply(manager.plan(replace(desired, others=unknown)))
        assert not state.exists()
        manager.apply(manager.plan(replace(desired, others=OtherNames(known={"rack1-u7": ["w7"]}))))
        assert '"id":"rack1-u7","names":["w7"]' in (tmp_path / "plan").read_text()
        assert exec_manager.parse_state(state.read_bytes(), state).nodes == desired.nodes


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (PERMANENT, "without end"),
        (1001, "until 1970-01-01T00:00:02Z"),
        (1000, "until 1970-01-01T00:00:01Z"),
        (-1500, "until 1969-12-31T23:59:59Z"),
        (PERMANENT - 1, f"until {PERMANENT - 1}"),
    ],
)
def test_an_end_is_formatted_in_utc_rounded_up_to_the_second(end: int, text: str) -> None:
    assert format_end(node("n1", end=end)) == text


class TestNodeFacts:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("/default-rack", "default-rack"),
            ("/dc1/rack-2", "dc1.rack-2"),
            ("rack 2 (old)", "rack_2_old"),
            ("/", ""),
            ("n\u00e9w", "n_w"),
        ],
    )
    def test_a_rack_becomes_a_valid_label(self, text: str, value: str) -> None:
        assert make_label_value(text) == value
        assert check_label_value(value) == value

    @given(
        st.lists(
            st.builds(
                NodeFacts,
                id=st.text(max_size=300),
                names=st.lists(st.one_of(st.text(max_size=300), st.sampled_from(["10.0.0.1", "a.b", "::1"]))),
                labels=st.lists(st.tuples(st.text(), st.text())),
            ),
            max_size=5,
        )
    )
    def test_whatever_a_manager_knows_the_report_is_valid(self, nodes: list[NodeFacts]) -> None:
        unique = {node.id: node for node in nodes}.values()
        body = report_fields(Report(nodes=report_nodes(unique)))
        assert ReportBody.parse(body).value().nodes == report_nodes(unique)

    def test_a_long_rack_has_no_label_as_two_of_them_might_become_one(self) -> None:
        [node] = report_nodes([NodeFacts(id="n1", labels=[("rack", "r" * 64), ("zone", "z1")])])
        assert node == make_reported_node("n1", labels={"zone": "z1"})
