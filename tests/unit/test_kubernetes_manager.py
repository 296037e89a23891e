"""The plan of the Kubernetes manager: an applied plan leads to the list, and touches nothing of others."""

from __future__ import annotations

import copy
import json
import ssl
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist import PERMANENT, BlockAction, BlockedNode, BlocklistClient
from blocklist.managers.kubernetes import nodes as nodes_module
from blocklist.managers.kubernetes.api_server import ApiServer, Json
from blocklist.managers.kubernetes.cluster_access import ClusterAccess
from blocklist.managers.kubernetes.cordon_mirror import CordonMirror
from blocklist.managers.kubernetes.eviction import budget_reason, not_evacuated, pods_to_evict
from blocklist.managers.kubernetes.manager import KubernetesManager, event_body
from blocklist.managers.kubernetes.nodes import KubernetesNode, NodeCache, parse_node
from blocklist.managers.kubernetes.plan import (
    BlockMark,
    Condition,
    DriftPolicy,
    KubernetesPlan,
    OwnTaint,
    assess,
    author_of,
    is_tainted,
    make_plan,
)
from blocklist.managers.plan import (
    NO_OTHER_NAMES,
    DesiredState,
    ManagerError,
    NodeNames,
    NotDone,
    OtherNames,
    StepAction,
)
from blocklist.model.claims import Claim, author_claim
from blocklist.model.node import Backoff
from blocklist.model.reported_node import NodeFacts
from tests.integration.process import wait_until

KEY = "blocklist/blocked"
OURS = OwnTaint(key=KEY, value="kubernetes")
MARK = BlockMark(until="without end", action="mark", cause="disk")
OWN = {"key": KEY, "value": "kubernetes", "effect": "NoSchedule"}
FOREIGN = {"key": KEY, "value": "other", "effect": "NoSchedule"}
OTHERS: Sequence[Json] = (
    {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
    {"key": KEY, "value": "kubernetes", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-11-25T04:00:00Z"},
)


def node_body(name: str, taints: Sequence[Json] = (), annotations: Mapping[str, str] | None = None) -> Json:
    meta: Json = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    if annotations is not None:
        meta["annotations"] = dict(annotations)
    spec: Json = {"taints": [dict(taint) for taint in taints]} if taints else {}
    return {
        "metadata": meta,
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": []},
    }


def patched(body: Json, operations: Sequence[Mapping[str, Any]]) -> Json | None:
    """The object after a JSON patch, as RFC 6902 has it; None if a test fails."""
    result = copy.deepcopy(body)
    for operation in operations:
        *path, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        parent: Any = result
        for part in path:
            parent = parent[int(part) if isinstance(parent, list) else part]
        key: Any = last if isinstance(parent, dict) or last == "-" else int(last)
        match operation["op"]:
            case "test":
                present = parent.get(key) if isinstance(parent, dict) else parent[key]
                if present != operation["value"]:
                    return None
            case "remove":
                del parent[key]
            case "add" if key == "-":
                parent.append(operation["value"])
            case _:
                parent[key] = operation["value"]
    return result


def parsed(body: Json) -> KubernetesNode:
    return parse_node(body, KEY)


def block(node_id: str, action: BlockAction = BlockAction.MARK_BLOCKED, cause: str = "disk") -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=1, end=PERMANENT, cause=cause)


def plan_of(bodies: Sequence[Json], *blocks: BlockedNode, **options: Any) -> KubernetesPlan:
    nodes = {node.name: node for node in map(parsed, bodies)}
    names = NodeNames()
    names.update(node.facts for node in nodes.values())
    names.others = options.pop("others", NO_OTHER_NAMES)
    desired = DesiredState(revision=1, nodes={each.id: each for each in blocks}, claims=options.pop("claims", {}))
    defaults: Json = {"on_drift": DriftPolicy.RESTORE, "tainted": (), "missing": {}, "machines": {}}
    return make_plan(desired, nodes, names, OURS, **defaults | options)


taint_lists = st.lists(
    st.sampled_from([*OTHERS, OWN, FOREIGN]), max_size=4, unique_by=lambda t: (t["key"], t["effect"])
)
annotation_maps = st.none() | st.sampled_from([{"a": "b"}, {KEY: MARK.text(OURS)}, {KEY: "not JSON"}, {KEY: "[1]"}])


class TestPatch:
    @given(taint_lists, annotation_maps, st.sampled_from([MARK, None]))
    def test_it_leads_to_what_is_wanted_and_keeps_what_others_wrote(
        self, taints: list[Json], annotations: Mapping[str, str] | None, wanted: BlockMark | None
    ) -> None:
        body = node_body("n1", taints, annotations)
        found = assess(parsed(body), wanted, OURS)
        if found.condition is Condition.FOREIGN:
            assert FOREIGN in taints
            assert found.patch == ()
            return
        after = patched(body, found.patch)
        assert after is not None
        assert is_tainted(parsed(after), OURS) is (wanted is not None)
        assert assess(parsed(after), wanted, OURS).condition is Condition.AS_WANTED
        replaced = [OWN] if found.condition is not Condition.DRIFTED else [OWN, FOREIGN]
        assert [t for t in after["spec"].get("taints", []) if t != OWN] == [t for t in taints if t not in replaced]
        kept = {key: value for key, value in (annotations or {}).items() if key != KEY}
        assert {k: v for k, v in after["metadata"].get("annotations", {}).items() if k != KEY} == kept

    @given(taint_lists, taint_lists, annotation_maps, st.sampled_from([MARK, None]))
    def test_on_a_list_that_has_changed_it_fails_or_touches_only_its_own(
        self,
        seen: list[Json],
        present: list[Json],
        annotations: Mapping[str, str] | None,
        wanted: BlockMark | None,
    ) -> None:
        found = assess(parsed(node_body("n1", seen, annotations)), wanted, OURS)
        try:
            after = patched(node_body("n1", present, annotations), found.patch)
        except (IndexError, KeyError):
            return  # The API server refuses a path that does not exist.
        if after is not None:
            others = [taint for taint in present if taint not in (OWN, FOREIGN)]
            assert [t for t in after["spec"].get("taints", []) if t not in (OWN, FOREIGN)] == others

    def test_it_is_for_one_life_of_the_node(self) -> None:
        patch = assess(parsed(node_body("n1")), MARK, OURS).patch
        again = node_body("n1") | {"metadata": {"name": "n1", "uid": "another"}}
        assert patched(again, patch) is None

    def test_who_blocked_it_is_kept_while_it_is_unknown(self) -> None:
        by_anna = BlockMark(until="without end", action="mark", cause="disk", by="anna")
        body = node_body("n1", [OWN], {KEY: by_anna.text(OURS)})
        assert assess(parsed(body), MARK, OURS).condition is Condition.AS_WANTED
        by_ben = BlockMark(until="without end", action="mark", cause="disk", by="ben")
        assert assess(parsed(body), by_ben, OURS).condition is Condition.OUTDATED
        without = node_body("n1", [OWN], {KEY: MARK.text(OURS)})
        assert assess(parsed(without), by_anna, OURS).condition is Condition.OUTDATED


class TestPlan:
    def test_each_step_has_a_reason(self) -> None:
        bodies = [node_body("n1"), node_body("n2"), node_body("n3", [OWN]), node_body("n4")]
        evacuate = block("n2", BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
        plan = plan_of(bodies, block("n1"), evacuate, block("n9"), claims={"n1": author_claim("anna", block("n1"))})
        assert [(step.action, step.reason) for step in plan.steps] == [
            (StepAction.BLOCK, "Node n1 is blocked without end by anna (disk): it gets no new pods."),
            (StepAction.EVACUATE, "Node n2 is blocked without end (disk): it gets no new pods."),
            (StepAction.FREE, "Node n3 is no longer blocked."),
        ]
        assert (dict(plan.not_in_force.refused), {*plan.not_in_force.not_here}) == ({}, {"n9"})
        assert plan.evacuated == {"n2": ("n2",)}

    def test_several_ids_of_one_node_are_one_block(self) -> None:
        body = node_body("n1.example")
        body["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.7"}]
        plan = plan_of([body], block("N1", cause="disk"), block("10.0.0.7", cause="hot"))
        (change,) = plan.changes
        assert change.ids == ("10.0.0.7", "N1")
        assert change.wanted is not None
        assert change.wanted.cause == "hot,disk"

    def test_a_short_name_means_all_nodes_with_it(self) -> None:
        plan = plan_of([node_body("n1.a"), node_body("n1.b")], block("n1"))
        assert [change.node.name for change in plan.changes] == ["n1.a", "n1.b"]

    def test_no_node_is_freed_after_a_start_until_the_names_of_the_list_are_known(self) -> None:
        bodies = [node_body(name, [OWN]) for name in ("w7", "w8")]
        listed = block("rack1-u7")
        unknown = plan_of(bodies, listed, others=OtherNames(known={}, since_start=["rack1-u7"]))
        assert (unknown.changes, unknown.withheld, unknown.unresolved) == ((), ["w7", "w8"], ["rack1-u7"])
        known = plan_of(bodies, listed, others=OtherNames(known={"rack1-u7": ["w7"]}, since_start=["rack1-u7"]))
        assert [(change.node.name, change.ids) for change in known.changes] == [("w7", ("rack1-u7",)), ("w8", ())]

    def test_another_managers_taint_is_left_alone(self) -> None:
        plan = plan_of([node_body("n1", [FOREIGN])], block("n1"))
        assert plan.changes == ()
        assert "with the value 'other', which is not this manager's" in plan.not_in_force.refused["n1"]
        assert plan_of([node_body("n1", [FOREIGN])]).changes == ()

    @pytest.mark.parametrize("known_by", ["annotation", "memory"])
    def test_a_taint_that_was_removed_is_drift(self, known_by: str) -> None:
        annotations = {KEY: MARK.text(OURS)} if known_by == "annotation" else {}
        options: Json = {"tainted": {"uid-n1"}} if known_by == "memory" else {}
        body = node_body("n1", [OTHERS[0]], annotations)
        body["metadata"]["managedFields"] = [
            {"manager": "kubectl-create", "time": "2026-11-25T03:00:00Z", "fieldsV1": {"f:spec": {"f:taints": {}}}},
            {"manager": "kubectl-taint", "time": "2026-11-25T04:00:00Z", "fieldsV1": {"f:spec": {"f:taints": {}}}},
        ]
        restored = plan_of([body], block("n1"), **options)
        why = f"The taint {OURS} of node n1 was removed by kubectl-taint at 2026-11-25T04:00:00Z."
        assert restored.drifted == {"n1": why}
        assert len(restored.changes) == 1
        reported = plan_of([body], block("n1"), on_drift=DriftPolicy.REPORT, **options)
        # Without the annotation, a manager that starts again would take the node for one that never had the taint.
        written = [operation["path"] for change in reported.changes for operation in change.assessment.patch]
        assert not any("taints" in path for path in written)
        assert bool(written) is (known_by == "memory")
        assert reported.schedulable == {"n1": why}
        assert reported.not_in_force.refused == {"n1": f"{why} It is left so (--on-drift report)."}

    def test_a_node_registered_again_is_not_drift(self) -> None:
        plan = plan_of([node_body("n1")], block("n1"), tainted={"uid-of-its-former-life"})
        assert plan.drifted == {}
        assert len(plan.changes) == 1

    @pytest.mark.parametrize("wanted", [None, MARK])
    def test_what_was_left_under_another_key_is_removed(self, wanted: BlockMark | None) -> None:
        """--taint was changed; what another manager has left under its key stays."""
        former, others = OwnTaint(key="old/key", value="kubernetes"), OwnTaint(key="their/key", value="other")
        taints = [OTHERS[0], {"key": "old/key", "value": "kubernetes", "effect": "NoSchedule"}, OWN]
        taints += [{"key": "their/key", "value": "other", "effect": "NoSchedule"}]
        annotations = {"old/key": MARK.text(former), "their/key": MARK.text(others), "x": "y", KEY: MARK.text(OURS)}
        body = node_body("n1", taints, annotations)
        for _ in range(3):
            after = patched(body, assess(parsed(body), wanted, OURS).patch)
            assert after is not None
            body = after
        assert assess(parsed(body), wanted, OURS).condition is Condition.AS_WANTED
        ours = [KEY] if wanted else []
        assert [taint["key"] for taint in body["spec"]["taints"]] == ["dedicated", *ours, "their/key"]
        assert body["metadata"]["annotations"].keys() == {"x", "their/key", *ours}

    def machine(self, provider: str, created: str, annotations: Mapping[str, str] | None = None) -> Json:
        body = node_body("n1", annotations=annotations)
        body["metadata"]["creationTimestamp"] = created
        body["spec"]["providerID"] = provider
        return body

    def test_another_machine_under_the_name_of_a_blocked_one_is_reported(self) -> None:
        start = 1795579200000  # 2026-11-25T04:00:00Z
        blocked = replace(block("n1"), start=start)
        first = plan_of([self.machine("aws:///a/i-1", "2026-11-25T03:00:00Z")], blocked)
        assert (first.replaced, first.machines) == ({}, {"n1": "aws:///a/i-1"})
        again = self.machine("aws:///a/i-1", "2026-11-25T05:00:00Z")
        assert plan_of([again], blocked, machines=first.machines).replaced == {}, "the same one registered again"
        other = self.machine("aws:///a/i-2", "2026-11-25T05:00:00Z")
        sentence = "Another machine has this name since 2026-11-25T05:00:00Z: aws:///a/i-2, before aws:///a/i-1."
        plan = plan_of([other], blocked, machines=first.machines)
        assert (plan.replaced, plan.new_machines) == ({"n1": sentence}, {"n1": start + 3_600_000})
        (change,) = plan.changes
        assert change.wanted is not None
        # After a restart of the manager the annotation tells which machine it was.
        marked = self.machine("aws:///a/i-2", "2026-11-25T05:00:00Z", {KEY: change.wanted.text(OURS)})
        assert plan_of([marked], blocked).replaced == {"n1": sentence}
        unknown = plan_of([other], blocked)
        assert unknown.replaced is not None
        assert "Registered again since 2026-11-25T05:00:00Z" in unknown.replaced["n1"]
        assert unknown.new_machines == {}, "it may be the same one"
        late = replace(blocked, start=start + 2 * 3600_000)
        assert plan_of([marked], late).replaced == {}, "it is this machine that was blocked"

    def test_what_gets_no_work_for_other_reasons_is_reported(self) -> None:
        cordoned, lost, new = node_body("n1"), node_body("n2"), node_body("n3")
        cordoned["spec"]["unschedulable"] = True
        lost["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
        new["status"] = {}
        assert plan_of([cordoned, lost, new, node_body("n4", OTHERS)]).unschedulable == {
            "n1": "cordoned by an unknown client",
            "n2": "not ready: NodeStatusUnknown",
            "n3": "not ready: the kubelet has not reported yet",
        }

    def test_the_authors_of_claims_are_named_once(self) -> None:
        claims = tuple(
            Claim(owner=owner, author=author, block=block("n1"))
            for owner, author in (("anna", "anna"), ("kernel", "anna"), ("evidence", None))
        )
        assert author_of(claims) == "anna, evidence"
        assert author_of(author_claim(None, block("n1"))) is None


def test_a_node_is_described_by_its_names_and_labels() -> None:
    body = node_body("ip-10-0-0-7.eu-1.compute.internal")
    body["spec"]["providerID"] = "aws:///eu-1a/i-0abc"
    body["metadata"]["labels"] = {
        "kubernetes.io/hostname": "ip-10-0-0-7",
        "topology.kubernetes.io/zone": "eu-1a",
        "node.kubernetes.io/instance-type": "m5.xlarge",
        "eks.amazonaws.com/nodegroup": "spark",
    }
    body["status"] |= {
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "ExternalIP", "address": "203.0.113.7"}],
        "allocatable": {"cpu": "3920m", "memory": "15Gi", "pods": "58"},
    }
    assert parsed(body).facts == NodeFacts(
        id="ip-10-0-0-7.eu-1.compute.internal",
        names=("10.0.0.7", "203.0.113.7", "ip-10-0-0-7", "i-0abc"),
        labels=(
            ("zone", "eu-1a"),
            ("instance-type", "m5.xlarge"),
            ("pool", "spark"),
            ("allocatable-cpu", "3920m"),
            ("allocatable-memory", "15Gi"),
            ("provider-id", "aws_...eu-1a.i-0abc"),
        ),
    )


def test_of_several_requests_to_reconcile_again_the_earliest_counts() -> None:
    asked = threading.Event()
    source = cast("NodeCache", types.SimpleNamespace(put=None))
    manager = KubernetesManager(cast("ApiServer", None), source, OURS, request=asked.set)
    for seconds in (3600, 0, 3600):
        manager._request_in(seconds)
    assert asked.wait(60)
    manager.close()


class TestPods:
    def pod(self, name: str, phase: str = "Running", **meta: object) -> Json:
        return {"metadata": {"namespace": "x", "name": name, "uid": name, **meta}, "status": {"phase": phase}}

    def test_only_what_would_run_elsewhere_is_evicted(self) -> None:
        controlled = {"kind": "DaemonSet", "controller": True}
        pods = [
            self.pod("web"),
            self.pod("ending", deletionTimestamp="2026-11-25T04:00:00Z"),
            self.pod("daemon", ownerReferences=[controlled]),
            self.pod("mirror", annotations={"kubernetes.io/config.mirror": "x"}),
            self.pod("done", phase="Succeeded"),
            self.pod("executor", labels={"spark-role": "executor"}),
            self.pod("flink", labels={"type": "flink-native-kubernetes", "component": "taskmanager"}),
        ]
        assert [(pod.name, pod.ending) for pod in pods_to_evict(pods)] == [("web", False), ("ending", True)]

    def test_a_driver_remains_and_is_named(self) -> None:
        pods = [
            self.pod("driver", labels={"spark-role": "driver"}),
            self.pod("job", labels={"type": "flink-native-kubernetes", "component": "jobmanager"}),
        ]
        assert [pod.stays for pod in pods_to_evict(pods)] == [
            "a Spark driver, which leaves when its application ends",
            "a Flink JobManager, which leaves when its cluster ends",
        ]

    def test_who_remains_and_why_is_one_sentence(self) -> None:
        assert not_evacuated("n1", {}) is None
        assert not_evacuated("n1", {"x/web": NotDone("a budget")}) == NotDone(
            "Node n1 gets no new pods; 1 pod remains: x/web (a budget)."
        )
        many = not_evacuated("n1", {f"x/p{n}": NotDone("it is ending") for n in range(7)})
        assert many is not None
        assert many.why.endswith(" and 2 more.")
        driver = NotDone("a Spark driver", for_good=True)
        mixed = not_evacuated("n1", {"x/a": driver, "x/b": NotDone("it is ending")})
        assert mixed == NotDone("Node n1 gets no new pods; 2 pods remain: x/b (it is ending), x/a (a Spark driver).")
        assert mixed is not None
        assert mixed.for_ids(["N1"]).pending.keys() == {"N1"}
        stuck = not_evacuated("n1", {"x/a": driver})
        assert stuck is not None
        assert stuck.for_ids(["N1"]).refused.keys() == {"N1"}

    def test_a_budgets_reason_is_taken_from_the_response(self) -> None:
        body = {"message": "Cannot evict pod.", "details": {"causes": [{"message": "The budget web needs 2 pods."}]}}
        assert budget_reason(body) == "The budget web needs 2 pods"
        assert budget_reason({"message": "Too many requests."}) == "Too many requests"
        assert budget_reason({})


Answer = tuple[int, object]


class ScriptedApi:
    """An API server that gives its `lists` one after the other, the last one again and again; watches end at once.

    A text is sent as it is. `changes` are what the watches have, in the same way.
    """

    def __init__(self, *lists: Answer, changes: Sequence[object] = ()) -> None:
        self.lists, self.changes = list(lists), list(changes)
        self.lists_asked = self.watches_asked = 0
        access = ClusterAccess(url="http://api", tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self.api = ApiServer(access)
        client = httpx.Client(transport=httpx.MockTransport(self._answer), base_url="http://api")
        self.api._clients.http = self.api._clients.watch_http = client

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if "watch" in request.url.params:
            self.watches_asked += 1
            status, body = 200, self.changes.pop(0) if self.changes else ""
        else:
            self.lists_asked += 1
            status, body = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return httpx.Response(status, content=body if isinstance(body, str) else json.dumps(body))


@contextmanager
def caching(api: ScriptedApi) -> Iterator[NodeCache]:
    cache = NodeCache(api.api, KEY, lambda: None)
    cache.start()
    try:
        yield cache
    finally:
        cache.close()
        api.api.close()


def nodes_list(*names: str, **meta: object) -> Answer:
    return 200, {"metadata": {"resourceVersion": "7", **meta}, "items": [node_body(name) for name in names]}


GONE = {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
DELETED = {"type": "DELETED", "object": node_body("n2")}


class TestOddAnswers:
    """What the API server does not say is not known."""

    @pytest.mark.parametrize(
        "answer",
        [
            (200, {"metadata": {"resourceVersion": "7"}, "items": None}),
            (200, {}),
            (200, []),
            (200, "null"),
            (200, "<html>maintenance</html>"),
            (200, '{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name"'),
            (200, {"metadata": {"resourceVersion": "7"}, "items": [None]}),
            (
                200,
                {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "n1", "uid": None}, "spec": 7}]},
            ),
            (200, {"metadata": None, "items": [node_body("n1")]}),
            (200, {"metadata": {}, "items": [node_body("n1")]}),
            nodes_list("n1", remainingItemCount=500),
            (403, {"message": "nodes is forbidden"}),
            (503, "busy"),
        ],
    )
    def test_an_odd_list_is_an_outage_and_what_was_known_stays(
        self, answer: Answer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(nodes_module, "_BACKOFF", Backoff(initial=0.01, cap=0.02, floor=0.01))
        monkeypatch.setattr(nodes_module, "_MIN_WATCH_SECONDS", 0.01)
        api = ScriptedApi(nodes_list("n1", "n2"), answer, changes=[json.dumps(GONE) + "\n"])
        with caching(api) as cache:
            wait_until(lambda: api.lists_asked > 2)
            assert cache.nodes().keys() == {"n1", "n2"}
            assert cache.outage() is not None
        first = ScriptedApi(answer)
        with caching(first) as cache:
            wait_until(lambda: first.lists_asked > 1)
            with pytest.raises(ManagerError, match="The nodes cannot be read"):
                cache.nodes()

    @pytest.mark.parametrize(
        "change", ["7", "[]", '{"type": "ADDED"}', '{"type": "NEWS", "object": {}}', "<html>", "{"]
    )
    def test_an_odd_change_is_followed_by_a_list(self, change: str) -> None:
        api = ScriptedApi(nodes_list("n1"), nodes_list("n1", "n2"), changes=[change + "\n"] * 20)
        with caching(api) as cache:
            wait_until(lambda: api.watches_asked > 1)
            wait_until(lambda: cache.nodes().keys() >= {"n1"})

    def test_watches_that_end_at_once_are_asked_for_at_a_pace(self) -> None:
        for changes in ([], [json.dumps(GONE) + "\n"] * 100):
            api = ScriptedApi(nodes_list("n1"), changes=changes)
            with caching(api):
                wait_until(lambda api=api: api.watches_asked > 1)  # type: ignore[misc]
                time.sleep(1.2)
                assert api.watches_asked < 8

    def test_a_list_without_any_node_says_nothing_about_those_that_were_there(self) -> None:
        api = ScriptedApi(nodes_list("n1"), nodes_list(), changes=[json.dumps(GONE) + "\n"])
        with caching(api) as cache:
            wait_until(lambda: api.lists_asked > 1 and not cache.nodes())
            manager = KubernetesManager(api.api, cache, OURS)
            plan = manager.plan(DesiredState(revision=1, nodes={it: block(it) for it in ("n1", "n3")}))
            manager.close()
        assert plan.not_in_force.refused == {}
        assert plan.not_in_force.pending.keys() == {"n1", "n3"}
        assert [node.id for node in plan.all_nodes or ()] == ["n1"]

    def test_what_is_not_listed_now_is_neither_free_nor_uncordoned(self) -> None:
        tainted = node_body("n1", [OWN])
        tainted["spec"]["unschedulable"] = True
        lists = ((200, {"metadata": {"resourceVersion": "7"}, "items": [tainted]}), nodes_list("n2"))
        api = ScriptedApi(*lists, changes=[json.dumps(GONE) + "\n"])
        made = [MadeClaim(node="n1", cause="Cordoned in a by an unknown client")]
        client = cast("BlocklistClient", types.SimpleNamespace(all_claims=lambda **_: made))
        with caching(api) as cache:
            wait_until(lambda: api.lists_asked > 1 and cache.nodes().keys() == {"n2"})
            mirror = CordonMirror(client, "a")
            manager = KubernetesManager(api.api, cache, OURS, cordons=mirror, plans_cordons=True)
            plan = manager.plan(DesiredState(revision=2))
            manager.close()
        assert plan.not_in_force.pending["n1"].startswith("Not known to be free again.")
        assert plan.steps == (), "its claim stays"

    def test_a_list_that_takes_long_is_an_outage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nodes_module, "_MAX_LIST_SECONDS", 0.2)
        api = ScriptedApi(nodes_list("n1"), changes=[json.dumps(GONE) + "\n"])
        answered, answer = threading.Event(), api._answer

        def hang(request: httpx.Request) -> httpx.Response:
            if api.lists_asked and "watch" not in request.url.params:
                answered.wait(60)
            return answer(request)

        api.api._clients.http = httpx.Client(transport=httpx.MockTransport(hang), base_url="http://api")
        with caching(api) as cache:
            wait_until(lambda: "has not finished its list" in (cache.outage() or (0, ""))[1])
            answered.set()
            wait_until(lambda: cache.outage() is None)

    @pytest.mark.parametrize("deleted", [False, True])
    def test_a_node_that_the_next_list_has_not_stays_known_unless_its_end_was_reported(self, deleted: bool) -> None:
        news = [DELETED] if deleted else []
        lines = "".join(json.dumps(change) + "\n" for change in [*news, GONE])
        api = ScriptedApi(nodes_list("n1", "n2"), nodes_list("n1"), changes=[lines])
        asked: list[str] = []
        with caching(api) as cache:
            wait_until(lambda: api.lists_asked > 1 and cache.nodes().keys() == {"n1"})
            manager = KubernetesManager(api.api, cache, OURS, request=lambda: asked.append("again"))
            plan = manager.plan(DesiredState(revision=1, nodes={it: block(it) for it in ("n1", "N2", "n3")}))
            manager.close()
        assert not plan.not_in_force.refused
        assert plan.not_in_force.not_here == ({"N2", "n3"} if deleted else {"n3"})
        assert plan.not_in_force.pending.keys() == (set() if deleted else {"N2"})
        assert [node.id for node in plan.all_nodes or ()] == (["n1"] if deleted else ["n1", "n2"])
        assert plan.unschedulable == ({} if deleted else {"n2": "not listed by Kubernetes now"})
        assert [change.node.name for change in plan.changes] == ["n1"]


class TestCordons:
    def cache(self) -> NodeCache:
        cache = NodeCache(cast("ApiServer", None), KEY, lambda: None)
        cache._nodes = {}
        return cache

    def seen(self, version: int, *, cordoned: bool = True, uid: str = "uid-n1") -> KubernetesNode:
        body = node_body("n1")
        body["metadata"] |= {"resourceVersion": str(version), "uid": uid}
        body["spec"]["unschedulable"] = cordoned
        return parsed(body)

    def test_a_cordon_goes_on_until_the_node_is_uncordoned_or_registers_again(self) -> None:
        cache = self.cache()
        cordons = []
        for node in (self.seen(5), self.seen(6), self.seen(7, cordoned=False), self.seen(8), self.seen(9, uid="x")):
            cache.put(node)
            cordons.append(cache.nodes()["n1"].cordon if node.cordoned else None)
        assert cordons == [("uid-n1", 5), ("uid-n1", 5), None, ("uid-n1", 8), ("x", 9)]

    def test_an_uncordon_is_seen_although_a_newer_version_is_known(self) -> None:
        """The answer to a patch may come before the watch tells what was changed before it."""
        cache = self.cache()
        cache.put(self.seen(5))
        cache.put(self.seen(9))
        before = cache.nodes()["n1"].cordon
        cache.put(self.seen(7, cordoned=False))
        cache.put(self.seen(8))
        after = cache.nodes()["n1"]
        assert after.cordon != before
        assert after.version == 9

    def test_the_time_of_a_cordon_is_the_end_of_its_second(self) -> None:
        body = node_body("n1")
        body["spec"]["unschedulable"] = True
        body["metadata"]["managedFields"] = [
            {"manager": "kubectl", "time": "2026-11-25T04:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
        ]
        assert parsed(body).cordoned_at == 1795579200999
        assert parsed(node_body("n1")).cordoned_at is None

    def test_claims_of_another_cluster_are_left_alone(self) -> None:
        """Not even of one whose id begins like this one's, or that has nodes of the same names."""
        causes = {"n1": "Cordoned in a-2 by kubectl", "n2": "Cordoned in a-2 by kubectl", "n3": "Cordoned in a by x"}
        made = [MadeClaim(node=node, cause=cause) for node, cause in causes.items()]
        client = cast("BlocklistClient", types.SimpleNamespace(all_claims=lambda **_: made))
        nodes = {name: parsed(node_body(name)) for name in ("n1", "n3")}
        plan = CordonMirror(client, "a").plan(nodes, lambda _: ())
        assert (dict(plan.claim), plan.remove) == ({}, ("n3",))


@dataclass
class MadeClaim:
    node: str
    cause: str


def test_an_event_is_about_the_node() -> None:
    body = event_body(parsed(node_body("n1")), "Blocked", "x" * 3000, datetime(2026, 11, 25, tzinfo=UTC), warning=False)
    assert body["involvedObject"]["uid"] == "uid-n1"
    assert len(body["message"]) <= 1024
    assert json.dumps(body)
